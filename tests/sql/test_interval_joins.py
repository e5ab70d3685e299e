"""Joins of two streams within an interval: recognised by their condition, with a state that is released."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

import penstock as ps
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.sql import SqlFlow
from penstock.state.sizes import state_size

START = datetime(2026, 1, 1, tzinfo=UTC)
BETWEEN = 'b."at" BETWEEN a."at" - INTERVAL 1 MINUTE AND a."at" + INTERVAL 5 MINUTES'
DIFFERENCE = 'a."at" - b."at" BETWEEN -INTERVAL 4 MINUTES AND INTERVAL 1 MINUTE'
AFTER = 'b."at" > a."at" AND a."at" + INTERVAL 4 MINUTES >= b."at"'
VIEWS = {
    "inner_": f"SELECT a.k, a.v, b.w FROM a JOIN b ON a.k = b.k AND {BETWEEN}",
    "where_": f"SELECT a.v, b.w FROM a, b WHERE a.k = b.k AND {AFTER} AND a.v <> b.w AND a.k < 9",
    "left_": f"SELECT a.k, a.v, b.k AS bk, b.w FROM a LEFT JOIN b ON a.k = b.k AND {BETWEEN} WHERE a.k < 9",
    "right_": f"SELECT a.k, b.w FROM a RIGHT JOIN b ON a.k = b.k AND {AFTER} WHERE b.k < 9",
    "full_": (
        f"SELECT a.k, a.v, b.k AS bk, b.w FROM a FULL JOIN b ON a.k = b.k AND {BETWEEN} "
        "WHERE coalesce(a.k, b.k) < 9"
    ),
    "semi_": f"SELECT a.k, a.v FROM a SEMI JOIN b ON a.k = b.k AND {BETWEEN} WHERE a.k < 9",
    "anti_": f"SELECT a.k, a.v FROM a ANTI JOIN b ON a.k = b.k AND {AFTER} WHERE a.k < 9",
    "difference": f"SELECT a.v, b.w FROM a JOIN b ON a.k = b.k AND {DIFFERENCE}",
    "alone": 'SELECT a.v, b.w FROM a JOIN b ON b."at" BETWEEN a."at" AND a."at" + INTERVAL 90 SECONDS',
    "itself": f"SELECT a.v, b.v AS w FROM a JOIN a AS b ON a.k = b.k AND {AFTER}",
}


def flow() -> SqlFlow:
    app = SqlFlow("shop")
    for name, value in (("a", "v"), ("b", "w")):
        time = ps.event_time("at", lateness="10 minutes")
        app.stream(name, f"k BIGINT, {value} BIGINT, at TIMESTAMP", time=time)
    return app


def joins(app: SqlFlow) -> list[IntervalJoin]:
    found = [node.operator for node in app.graph().stateful()]
    return [one for one in found if isinstance(one, IntervalJoin)]


def test_joins_within_an_interval() -> None:
    """Once no partner can come any more they equal DuckDB's, and nothing old is kept."""
    app = flow()
    for name, query in VIEWS.items():
        app.view(name, sql=query)
    assert len(joins(app)) == len(VIEWS)
    run = ps.testing.run(app, cores=2)
    con = duckdb.connect(":memory:")
    con.execute('CREATE TABLE a(k BIGINT, v BIGINT, "at" TIMESTAMPTZ)')
    con.execute('CREATE TABLE b(k BIGINT, w BIGINT, "at" TIMESTAMPTZ)')
    chance = random.Random(3)

    def send(name: str, *row: Any) -> None:
        run.send(name, **dict(zip(("k", "v" if name == "a" else "w", "at"), row, strict=True)))
        con.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", row)

    for batch in range(4):
        for _ in range(10):
            at = START + timedelta(seconds=30 * chance.randint(8 * batch, 8 * batch + 18))
            key = None if chance.random() < 0.1 else chance.randint(1, 2)
            send(chance.choice("ab"), key, chance.randint(1, 9), at.isoformat())
        run.settle()
        if batch == 2:
            run.restart()
    for hours in (9, 10):  # small runs are rewritten when rows come
        for name in "ab":
            send(name, 9, 0, (START + timedelta(hours=hours)).isoformat())
        run.settle()
    for name, query in VIEWS.items():
        found = Counter(tuple(row.values()) for row in run.view(name).rows())
        assert found == Counter(con.execute(query).fetchall()), name
    assert not run.dead_letters()
    operators = run.store.version(run.store.newest_version()).operators
    for node in app.graph().stateful():
        if isinstance(node.operator, IntervalJoin):
            kept, *_ = state_size(operators[node.identity].traces)
            assert kept <= 2 * 4, "the last rows, in up to four traces"


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (BETWEEN, (60, 300)),
        ('a."at" <= b."at" AND b."at" - a."at" < INTERVAL 1 HOUR', (0, 3600 - 1e-6)),
        ('a."at" - b."at" BETWEEN -INTERVAL 1 HOUR AND INTERVAL 1 MINUTE', (60, 3600)),
        (
            'INTERVAL 1 MINUTE >= b."at" - (a."at" + INTERVAL 1 MINUTE) AND b."at" > a."at"',
            (-1e-6, 120),
        ),
        ('a."at" >= b."at" - INTERVAL 1 HOUR AND a."at" <= b."at"', (0, 3600)),
        ('b."at" = a."at" + INTERVAL 1 DAY', (-86400, 86400)),
        ('b."at" BETWEEN a."at" AND a."at" + INTERVAL 1 MONTH', None),
        ('b."at" - a."at" BETWEEN INTERVAL 0 HOURS AND INTERVAL \'1.5 hours\'', (0, 5400)),
        ('b."at" - a."at" BETWEEN INTERVAL 0 HOURS AND INTERVAL 1.5 HOURS', None),  # DuckDB: 1 hour
        ('b."at" >= a."at"', None),
        ("b.w BETWEEN a.v AND a.v + 1", None),
    ],
)
def test_what_is_recognised(condition: str, bounds: tuple[int, int] | None) -> None:
    """Both bounds of the difference of event times are needed; anything else is a table's join."""
    app = flow()
    app.view("q", sql=f"SELECT a.v, b.w FROM a JOIN b ON a.k = b.k AND {condition}")
    found = [(one.before_us / 1e6, one.after_us / 1e6) for one in joins(app)]
    assert found == ([] if bounds is None else [bounds])
