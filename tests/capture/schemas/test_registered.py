"""Captures as JSON Schema and Protobuf: what others and our own programs read of them."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import math
import sqlite3
from decimal import Decimal
from typing import Any
from urllib.error import HTTPError

import jsonschema
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.capture.test_avro import asked, raw, types
from tests.capture.test_debezium import FOLDER
from tests.effort import some_slow
from tests.formats.test_protobuf import message_class, plain

import penstock as ps
from penstock.cli.log.sink import sink
from penstock.client import Client, Reader
from penstock.errors import SetupError
from penstock.wire.columns import header

__all__ = ["types"]  # a fixture

each = pytest.mark.parametrize("format_", ["json-schema", "protobuf"])
HEAD_BYTES = 5


def newest(registry: str, subject: str) -> str:
    return str(asked(f"{registry}/subjects/{subject}/versions/latest")["schema"])


def number_of(registry: str, subject: str) -> int:
    try:
        return len(asked(f"{registry}/subjects/{subject}/versions"))
    except HTTPError:
        return 0


def test_json_is_that_of_the_format_debezium_and_valid(types, registry) -> None:
    """Of 79 types: Confluent's deserializer validates each record by the schema of its subject."""
    types.run("public.types", format="json-schema", registry=registry)
    types.run("public.types", to=f"{types.name}.json", slot=None)
    topic = f"{types.name}.public.types"
    others = types.records(f"{types.name}.json.public.types")
    assert len(others) > 3
    with SchemaRegistryClient({"url": registry}) as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        for (key, value), (other_key, other) in zip(raw(types, topic), others, strict=True):
            assert read(key, SerializationContext(topic, MessageField.KEY)) == other_key
            found = read(value, SerializationContext(topic, MessageField.VALUE))
            assert found["after"] == other["after"]
            assert found["source"].keys() == other["source"].keys()
    schema = json.loads(newest(registry, f"{topic}-value"))
    jsonschema.Draft7Validator.check_schema(schema)
    wrong = {**other, "after": {**other["after"], "id": "text"}}
    assert not jsonschema.Draft7Validator(schema).is_valid(wrong)
    titles = json.dumps(schema)
    assert "io.debezium.time.MicroTimestamp" in titles
    assert "org.apache.kafka.connect.data.Decimal" in titles


def fits(mine: Any, expected: Any) -> bool:
    """Whether a value that Google's library read is what the same capture writes in JSON."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    match mine:
        case bytes():
            return base64.b64encode(mine).decode() == expected
        case Decimal():
            sign, digits, exponent = mine.as_tuple()
            number = int("".join(map(str, digits))) * (-1 if sign else 1)
            unscaled = int.from_bytes(base64.b64decode(expected), "big", signed=True)
            return isinstance(exponent, int) and number == unscaled
        case dt.datetime() if isinstance(expected, str):
            return mine == dt.datetime.fromisoformat(expected)
        case dt.datetime():
            micros = (mine - epoch) // dt.timedelta(microseconds=1)
            return expected in (micros, micros // 1000)
        case dt.timedelta():
            return mine // dt.timedelta(microseconds=1) == expected
        case dt.date():
            return (mine - epoch.date()).days == expected
        case dt.time():
            seconds = (mine.hour * 60 + mine.minute) * 60 + mine.second
            micros = seconds * 10**6 + mine.microsecond
            return expected in (micros, micros // 1000)
        case float():
            number = float(expected)
            return math.isclose(mine, number, rel_tol=1e-6) or (mine != mine and number != number)
        case list():
            there = [one for one in expected if one is not None]
            return len(mine) == len(there) and all(map(fits, mine, there))
        case dict():
            return all(fits(one, expected[name]) for name, one in mine.items())
    return bool(mine == expected)


def test_protobuf_has_the_values_of_json(types, registry) -> None:
    """Of 79 types: what Google's library reads by the registered file is what the JSON says."""
    types.run("public.types", format="protobuf", registry=registry)
    types.run("public.types", to=f"{types.name}.json", slot=None)
    topic = f"{types.name}.public.types"
    kind = message_class(newest(registry, f"{topic}-value"), f"{topic.replace('-', '_')}.Envelope")
    others = types.records(f"{types.name}.json.public.types")
    found = raw(types, topic)
    assert len(found) == len(others) > 3
    seen, left_out = set(), set()
    for (_, value), (_, other) in zip(found, others, strict=True):
        assert value is not None
        assert value[HEAD_BYTES : HEAD_BYTES + 1] == b"\0"
        one = plain(kind.FromString(value[HEAD_BYTES + 1 :]))
        assert one["op"] == other["op"]
        assert one["source"]["table"] == other["source"]["table"]
        for name, expected in other["after"].items():
            mine = one["after"][name]
            if name == "c_int2d" or expected is None:
                assert mine in (None, []), name
            elif (
                mine is None
            ):  # an infinity, a year, or 24:00, which Protobuf's messages don't have
                assert name.startswith(("c_date", "c_t")), name
                left_out.add(name)
            else:
                assert fits(mine, expected), (name, mine, expected)
            seen.add(name)
    assert len(seen) >= 70
    assert left_out


