"""Aggregates over expressions and under conditions, against DuckDB over all rows."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.physical import compile_graph
from penstock.errors import SchemaError

SCHEMA = "user STRING NOT NULL, v BIGINT, price DOUBLE, s STRING, at TIMESTAMP NOT NULL"
AGGREGATES = {
    "n": (ps.count(), "count(*)"),
    "big": (ps.count(where="v > 5"), "count(*) FILTER (v > 5)"),
    "known": (ps.count("s", where="v > 5"), "count(s) FILTER (v > 5)"),
    "worth": (ps.sum("price * v"), "sum(price * v)"),
    "odd": (ps.sum("v", where="v % 2 = 1"), "sum(v) FILTER (v % 2 = 1)"),
    "mean": (ps.avg("v + 1", where="s LIKE 'a%'"), "avg(v + 1) FILTER (s LIKE 'a%')"),
    "low": (ps.min("length(s)"), "min(length(s))"),
    "high": (ps.max("v", where="NOT (v > 5)"), "max(v) FILTER (NOT (v > 5))"),
    "total": (ps.sum("v"), "sum(v)"),
}


def app() -> ps.App:
    """Every aggregate per minute and user, and one aggregate of that table."""
    flow = ps.App("p")
    events = flow.stream(
        "events", SCHEMA, time=ps.event_time("at", lateness="1 hour"), key="user", partitions=2
    )
    table = (
        events.window(ps.tumbling("1 minute"))
        .group_by("user")
        .agg(**{name: call for name, (call, _) in AGGREGATES.items()})
    )
    flow.view("per_user", table)
    hours = table.window(ps.tumbling("1 hour")).agg(busy=ps.count(where="n > 3"))
    flow.view("hours", hours)
    return flow


def test_they_equal_duckdb() -> None:
    """With NULLs, in several batches, and over a table whose rows change."""
    chance = random.Random(5)
    run = ps.testing.run(app())
    rows = []
    for _ in range(300):
        row = {
            "user": chance.choice(["ann", "bob", "cid"]),
            "v": chance.choice([None, *range(12)]),
            "price": chance.choice([None, 0.5, 2.0, -1.25]),
            "s": chance.choice([None, "a", "abc", "b"]),
            "at": f"12:{chance.randrange(20):02d}:00",
        }
        run.send("events", **row)
        rows.append(row)
        if chance.random() < 0.05:
            run.step()
    con = duckdb.connect()
    con.register("events", pa.Table.from_pylist(rows))
    computed = ", ".join(f'{sql} AS "{name}"' for name, (_, sql) in AGGREGATES.items())
    query = f'SELECT "user", "at", {computed} FROM events GROUP BY ALL'
    wanted = {(row["user"], row["at"]): row for row in con.sql(query).to_arrow_table().to_pylist()}
    found = run.view("per_user").rows()
    assert len(found) == len(wanted)
    for row in found:
        expected = wanted[row["user"], row["window_start"].strftime("%H:%M:%S")]
        assert {name: row[name] for name in AGGREGATES} == {n: expected[n] for n in AGGREGATES}
    [hour] = run.view("hours").rows()
    assert hour["busy"] == sum(row["n"] > 3 for row in wanted.values())


def test_the_log_s_key_still_serves() -> None:
    """Computing what is aggregated moves no row to another lane."""
    physical = compile_graph(app().graph(), {"events": 2}, 2)
    [first] = [p for p in physical.placed.values() if "per_user" in p.names]
    assert first.fused


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ps.count(where="v"), "a condition"),
        (ps.count(where="nope > 1"), "'nope'"),
        (ps.sum("price *"), "a SQL expression"),
        (ps.sum("random()"), "random"),
        (ps.count(where="now() > at"), "now"),
        (ps.sum("sum(v)"), "one row"),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_program(call: object, text: str) -> None:
    """Not in those of what is made of them."""
    stream = ps.App("p").stream("events", SCHEMA, time=ps.event_time("at"))
    with pytest.raises(SchemaError, match=text) as raised:
        stream.group_by("user").agg(x=call)  # type: ignore[arg-type]
    assert "CASE" not in str(raised.value)
