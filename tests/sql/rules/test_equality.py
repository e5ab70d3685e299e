"""EXISTS by equality: its rewriting, each case executed in DuckDB too, and the operators that it saves."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from tests.sql.beside_duckdb import flow

from penstock.sql.rules.equality import by_equality

CASES = {
    "SELECT 1 FROM u WHERE u.k = t.k": ("SELECT u.k AS k0 FROM u", ["t.k"]),
    "SELECT * FROM u WHERE t.k = u.k AND u.w > 1 ORDER BY u.w": (
        "SELECT u.k AS k0 FROM u WHERE u.w > 1",
        ["t.k"],
    ),
    "SELECT 1 FROM u JOIN v ON u.id = v.id WHERE u.k = t.k AND v.w = t.v + 1": (
        "SELECT u.k AS k0, v.w AS k1 FROM u JOIN v ON u.id = v.id",
        ["t.k", "t.v + 1"],
    ),
    "SELECT 1 FROM u WHERE u.k = t.k AND EXISTS (SELECT 1 FROM v WHERE v.id = u.id)": (
        "SELECT u.k AS k0 FROM u WHERE EXISTS(SELECT 1 FROM v WHERE v.id = u.id)",
        ["t.k"],
    ),
    "SELECT 1 FROM u WHERE u.k = t.k AND u.w <> t.v": None,
    "SELECT 1 FROM u WHERE u.k + t.v = 3": None,
    "SELECT 1 FROM u WHERE u.k = 1": None,
    "SELECT 1 FROM u WHERE t.k = t.v": None,
    "SELECT count(*) FROM u WHERE u.k = t.k": None,
    "SELECT 1 FROM u WHERE u.k = t.k GROUP BY u.w": None,
    "SELECT 1 FROM u WHERE u.k = t.k LIMIT 1": None,
    "SELECT unnest(u.w) FROM u WHERE u.k = t.k": None,
    "SELECT 1 FROM u JOIN v ON u.id = v.id AND v.w > t.v WHERE u.k = t.k": None,
    "SELECT 1 FROM u WHERE u.k = t.k AND u.w IN (SELECT v.w FROM v WHERE v.id = t.id)": None,
    "SELECT 1 FROM u WHERE u.k = t.k UNION ALL SELECT 1 FROM v": None,
}


@pytest.mark.parametrize("query", CASES)
def test_a_query_by_equality_is_found(query: str) -> None:
    found = by_equality(sqlglot.parse_one(query, dialect="duckdb"))
    assert (found and (found[0].sql("duckdb"), [one.sql("duckdb") for one in found[1]])) == CASES[
        query
    ]
    if found is None:
        return
    made, outer = found
    with duckdb.connect(":memory:") as database:
        for name, columns in (("t", "id, k, v"), ("u", "id, k, w"), ("v", "id, k, w")):
            database.execute(
                f"CREATE TABLE {name} AS SELECT a AS {columns.split(', ')[0]}, "
                f"nullif((a * 7 + {len(columns)} + ascii('{name}')) % 5, 0) AS {columns.split(', ')[1]}, "
                f"nullif((a * 3) % 4, 1) AS {columns.split(', ')[2]} FROM range(12) AS r(a)"
            )
        values = ", ".join(one.sql("duckdb") for one in outer)
        for word in ("", "NOT "):
            whole = f"SELECT id FROM t WHERE {word}EXISTS ({query}) ORDER BY id"
            among = f"coalesce(({values}) IN ({made.sql('duckdb')}), FALSE)"
            if len(outer) > 1:
                pairs = " AND ".join(f"q.k{i} = {o.sql('duckdb')}" for i, o in enumerate(outer))
                among = f"EXISTS (SELECT 1 FROM ({made.sql('duckdb')}) AS q WHERE {pairs})"
            rewritten = f"SELECT id FROM t WHERE {word}{among} ORDER BY id"
            rows = database.execute(whole).fetchall()
            assert database.execute(rewritten).fetchall() == rows
            assert 0 < len(rows) < 12


@pytest.mark.parametrize(
    "condition",
    [
        "EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
        "NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
        "t.k IN (SELECT k FROM u)",
    ],
)
def test_it_is_one_join_of_both_tables(condition: str) -> None:
    app = flow()
    app.view("q", sql=f"SELECT id FROM t WHERE {condition}")
    kinds = [node.operator.kind for node in app.graph().stateful()]
    assert sorted(kinds) == ["table join", "upserts", "upserts"]


def test_views_with_the_same_part_share_it() -> None:
    """What means the same is computed and kept once, whatever reads it."""
    app = flow()
    joined = "SELECT t.x, u.w FROM t JOIN u ON t.k = u.k"
    app.view("sums", sql=f"SELECT x, sum(w) AS w FROM ({joined}) GROUP BY x")
    alone = len(app.graph().stateful())
    app.view("most", sql=f"SELECT x, max(w) AS w FROM ({joined}) GROUP BY x")
    assert len(app.graph().stateful()) == alone + 1
