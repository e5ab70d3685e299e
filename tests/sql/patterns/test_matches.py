"""MATCH_RECOGNIZE over streams and tables, by what other systems' documented examples find, on other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock as ps
from penstock.sql import SqlFlow
from penstock.sql.text.matches import without_clauses

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "id BIGINT{key}, symbol STRING, at TIMESTAMP, price DOUBLE{time}"
TICKS = {
    "nut": [10, 8, 7, 9, 11, 11, 6, 9, 7, 8],
    "oak": [20, 22, 21, 25, 19, 18, 24, 23, 26],
}
V = "DEFINE down AS down.price < PREV(down.price), up AS up.price > PREV(up.price)"
UP = "DEFINE up AS up.price > PREV(up.price)"
DOWN = "DEFINE down AS down.price < PREV(down.price)"
BY = "PARTITION BY symbol ORDER BY at"
Row = tuple[str, int, float | None]


def ticks(*symbols: str) -> list[Row]:
    """Prices of some symbols, a minute apart."""
    return [(one, minute, price) for one in symbols for minute, price in enumerate(TICKS[one])]


def prices(*of: float) -> list[Row]:
    """Prices of one symbol, a minute apart."""
    return [("nut", minute, price) for minute, price in enumerate(of)]


def at(minute: int) -> datetime:
    """An instant."""
    return START + timedelta(minutes=minute)


@dataclass
class Example:
    """A query, and what it finds.

    Attributes:
        clause: what is in the parentheses of MATCH_RECOGNIZE, without PARTITION BY and ORDER BY.
        rows: that it is over.
        found: the rows of the matches; instants as minutes.
        columns: those of the result.
    """

    clause: str
    rows: list[Row]
    found: list[tuple[Any, ...]]
    columns: str


EXAMPLES = {
    "v shape": Example(
        "MEASURES strt.at AS began, LAST(down.at) AS bottom, LAST(up.at) AS ended ONE ROW PER MATCH "
        f"AFTER MATCH SKIP TO LAST up PATTERN (strt down+ up+) {V}",
        ticks("nut", "oak"),
        [
            ("nut", 0, 2, 4),
            ("nut", 5, 6, 7),
            ("nut", 7, 8, 9),
            ("oak", 1, 2, 3),
            ("oak", 3, 5, 6),
            ("oak", 6, 7, 8),
        ],
        "symbol, began, bottom, ended",
    ),
    "v shape, all rows": Example(
        "MEASURES MATCH_NUMBER() AS n, CLASSIFIER() AS is, FINAL LAST(up.at) AS ended "
        f"ALL ROWS PER MATCH PATTERN (strt down+ up+) {V}",
        ticks("nut"),
        [
            ("nut", 0, 1, "strt", 4),
            ("nut", 1, 1, "down", 4),
            ("nut", 2, 1, "down", 4),
            ("nut", 3, 1, "up", 4),
            ("nut", 4, 1, "up", 4),
            ("nut", 5, 2, "strt", 7),
            ("nut", 6, 2, "down", 7),
            ("nut", 7, 2, "up", 7),
        ],
        "symbol, at, n, is, ended",
    ),
    "running and final aggregates": Example(
        "MEASURES FINAL COUNT(up.at) AS ups, FINAL COUNT(at) AS total, RUNNING COUNT(*) AS so_far, "
        f"price - strt.price AS gain ALL ROWS PER MATCH PATTERN (strt down+ up+) {V}",
        ticks("oak"),
        [
            ("oak", 1, 1, 3, 1, 0),
            ("oak", 2, 1, 3, 2, -1),
            ("oak", 3, 1, 3, 3, 3),
            ("oak", 4, 1, 3, 1, 0),
            ("oak", 5, 1, 3, 2, -1),
            ("oak", 6, 1, 3, 3, 5),
        ],
        "symbol, at, ups, total, so_far, gain",
    ),
    "v shape, by rows of the match": Example(
        "MEASURES strt.at AS began, LAST(down.at) AS bottom, LAST(up.at) AS ended ONE ROW PER MATCH "
        "AFTER MATCH SKIP TO LAST up PATTERN (strt down+ up) DEFINE "
        "down AS (LAST(down.price, 1) IS NULL AND down.price < strt.price) "
        "OR down.price < LAST(down.price, 1), up AS up.price > LAST(down.price, 1)",
        ticks("nut", "oak"),
        [("nut", 0, 2, 3), ("oak", 3, 5, 6)],
        "symbol, began, bottom, ended",
    ),
    "rows of a v shape": Example(
        "MEASURES MATCH_NUMBER() AS n, FIRST(at) AS began, COUNT(*) AS rows, COUNT(down.*) AS downs, "
        "COUNT(up.*) AS ups ONE ROW PER MATCH AFTER MATCH SKIP TO LAST up PATTERN (strt down+ up+) "
        "DEFINE down AS price < lag(price), up AS price > LAG(price, 1)",
        ticks("nut"),
        [("nut", 1, 0, 5, 2, 2), ("nut", 2, 5, 3, 1, 1), ("nut", 3, 7, 3, 1, 1)],
        "symbol, n, began, rows, downs, ups",
    ),
    "w shape": Example(
        "MEASURES FIRST(at) AS began, LAST(at) AS ended AFTER MATCH SKIP TO LAST up "
        f"PATTERN (strt down+ up+ down+ up+) {V}",
        ticks("nut", "oak"),
        [("nut", 5, 9), ("oak", 1, 6)],
        "symbol, began, ended",
    ),
    "sessions": Example(
        "MEASURES MATCH_NUMBER() AS n, COUNT(*) AS clicks, FIRST(at) AS began, LAST(at) AS ended "
        "PATTERN (b s*) DEFINE s AS s.at - PREV(s.at) <= INTERVAL '10' MINUTE",
        [("nut", minute, 1) for minute in (0, 3, 12, 30, 35)],
        [("nut", 1, 3, 0, 12), ("nut", 2, 2, 30, 35)],
        "symbol, n, clicks, began, ended",
    ),
    "small sums before a large one": Example(
        "MEASURES FIRST(x.at) AS first, LAST(x.at) AS last, y.price AS amount PATTERN (x{3,} y) "
        "DEFINE x AS price < 2000 AND LAST(x.at) - FIRST(x.at) < INTERVAL 30 MINUTES, "
        "y AS price >= 1000000 AND y.at - LAST(x.at) < INTERVAL 10 MINUTES",
        [
            ("nut", 1, 1000),
            ("nut", 2, 1200),
            ("nut", 5, 500),
            ("nut", 7, 1000),
            ("nut", 20, 1000000),
            ("nut", 21, 1000),
            ("nut", 22, 1500),
            ("nut", 23, 900),
            ("nut", 27, 2000000),
        ],
        [("nut", 21, 23, 2000000)],
        "symbol, first, last, amount",
    ),
    "an aggregate in a condition": Example(
        "MEASURES FIRST(a.at) AS began, LAST(a.at) AS ended, round(AVG(a.price), 2) AS mean "
        "PATTERN (a+ b) DEFINE a AS AVG(a.price) < 15",
        prices(10, 18, 12, 22, 30, 5, 9, 20, 40),
        [("nut", 0, 2, 13.33), ("nut", 5, 7, 11.33)],
        "symbol, began, ended, mean",
    ),
    "a drop within an hour": Example(
        "MEASURES a.at AS began, c.at AS ended, a.price - c.price AS fell PATTERN (a b* c) "
        "WITHIN INTERVAL '1' HOUR DEFINE b AS b.price > a.price - 10, c AS c.price < a.price - 10",
        [("nut", 0, 20), ("nut", 20, 17), ("nut", 40, 18), ("nut", 79, 1)],
        [("nut", 20, 79, 16)],
        "symbol, began, ended, fell",
    ),
    "greedy": Example(
        "MEASURES LAST(b.price) AS last_b, c.price AS c PATTERN (a b* c) "
        "DEFINE a AS price > 10, b AS price < 15, c AS price > 12",
        prices(15, 8, 13, 14, 9, 13, 20),
        [("nut", 13, 20)],
        "symbol, last_b, c",
    ),
    "reluctant": Example(
        "MEASURES LAST(b.price) AS last_b, c.price AS c PATTERN (a b*? c) "
        "DEFINE a AS price > 10, b AS price < 15, c AS price > 12",
        prices(15, 8, 13, 14, 9, 13, 20),
        [("nut", 8, 13), ("nut", 9, 13)],
        "symbol, last_b, c",
    ),
    "any order": Example(
        "MEASURES CLASSIFIER() AS is ALL ROWS PER MATCH PATTERN (PERMUTE(x, y)) "
        "DEFINE x AS price = 1, y AS price = 2",
        prices(1, 2, 2, 1, 1, 2),
        [("nut", i, is_) for i, is_ in enumerate("xyyxxy")],
        "symbol, at, is",
    ),
    "rows left out": Example(
        "MEASURES CLASSIFIER() AS is, COUNT(*) AS n ALL ROWS PER MATCH "
        f"PATTERN (strt {{- down+ -}} up+) {V}",
        ticks("nut"),
        [
            ("nut", 0, "strt", 1),
            ("nut", 3, "up", 4),
            ("nut", 4, "up", 5),
            ("nut", 5, "strt", 1),
            ("nut", 7, "up", 3),
        ],
        "symbol, at, is, n",
    ),
    "unmatched rows": Example(
        "MEASURES MATCH_NUMBER() AS n, CLASSIFIER() AS is ALL ROWS PER MATCH WITH UNMATCHED ROWS "
        f"PATTERN (strt down+) {DOWN}",
        ticks("nut"),
        [
            ("nut", 0, 1, "strt"),
            ("nut", 1, 1, "down"),
            ("nut", 2, 1, "down"),
            ("nut", 3, None, None),
            ("nut", 4, None, None),
            ("nut", 5, 2, "strt"),
            ("nut", 6, 2, "down"),
            ("nut", 7, 3, "strt"),
            ("nut", 8, 3, "down"),
            ("nut", 9, None, None),
        ],
        "symbol, at, n, is",
    ),
    "a name for several variables": Example(
        "MEASURES round(AVG(fall.price), 2) AS mean, LAST(fall.at) AS bottom "
        f"AFTER MATCH SKIP TO LAST up PATTERN (strt down+ up+) SUBSET fall = (strt, down) {V}",
        ticks("nut"),
        [("nut", 8.33, 2), ("nut", 8.5, 6), ("nut", 8, 8)],
        "symbol, mean, bottom",
    ),
    "alternatives and numbers": Example(
        "MEASURES FIRST(at) AS began, CLASSIFIER() AS last, COUNT(*) AS n "
        f"PATTERN ((down{{2}} | up{{2}}) flat?) SUBSET flat_ = (flat) {V}, flat AS price = PREV(price)",
        ticks("nut"),
        [("nut", 1, "down", 2), ("nut", 3, "flat", 3)],
        "symbol, began, last, n",
    ),
    "nested navigation": Example(
        "MEASURES PREV(FIRST(down.price)) AS before, LAST(down.price, 1) AS last_but_one, "
        "NEXT(LAST(up.price), 2) AS behind "
        f"PATTERN (down{{2,}} up) {V}",
        ticks("nut"),
        [("nut", 10, 8, 11)],
        "symbol, before, last_but_one, behind",
    ),
}
SKIPS = {
    "PAST LAST ROW": [(0, 3), (5, 7)],
    "TO NEXT ROW": [(0, 3), (1, 3), (5, 7), (7, 9)],
    "TO FIRST down": [(0, 3), (1, 3), (5, 7), (7, 9)],
    "TO LAST up": [(0, 3), (5, 7), (7, 9)],
    "TO up": [(0, 3), (5, 7), (7, 9)],
}


def bounded(query: str) -> str:
    """A query whose clauses have a bound of rows: streams want one."""
    for clause in reversed(without_clauses(query, "duckdb")[1]):
        end = clause.pattern.start + len(clause.pattern.text) + 1
        if clause.within is None:
            query = f"{query[:end]} KEEP 100 ROWS{query[end:]}"
    return query


def flow_of(query: str, *, table: bool = False, dialect: str = "duckdb") -> SqlFlow:
    """A view `v` over the stream, or the table, `ticks`."""
    key, time = (" PRIMARY KEY", "") if table else ("", ", WATERMARK FOR at AS at - INTERVAL 1 DAY")
    app = SqlFlow("stocks")
    app.sql(f"CREATE {'TABLE' if table else 'STREAM'} ticks ({COLUMNS.format(key=key, time=time)})")
    app.view("v", sql=query if table else bounded(query), dialect=dialect)
    return app


def run_of(query: str, *, table: bool = False, dialect: str = "duckdb") -> Any:
    """A run of it."""
    return ps.testing.run(flow_of(query, table=table, dialect=dialect))


def send(run: Any, rows: Sequence[Row], first_id: int = 0) -> None:
    """Sends prices."""
    for i, (symbol, minute, price) in enumerate(rows, first_id):
        run.send("ticks", id=i, symbol=symbol, at=at(minute).isoformat(), price=price)
    run.settle()


def close(run: Any, rows: Sequence[Row]) -> None:
    """Sends a row without a price behind those of each symbol, and then the watermark."""
    last = max(minute for _, minute, _ in rows) + 60
    ends: list[Row] = [(symbol, last, None) for symbol in {symbol for symbol, _, _ in rows}]
    send(run, [*ends, ("end", last + 10_000, None)], len(rows))


def found(run: Any) -> list[tuple[Any, ...]]:
    """What the view contains, instants as minutes."""

    def plain(value: Any) -> Any:
        return (value - START).total_seconds() / 60 if isinstance(value, datetime) else value

    made = [tuple(map(plain, row.values())) for row in run.view("v").rows()]
    return in_order(made)


def in_order(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows sorted, NULLs last."""
    return sorted(rows, key=lambda row: [(one is None, "" if one is None else one) for one in row])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_over_a_table(name: str) -> None:
    """It finds what its system's documentation describes."""
    one = EXAMPLES[name]
    run = run_of(
        f"SELECT {one.columns} FROM ticks MATCH_RECOGNIZE ({BY} {one.clause}) AS m", table=True
    )
    send(run, one.rows)
    assert found(run) == in_order(one.found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_over_a_stream(name: str) -> None:
    """It finds the same, in whatever order rows come within the lateness."""
    one = EXAMPLES[name]
    run = run_of(f"SELECT {one.columns} FROM ticks MATCH_RECOGNIZE ({BY} {one.clause}) AS m")
    send(run, one.rows[::-1])
    close(run, one.rows)
    assert found(run) == in_order(one.found)


@pytest.mark.parametrize("skip", SKIPS)
def test_where_the_next_match_begins(skip: str) -> None:
    """Each form of AFTER MATCH SKIP finds its matches, over a stream as over a table."""
    clause = (
        f"{BY} MEASURES FIRST(at) AS began, LAST(at) AS ended AFTER MATCH SKIP {skip} "
        f"PATTERN (strt down+ up) {V}"
    )
    for table in (True, False):
        run = run_of(f"SELECT began, ended FROM ticks MATCH_RECOGNIZE ({clause})", table=table)
        send(run, ticks("nut"))
        if not table:
            close(run, ticks("nut"))
        assert found(run) == SKIPS[skip]


def test_skipping_to_where_the_match_began() -> None:
    """The match would be found for ever; the next one begins at the row behind the first one."""
    clause = f"{BY} MEASURES FIRST(at) AS began AFTER MATCH SKIP TO FIRST strt PATTERN (strt down) {DOWN}"
    run = run_of(f"SELECT began FROM ticks MATCH_RECOGNIZE ({clause})", table=True)
    send(run, ticks("nut"))
    assert found(run) == [(0,), (1,), (5,), (7,)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("SHOW EMPTY MATCHES", [(0, 1, None), (1, 2, "down"), (2, 3, None), (3, 4, "down")]),
        ("OMIT EMPTY MATCHES", [(1, 2, "down"), (3, 4, "down")]),
    ],
)
def test_matches_without_a_row(rows: str, expected: list[Any]) -> None:
    """They are shown, or left out, but are counted."""
    query = (
        f"SELECT at, n, is FROM ticks MATCH_RECOGNIZE ({BY} MEASURES MATCH_NUMBER() AS n, "
        f"CLASSIFIER() AS is ALL ROWS PER MATCH {rows} PATTERN (down*) {DOWN})"
    )
    run = run_of(query, table=True)
    send(run, prices(10, 8, 9, 7))
    assert found(run) == expected


