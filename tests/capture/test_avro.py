"""Captures as Avro: Debezium's schemas in a registry, records that Confluent's and our own readers read."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.capture.test_debezium import FOLDER, WITHOUT_EXTENSIONS
from tests.effort import QUICK

import penstock as ps
from penstock.capture import Capture, schemas, snapshot
from penstock.capture.connect import Member, envelope
from penstock.capture.databases.postgres.snapshots import chunks, initial
from penstock.capture.unread import Losses
from penstock.client import Client, Reader
from penstock.errors import SetupError, UserError
from penstock.formats.connect.avro import encoder

ENUMS = ("c_enum", "c_enum_arr", "en", "st")
"""Debezium's schemas list the values of enums; ours don't, so that a new one is no new version."""
LEFT_OUT = {"c_gen", "c_citext", "c_hstore", "c_ltree"}
"""Generated columns, and those of extensions that the server of the tests doesn't have."""


def asked(url: str, body: Any = None, method: str | None = None) -> Any:
    """A registry's answer."""
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers, method=method)) as answer:
        return json.load(answer)


def versions(registry: str, subject: str) -> list[Any]:
    """The schemas of a subject, in their order."""
    numbers = asked(f"{registry}/subjects/{subject}/versions")
    return [
        json.loads(asked(f"{registry}/subjects/{subject}/versions/{n}")["schema"]) for n in numbers
    ]


