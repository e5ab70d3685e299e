"""Patterns in programs: their matches in joins, windows, other patterns and sinks; and late rows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sql.patterns.test_matches import BY, COLUMNS, Row, V, at, close, found, send, ticks

import penstock as ps
from penstock.errors import PenstockError
from penstock.sql import SqlFlow

TICKS = f"CREATE STREAM ticks ({COLUMNS.format(key='', time=', WATERMARK FOR at AS at - INTERVAL 1 DAY')});"
DIPS = f"""
CREATE VIEW dips AS SELECT * FROM ticks MATCH_RECOGNIZE (
  {BY} MEASURES FIRST(at) AS began, LAST(at) AS ended PATTERN (strt down+ up) KEEP 100 ROWS {V}
);
"""
"""nut: 0 to 3, 5 to 7; oak: 1 to 3, 4 to 6."""
VIEW = "CREATE MATERIALIZED VIEW v AS "


def run_of(program: str) -> Any:
    """A run of a program over the prices of both symbols."""
    app = SqlFlow("stocks")
    app.sql(TICKS + DIPS + program)
    run = ps.testing.run(app)
    send(run, ticks("nut", "oak"))
    close(run, ticks("nut", "oak"))
    return run


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT window_start, count(*) AS n FROM TUMBLE(dips, INTERVAL 5 MINUTES) GROUP BY window_start",
            [(0, 2), (5, 2)],
        ),
        (
            (
                "SELECT dips.symbol, count(*) AS n FROM dips JOIN ticks ON ticks.symbol = dips.symbol "
                "AND ticks.at BETWEEN dips.began AND dips.ended GROUP BY dips.symbol"
            ),
            [("nut", 7), ("oak", 6)],
        ),
        (
            "SELECT symbol, row_number() OVER (PARTITION BY symbol ORDER BY ended) AS n, ended FROM dips",
            [("nut", 1, 3), ("nut", 2, 7), ("oak", 1, 3), ("oak", 2, 6)],
        ),
        (
            (
                "SELECT a, b FROM dips MATCH_RECOGNIZE (ORDER BY ended, symbol DESC "
                "MEASURES symbol AS s, FIRST(ended) AS a, LAST(ended) AS b PATTERN (x y) "
                "DEFINE y AS symbol <> x.symbol)"
            ),
            [(3, 3), (6, 7)],
        ),
        (
            (
                "SELECT symbol, n FROM (SELECT t.symbol, t.at, u.price FROM ticks AS t JOIN ticks AS u "
                "ON u.id = t.id) MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES count(*) AS n "
                f"PATTERN (strt down+ up+) {V}) WHERE symbol = 'nut'"
            ),
            [("nut", 3), ("nut", 5)],
        ),
    ],
    ids=["windows", "join", "window functions", "pattern", "over a join"],
)
def test_matches_as_rows_of_other_queries(query: str, expected: list[Any]) -> None:
    """Windows, joins, window functions and patterns take matches as they take rows."""
    assert found(run_of(VIEW + query)) == expected


def test_a_sink_of_matches() -> None:
    """A topic gets each match of a stream once."""
    run = run_of("CREATE SINK out INTO 'dips' AS SELECT symbol, began FROM dips")
    values = [one.value for one in run.topic("dips")]
    assert values == [
        b'{"symbol":"nut","began":"2026-01-01T00:00:00Z"}',
        b'{"symbol":"oak","began":"2026-01-01T00:01:00Z"}',
        b'{"symbol":"oak","began":"2026-01-01T00:04:00Z"}',
        b'{"symbol":"nut","began":"2026-01-01T00:05:00Z"}',
    ]


def test_windows_of_matches_by_a_measure() -> None:
    """Matches happen when they are certain: another column is refused as their time."""
    with pytest.raises(PenstockError, match=r"expected no column in TUMBLE\(dips, …\), whose rows"):
        run_of(
            f"{VIEW} SELECT count(*) FROM TUMBLE(dips, ended, INTERVAL 5 MINUTES) GROUP BY window_end"
        )


def test_late_rows_correct_matches() -> None:
    """With CORRECT, a row that comes behind the watermark takes its place; without, it is a dead letter."""
    for correct, expected in (("", [(0, 2)]), ("CORRECT INTERVAL 1 HOUR ", [(0, 1)])):
        app = SqlFlow("stocks")
        app.sql(TICKS.replace(" AS at - INTERVAL 1 DAY", ""))
        clause = f"{BY} MEASURES FIRST(at) AS a, LAST(at) AS b PATTERN (down up) "
        app.view("v", sql=f"SELECT a, b FROM ticks MATCH_RECOGNIZE ({clause}{correct}{V})")
        run = ps.testing.run(app)
        rows: list[Row] = [("nut", -1, 9), ("nut", 0, 3), ("nut", 2, 5), ("end", 20, None)]
        send(run, rows)
        assert found(run) == [(0, 2)]
        run.send("ticks", id=9, symbol="nut", at=at(1).isoformat(), price=4.0)
        run.settle()
        assert found(run) == expected
        assert len(run.dead_letters()) == (0 if correct else 1)


def test_correct_over_a_table() -> None:
    """It is refused: no row of a table is late."""
    clause = f"{BY} MEASURES 1 AS x PATTERN (down up) CORRECT INTERVAL 1 HOUR {V}"
    app = SqlFlow("stocks")
    app.sql(f"CREATE TABLE ticks ({COLUMNS.format(key=' PRIMARY KEY', time='')})")
    with pytest.raises(PenstockError, match="found a table, whose changes are always corrected"):
        app.view("v", sql=f"SELECT * FROM ticks MATCH_RECOGNIZE ({clause})")
