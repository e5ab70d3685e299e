"""VALUES: their rewriting into constant tables, each case executed in DuckDB with tables of these rows."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest

import penstock as ps
from penstock.sql import SqlFlow
from penstock.sql.rules.constants import with_values
from penstock.sql.scope import Environment
from penstock.sql.views import parsed

CASES = {
    "VALUES (1, 'a'), (2, NULL)": 'SELECT * FROM "values 0" AS values',
    "SELECT x FROM (VALUES (1), (2)) AS v(x) WHERE x > 1": (
        'SELECT x FROM "values 0" AS v WHERE x > 1'
    ),
    "SELECT v.a, w.col0 AS b FROM (VALUES (1), (2)) AS v(a), (VALUES (2), (3)) AS w": (
        'SELECT v.a, w.col0 AS b FROM "values 0" AS v, "values 1" AS w'
    ),
    "SELECT 3 IN (VALUES (1), (3)) AS a": (
        """SELECT 3 IN (SELECT * FROM "values 0" AS values) AS a"""
    ),
    "SELECT EXISTS (VALUES (1)) AS a": (
        """SELECT EXISTS(SELECT * FROM "values 0" AS values) AS a"""
    ),
    "SELECT t.k, x.y FROM (SELECT 5 AS k) AS t, LATERAL (VALUES (t.k), (t.k + 10)) AS x(y)": (
        "SELECT t.k, x.y FROM (SELECT 5 AS k) AS t, LATERAL "
        "(SELECT * FROM (SELECT t.k UNION ALL SELECT t.k + 10) AS values(col0)) AS x(y)"
    ),
    "SELECT 1 AS a": "SELECT 1 AS a",
}


@pytest.mark.parametrize("query", CASES)
def test_what_a_query_is_rewritten_to(query: str) -> None:
    app = SqlFlow("constants")
    tree, _ = with_values(parsed(query), Environment(app))
    made = tree.sql("duckdb")
    assert made == CASES[query]
    app.view("q", sql=query)
    run = ps.testing.run(app)
    run.settle()
    with duckdb.connect(":memory:") as database:
        rows = Counter(database.execute(query).fetchall())
    assert Counter(tuple(row.values()) for row in run.view("q").rows()) == rows
    assert rows
