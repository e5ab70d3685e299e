"""JSON Schema and Protobuf: topics that pipelines write by a registry's schemas, and read again."""

from __future__ import annotations

import io
import json
from email.message import Message
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request

import jsonschema
import pytest
from tests.registry.asking import Asking

import penstock as ps
from penstock.client.schemas import (
    registered_kinds,
    registered_schemas,
    schema_id,
    schema_versions,
)
from penstock.errors import FlowError, SchemaError, SetupError
from penstock.testing import MemoryLog, Run

URL = "http://registry:8081"
Format: TypeAlias = Literal["avro", "json-schema", "protobuf"]
KINDS: dict[Format, str] = {"json-schema": "JSON", "protobuf": "PROTOBUF"}
each = pytest.mark.parametrize("format_", list(KINDS))
COLUMNS = """id BIGINT NOT NULL, name STRING, paid DECIMAL(9, 2), at TIMESTAMP, day DATE, tags ARRAY<STRING>,
    far DOUBLE, inner STRUCT<n INT, text STRING>, counts MAP<STRING, BIGINT>"""
ROW = {
    "id": 1,
    "name": "ann",
    "paid": "12.50",
    "at": "2026-01-02T03:04:05.000006Z",
    "day": "2024-02-29",
    "tags": ["a", "b"],
    "far": "NaN",
    "inner": {"n": -3, "text": ""},
    "counts": {"x": 1 << 40},
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Asking:
    """A registry that pipelines reach without a socket."""
    asking = Asking()

    def opened(asked: Request, **_: Any) -> Any:
        body = asked.data
        path = asked.full_url.removeprefix(URL)
        asking(asked.get_method(), path, json.loads(body) if isinstance(body, bytes) else None)
        data = io.BytesIO(asking.answer.content)
        if asking.status != 200:
            raise HTTPError(URL, asking.status, "", Message(), data)
        return data

    monkeypatch.setattr("penstock.client.schemas.urlopen", opened)
    monkeypatch.setattr(MemoryLog, "schema_id", lambda _, *arguments: schema_id(*arguments))
    monkeypatch.setattr(
        MemoryLog, "schema_versions", lambda _, *arguments: schema_versions(*arguments)
    )
    for cached in (schema_id, registered_schemas, registered_kinds):
        cached.cache_clear()
    return asking


def writing(format_: Format, columns: str = COLUMNS) -> ps.App:
    app = ps.App("writer")
    orders = app.stream("orders", columns)
    rows = orders.group_by("id").agg(name=ps.last("name")) if "name" in columns else None
    orders.to("copy", format=format_, registry=URL)
    if rows is not None:
        rows.to("newest", format=format_, registry=URL)
        rows.to("changed", emit="changes", format=format_, registry=URL)
    return app


def written(format_: Format) -> Run:
    run = ps.testing.run(writing(format_))
    for row in (ROW, {**ROW, "name": None, "tags": []}, {**ROW, "id": 2, "name": "bob"}):
        run.send("orders", **row)
        run.settle()
    return run


def handed_on(source: Run, topic: str, target: Run) -> None:
    """Sends the records of a topic to another program."""
    for one in source.topic(topic):
        target.send_raw(topic, one.value, key=one.key)
    target.settle()


@each
def test_what_is_written_is_read_as_a_stream(registry: Asking, format_: Format) -> None:
    """Every column, by the schemas of the subject; in Python and in SQL."""
    run = written(format_)
    assert registry("GET", "/subjects/copy-value/versions/1")["schemaType"] == KINDS[format_]
    app = ps.App("reader")
    app.stream("copy", COLUMNS, format=format_, registry=URL).to("out")
    app.sql(f"""
        CREATE STREAM copy2 ({COLUMNS}) WITH (format = '{format_}', registry = '{URL}');
        CREATE MATERIALIZED VIEW rows2 AS SELECT id, count(*) AS n FROM copy2 GROUP BY id;
    """)
    reader = ps.testing.run(app)
    handed_on(run, "copy", reader)
    for one in run.topic("copy"):
        reader.send_raw("copy2", one.value)
    reader.settle()
    assert reader.view("rows2").rows() == [{"id": 1, "n": 2}, {"id": 2, "n": 1}]
    plain = ps.App("plain")
    plain.stream("orders", COLUMNS).to("out")
    expected = ps.testing.run(plain)
    handed_on(run, "orders", expected)
    assert [one.value for one in reader.topic("out")] == [
        one.value for one in expected.topic("out")
    ]
    assert reader.dead_letters() == []


@each
@pytest.mark.parametrize("topic", ["newest", "changed"])
def test_what_is_written_is_read_as_a_table(registry: Asking, format_: Format, topic: str) -> None:
    """Rows and tombstones; changes as envelopes, of whatever kind they are."""
    run = written(format_)
    app = ps.App("reader")
    form: Any = format_ if topic == "newest" else "debezium"
    table = app.table(topic, "id BIGINT, name STRING", key="id", format=form, registry=URL)
    app.view("names", table)
    reader = ps.testing.run(app)
    handed_on(run, topic, reader)
    assert reader.view("names").rows() == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]
    [key] = {one.key for one in run.topic(topic) if one.key and one.key.endswith(b'{"id":1}')} or {
        None
    }
    gone = key or next(one.key for one in run.topic(topic))
    reader.send_raw(topic, None, key=gone)
    reader.settle()
    assert reader.view("names").rows() == [{"id": 2, "name": "bob"}]
    assert reader.dead_letters() == []


