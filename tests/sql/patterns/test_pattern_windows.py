"""Patterns in WINDOW clauses: the frame of a row is the match that begins at it."""

from __future__ import annotations

import pytest
from tests.sql.patterns.test_matches import close, found, prices, run_of, send, ticks

from penstock.errors import PenstockError

WINDOW = """WINDOW w AS (
  PARTITION BY symbol ORDER BY at
  MEASURES LAST(down.price) AS bottom, CLASSIFIER() AS last
  ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
  AFTER MATCH SKIP PAST LAST ROW
  INITIAL PATTERN (strt down+ up+) KEEP 100 ROWS
  DEFINE down AS price < PREV(price), up AS price > PREV(price)
)"""
EXPECTED = [
    (0, 7, "up", 5, 45, 10, 11, 1),
    (1, None, None, 0, None, None, None, 2),
    (2, None, None, 0, None, None, None, 3),
    (3, None, None, 0, None, None, None, 4),
    (4, None, None, 0, None, None, None, 5),
    (5, 6, "up", 3, 26, 11, 9, 6),
    (6, None, None, 0, None, None, None, 7),
    (7, None, None, 0, None, None, None, 8),
    (8, None, None, 0, None, None, None, 9),
    (9, None, None, 0, None, None, None, 10),
]
ITEMS = (
    "t.at, bottom OVER w, last OVER w, count(*) OVER w, sum(t.price) OVER w, "
    "first_value(price) OVER w, last_value(price) OVER w, row_number() OVER w"
)


@pytest.mark.parametrize("dialect", ["duckdb", "trino", "postgres"])
def test_functions_over_a_window_with_a_pattern(dialect: str) -> None:
    """Measures and aggregates are those of the match that begins at a row; other rows have none."""
    run = run_of(f"SELECT {ITEMS} FROM ticks AS t {WINDOW}", table=True, dialect=dialect)
    send(run, ticks("nut"))
    assert found(run) == EXPECTED
    items = "count(*) sum(t.price) first_value(price) last_value(price)"
    names = ["at", "bottom", "last", *(f"{one} OVER w" for one in items.split())]
    assert list(run.view("v").rows()[0])[:-1] == names


def test_a_stream_next_to_other_clauses() -> None:
    """WHERE comes before the pattern, QUALIFY behind it; the star has the columns of the rows."""
    run = run_of(
        "SELECT *, count(*) OVER w AS n FROM (SELECT * FROM ticks) AS t "
        "WHERE t.price < 11 OR t.price IS NULL "
        f"{WINDOW} QUALIFY bottom OVER w IS NOT NULL"
    )
    send(run, ticks("nut"))
    close(run, ticks("nut"))
    assert found(run) == [(0, "nut", 0, 10, 4), (7, "nut", 7, 9, 3)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("INITIAL", "SEEK", "expected INITIAL, or nothing, before PATTERN in a window; found SEEK"),
        ("PAST LAST ROW", "TO NEXT ROW", "expected AFTER MATCH SKIP PAST LAST ROW in a window"),
        ("AND UNBOUNDED", "AND 3", "found 'ROWS'"),
        ("AS t ", "AS t JOIN ticks AS u ON t.id = u.id ", "Join or group in a subquery in FROM"),
        (
            "bottom OVER",
            "botom OVER",
            "expected a measure of the window 'w', bottom, last; found 'botom'",
        ),
        (
            "sum(t.price)",
            "lower(t.symbol)",
            "expected a measure, an aggregate, first_value or last_value",
        ),
        (
            "DEFINE down",
            "DEFINE dwn",
            "expected variables of PATTERN in DEFINE, strt, down, up; found",
        ),
    ],
)
def test_what_a_window_refuses(old: str, new: str, said: str) -> None:
    """The message says what is supported, with line and column."""
    query = f"SELECT {ITEMS} FROM ticks AS t {WINDOW}"
    assert old in query
    with pytest.raises(PenstockError, match=r"line [0-9]+, column [0-9]+: ") as failure:
        run_of(query.replace(old, new), table=True)
    assert said in str(failure.value)


def test_prices_that_never_match() -> None:
    """All rows are there."""
    run = run_of(f"SELECT at, bottom OVER w FROM ticks {WINDOW}", table=True)
    send(run, prices(1, 2, 3))
    assert found(run) == [(0, None), (1, None), (2, None)]
