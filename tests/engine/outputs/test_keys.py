"""Records' keys of each type: what is written is read again, tombstones too, and decides the partition."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.effort import some_slow

import penstock as ps

VALUES: dict[str, list[tuple[Any, bytes]]] = {
    "STRING": [("a", b"a"), ("ä ", "ä ".encode()), ("", b""), ("null", b"null")],
    "BOOLEAN": [(True, b"true"), (False, b"false")],
    "BIGINT": [(-5, b"-5"), (2**62, b"4611686018427387904")],
    "FLOAT": [(0.1, b"0.1"), ("NaN", b"NaN"), (-1e30, b"-1e+30")],
    "DOUBLE": [(0.5, b"0.5"), (1e300, b"1e+300"), ("-Infinity", b"-Infinity"), ("NaN", b"NaN")],
    "DECIMAL(10, 2)": [("-3.25", b"-3.25"), ("0", b"0.00")],
    "DECIMAL(30, 4)": [("12345678901234567890.5", b"12345678901234567890.5000")],
    "DATE": [("2026-03-01", b"2026-03-01"), ("0001-01-01", b"0001-01-01")],
    "TIME": [("12:00:00.5", b"12:00:00.500000")],
    "TIMESTAMP": [("1969-12-31T23:59:59.999999Z", b"1969-12-31 23:59:59.999999Z")],
    "INTERVAL": [("PT1H", b"PT1H"), ("-P3D", b"-P3D"), (0, b"PT0S")],
    "UUID": [("264145f2-5a3d-4015-9f9c-a04938edc143", b"264145f2-5a3d-4015-9f9c-a04938edc143")],
    "BINARY": [("YQ==", b"YQ=="), ("/wA=", b"/wA="), ("", b"")],
}


NESTED: dict[str, list[tuple[Any, bytes]]] = {
    "STRUCT<x BIGINT, y STRING>": [
        ({"x": 1, "y": "a"}, b'{"k":{"x":1,"y":"a"}}'),
        ({"x": 1, "y": None}, b'{"k":{"x":1,"y":null}}'),
    ],
    "MAP<STRING, BIGINT>": [({"a": 1}, b'{"k":{"a":1}}'), ({}, b'{"k":{}}')],
}
"""Keys that are objects of one column."""
TYPES = some_slow(VALUES, quick=("DOUBLE", "UUID", "INTERVAL"))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("type_", [*TYPES, *NESTED])
@pytest.mark.parametrize("emit", ["upserts", "changes"])
@pytest.mark.parametrize("has_two", [False, True])
def test_a_table_is_read_from_what_another_wrote(type_: str, emit: Any, has_two: bool) -> None:
    """Of whatever type the key is, alone or one of two: each row comes, changes and goes."""
    keys = ("k", "of") if has_two else ("k",)
    writing = ps.App("p")
    rows = writing.table("rows", f"id BIGINT, k {type_}, of INT", key="id")
    table = rows.group_by(*keys).agg(n=ps.count())
    writing.view("table", table)
    table.to("table", emit=emit)
    reading = ps.App("q")
    schema = f"k {type_}, {'of INT, ' if has_two else ''}n BIGINT"
    format_: Any = {"upserts": "json", "changes": "debezium"}[emit]
    reading.view("table", reading.table("table", schema, key=keys, format=format_))
    one, two = ps.testing.run(writing), ps.testing.run(reading)
    read = 0
    known = (VALUES | NESTED)[type_]
    values = [value for value, _ in known]
    steps = [
        [("rows", {"id": i, "k": value, "of": 1}) for i, value in enumerate(2 * values)],
        [(None, i) for i in range(len(values))],
        [(None, i) for i in range(len(values), 2 * len(values))],
    ]
    for step, left in zip(steps, (2, 1, 0), strict=True):
        for topic, what in step:
            if topic is None:
                one.send_raw("rows", None, key=str(what))
            else:
                one.send(topic, **what)
        expected = sorted(map(str, one.view("table").rows()))
        assert len(expected) == (len(values) if left else 0)
        records = one.topic("table")
        for record in records[read:]:
            two.send_raw("table", record.value, key=record.key)
        read = len(records)
        assert sorted(map(str, two.view("table").rows())) == expected
    assert two.dead_letters() == []
    if not has_two:
        assert {record.key for record in one.topic("table")} == {text for _, text in known}


@pytest.mark.parametrize("type_", TYPES)
def test_a_stream_is_partitioned_by_a_column_of_any_type(type_: str) -> None:
    """A record whose key is the value's text counts; one with another key is a dead letter."""
    app = ps.App("p")
    rows = app.stream("rows", f"k {type_} NOT NULL", key="k", partitions=2)
    app.view("counts", rows.group_by("k").agg(n=ps.count()))
    run = ps.testing.run(app)
    writing = ps.App("q")
    writing.stream("rows", f"k {type_} NOT NULL").to("copy")
    copying = ps.testing.run(writing)
    for i, (value, key) in enumerate(VALUES[type_]):
        copying.send("rows", k=value)
        [*_, record] = copying.topic("copy")
        for text in (key, key, b"another"):
            run.send_raw("rows", record.value, key=text, partition=i % 2)
    assert [row["n"] for row in run.view("counts").rows()] == [2] * len(VALUES[type_])
    assert len(run.dead_letters()) == len(VALUES[type_])


@pytest.mark.parametrize("emit", ["upserts", "changes", "closed"])
@pytest.mark.parametrize(("type_", "value"), [("ARRAY<STRING>", ["a"]), ("STRING", None)])
def test_a_key_is_never_null(type_: str, value: Any, emit: Any) -> None:
    """That of a group of arrays, and of the group NULL, is an object: compacted topics take no other."""
    app = ps.App("p")
    time = ps.event_time("at")
    rows: Any = app.stream("rows", f"k {type_}, at TIMESTAMP", time=time)
    rows = rows.window(ps.tumbling("1 minute")) if emit == "closed" else rows
    rows.group_by("k").agg(n=ps.count()).to("out", emit=emit)
    run = ps.testing.run(app, shaken=False)
    for at in ("12:00", "12:00", "12:05"):
        run.send("rows", k=value, at=f"{at}:00")
        run.settle()
    keys = {record.key for record in run.topic("out")}
    assert keys == {b'{"k":["a"]}' if value else b'{"k":null}'}
    if emit == "changes":
        assert [json.loads(record.value)["op"] for record in run.topic("out")] == ["c", "u", "u"]


def test_a_table_of_one_row_has_one_key() -> None:
    """An object of no columns: the row before and the row after are one change."""
    app = ps.App("p")
    rows = app.stream("rows", "n BIGINT").group_by().agg(n=ps.sum("n"))
    rows.where("n < 3").to("upserts")
    rows.to("changes", emit="changes")
    run = ps.testing.run(app, shaken=False)
    for _ in range(3):
        run.send("rows", n=1)
        run.settle()
    assert [(one.key, one.value) for one in run.topic("upserts")] == [
        (b"{}", b'{"n":1}'),
        (b"{}", b'{"n":2}'),
        (b"{}", None),
    ]
    changes = [(one.key, json.loads(one.value)["op"]) for one in run.topic("changes")]
    assert changes == [(b"{}", "c"), (b"{}", "u"), (b"{}", "u")]
