"""Columns of type JSON through pipelines: topics, views, tables and reads of them."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.cli.support.tables import write_table
from penstock.core.schema import JSON
from penstock.errors import FlowError, SchemaError, UserError
from penstock.serve.catalogs.types import JSON as PG_JSON
from penstock.serve.catalogs.types import encode_column, type_named
from penstock.serve.views import Snapshot
from penstock.web.jsons import table_json

PAYLOADS: list[Any] = [
    {"a": [1, 2.50], "b": {"c": "ü"}}, "text", [], 7, None, True, {"a": 2**63}, '{"a":1}', [None],
]  # fmt: skip


def shown(run: ps.testing.Run) -> Snapshot:
    return Snapshot(run.store, run.store.version(run.store.newest_version()))


def test_a_member_may_be_of_any_shape() -> None:
    """Text in one event, an object in another; rows are Python's values, tests send them."""
    app = ps.App("shop")
    app.sql("CREATE STREAM events (id INT, payload JSON)")
    app.view("events", sql="SELECT id, payload, payload->>'a' AS a FROM events")
    run = ps.testing.run(app)
    for i, one in enumerate(PAYLOADS):
        run.send("events", id=i, payload=one)
    run.send_raw("events", b'{"id": 9, "payload": {"a": 1.10, "a" : 123456789012345678901}}')
    rows = run.view("events").rows()
    assert [row["payload"] for row in rows] == [*PAYLOADS, {"a": 123456789012345678901}]
    assert [row["a"] for row in rows] == [
        "[1,2.5]", None, None, None, None, None, "9223372036854775808", None, None, "1.1",
    ]  # fmt: skip
    texts = run.view("events").table.column("payload").to_pylist()
    assert '{"a":1.10,"a":123456789012345678901}' in texts
    assert run.dead_letters() == []


def test_a_table_reads_what_a_view_of_a_topic_writes() -> None:
    """As rows, where a value is JSON, and as envelopes, where it is text, as Debezium has it."""
    written = ps.App("w")
    table = written.stream("events", "id INT, p JSON").group_by("id").agg(p=ps.last("p"))
    written.view("latest", table)
    table.to("rows")
    table.to("envelopes", emit="changes")
    first = ps.testing.run(written)
    read = ps.App("r")
    for topic, form in (("rows", "json"), ("envelopes", "debezium")):
        read.view(topic, read.table(topic, "id INT, p JSON", key="id", format=form))  # type: ignore[arg-type]
    second = ps.testing.run(read)
    for one in (*PAYLOADS, *reversed(PAYLOADS)):
        for i, other in enumerate((one, [one], {"one": one})):
            first.send("events", id=i, p=other)
        first.settle()
    for topic in ("rows", "envelopes"):
        for record in first.topic(topic):
            second.send_raw(topic, record.value, key=record.key)
        assert second.view(topic).rows() == first.view("latest").rows()
    written_first = [json.loads(one.value or b"")["p"] for one in first.topic("rows")[:3]]
    assert PAYLOADS[0] in written_first
    assert second.dead_letters() == []


def test_groups_are_equal_texts() -> None:
    """As DuckDB compares JSON: without the space between tokens, but in the order of members."""
    app = ps.App("shop")
    events = app.stream("events", "p JSON")
    app.view("kinds", events.group_by("p").agg(n=ps.count()))
    run = ps.testing.run(app)
    for text in ('{"a":1,"b":2}', '{ "a": 1,\n"b": 2 }', '{"b":2,"a":1}', "1", "1.0", '"1"'):
        run.send_raw("events", f'{{"p": {text}}}'.encode())
    table = run.view("kinds").table
    found = dict(zip(table.column("p").to_pylist(), table.column("n").to_pylist(), strict=True))
    assert found == {'{"a":1,"b":2}': 2, '{"b":2,"a":1}': 1, "1": 1, "1.0": 1, '"1"': 1}


def test_what_duckdb_takes_for_json_is_written_as_json() -> None:
    """Numbers that aren't finite are text, as in rows; text that is no JSON is a dead letter."""
    app = ps.App("shop")
    texts = app.stream("texts", "id INT, t STRING")
    texts.select("id", p="t::JSON", d="to_json(t::DOUBLE)").to("out")
    run = ps.testing.run(app)
    for i, text in enumerate(["NaN", " 1 ", "no number"]):
        run.send("texts", id=i, t=text)
    run.settle()
    assert [json.loads(one.value or b"") for one in run.topic("out")] == [
        {"id": 0, "p": "NaN", "d": "NaN"},
        {"id": 1, "p": 1, "d": 1.0},
    ]
    assert len(run.dead_letters()) == 1