def test_changes_of_several_kinds_may_follow_each_other(registry: Asking) -> None:
    """In one batch, in their order; a record that isn't of one is a dead letter by itself."""
    app = ps.App("reader")
    table = app.table(
        "changed", "id BIGINT, name STRING", key="id", format="debezium", registry=URL
    )
    app.view("names", table)
    reader = ps.testing.run(app)
    formats: list[Format] = ["avro", "json-schema", "protobuf", "json-schema"]
    registry("PUT", "/config", {"compatibility": "NONE"})
    for number, format_ in enumerate(formats):
        run = ps.testing.run(writing(format_))
        run.send("orders", **{**ROW, "name": f"name {number}"})
        run.send("orders", **{**ROW, "id": 10 + number})
        run.settle()
        for one in run.topic("changed"):
            reader.send_raw("changed", one.value, key=one.key)
        reader.send_raw("changed", b"\0\0\0\0\x63{}", key=one.key)
    reader.settle()
    rows = reader.view("names").rows()
    assert rows[0] == {"id": 1, "name": "name 3"}
    assert [row["id"] for row in rows] == [1, 10, 11, 12, 13]
    reasons = [one.headers["penstock.reason"] for one in reader.dead_letters()]
    assert len(reasons) == len(formats)
    assert all("expected the id of a schema in the registry; found 99" in one for one in reasons)


def test_json_is_valid_by_its_schema(registry: Asking) -> None:
    """A validator that nobody here wrote takes it, and refuses what isn't so."""
    run = written("json-schema")
    for topic in ("copy", "newest", "changed"):
        schema = json.loads(registry("GET", f"/subjects/{topic}-value/versions/1")["schema"])
        jsonschema.Draft7Validator.check_schema(schema)
        check = jsonschema.Draft7Validator(schema)
        values = [json.loads(one.value[5:]) for one in run.topic(topic) if one.value is not None]
        assert values
        for one in values:
            check.validate(one)
            assert not check.is_valid({**one, "other": 1})
    assert not check.is_valid({"op": "x", "before": {"id": "1"}, "after": None})


@each
def test_a_column_that_may_be_null_is_added_and_others_are_refused(
    registry: Asking, format_: Format
) -> None:
    """Before anything is written; a program that starts again registers nothing."""
    ps.testing.run(writing(format_, "id BIGINT NOT NULL, user STRING"))
    ps.testing.run(writing(format_, "id BIGINT NOT NULL, note STRING, user STRING"))
    ps.testing.run(writing(format_, "id BIGINT NOT NULL, user STRING"))
    assert registry("GET", "/subjects/copy-value/versions") == [1, 2]
    with pytest.raises(SetupError, match="expected a schema for copy-value") as caught:
        ps.testing.run(writing(format_, "id BIGINT NOT NULL, note BIGINT, user STRING"))
    assert "version 2" in str(caught.value)
    assert registry("GET", "/subjects/copy-value/versions") == [1, 2]


def test_protobuf_numbers_follow_the_subject(registry: Asking) -> None:
    """A column that is put before another one doesn't take its number."""
    for columns in ("a STRING, b STRING", "c STRING, b STRING, a STRING"):
        ps.testing.run(writing("protobuf", columns))
    text = registry("GET", "/subjects/copy-value/versions/2")["schema"]
    lines = [line.strip() for line in text.splitlines() if "optional" in line]
    assert lines == ["optional string c = 3;", "optional string b = 2;", "optional string a = 1;"]


@pytest.mark.parametrize("format_", ["avro", *KINDS])
def test_a_schema_of_another_kind_is_a_dead_letter(registry: Asking, format_: Format) -> None:
    """With both kinds."""
    other: Format = "protobuf" if format_ == "avro" else "avro"
    run = ps.testing.run(writing(other, "id BIGINT NOT NULL"))
    run.send("orders", id=7)
    run.settle()
    app = ps.App("reader")
    app.stream("copy", "id BIGINT", format=format_, registry=URL).to("out")
    reader = ps.testing.run(app)
    handed_on(run, "copy", reader)
    [dead] = reader.dead_letters()
    kinds: dict[Format, str] = {"avro": "AVRO", **KINDS}
    reason = f"expected a schema of {kinds[format_]}; found one of {kinds[other]}"
    assert reason in dead.headers["penstock.reason"]


@each
def test_a_format_without_a_registry_is_refused(format_: Format) -> None:
    """When the program is read; also one next to another format."""
    app = ps.App("shop")
    with pytest.raises(FlowError, match="registry="):
        app.stream("orders", "id BIGINT", format=format_)
    with pytest.raises(FlowError, match="registry="):
        app.stream("orders", "id BIGINT", format="csv", registry=URL)
    with pytest.raises(FlowError, match="registry="):
        app.table("users", "id BIGINT", key="id", format=format_)
    with pytest.raises(FlowError, match="expected a registry's URL"):
        app.stream("orders", "id BIGINT").to("copy", format=format_, registry="registry:8081")


def test_columns_that_protobuf_does_not_have_are_refused() -> None:
    """When the program is read, with the way to rename them."""
    orders = ps.App("shop").stream("orders", '"per day" BIGINT')
    with pytest.raises(SchemaError, match="found 'per day'"):
        orders.to("copy", format="protobuf", registry=URL)