@pytest.mark.quick_cases(1)
@each
def test_a_table_of_a_program_reads_it(source, registry, format_) -> None:
    """Rows with times and decimals, changes of keys, deletions; Confluent's deserializer too."""
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL, paid numeric(8, 2), day date,"
        " at timestamptz, met timestamp, since timestamp(3), clock time, token uuid);"
        "INSERT INTO users VALUES (1, 'ann', 1.25, '2026-01-02', '2026-01-02 03:04:05.000006Z',"
        " '2026-01-02 03:04:05.000007', '1969-12-31 23:59:59.999', '03:04:05.000008',"
        " '00112233-4455-6677-8899-aabbccddeeff'), (2, 'bob', NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    source.run(format=format_, registry=registry)
    source.execute("UPDATE users SET name = 'Ann' WHERE id = 1; DELETE FROM users WHERE id = 2")
    source.execute("INSERT INTO users VALUES (3, 'cy', -7, '1969-12-31')")
    source.execute("UPDATE users SET id = 4 WHERE id = 3")
    source.run(format=format_, registry=registry)
    app = ps.App("shop")
    columns = (
        "id BIGINT, name STRING, paid DECIMAL(8, 2), day DATE, at TIMESTAMP, met TIMESTAMP, "
        "since TIMESTAMP, clock TIME, token UUID"
    )
    users = app.table("users", columns, key="id", format="debezium", registry=registry)
    app.view("all", users)
    run = ps.testing.run(app)
    topic = f"{source.name}.public.users"
    for key, value in raw(source, topic):
        run.send_raw("users", value, key=key)
    assert run.dead_letters() == []
    ann, cy = sorted(run.view("all").rows(), key=lambda one: one["id"])
    assert (ann["name"], ann["paid"], ann["day"]) == ("Ann", Decimal("1.25"), dt.date(2026, 1, 2))
    assert ann["at"] == dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
    assert ann["met"] == dt.datetime(2026, 1, 2, 3, 4, 5, 7, dt.UTC)
    assert ann["since"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)
    assert ann["clock"] == dt.time(3, 4, 5, 8)
    assert ann["token"] == bytes.fromhex("00112233445566778899aabbccddeeff")
    assert (cy["id"], cy["paid"], cy["at"]) == (4, Decimal("-7.00"), None)
    before = len(raw(source, topic))
    source.execute("TRUNCATE users")
    source.run(format=format_, registry=registry)
    for key, value in raw(source, topic)[before:]:
        run.send_raw("users", value, key=key)
    assert run.view("all").rows() == []


@pytest.mark.parametrize("format_", some_slow(("avro", "protobuf"), quick=("protobuf",)))
def test_many_changes_at_once(source, registry, format_) -> None:
    """Hundreds, some with a changed key, an array, or a value that doesn't fit: rows, headers and dead
    letters are those of changes that are written one by one.
    """
    settings = {"format": format_, "registry": registry, "on_unreadable": "letter"}
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(8, 2), d date, v text, tags int[])"
    )
    source.run(**settings)
    source.execute(
        "INSERT INTO t SELECT i, i / 4.0, date '2026-01-02' + i, repeat('é', i % 7),"
        " CASE WHEN i % 60 = 0 THEN ARRAY[i, NULL] END FROM generate_series(1, 200) i"
    )
    lost = 2 if format_ == "protobuf" else 0  # Protobuf has no infinite date
    if lost:
        source.execute("DELETE FROM t WHERE id = 50; INSERT INTO t VALUES (50, 1, 'infinity')")
    source.execute("UPDATE t SET v = 'w' WHERE id <= 100")
    source.execute(
        "UPDATE t SET id = id + 1000 WHERE id BETWEEN 101 AND 120;"
        "DELETE FROM t WHERE id BETWEEN 121 AND 140"
    )
    done = source.run(**settings)
    assert done.letters == len(source.letters()) == lost
    topic = source.topic("t")
    with Client(source.log) as client, Reader(source.log) as reader:
        end = client.offsets(topic)[0]
        chunks = list(reader.read(topic, 0, 0, end))
    marked = sum(bool(header(one, i)) for one in chunks for i in range(len(one)))
    assert marked == 3 * 20  # a deletion, its tombstone and an insert
    app = ps.App("shop")
    columns = "id BIGINT, n DECIMAL(8, 2), v STRING"
    app.view("all", app.table("t", columns, key="id", format="debezium", registry=registry))
    run = ps.testing.run(app)
    for key, value in raw(source, topic):
        run.send_raw("t", value, key=key)
    assert run.dead_letters() == []
    expected = source.rows(f"SELECT id, n, v FROM t WHERE {lost} = 0 OR id <> 50 ORDER BY id")
    found = sorted((one["id"], one["n"], one["v"]) for one in run.view("all").rows())
    assert found == expected


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("format_", ["avro", "json-schema", "protobuf"])
def test_a_sink_follows_it(source, registry, format_, tmp_path) -> None:
    """`penstock sink`: rows with decimals and times, changes of keys, deletions, an emptied table."""
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, paid numeric(8, 2), at timestamptz, day date);"
        "INSERT INTO users VALUES (1, 1.25, '2026-01-02 03:04:05.000006Z', '2026-01-02');"
        "INSERT INTO users VALUES (2)"
    )
    source.run(format=format_, registry=registry)
    source.execute("UPDATE users SET paid = -7 WHERE id = 1; DELETE FROM users WHERE id = 2")
    source.execute("INSERT INTO users VALUES (3, 0.5); UPDATE users SET id = 4 WHERE id = 3")
    source.run(format=format_, registry=registry)
    path = tmp_path / "t.db"
    columns = "id BIGINT, paid DECIMAL(8, 2), at TIMESTAMP, day DATE"
    arguments = [source.topic("users"), str(path), "--table", "users", "--schema", columns]
    arguments += [
        "--key",
        "id",
        "--format",
        "debezium",
        "--registry",
        registry,
        "--broker",
        source.log,
    ]
    follow = [*arguments, "--once"]

    def followed() -> list[tuple[Any, ...]]:
        found = CliRunner().invoke(sink, follow, catch_exceptions=False)
        assert "; 0 dead letters" in found.stderr
        with contextlib.closing(sqlite3.connect(path)) as sql:
            return sql.execute("SELECT * FROM users ORDER BY id").fetchall()

    assert followed() == [
        (1, "-7.00", "2026-01-02T03:04:05.000006Z", "2026-01-02"),
        (4, "0.50", None, None),
    ]
    source.execute("TRUNCATE users")
    source.run(format=format_, registry=registry)
    assert followed() == []