def test_one_row_of_a_match_without_one() -> None:
    """A match without rows is a row, whose measures are of no rows."""
    query = (
        f"SELECT symbol, n, rows, last FROM ticks MATCH_RECOGNIZE ({BY} MEASURES MATCH_NUMBER() AS n, "
        f"COUNT(*) AS rows, LAST(price) AS last PATTERN (down*) {DOWN})"
    )
    run = run_of(query, table=True)
    send(run, prices(10, 8, 9))
    assert found(run) == [("nut", 1, 0, None), ("nut", 2, 1, 8), ("nut", 3, 0, None)]


def test_anchors_over_a_table() -> None:
    """`^` is before the first row of a partition, `$` behind its last one."""
    for pattern, define, expected in (("^ strt down", DOWN, 0), ("strt up $", UP, 8)):
        clause = f"{BY} MEASURES FIRST(at) AS began PATTERN ({pattern}) {define}"
        run = run_of(f"SELECT * FROM ticks MATCH_RECOGNIZE ({clause})", table=True)
        send(run, ticks("nut", "oak"))
        assert [one for one in found(run) if one[0] == "nut"] == [("nut", expected)]


def test_the_columns_of_all_rows() -> None:
    """They are those of PARTITION BY, of ORDER BY, the measures, and the others; one row has less."""
    clause = f"{BY}, id MEASURES LAST(price) AS x PATTERN (strt down) {DOWN}"
    every = clause.replace("PATTERN", "ALL ROWS PER MATCH PATTERN")
    for text, names in ((clause, "symbol x"), (every, "symbol at id x price")):
        view = flow_of(f"SELECT * FROM ticks MATCH_RECOGNIZE ({text})").graph().views[0]
        assert view.node.schema.names == tuple(names.split())


