"""Calls with a dot and lists after IN: their rewriting, each executed in DuckDB too, and views of them."""

from __future__ import annotations

import duckdb
import pytest
from tests.sql.beside_duckdb import compare_all, flow

from penstock.errors import SchemaError
from penstock.sql.views import parsed

CASES = {
    "x.upper()": "UPPER(x)",
    "t.x.upper().lower()": "LOWER(UPPER(t.x))",
    "(x || 'a').substr(1, 2)": "SUBSTRING((x || 'a'), 1, 2)",
    "[k, v].list_sort()[1]": "LIST_SORT([k, v])[1]",
    "list_distinct([k]).len() + 1": "LENGTH(LIST_DISTINCT([k])) + 1",
    "[[k], [v]][1][1].abs()": "ABS([[k], [v]][1][1])",
    "{'a': {'b': k}}.a.b.abs()": "ABS({'a': {'b': k}}.a.b)",
    "o.a.abs()": "ABS(o.a)",
    "MAP {'a': k}.map_keys()[1]": "MAP_KEYS(MAP {'a': k})[1]",
    "'abc'.upper()": "UPPER('abc')",
    "CAST(k AS VARCHAR).len()": "LENGTH(CAST(k AS TEXT))",
    "left(x, 1).upper()": "UPPER(LEFT(x, 1))",
    "k > 1 AND (x).starts_with('a')": "k > 1 AND STARTS_WITH((x), 'a')",
    "x LIKE ('A').lower()": "x LIKE LOWER(('A'))",
    "[k, v].list_transform(lambda e: e + k.abs()).list_sum()": (
        "LIST_SUM(LIST_TRANSFORM([k, v], LAMBDA e : e + ABS(k)))"
    ),
    "x.concat(x.upper(), 'b')": "CONCAT(x, UPPER(x), 'b')",
    "x.string_agg(',' ORDER BY id) FILTER (WHERE k.abs() > 1)": (
        "LISTAGG(x, ',' ORDER BY id) FILTER(WHERE ABS(k) > 1)"
    ),
    "k IN [1, NULL]": "k IN [1, NULL]",
    "k NOT IN [v, [1][1]]": "NOT k IN [v, [1][1]]",
    "[k] IN [[1], [0]]": "[k] IN [[1], [0]]",
    "k IN []": "k IN []",
    "[e IN [1] FOR e IN [k, v]]": "[e IN [1] FOR e IN [k, v]]",
    "k IN (1, NULL)": "k IN (1, NULL)",
    "main.upper(x)": "main.upper(x)",
    "'a.upper()' || x": "'a.upper()' || x",
    "k * 1.5": "k * 1.5",
}


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("text", CASES)
def test_a_query_is_read_as_duckdb_does(text: str) -> None:
    query = f"SELECT {text} AS c FROM t"
    made = parsed(query).sql(dialect="duckdb")
    assert made == f"SELECT {CASES[text]} AS c FROM t"
    with duckdb.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE t AS SELECT a AS id, a % 3 - 1 AS k, a % 2 AS v, chr(97 + a::INT) AS x, "
            "{'a': a} AS o FROM range(5) AS r(a)"
        )
        assert database.execute(made).fetchall() == database.execute(query).fetchall()


def test_views_of_them() -> None:
    compare_all(
        [
            "SELECT id, t.x.upper().concat('a') AS c FROM t WHERE x.starts_with('a') OR k.abs() = 2",
            "SELECT k, x.string_agg(',' ORDER BY id) AS c, v.sum() AS n FROM t GROUP BY k",
            "SELECT id, k IN [1, v] AS c, x NOT IN ['a', NULL] AS d FROM t WHERE NOT k IN [3, NULL]",
            "SELECT t.id, u.id AS other FROM t JOIN u ON t.x.upper() = u.y.upper()",
        ],
        seed=1,
    )


def test_an_error_after_a_call_with_a_dot_has_its_place() -> None:
    with pytest.raises(SchemaError, match="line 2, column 8"):
        flow().view(
            "v", sql="SELECT x.upper() AS c, (x || 'a').lower() AS d,\n       nowhere AS e FROM t"
        )