@pytest.mark.slow
def test_confluent_s_protobuf_deserializer_reads_keys(source, registry) -> None:
    """By a class of the registered file."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (7, 'x')")
    source.run(format="protobuf", registry=registry)
    topic = source.topic("t")
    [(key, _)] = raw(source, topic)
    kind = message_class(newest(registry, f"{topic}-key"), f"{topic.replace('-', '_')}.Key")
    with SchemaRegistryClient({"url": registry}) as client:
        read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
        assert read(key, SerializationContext(topic, MessageField.KEY)).id == 7


@pytest.mark.quick_cases(1)
@each
def test_what_readers_can_follow_is_a_version_and_the_rest_is_refused(
    source, registry, format_
) -> None:
    """Added columns; of another type nothing is written, until the subject allows it."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x')")
    topic = source.topic("t")
    source.run(format=format_, registry=registry)
    source.execute("ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7, ADD COLUMN m date")
    source.execute("INSERT INTO t VALUES (2, 'y', 8)")
    source.run(format=format_, registry=registry)
    assert number_of(registry, f"{topic}-value") == 2
    source.execute("ALTER TABLE t ALTER COLUMN a TYPE int USING 5; INSERT INTO t VALUES (3, 6)")
    with pytest.raises(SetupError, match=f"expected a schema for {topic}-value"):
        source.capture(format=format_, registry=registry).run()
    assert len(raw(source, topic)) == 2
    asked(f"{registry}/config/{topic}-value", {"compatibility": "NONE"}, "PUT")
    source.run(format=format_, registry=registry)
    assert len(raw(source, topic)) == 3


@pytest.mark.quick_cases(1)
@each
def test_a_new_snapshot_deletes_missing_rows_and_no_other(source, registry, format_) -> None:
    """Keys are compared without the id of their schema."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1), (2)")
    source.run(format=format_, registry=registry)
    source.execute("DROP TABLE t")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (2), (3)")
    source.run(format=format_, registry=registry)
    records = raw(source, source.topic("t"))
    assert [value is None for _, value in records] == [False, False, False, False, True]
    assert records[-1][0] == records[0][0]


def test_mysql_s_values_are_those_of_json(mysql_source, registry) -> None:
    """Of all its types, as JSON by a schema and as Protobuf."""
    source = mysql_source
    text = (FOLDER / "20_mysql_on_mariadb.sql").read_text()
    create, insert = (
        next(one for one in text.split(";\n") if one.startswith(begin))
        for begin in ("create table types", "insert into types values(1")
    )
    source.execute(f"{create};{insert}")
    source.run("*.types", format="json-schema", registry=registry)
    source.run("*.types", to=f"{source.name}.proto", format="protobuf", registry=registry)
    source.run("*.types", to=f"{source.name}.json")
    [(_, other)] = source.records(f"{source.name}.json.{source.database}.types")
    topic = source.topic("types")
    [(_, value)] = raw(source, topic)
    with SchemaRegistryClient({"url": registry}) as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        found = read(value, SerializationContext(topic, MessageField.VALUE))
    assert found["after"] == other["after"]
    topic = f"{source.name}.proto.{source.database}.types"
    name = f"{topic.replace('-', '_')}.Envelope"
    kind = message_class(newest(registry, f"{topic}-value"), name)
    [(_, value)] = raw(source, topic)
    one = plain(kind.FromString(value[HEAD_BYTES + 1 :]))["after"]
    assert [*one] == [*other["after"]]
    for name, expected in other["after"].items():
        assert fits(one[name], expected), (name, one[name], expected)
