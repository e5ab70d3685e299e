"""Names in reads: words of DuckDB's grammar, and the schema that PostgreSQL's clients write."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner
from tests.serve.committing import commit

import penstock as ps
from penstock.cli.entry import main
from penstock.errors import QueryError
from penstock.serve import Question, Views
from penstock.serve.following import subscription_of
from penstock.serve.questions import answer
from penstock.serve.texts.names import with_quotes

MEMORY = 512 << 20
FORMS = (
    "SELECT {0} FROM t",
    "SELECT max({0}) AS x FROM t",
    "SELECT z FROM t WHERE {0} > 1",
    "SELECT t.{0} FROM t",
    "SELECT {0} + 1 AS x FROM t GROUP BY {0} ORDER BY {0}",
    "SELECT z AS {0} FROM t ORDER BY z",
    "WITH {0} AS (FROM t) SELECT z FROM {0}",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    app = ps.App("shop")
    columns = 'user STRING NOT NULL, at TIMESTAMP NOT NULL, "end" BIGINT'
    app.stream("clicks", columns, time=ps.event_time("at"))
    app.sql('CREATE MATERIALIZED VIEW last AS SELECT "user", max(at) AS at, max("end") AS "end" '
            "FROM clicks GROUP BY ALL")  # fmt: skip
    run = ps.testing.run(app, shaken=False)
    for i in range(4):
        run.send("clicks", user=f"u{i % 2}", at=f"12:00:0{i}", end=i)
    return commit(run, tmp_path_factory.mktemp("shop.penstock"))


@pytest.fixture
def views(directory: Path) -> Views:
    return Views(directory)


def test_reads_take_each_name_that_sqlglot_reads_as_one() -> None:
    """Words that DuckDB's grammar keeps for itself are names wherever views have them as names."""
    con = duckdb.connect()
    kept = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved' ORDER BY 1"
    words = [str(one) for (one,) in con.execute(kept).fetchall()]
    quoted = 0
    for word in words:
        con.execute(f'CREATE OR REPLACE TABLE t ("{word}" INTEGER, z INTEGER)')
        for form in FORMS:
            query = form.format(word)
            try:
                expected = con.sql(
                    sqlglot.parse_one(query, "duckdb").sql("duckdb", identify=True)
                ).columns
            except (sqlglot.errors.SqlglotError, duckdb.Error):
                continue  # views don't take it either
            found = with_quotes(con, query)
            quoted += found != query
            assert (query, con.sql(found).columns) == (query, expected)
    assert {"at", "end", "order", "desc", "to", "left"} < set(words)
    assert quoted > 100


def test_only_names_get_quotes() -> None:
    """The rest of a text stays as it is, and so does a text that DuckDB parses or nobody does."""
    con = duckdb.connect()
    query = "SELECT 'at é', v.at -- at\n , \"at\" FROM v\tWHERE at >  now()"
    expected = 'SELECT \'at é\', v."at" -- at\n , "at" FROM v\tWHERE "at" >  now()'
    assert with_quotes(con, query) == expected
    for text in ("SELECT v.at FROM v", "SELECT max(at FROM v", "", "at"):
        assert with_quotes(con, text) == text


def test_a_time_column_named_at_is_read_everywhere(directory: Path, views: Views) -> None:
    """`max(at)` and `WHERE at > …` work in Python, `penstock query` and `sql`, HTTP, PostgreSQL, EXPLAIN."""
    query = "SELECT max(at)::VARCHAR AS at, max(end) AS end FROM last WHERE at > '1990-01-01' AND end > 0"
    expected = [{"at": "2000-01-01 12:00:03+00", "end": 3}]
    assert views.sql(query).to_pylist() == expected
    assert views.sql(f"{query} AS OF VERSION {views.version}").to_pylist() == expected
    for dialect in ("duckdb", "postgres"):  # HTTP and the page; PostgreSQL's clients
        asked = Question(query, 10, dialect=dialect)
        assert answer(views, asked, MEMORY).table.to_pylist() == expected
    catalogs = Question(f"{query} AND current_database() = 'penstock'", 10, dialect="postgres")
    assert answer(views, catalogs, MEMORY).table.to_pylist() == expected
    plan = answer(views, Question(query, 10, explain="analyze"), MEMORY).table
    assert plan.column(0)[1].as_py().startswith("View last: kept up to date by")
    for command in (["query", str(directory), query], ["sql", str(directory), "-c", query]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0
        assert done.stdout.splitlines()[-2 if command[0] == "sql" else -1].split() == [
            "2000-01-01", "12:00:03+00", "3",
        ]  # fmt: skip


@pytest.mark.slow
def test_views_are_in_the_schema_public(views: Views) -> None:
    """`public.v` and `penstock.public.v` are v, in FROM and before columns, quoted or not; others aren't."""
    for query in (
        "SELECT end FROM public.last ORDER BY at",
        "SELECT public.last.end FROM penstock.public.last ORDER BY at",
        'SELECT x."end" FROM "penstock"."public"."last" AS x ORDER BY 1',
        "SELECT public.last.end FROM last ORDER BY 1",
        "SELECT end FROM PUBLIC.Last JOIN public.last AS other USING (end) ORDER BY 1",
    ):
        assert views.sql(query).column(0).to_pylist() == [2, 3]
    assert views.sql("DESCRIBE penstock.public.last").column("column").to_pylist() == [
        "user",
        "at",
        "end",
    ]
    assert subscription_of('SUBSCRIBE "public".last FROM VERSION 2') == subscription_of(
        "SUBSCRIBE last FROM VERSION 2"
    )
    for query in ("SELECT * FROM public.first", "SELECT * FROM other.last"):
        with pytest.raises(QueryError, match="expected one of the views last; found"):
            views.sql(query)