def raw(source: Any, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """A topic's committed records as they are."""
    with Client(source.log) as client, Reader(source.log) as reader:
        if topic not in client.topics():
            return []
        return [
            pair
            for partition, end in client.offsets(topic).items()
            for records in reader.read(topic, partition, 0, end)
            for pair in zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
        ]


def read(source: Any, registry: str, topic: str) -> list[tuple[Any, Any]]:
    """A topic's records, by Confluent's deserializer as it is."""
    with SchemaRegistryClient({"url": registry}) as client:
        deserialize = AvroDeserializer(client)
        return [
            (
                deserialize(key, SerializationContext(topic, MessageField.KEY)),
                deserialize(value, SerializationContext(topic, MessageField.VALUE)),
            )
            for key, value in raw(source, topic)
        ]


def as_json(value: Any, schema: Any) -> Any:
    """A value as the same capture writes it in JSON."""
    match schema:
        case list():
            [other] = [one for one in schema if one != "null"]
            return None if value is None else as_json(value, other)
        case {"type": "record"}:
            fields = {one["name"]: one["type"] for one in schema["fields"]}
            return {name: as_json(one, fields[name]) for name, one in value.items()}
        case {"type": "array"}:
            return [as_json(one, schema["items"]) for one in value]
    if isinstance(value, Decimal):
        number = int(f"{value:.{schema['scale']}f}".replace(".", ""))
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        value = number.to_bytes(size, "big", signed=True)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def avro_of(connect: dict[str, Any]) -> Any:
    """A schema of Connect as Confluent's AvroData writes it."""
    kind, name = connect["type"], connect.get("name")
    avro: dict[str, Any] = {}
    if kind == "struct":
        space, _, own = (name or "").rpartition(".")
        avro = {"type": "record", "name": own, "namespace": space}
        avro["fields"] = []
        for one in connect["fields"]:
            type_ = avro_of(one)
            default = {"default": one["default"]} if "default" in one else {}
            if one["optional"]:
                type_ = [type_, "null"] if default else ["null", type_]
                default = default or {"default": None}
            avro["fields"].append({"name": one["field"], "type": type_, **default})
    elif kind == "array":
        items = avro_of(connect["items"])
        avro = {"type": "array", "items": ["null", items]}
    else:
        avro = {"type": {"int16": "int", "int32": "int", "int64": "long"}.get(kind, kind)}
        if kind == "int16":
            avro["connect.type"] = "int16"
    if name:
        avro["connect.name"] = name
    if "version" in connect:
        avro["connect.version"] = connect["version"]
    if "doc" in connect:
        avro["connect.doc"] = connect["doc"]
    if parameters := connect.get("parameters"):
        avro["connect.parameters"] = parameters
        if name == "org.apache.kafka.connect.data.Decimal":
            precision = int(parameters.get("connect.decimal.precision", 64))
            avro |= {"logicalType": "decimal", "scale": int(parameters["scale"])}
            avro["precision"] = precision
    if connect.get("optional") and "default" in connect:
        avro["connect.default"] = connect["default"]
    return avro["type"] if [*avro] == ["type"] else avro


def members(schema: Any) -> dict[str, Any]:
    """The fields of an envelope's `before`, by name."""
    row = next(one for one in schema["fields"] if one["name"] == "before")["type"][1]
    found = {}
    for one in row["fields"]:
        text = json.dumps(one)
        if one["name"] in ENUMS:
            text = text.replace(', "connect.parameters": ', "").partition('{"allowed"')[0]
        found[one["name"]] = text if one["name"] in ENUMS else one
    return found


@pytest.fixture
def types(source) -> Any:
    """A table with a column of each type."""
    text = (FOLDER / "02_types_default.sql").read_text()
    for one, other in WITHOUT_EXTENSIONS:
        text = text.replace(one, other)
    setup, _ = text.split("-- steps (connector streaming)\n")
    source.execute(setup.split("\n", 1)[1])
    return source


def plain(schema: Any, topic: str, theirs: str) -> Any:
    """A schema with the other one's names, for what only has to be the same."""
    return json.loads(json.dumps(schema).replace(topic.replace("-", "_"), theirs))


def test_schemas_are_debezium_s(types, registry) -> None:
    """Of each type; the envelope, its source, and the key."""
    types.run("public.types", format="avro", registry=registry)
    topic = f"{types.name}.public.types"
    golden = json.loads((FOLDER / "schemas.json").read_text())["postgresql"]
    [key], [value] = versions(registry, f"{topic}-key"), versions(registry, f"{topic}-value")
    theirs = "golden.public.types"
    key, value = plain(key, topic, theirs), plain(value, topic, theirs)
    assert key == avro_of(golden["key"])
    debezium = avro_of(golden["value"])
    mine, others = members(value), members(debezium)
    assert [name for name in others if name not in LEFT_OUT] == [*mine]
    for name, one in mine.items():
        if name in ENUMS:
            assert "io.debezium.data.Enum" in json.dumps(value)
        elif name == "c_xml":  # the server of the tests was built without
            assert one["type"] == ["null", "string"]
        else:
            assert one == others[name], name
    for one, other in zip(value["fields"][2:], debezium["fields"][2:], strict=True):
        assert one == other
    assert [(value[n]) for n in ("name", "namespace", "connect.name", "connect.version")] == [
        debezium[n] for n in ("name", "namespace", "connect.name", "connect.version")
    ]


@pytest.mark.slow
def test_values_are_those_of_json(types, registry) -> None:
    """Confluent's deserializer reads what the same capture writes as JSON."""
    types.run("public.types", format="avro", registry=registry)
    types.run("public.types", to=f"{types.name}.json", slot=None)
    topic = f"{types.name}.public.types"
    [schema] = versions(registry, f"{topic}-value")
    row = next(one for one in schema["fields"] if one["name"] == "before")["type"][1]
    found = read(types, registry, topic)
    others = types.records(f"{types.name}.json.public.types")
    assert [key for key, _ in found] == [key for key, _ in others]
    assert len(found) > 3
    for (_, one), (_, other) in zip(found, others, strict=True):
        assert one["op"] == other["op"]
        mine = as_json(one["after"], row)
        for name, value in other["after"].items():
            if name == "c_int2d":
                assert mine[name] is None or all(item is None for item in mine[name])
            elif name == "c_real" and isinstance(value, float):
                assert mine[name] == pytest.approx(value, rel=1e-6)
            else:
                assert mine[name] == value, name


def test_mysql_s_schemas_are_debezium_s(mysql_source, registry) -> None:
    """In a snapshot and from the binary log; values are those of JSON."""
    source = mysql_source
    text = (FOLDER / "20_mysql_on_mariadb.sql").read_text()
    create, insert, change = (
        next(one for one in text.split(";\n") if one.startswith(begin))
        for begin in (
            "create table types",
            "insert into types values(1",
            "insert into types values(11",
        )
    )
    source.execute(f"{create};{insert}")
    source.run("*.types", format="avro", registry=registry)
    source.execute(change)
    source.run("*.types", format="avro", registry=registry)
    source.run("*.types", to=f"{source.name}.json")
    topic = source.topic("types")
    [value] = versions(registry, f"{topic}-value")
    mine = members(plain(value, topic, "goldenmy.golden.types"))
    debezium = avro_of(json.loads((FOLDER / "schemas.json").read_text())["mysql"]["value"])
    for name, one in members(debezium).items():
        if name in ("b1", "bo", "t1"):
            assert mine[name] == one
        elif name not in ENUMS:
            assert mine[name] == one, name
    row = next(one for one in value["fields"] if one["name"] == "before")["type"][1]
    found = read(source, registry, topic)
    others = source.records(f"{source.name}.json.{source.database}.types")
    assert [one["op"] for _, one in found] == ["r", "c"]
    assert [as_json(one["after"], row) for _, one in found] == [one["after"] for _, one in others]


def test_a_table_of_a_program_reads_it(source, registry) -> None:
    """Rows, changes of keys, deletions, an emptied table."""
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL, paid numeric(8, 2), day date);"
        "INSERT INTO users VALUES (1, 'ann', 1.25, '2026-01-02'), (2, 'bob', NULL, NULL)"
    )
    source.run(format="avro", registry=registry)
    source.execute("UPDATE users SET name = 'Ann' WHERE id = 1; DELETE FROM users WHERE id = 2")
    source.execute("INSERT INTO users VALUES (3, 'cy', -7, '1969-12-31')")
    source.execute("UPDATE users SET id = 4 WHERE id = 3")
    source.run(format="avro", registry=registry)
    app = ps.App("shop")
    columns = "id BIGINT, name STRING, paid DECIMAL(8, 2), day DATE"
    users = app.table("users", columns, key="id", format="debezium", registry=registry)
    app.view("all", users)
    run = ps.testing.run(app)
    records = raw(source, f"{source.name}.public.users")
    for key, value in records:
        run.send_raw("users", value, key=key)
    rows = [(one["id"], one["name"], one["paid"]) for one in run.view("all").rows()]
    assert sorted(rows) == [(1, "Ann", Decimal("1.25")), (4, "cy", Decimal("-7.00"))]
    source.execute("TRUNCATE users")
    source.run(format="avro", registry=registry)
    for key, value in raw(source, f"{source.name}.public.users")[len(records) :]:
        run.send_raw("users", value, key=key)
    assert run.view("all").rows() == []
    # The record of the truncation itself says nothing of a row; without its header here it is refused.
    assert len(run.dead_letters()) == 1