def test_a_function_of_the_user_s_gives_texts() -> None:
    """A row whose text is none is a dead letter with what to do, as with another type."""
    app = ps.App("shop")
    events = app.stream("events", "p JSON")
    made = events.map_batches(lambda rows: rows, schema="p JSON")
    app.view("n", made.group_by("p").agg(n=ps.count()))
    wrong = app.stream("texts", "p STRING").map_batches(
        lambda rows: rows, schema="p JSON", name="w"
    )
    wrong.to("out")
    run = ps.testing.run(app)
    run.send("events", p={"a": [1]})
    assert run.view("n").rows() == [{"p": {"a": [1]}, "n": 1}]
    run.send("texts", p="no JSON")
    run.send("texts", p="[1]")
    run.settle()
    assert [one.value for one in run.topic("out")] == [b'{"p":[1]}']
    [letter] = run.dead_letters()
    expected = "expected the text of a JSON value; found 'no JSON'"
    assert expected in letter.headers["penstock.reason"]


def test_reads_give_json() -> None:
    """SQL over views, the page, `--format json` and PostgreSQL's clients know the type."""
    app = ps.App("shop")
    app.view("v", app.table("t", "id INT, p JSON, l ARRAY<JSON>", key="id"))
    run = ps.testing.run(app)
    run.send("t", id=1, p={"a": [1, "x"]}, l=["b", {"c": None}])
    run.settle()
    answer = shown(run).answer(
        "SELECT p, p->'a' AS a, p->>'$.a[1]' AS x, l, {'p': p} AS s FROM v",
        rows_max=10,
        memory_bytes_max=1 << 28,
    )
    assert answer.types[:2] == ("JSON", "JSON")
    assert answer.table.column("a").type == JSON
    assert answer.table.column("l").type == pa.list_(JSON)
    out = io.StringIO()
    write_table(answer.table, "json", out)
    assert json.loads(out.getvalue()) == {
        "p": {"a": [1, "x"]}, "a": [1, "x"], "x": "x", "l": ["b", {"c": None}], "s": {"p": {"a": [1, "x"]}},
    }  # fmt: skip
    page = table_json(answer.table)
    assert [one["type"] for one in page["columns"][:2]] == ["JSON", "JSON"]
    assert page["rows"] == [
        ['{"a":[1,"x"]}', '[1,"x"]', "x", '["b",{"c":null}]', '{"p":{"a":[1,"x"]}}']
    ]
    assert type_named(JSON, "JSON") == (PG_JSON, False)
    assert PG_JSON.oid == 114
    assert encode_column(answer.table.column("p"), 0, "JSON") == [b'{"a":[1,"x"]}']
    assert encode_column(answer.table.column("s"), 0) == [b'{"p":{"a":[1,"x"]}}']
    assert encode_column(answer.table.column("l"), 0) == [b'["b",{"c":null}]']


def test_a_document_is_no_key() -> None:
    """Of a table, a stream or a sink: the message says what is."""
    app = ps.App("shop")
    with pytest.raises(FlowError, match="'p', which is JSON"):
        app.table("t", "p JSON", key="p")
    with pytest.raises(FlowError, match="expected a key of single values"):
        app.stream("s", "p JSON", key="p")
    with pytest.raises(UserError, match="found 'p', which is JSON"):
        ps.sinks.Sink(ps.sinks.sqlite("x.db", table="t"), "topic", "p JSON", key="p")


def test_another_type_is_another_schema() -> None:
    """STRING that becomes JSON is computed again from the topic; what doesn't fit then is a dead letter."""

    def program(type_: str) -> ps.App:
        app = ps.App("shop")
        app.view("v", app.stream("s", f"id INT, p {type_}").group_by("id").agg(p=ps.last("p")))
        return app

    run = ps.testing.run(program("STRING"))
    run.send("s", id=1, p="x")
    assert run.view("v").rows() == [{"id": 1, "p": "x"}]
    run.change(program("JSON"))
    run.send("s", id=2, p={"a": 1})
    assert run.view("v").table.column("p").to_pylist() == ['"x"', '{"a":1}']


def test_duckdb_s_functions_keep_their_meaning() -> None:
    """A path without `$` is a name, whatever is in it; an arrow in a call is no function of the column."""
    app = ps.App("shop")
    events = app.stream("events", "id INT, p JSON")
    columns = {
        "dot": "p->>'a.b'",
        "path": "p->>'$.a.b'",
        "pointer": "p->>'/a/b'",
        "name": "json_extract_string(p, 'x[0]')",
        "call": "coalesce(p->'none', p->'a')->>'b'",
        "all": "p->>'$..b'",
        "older": "list_transform([id], x -> x + 1)",
    }
    app.view("v", events.select("id", **columns).group_by(*columns).agg(n=ps.count()))
    run = ps.testing.run(app)
    run.send("events", id=1, p={"a.b": 1, "a": {"b": 2}, "x[0]": 3})
    assert run.view("v").rows() == [
        {"dot": "1", "path": "2", "pointer": "2", "name": "3", "call": "2", "all": ["2"], "older": [2],
         "n": 1}
    ]  # fmt: skip


def test_json_each_gives_its_members_under_its_name() -> None:
    """Others than key, value and type are not there; other names for them are refused."""
    app = ps.App("shop")
    app.sql("CREATE STREAM events (p JSON)")
    with pytest.raises(SchemaError, match="Write json_each"):
        app.view("v", sql="SELECT k FROM events, json_each(p) AS e(k, v)")
