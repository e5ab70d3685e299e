"""FILTER after aggregates of sketches: its rewriting, and the same rows by a subquery's WHERE in DuckDB."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot

from penstock.core.sketches.functions import add_functions
from penstock.sql.rules.filters import with_cases

CASES = {
    "SELECT k, theta_sketch_agg(v) FILTER (WHERE v > 3) AS s FROM t GROUP BY k": (
        "SELECT k, THETA_SKETCH_AGG(CASE WHEN v > 3 THEN v END) AS s FROM t GROUP BY k"
    ),
    "SELECT k, bloom_filter_agg(v, 100, 0.01) FILTER (WHERE v > 3) AS s FROM t GROUP BY k": (
        "SELECT k, BLOOM_FILTER_AGG(CASE WHEN v > 3 THEN v END, 100, 0.01) AS s FROM t GROUP BY k"
    ),
    "SELECT k, theta_union_agg(x) FILTER (WHERE n > 3) AS s FROM "
    "(SELECT k, max(v) AS n, theta_sketch_agg(v) AS x FROM t GROUP BY k, v) GROUP BY k": (
        "SELECT k, THETA_UNION_AGG(CASE WHEN n > 3 THEN x END) AS s FROM "
        "(SELECT k, MAX(v) AS n, THETA_SKETCH_AGG(v) AS x FROM t GROUP BY k, v) GROUP BY k"
    ),
    "SELECT k, count(*) FILTER (WHERE v > 3) AS s FROM t GROUP BY k": (
        "SELECT k, COUNT(*) FILTER(WHERE v > 3) AS s FROM t GROUP BY k"
    ),
}


@pytest.mark.parametrize("query", CASES)
def test_what_a_query_is_rewritten_to(query: str) -> None:
    made = with_cases(sqlglot.parse_one(query, dialect="duckdb")).sql("duckdb")
    assert made == CASES[query]
    with duckdb.connect(":memory:") as database:
        add_functions(database)
        database.execute("CREATE TABLE t AS SELECT a % 3 AS k, a % 7 AS v FROM range(40) AS r(a)")
        found = dict(database.execute(made).fetchall())
        inner = query.replace(" FILTER (WHERE v > 3)", "").replace(" FILTER (WHERE n > 3)", "")
        of = "(SELECT * FROM t WHERE v > 3)"
        expected = dict(database.execute(inner.replace("FROM t", f"FROM {of}")).fetchall())
        whole = dict(database.execute(inner).fetchall())
    assert found == expected
    assert found != whole  # the condition matters
