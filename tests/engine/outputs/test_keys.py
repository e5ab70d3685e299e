"""Records' keys of each type: what is written is read again, tombstones too, and decides the partition."""

from __future__ import annotations

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


TYPES = some_slow(VALUES, quick=("DOUBLE", "UUID", "INTERVAL"))


@pytest.mark.parametrize("type_", TYPES)
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
    values = [value for value, _ in VALUES[type_]]
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
        assert {record.key for record in one.topic("table")} == {text for _, text in VALUES[type_]}


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
