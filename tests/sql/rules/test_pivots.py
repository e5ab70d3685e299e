"""PIVOT, UNPIVOT and BY NAME: their rewriting, each case executed in DuckDB too, and what is refused."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from tests.sql.beside_duckdb import flow

from penstock.errors import SchemaError
from penstock.sql.relation import Relation
from penstock.sql.rules.columns import by_position
from penstock.sql.rules.pivots import without_pivots
from penstock.sql.scope import Environment, Named, NamedTables
from penstock.sql.views import parsed

CASES = {
    "PIVOT t ON k IN (1, 2) USING sum(v) GROUP BY id": (
        'SELECT * FROM (SELECT "id", SUM(v) FILTER(WHERE k = 1) AS "1", SUM(v) FILTER(WHERE k = 2) AS "2" '
        'FROM t GROUP BY "id")'
    ),
    "SELECT * FROM t PIVOT (sum(v) AS s, count(*) FOR x IN ('a', NULL))": (
        """SELECT * FROM (SELECT "id", "k", SUM(v) FILTER(WHERE x = 'a') AS "a_s", """
        """COUNT(*) FILTER(WHERE x = 'a') AS "a_count_star()", SUM(v) FILTER(WHERE x IS NULL) AS "NULL_s", """
        """COUNT(*) FILTER(WHERE x IS NULL) AS "NULL_count_star()" FROM t GROUP BY "id", "k")"""
    ),
    "WITH w AS (SELECT k, v FROM t) PIVOT w ON k IN ('1') USING max(v)": (
        "WITH w AS (SELECT k, v FROM t) SELECT * FROM "
        """(SELECT MAX(v) FILTER(WHERE CAST(k AS TEXT) = CAST('1' AS TEXT)) AS "1" FROM w)"""
    ),
    "UNPIVOT t ON k, (v + 1) AS w INTO NAME n VALUE val": (
        """SELECT * FROM (SELECT "id", "x", 'k' AS "n", k AS "val" FROM t WHERE NOT k IS NULL UNION ALL """
        """SELECT "id", "x", 'w' AS "n", (v + 1) AS "val" FROM t WHERE NOT (v + 1) IS NULL)"""
    ),
    "SELECT id, K FROM t UNION BY NAME SELECT y, k FROM u": (
        'SELECT "id" AS "id", "k" AS "k", CAST(NULL AS TEXT) AS "y" FROM (SELECT id, K FROM t) UNION '
        'SELECT CAST(NULL AS BIGINT) AS "id", "k" AS "k", "y" AS "y" FROM (SELECT y, k FROM u)'
    ),
}


def rewritten(query: str) -> str:
    app = flow()
    tables = {name: Named.of(Relation(app, one.node)) for name, one in app.named.items()}
    env = Environment(app, NamedTables(tables))
    return by_position(without_pivots(parsed(query), env), env).sql("duckdb")


@pytest.mark.parametrize("query", CASES)
def test_what_a_query_is_rewritten_to(query: str) -> None:
    assert rewritten(query) == CASES[query]
    with duckdb.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE t AS SELECT a AS id, nullif(a % 4, 3) AS k, nullif(a * 7 % 5, 0) AS v, "
            "nullif(chr((97 + a % 3)::INTEGER), 'c') AS x FROM range(20) AS r(a)"
        )
        database.execute("CREATE TABLE u AS SELECT id + 3 AS id, k, v AS w, x AS y FROM t")
        answers = []
        for text in (query, CASES[query]):
            found = database.execute(text)
            names = [one[0] for one in found.description or []]
            answers.append((names, Counter(found.fetchall())))
    assert answers[0] == answers[1]
    assert sum(answers[0][1].values()) > 0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (
            "PIVOT t ON k USING sum(v) GROUP BY id",
            "those values that the data has, and change with it. List",
        ),
        ("PIVOT t ON k, x IN ('a') USING sum(v)", "expected the values of PIVOT"),
        ("PIVOT t ON k IN (SELECT 1) USING sum(v)", "expected the values of PIVOT"),
        ("PIVOT t ON k % 2 IN (0) USING sum(v)", "expected the values of PIVOT"),  # of a BOOLEAN
        ("FROM t JOIN u USING (id) PIVOT (sum(v) FOR w IN (4))", "found it after a JOIN"),
        ("FROM t CROSS JOIN u PIVOT (sum(w) FOR k IN (4))", "found it after a JOIN"),
        ("PIVOT t ON k IN (1) USING sum(v) FILTER (WHERE v > 1)", "without FILTER"),
        ("PIVOT t ON k IN (1, 1) USING sum(v)", "specified multiple times"),
        ("PIVOT t USING sum(v) GROUP BY id", "found no ON"),
        ("FROM t UNPIVOT ((a, b) FOR n IN ((k, v)))", "UNPIVOT with one column of values"),
        ("UNPIVOT t ON k, x", "explicit cast is required"),
        ("SELECT id FROM t EXCEPT BY NAME SELECT id FROM u", "after UNION; found it after EXCEPT"),
    ],
)
def test_what_is_refused(query: str, says: str) -> None:
    with pytest.raises(SchemaError, match="expected") as error:
        flow().view("q", sql=query)
    assert says in str(error.value)