@pytest.mark.slow
def test_a_changed_table_is_a_new_version(source, registry) -> None:
    """Records have the schema of their columns; what comes after a restart has the newest."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    topic = source.topic("t")
    with source.running(format="avro", registry=registry) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute("INSERT INTO t VALUES (2, 'y')")
        source.execute("ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7")
        source.execute("INSERT INTO t VALUES (3, 'z', 9)")
        source.follows(capture, lambda: len(raw(source, topic)) == 3)
    source.execute("INSERT INTO t VALUES (4, 'q', 1)")
    source.run(format="avro", registry=registry)
    assert [value["after"] for _, value in read(source, registry, topic)] == [
        {"id": 1, "a": "x"},
        {"id": 2, "a": "y"},
        {"id": 3, "a": "z", "n": 9},
        {"id": 4, "a": "q", "n": 1},
    ]
    assert len(versions(registry, f"{topic}-value")) == 2
    assert len(versions(registry, f"{topic}-key")) == 1


@pytest.mark.slow
def test_a_schema_that_is_refused_stops_it_before_anything_is_written(source, registry) -> None:
    """The report has the registry's reason; once the subject allows it, the capture goes on."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    topic = source.topic("t")
    source.run(format="avro", registry=registry)
    source.execute("ALTER TABLE t ALTER COLUMN a TYPE int USING 5; INSERT INTO t VALUES (2, 6)")
    with pytest.raises(
        SetupError,
        match=rf"{topic}-value that.*/fields/1/type: the writer may write string, which.*int",
    ):
        source.capture(format="avro", registry=registry).run()
    assert len(raw(source, topic)) == 1
    assert _schemas_number(source, "public.t") == 1
    asked(f"{registry}/config/{topic}-value", {"compatibility": "NONE"}, "PUT")
    source.run(format="avro", registry=registry)
    assert [v["after"]["a"] for _, v in read(source, registry, topic)] == ["x", 6]


