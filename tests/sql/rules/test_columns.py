"""Columns by pattern: their rewriting, each case executed in DuckDB too, and what is refused."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from tests.sql.beside_duckdb import flow

import penstock as ps
from penstock.errors import SchemaError
from penstock.sql import SqlFlow
from penstock.sql.relation import Relation
from penstock.sql.rules.columns import with_columns
from penstock.sql.scope import Environment, Named, NamedTables
from penstock.sql.views import parsed

CASES = {
    "SELECT COLUMNS('i|k') FROM t": 'SELECT "id" AS "id", "k" AS "k" FROM t',
    "SELECT max(COLUMNS(* EXCLUDE (id, x))) FROM t": 'SELECT MAX("k") AS "k", MAX("v") AS "v" FROM t',
    "SELECT COLUMNS('(.)d') AS '\\1z' FROM t": 'SELECT "id" AS "iz" FROM t',
    "SELECT COLUMNS(lambda c: c > 'v') FROM t": 'SELECT "x" AS "x" FROM t',
    "SELECT id, COLUMNS(['k', 'v']) + 1 FROM t": 'SELECT id, "k" + 1 AS "k", "v" + 1 AS "v" FROM t',
    "SELECT COLUMNS(t.*) FROM t JOIN u USING (id)": (
        'SELECT t."id" AS "id", t."k" AS "k", t."v" AS "v", t."x" AS "x" FROM t JOIN u USING (id)'
    ),
    "SELECT coalesce(*COLUMNS('k|v'), 0) AS c FROM t": 'SELECT COALESCE("k", "v", 0) AS c FROM t',
    "SELECT * LIKE 'i%' FROM t": 'SELECT "id" FROM t',
    "SELECT * ILIKE 'I%' FROM t": 'SELECT "id" FROM t',
    "SELECT * NOT LIKE 'i%' FROM t": 'SELECT "k", "v", "x" FROM t',
    "SELECT o.* FROM (SELECT {'a': k, 'b': v} AS o FROM t)": (
        """SELECT o."a" AS "a", o."b" AS "b" FROM (SELECT {'a': k, 'b': v} AS o FROM t)"""
    ),
    "SELECT t.* FROM t": "SELECT t.* FROM t",
    "SELECT id FROM t WHERE COLUMNS('k|v') IS NOT NULL AND id > 3": (
        'SELECT id FROM t WHERE NOT "k" IS NULL AND NOT "v" IS NULL AND id > 3'
    ),
    "SELECT count(*) FROM t WHERE COLUMNS(['k', 'v']) = 1 OR id = 2": (
        'SELECT COUNT(*) FROM t WHERE ("k" = 1 OR id = 2) AND ("v" = 1 OR id = 2)'
    ),
    "WITH w AS (SELECT id, k AS kk FROM t) SELECT COLUMNS('k') FROM w": (
        'WITH w AS (SELECT id, k AS kk FROM t) SELECT "kk" AS "kk" FROM w'
    ),
    "SELECT id FROM t WHERE k IN (SELECT COLUMNS('w') FROM u WHERE u.id = t.id)": (
        'SELECT id FROM t WHERE k IN (SELECT "w" AS "w" FROM u WHERE u.id = t.id)'
    ),
}


def rewritten(query: str) -> str:
    app = flow()
    tables = {name: Named.of(Relation(app, one.node)) for name, one in app.named.items()}
    env = Environment(app, NamedTables(tables))
    return with_columns(parsed(query), env).sql("duckdb")


@pytest.mark.quick_cases(6)
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
            answers.append(([one[0] for one in found.description], Counter(found.fetchall())))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM t ORDER BY COLUMNS('i') LIMIT 2",
        "SELECT COLUMNS('i') + COLUMNS('k') FROM t",
        "SELECT count(*) FROM t HAVING max(COLUMNS('k')) > 1",
    ],
)
def test_a_pattern_elsewhere_is_refused(query: str) -> None:
    with pytest.raises(SchemaError, match="expected COLUMNS in a SELECT list or in WHERE"):
        flow().view("v", sql=query)


def test_a_pattern_that_no_column_has_is_refused_at_its_place() -> None:
    with pytest.raises(SchemaError, match=r"line 2, column 3: .*z"):
        flow().view("v", sql="SELECT id,\n  COLUMNS('z') FROM t")


def test_an_alias_renames_columns_beside_one_that_has_to_be_quoted() -> None:
    app = SqlFlow("shop")
    app.sql('CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT, "order" BIGINT, "two words" BIGINT)')
    app.view("v", sql='SELECT a.i, "order", A.J FROM t AS a(i, j) WHERE "Two Words" > 1')
    run = ps.testing.run(app)
    run.send("t", id=1, k=2, order=3, **{"two words": 4})
    run.settle()
    assert run.view("v").rows() == [{"i": 1, "order": 3, "j": 2}]
