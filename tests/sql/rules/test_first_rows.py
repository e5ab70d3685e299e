"""Bounds on `row_number()`: only the first rows of each partition are numbered."""

from __future__ import annotations

import pytest
from tests.sql.beside_duckdb import compare_all, flow

from penstock.engine.physical import compile_graph

OVER = "OVER (PARTITION BY k ORDER BY v DESC NULLS FIRST, id)"
NUMBERED = f"SELECT id, k, row_number() {OVER} AS n FROM t"
BOUNDED = {
    f"SELECT id, k FROM t QUALIFY row_number() {OVER} <= 2": ["top"],
    f"SELECT id, k, row_number() {OVER} AS n FROM t QUALIFY row_number() {OVER} < 3": [
        "top", "window functions",
    ],
    "SELECT id, k FROM t WINDOW w AS (PARTITION BY k ORDER BY v + 1, id) "
    "QUALIFY row_number() OVER w = 1 AND v > 0": ["top"],
    "SELECT id FROM t QUALIFY row_number() OVER (ORDER BY v, id) <= 3 AND rank() OVER (ORDER BY k) < 4": [
        "window functions", "top",
    ],
    "SELECT k, count(*) AS n FROM t GROUP BY k QUALIFY row_number() OVER (ORDER BY count(*) DESC, k) <= 2": [
        "aggregate", "top",
    ],
    f"SELECT r.id, r.n FROM ({NUMBERED}) AS r WHERE r.n <= 2 AND r.n > 1": ["top", "window functions"],
    f"WITH r AS ({NUMBERED}) SELECT u.id AS uid, r.n FROM u LEFT JOIN r ON u.k = r.k WHERE r.n = 1": [
        "upserts", "top", "window functions", "table join",
    ],
}  # fmt: skip
UNBOUNDED = [
    f"SELECT id FROM t QUALIFY row_number() {OVER} <= 0",
    f"SELECT id FROM t QUALIFY row_number() {OVER} <= 2 OR id = 3",
    f"SELECT id FROM t QUALIFY row_number() {OVER} = 2",
    f"SELECT r.id FROM ({NUMBERED}) AS r WHERE r.n >= 2",
    f"SELECT r.id FROM ({NUMBERED} ORDER BY id LIMIT 3) AS r WHERE r.n <= 2",
    f"SELECT r.k FROM (SELECT DISTINCT k, row_number() {OVER} AS n FROM t) AS r WHERE r.n <= 2",
    f"SELECT u.id, r.n FROM u ASOF JOIN ({NUMBERED}) AS r ON u.k = r.k AND u.id >= r.id WHERE r.n <= 1",
    f"WITH r AS ({NUMBERED}) SELECT a.id FROM r AS a JOIN r AS b ON a.id = b.id WHERE a.n <= 1",
]


def operators(query: str) -> list[str]:
    app = flow()
    app.view("q", sql=query)
    placed = compile_graph(app.graph(), {"t": 1, "u": 1}, 2).placed.values()
    return [one.operator.kind for one in placed]


@pytest.mark.parametrize("query", BOUNDED)
def test_the_first_rows_are_kept_alone(query: str) -> None:
    """Before they are numbered."""
    assert operators(query) == ["upserts", *BOUNDED[query]]


@pytest.mark.parametrize("query", UNBOUNDED)
def test_a_bound_stays_where_it_would_mean_something_else(query: str) -> None:
    """Of other conditions, and where all numbers are read."""
    first = operators(query)[:3]
    assert "top" not in first[: first.index("window functions")]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_they_equal_duckdb(seed: int) -> None:
    """Whichever way they are computed."""
    compare_all([*BOUNDED, *UNBOUNDED], seed=seed, batches=6)