def _schemas_number(source: Any, table: str) -> int:
    return schemas(source.name, source.log)[table].number


def test_a_snapshot_that_is_refused_writes_nothing(source, registry) -> None:
    """A subject that has another schema already."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    topic = source.topic("t")
    other = {"type": "record", "name": "other", "fields": []}
    body = {"schema": json.dumps(other)}
    asked(f"{registry}/subjects/{topic}-value/versions", body)
    asked(f"{registry}/config/{topic}-value", {"compatibility": "FULL"}, "PUT")
    with pytest.raises(SetupError, match="registry"):
        source.capture(format="avro", registry=registry).run()
    assert raw(source, topic) == []


@pytest.mark.slow
def test_chunks_have_the_columns_that_were_read(source, registry, monkeypatch) -> None:
    """A table is read in chunks while it is altered; each record is whole by its own schema."""
    monkeypatch.setattr(initial, "LARGE_ROWS", 10)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 50)
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL);"
        "INSERT INTO t SELECT i, 'a' || i FROM generate_series(1, 2000) i; ANALYZE t"
    )
    topic = source.topic("t")
    with source.running(format="avro", registry=registry) as capture:
        source.follows(capture, lambda: capture.done.snapshot_rows > 100)
        source.execute(
            "ALTER TABLE t RENAME COLUMN a TO b; UPDATE t SET b = b || '!' WHERE id < 50"
        )
        asked(f"{registry}/config/{topic}-value", {"compatibility": "NONE"}, "PUT")
        source.follows(capture, lambda: capture.done.is_caught_up and not _reading(source))
        snapshot(source.name, ["public.t"], log=source.log, where="id = 2000")
        source.follows(capture, lambda: len(_at(source, registry, topic, 2000)) >= 2)
    newest: dict[int, Any] = {}
    for key, value in read(source, registry, topic):
        row = value["after"]
        assert len(row) == 2
        newest[key["id"]] = row.get("a", row.get("b"))
    assert newest == {i: f"a{i}" + ("!" if i < 50 else "") for i in range(1, 2001)}


def _at(source: Any, registry: str, topic: str, id_: int) -> list[Any]:
    return [value for key, value in read(source, registry, topic) if key["id"] == id_]


def _reading(source: Any) -> bool:
    from penstock.capture import progress

    with Client(source.log) as client:
        state = progress.load(client, source.log, source.name)
    return state is not None and bool(state.details["snapshot"]["tables"])


KILLED = """
import os, signal, sys
from penstock.capture import Capture, registered as module
url, to, log, registry, before, end = sys.argv[1:]
known, left = module.schema_id, [int(before)]
def registered(*arguments):
    found = known(*arguments)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # registered, and not written
    return found