def test_rows_of_one_instant_are_ordered_by_the_other_columns() -> None:
    """Those behind the event time, each in its direction."""
    clause = (
        "ORDER BY at, price DESC MEASURES FIRST(price) AS x, LAST(price) AS y PATTERN (a b{2}) "
    )
    clause += "DEFINE b AS price < PREV(price)"
    run = run_of(f"SELECT * FROM ticks MATCH_RECOGNIZE ({clause})")
    send(run, [("nut", 0, 1), ("oak", 0, 3), ("elm", 0, 2)])
    close(run, [("nut", 0, 1)])
    assert found(run) == [(3, 1)]


WITHIN_QUERIES = {
    "in a join": (
        (
            "SELECT m.began, n.price FROM ticks MATCH_RECOGNIZE ({one}) AS m "
            "JOIN (SELECT * FROM ticks WHERE id < 3) AS n ON n.at = m.began"
        ),
        [(0, 10), (1, 8)],
    ),
    "over a WITH": (
        (
            "WITH low AS (SELECT * FROM ticks WHERE price < 11), lower AS (SELECT * FROM low) "
            "SELECT began, ended FROM lower MATCH_RECOGNIZE ({one}) AS m"
        ),
        [(0, 3), (1, 3), (3, 7), (7, 9)],
    ),
    "in a WITH": (
        "WITH m AS (SELECT * FROM ticks MATCH_RECOGNIZE ({one})) SELECT count(*), min(began) FROM m",
        [(4, 0)],
    ),
    "over a subquery": (
        (
            "SELECT began, ended FROM (SELECT at, symbol, -price AS price FROM ticks) "
            "MATCH_RECOGNIZE ({one}) AS m (symbol, began, ended)"
        ),
        [(6, 8)],
    ),
    "in a scalar subquery": (
        "SELECT DISTINCT symbol, (SELECT max(ended) FROM ticks MATCH_RECOGNIZE ({one})) FROM ticks",
        [("nut", 9)],
    ),
    "in a set operation": (
        (
            "SELECT began FROM ticks MATCH_RECOGNIZE ({one}) UNION SELECT ended FROM ticks "
            "MATCH_RECOGNIZE ({one}) AS m"
        ),
        [(0,), (1,), (3,), (5,), (7,), (9,)],
    ),
    "behind another": (
        (
            "SELECT * FROM (SELECT symbol, ended AS at FROM ticks MATCH_RECOGNIZE ({one})) "
            "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES count(*) AS n PATTERN (a a) "
            "DEFINE a AS true)"
        ),
        [("nut", 2), ("nut", 2)],
    ),
    "of an alias": (
        (
            "SELECT m.began FROM ticks AS t MATCH_RECOGNIZE ({one}) AS m WHERE m.began > m.ended - "
            "INTERVAL 3 MINUTES"
        ),
        [(1,), (5,), (7,)],
    ),
}


