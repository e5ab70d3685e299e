"""Aggregates over expressions and under conditions, against DuckDB over all rows."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.physical import compile_graph
from penstock.errors import FlowError, SchemaError

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
    "spread": (ps.variance("price", where="v > 3"), "var_samp(price) FILTER (v > 3)"),
    "around": (ps.stddev("v * 2"), "stddev_samp(v * 2)"),
    "kinds": (ps.count_distinct("s", where="v < 9"), "count(DISTINCT s) FILTER (v < 9)"),
    "cheapest": (
        ps.arg_min("s", by="price * v"),
        "arg_min(s, (price * v, s)) FILTER (price * v IS NOT NULL AND s IS NOT NULL)",
    ),
    "dearest": (
        ps.arg_max("v", by="price", where="v < 9"),
        "arg_max(v, (price, v)) FILTER (v < 9 AND price IS NOT NULL)",
    ),
    "median": (ps.quantile("price", 0.5, where="v > 1"), "median(price) FILTER (v > 1)"),
    "tenth": (ps.quantile("v", 0.1), "quantile_cont(v::DOUBLE, 0.1)"),
    "few": (ps.collect("s", limit=2), "(list(s ORDER BY s) FILTER (s IS NOT NULL))[:2]"),
    "top": (
        ps.collect("v", by="price DESC", limit=3),
        "(list(v ORDER BY price DESC, v DESC) FILTER (v + price IS NOT NULL))[:3]",
    ),
    "oldest": (ps.first("v"), 'arg_min(v, ("at", v)) FILTER (v IS NOT NULL)'),
    "newest": (
        ps.last("s", where="v > 1"),
        'arg_max(s, ("at", s)) FILTER (v > 1 AND s IS NOT NULL)',
    ),
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


def close(value: object) -> object:
    """What equals DuckDB's value, a double but for rounding."""
    return pytest.approx(value, rel=1e-13) if isinstance(value, float) else value


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
        for name in AGGREGATES:
            assert row[name] == close(expected[name]), name
    [hour] = run.view("hours").rows()
    assert hour["busy"] == sum(row["n"] > 3 for row in wanted.values())


def test_aggregates_follow_rows_that_are_taken_back() -> None:
    """Distinct counts, variances and newest values of groups that change, also after a restart."""
    app = ps.App("p")
    events = app.stream("events", SCHEMA, time=ps.event_time("at"))
    users = events.group_by("user").agg(
        n=ps.count(), s=ps.last("s"), v=ps.last("v"), kinds=ps.count_distinct("s")
    )
    summary = users.group_by("n").agg(
        kinds=ps.count_distinct("s"), spread=ps.variance("v"), top=ps.arg_max("user", by="v")
    )
    app.view("users", users)
    app.view("summary", summary)
    minutes = events.window(ps.tumbling("1 minute")).group_by("user").agg(v=ps.sum("v"))
    app.view("latest", minutes.group_by("user").agg(v=ps.last("v"), first=ps.first("v")))
    run = ps.testing.run(app)
    for i, (user, v, s) in enumerate(
        [("ann", 1, "x"), ("bob", 4, "y"), ("cid", 2, "x"), ("ann", 3, "x"), ("bob", 5, "z")]
    ):
        run.send("events", user=user, v=v, s=s, at=f"12:0{i}:00")
        run.settle()
        if i == 2:
            assert run.view("summary").rows() == [
                {"n": 1, "kinds": 2, "spread": pytest.approx(7 / 3), "top": "bob"}
            ]
            run.restart()
    assert sorted(run.view("summary").rows(), key=lambda row: row["n"]) == [
        {"n": 1, "kinds": 1, "spread": None, "top": "cid"},
        {"n": 2, "kinds": 2, "spread": 2.0, "top": "bob"},
    ]
    assert {(r["user"], r["n"], r["kinds"]) for r in run.view("users").rows()} == {
        ("ann", 2, 1), ("bob", 2, 2), ("cid", 1, 1)
    }  # fmt: skip
    assert {(r["user"], r["v"], r["first"]) for r in run.view("latest").rows()} == {
        ("ann", 3, 1), ("bob", 5, 4), ("cid", 2, 2)
    }  # fmt: skip


def test_first_and_last_need_an_event_time() -> None:
    """A table without windows has none; the message says what to write."""
    events = ps.App("p").stream("events", SCHEMA, time=ps.event_time("at"))
    table = events.group_by("user", "s").agg(n=ps.count())
    with pytest.raises(FlowError, match=r"event time for 'x'.*ps\.arg_max"):
        table.group_by("user").agg(x=ps.last("n"))
    with pytest.raises(FlowError, match="what arg_min is by as text"):
        ps.arg_min("s", by=5)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match=r"numbers for variance\(s\)"):
        events.group_by("user").agg(x=ps.variance("s"))


def test_the_log_s_key_still_serves() -> None:
    """Computing what is aggregated moves no row to another lane."""
    physical = compile_graph(app().graph(), {"events": 2}, 2)
    [first] = [p for p in physical.placed.values() if "per_user" in p.names]
    assert first.fused


def test_only_columns_that_are_read_are_made() -> None:
    """Of an operator that keeps whole rows these are all; a condition's are among them."""

    def read(app: ps.App) -> str:
        physical = compile_graph(app.graph(), {"events": 2}, 2)
        return " ".join(sorted(physical.columns_of(physical.graph.sources[0])))

    def events() -> tuple[ps.App, ps.Stream]:
        app = ps.App("p")
        return app, app.stream("events", SCHEMA, time=ps.event_time("at"))

    app, stream = events()
    minutes = stream.where("s <> ''").window(ps.tumbling("1 minute"))
    app.view("v", minutes.group_by("user").agg(n=ps.sum("v")))
    assert read(app) == "s user v"
    stream.select("user", cost="price * 2").to("costs")
    assert read(app) == "price s user v"
    app, stream = events()
    app.view("v", stream.top(1, by="price", per="user"))
    assert read(app) == "at price s user v"
    app, stream = events()
    stream.select("v", "s").union(stream.select("v", s="'none'")).select("v").to("all")
    assert read(app) == "s v"


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
def test_mistakes_are_reported_in_the_words_of_the_program(call: object, text: str) -> None:
    """Not in those of what is made of them."""
    stream = ps.App("p").stream("events", SCHEMA, time=ps.event_time("at"))
    with pytest.raises(SchemaError, match=text) as raised:
        stream.group_by("user").agg(x=call)  # type: ignore[arg-type]
    assert "CASE" not in str(raised.value)
