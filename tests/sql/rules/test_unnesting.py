"""UNNEST and functions that give rows: their rewriting, executed in DuckDB too, and what is refused."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from tests.sql.beside_duckdb import flow

import penstock as ps
from penstock.errors import SchemaError
from penstock.sql.rules.unnesting import with_series
from penstock.sql.views import parsed

CASES = {
    "SELECT t.id, g.i FROM t, generate_series(1, t.k) AS g(i)": (
        "SELECT t.id, g.i FROM t JOIN UNNEST(GENERATE_SERIES(1, t.k)) AS g(i) ON TRUE"
    ),
    "SELECT t.id, g FROM t LEFT JOIN range(t.k) AS g ON TRUE": (
        "SELECT t.id, g FROM t LEFT JOIN UNNEST(RANGE(0, t.k)) AS g(g) ON TRUE"
    ),
    "SELECT range, id FROM range(3) JOIN t ON t.k = range": (
        "SELECT range, id FROM UNNEST(RANGE(0, 3)) AS range(range) JOIN t ON t.k = range"
    ),
    "SELECT id, range(k) AS l FROM t": "SELECT id, RANGE(0, k) AS l FROM t",
}
REFUSED = {
    "SELECT unnest([k]) AS a, unnest([v]) AS b FROM t": "expected one UNNEST in SELECT",
    "SELECT unnest([[k]], recursive := true) AS a FROM t": "expected UNNEST of one array in SELECT",
    "SELECT unnest({'a': k}) AS a FROM t": "expected an array in UNNEST",
    "SELECT generate_subscripts([k], 1) AS i FROM t": "one value for each row; found generate_subscripts",
    "SELECT id FROM t ORDER BY unlist([k]) LIMIT 1": "one value for each row; found unlist",
    "SELECT x, count(*) AS n FROM (SELECT regexp_split_to_table(k::VARCHAR, ',') AS x FROM t) GROUP BY x": (
        r"one value for each row; found regexp_split_to_table\(\), which is unnest\(string_split_regex"
    ),
    "SELECT t.id FROM t, UNNEST([t.k]) WITH ORDINALITY AS w": "WITH ORDINALITY AS",
}

POSTGRES = {
    "SELECT id, generate_series(1, k) + 1 AS i FROM t": (
        "SELECT id, UNNEST(GENERATE_SERIES(1, k)) + 1 AS i FROM t"
    ),
    "SELECT generate_series(1, k) AS i, count(*) AS n FROM t GROUP BY 1": (
        "SELECT UNNEST(GENERATE_SERIES(1, k)) AS i, COUNT(*) AS n FROM t GROUP BY 1"
    ),
    "SELECT t.id, g.i FROM t, generate_series(1, t.k) AS g(i)": (
        "SELECT t.id, g.i FROM t JOIN UNNEST(GENERATE_SERIES(1, t.k)) AS g(i) ON TRUE"
    ),
    "SELECT unnest(generate_series(1, k)) AS i FROM t": (
        "SELECT UNNEST(GENERATE_SERIES(1, k)) AS i FROM t"
    ),
}


@pytest.mark.parametrize("query", POSTGRES)
def test_series_make_rows_in_postgresqls_queries(query: str) -> None:
    """Of groups, too: one row for each number, not one array."""
    assert with_series(parsed(query, "postgres")).sql("duckdb") == POSTGRES[query]
    app = ps.App("series")
    app.table("t", "id INT, k INT", key="id")
    app.view("v", sql=query, dialect="postgres")
    run = ps.testing.run(app)
    run.send("t", id=1, k=3)
    assert len(run.view("v").rows()) == 3


@pytest.mark.parametrize("query", CASES)
def test_what_a_query_is_rewritten_to(query: str) -> None:
    assert with_series(parsed(query)).sql("duckdb") == CASES[query]
    with duckdb.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE t AS SELECT a AS id, nullif(a % 4, 3) AS k FROM range(9) AS r(a)"
        )
        before, after = (
            Counter(map(str, database.execute(text).fetchall())) for text in (query, CASES[query])
        )
    assert before == after


@pytest.mark.parametrize("query", REFUSED)
def test_what_is_refused(query: str) -> None:
    """The message says what was expected."""
    with pytest.raises(SchemaError, match=REFUSED[query]):
        flow().view("v", sql=query)