module.schema_id = registered
Capture(url, ["public.*"], to=to, log=log, format="avro", registry=registry).run(
    until=lambda done: done.position >= int(end)
)
"""


@pytest.mark.slow
def test_a_kill_between_registration_and_write_loses_and_doubles_nothing(source, registry) -> None:
    """Of the key's schema, of the value's, of a new version: ids are the same, and so are the records."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    topic = source.topic("t")

    def run(before: int) -> None:
        command = [sys.executable, "-c", KILLED, source.url, source.name, source.log, registry]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        more = [str(before), str(source.end())]
        done = subprocess.run([*command, *more], env=environment, check=False)
        assert done.returncode == (-signal.SIGKILL if before else 0)

    for before in (1, 2):
        run(before)
        assert raw(source, topic) == []
    run(0)
    source.execute("INSERT INTO t VALUES (2, 'y'); ALTER TABLE t ADD COLUMN n int")
    source.execute("UPDATE t SET n = 1 WHERE id = 1")
    for before in (4,) if QUICK else (2, 4):
        run(before)
    run(0)
    assert [(key["id"], value["op"]) for key, value in read(source, registry, topic)] == [
        *((1, "r"), (2, "c"), (1, "u"))
    ]
    assert len(versions(registry, f"{topic}-value")) == 2
    assert len(versions(registry, f"{topic}-key")) == 1


@pytest.mark.slow
def test_a_new_snapshot_deletes_missing_rows_and_no_other(source, registry) -> None:
    """Keys are compared without the id of their schema, which changes with the key's type."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    source.run(format="avro", registry=registry)
    source.execute("DROP TABLE t")
    source.execute("CREATE TABLE t (id bigint PRIMARY KEY); INSERT INTO t VALUES (2), (3)")
    source.run(format="avro", registry=registry)
    records = [
        (key["id"], value and value["op"])
        for key, value in read(source, registry, source.topic("t"))
    ]
    assert records == [(1, "r"), (2, "r"), (2, "r"), (3, "r"), (1, None)]


def test_a_value_that_does_not_fit_is_left_out() -> None:
    """It is null, or zero where null can't be, and it is noted."""
    columns = Member("n", "int"), Member("m", "long", is_required=True)
    schema = envelope("t", columns, "postgresql")
    losses = Losses("t")
    write = encoder(schema["fields"][0]["type"], {}, losses)
    out = bytearray()
    for n in ("x", 1 << 31, 2):
        write(out, {"n": n, "m": None})
    assert bytes(out) == b"\2\0\0\2\0\0\2\2\4\0"
    assert [(one.column, one.reason) for one in losses.take()] == [
        ("t.n", "n: expected an integer ('x')"),
        ("t.n", "n: expected a number of 32 bits (2147483648)"),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "avro"}, "with format='avro'"),
        ({"registry": "http://r"}, "with format='avro'"),
        ({"format": "protobuf"}, "found format='protobuf' and registry=None"),
        ({"format": "avro", "registry": "r"}, "expected a registry's URL"),
        ({"format": "avro", "registry": "http://r", "values": "readable"}, "values='precise'"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: Any, message: str) -> None:
    """When the capture is made."""
    with pytest.raises(UserError, match=message):
        Capture("postgresql://h/d", ["t"], to="shop", **settings)


def test_kinds_and_tables_that_avro_does_not_fit_are_refused(tmp_path: Path) -> None:
    """SQLite's columns have no types; a topic has one schema."""
    avro = {"format": "avro", "registry": "http://r"}
    with pytest.raises(
        UserError,
        match=r"found registry, which it hasn't\. A registry's schemas need columns with types",
    ):
        Capture(f"sqlite:///{tmp_path / 'a.db'}", ["t"], to="shop", **avro)
    with pytest.raises(UserError, match="a topic for each table"):
        Capture("postgresql://h/d", {"a": "t", "b": "t"}, name="shop", **avro)