@pytest.mark.parametrize("name", WITHIN_QUERIES)
def test_matches_in_a_query(name: str) -> None:
    """Matches are a table like others, wherever a table may stand; over a table, too."""
    query, expected = WITHIN_QUERIES[name]
    one = (
        "PARTITION BY symbol ORDER BY at MEASURES FIRST(at) AS began, LAST(at) AS ended "
        f"AFTER MATCH SKIP TO NEXT ROW PATTERN (strt down+ up) {V}"
    )
    run = run_of(query.format(one=one), table=True)
    send(run, ticks("nut"))
    assert found(run) == expected


@pytest.mark.parametrize("dialect", ["oracle", "trino", "snowflake", "spark", "postgres", "mysql"])
def test_the_expressions_of_a_dialect(dialect: str) -> None:
    """They mean what they do there: a division of integers, a call of `NEXT`, FINAL before one."""
    clause = (
        f"{BY} MEASURES FINAL LAST(up.price, 0) AS high, NEXT(up.price) AS behind, (id + 1) / 4 AS quarter "
        f"PATTERN (strt down+ up+) {V}"
    )
    query = (
        f"SELECT high, behind, quarter FROM ticks MATCH_RECOGNIZE ({clause}) AS m WHERE m.high > 9"
    )
    run = run_of(query, table=True, dialect=dialect)
    send(run, ticks("nut"))
    quarter = 1 if dialect in ("trino", "postgres") else 1.25
    assert found(run) == [(11, 11, quarter)]


def test_the_expressions_of_duckdb() -> None:
    """A call behind a dot, and a list behind IN, mean what they mean in other clauses."""
    clause = (
        "ORDER BY at MEASURES LAST(symbol).upper() AS name PATTERN (strt down{2}) "
        "DEFINE down AS price.round() < PREV(price) AND symbol IN ['nut', NULL]"
    )
    run = run_of(f"SELECT * FROM ticks MATCH_RECOGNIZE ({clause})", table=True)
    send(run, ticks("nut"))
    assert found(run) == [("NUT",)]
