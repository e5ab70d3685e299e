"""Constant tables, alone and beside streams: VALUES, queries without a FROM, and the row of nothing."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.sql import SqlFlow

TABLES = {
    "rates": "VALUES ('EUR', 1), ('USD', 0.9)",
    "names": "SELECT 1 AS n, 'one' AS name UNION ALL VALUES (2, 'two')",
}
VIEWS = {
    "joined": "SELECT s.k, r.rate FROM s JOIN rates AS r ON r.currency = s.c",
    "alone": "SELECT * FROM names",
    "scalar": "SELECT (SELECT count(*) FROM s) AS n, 7 AS seven",
    "left_": (
        "SELECT v.x, n.name, s.k FROM (VALUES (1), (2), (3)) AS v(x) LEFT JOIN names AS n ON n.n = v.x "
        "LEFT JOIN s ON s.k = v.x"
    ),
    "lateral_": "SELECT s.k, x.y FROM s, LATERAL (VALUES (s.k), (s.k + 10)) AS x(y)",
    "recursive_": (
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) "
        "SELECT r.n, s.k FROM r JOIN s ON s.k = r.n"
    ),
    "member": "SELECT k FROM s WHERE k IN (VALUES (1), (3))",
    "exists_values": "SELECT k FROM s WHERE EXISTS (VALUES (1)) AND NOT EXISTS (SELECT 1 WHERE FALSE)",
    "exists_": "SELECT 1 AS a WHERE EXISTS (SELECT 1 FROM s WHERE k > 2)",
    "counted": "SELECT count(*) AS n FROM (VALUES (1), (NULL)) AS v(x) WHERE x IS NULL",
}


def program(views: dict[str, str]) -> SqlFlow:
    app = SqlFlow("shop")
    app.sql("CREATE STREAM s (k BIGINT, c STRING)")
    app.sql(f"CREATE TABLE rates (currency STRING, rate DOUBLE) AS {TABLES['rates']}")
    app.sql(f"CREATE TABLE names AS {TABLES['names']}")
    for name, query in views.items():
        app.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    return app


def test_views_with_constants() -> None:
    """They equal DuckDB's answer, also where a program gets one later."""
    con = duckdb.connect(":memory:")
    con.execute("CREATE TABLE s(k BIGINT, c VARCHAR)")
    con.execute(
        f"CREATE TABLE rates(currency VARCHAR, rate DOUBLE); INSERT INTO rates {TABLES['rates']}"
    )
    con.execute(f"CREATE VIEW names AS FROM ({TABLES['names']})")
    views = {name: VIEWS[name] for name in ("joined", "scalar", "recursive_")}
    run = ps.testing.run(program(views))
    for row in [(1, "USD"), (3, "EUR"), (2, "EUR")]:
        run.send("s", k=row[0], c=row[1])
        con.execute("INSERT INTO s VALUES (?, ?)", row)
        run.settle()
        for name, query in views.items():
            found = Counter(tuple(one.values()) for one in run.view(name).rows())
            assert found == Counter(con.execute(query).fetchall()), name
        if views is not VIEWS:
            views = VIEWS
            run.change(program(views))


def test_constants_need_no_records() -> None:
    """They are there although nothing has come, also of a program that reads nothing."""
    app = SqlFlow("shop")
    app.view("v", sql="SELECT x FROM (VALUES (1), (2)) AS v(x) WHERE x > 1")
    run = ps.testing.run(app)
    run.settle()
    assert run.view("v").rows() == [{"x": 2}]
    app = SqlFlow("shop")
    app.view("v", sql="SELECT x FROM (VALUES (3)) AS v(x)")
    run.change(app)
    run.settle()
    assert run.view("v").rows() == [{"x": 3}]


OF_NOTHING = {
    "kept_up": "SELECT count(*) AS n, sum(id) AS s FROM t",
    "computed": "SELECT count(*) AS n, sum(id) AS s, list(id) AS l FROM t",
    "few": "SELECT count(*) AS n FROM t HAVING count(*) < 2",
    "total": "SELECT id, count(*) AS n FROM t GROUP BY ROLLUP (id)",
    "above": "SELECT n + 1 AS n FROM kept_up",
    "scalar": "SELECT 1 AS one, (SELECT max(id) FROM t) AS newest",
}


def test_aggregates_without_group_by_have_a_row_of_nothing() -> None:
    """It is there before the first record, and when the last row is gone, as in DuckDB."""
    con = duckdb.connect(":memory:")
    con.execute("CREATE TABLE t(id BIGINT)")
    app = SqlFlow("shop")
    app.table("t", "id BIGINT", key="id")
    for name, query in OF_NOTHING.items():
        con.execute(f"CREATE VIEW {name} AS {query}")
        app.view(name, sql=query)
    run = ps.testing.run(app)
    for change in ["INSERT INTO t VALUES (7)", "DELETE FROM t", None]:
        for name in OF_NOTHING:
            found = [tuple(one.values()) for one in run.view(name).rows()]
            answer = con.execute(f"FROM {name}").fetchall()
            assert sorted(found, key=str) == sorted(answer, key=str), name
        if change is not None:
            con.execute(change)
            run.send_raw("t", b'{"id": 7}' if "INSERT" in change else None, key="7")


@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("after", ["plan", "output", "commit"])
def test_a_topic_gets_the_row_of_nothing_once(
    transactions: bool, after: ps.testing.CrashPoint
) -> None:
    """Neither a crash in the first batch nor a restart writes it again; the first record takes it back."""
    app = SqlFlow("shop", transactions=transactions)
    app.stream("t", "id BIGINT")
    app.view("v", sql="SELECT count(*) AS n FROM t").to("out", emit="changes")
    run = ps.testing.run(app)
    assert run.crash(after)
    run.settle()
    run.restart()
    run.settle()
    first = [record.value for record in run.log.records("out")]
    assert len(first) == 1
    assert b'"n":0' in (first[0] or b"")
    run.send("t", id=1)
    run.settle()
    assert [b'"before":{"n":0}' in (one.value or b"") for one in run.log.records("out")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("CREATE TABLE t AS SELECT * FROM s", "CREATE MATERIALIZED VIEW keeps a query"),
        ("CREATE TABLE t (a BIGINT) AS VALUES (1, 2)", "a type for each of 2 columns"),
        ("CREATE TABLE t AS SELECT random() AS x", "random()"),
    ],
)
def test_what_is_refused(program: str, said: str) -> None:
    """A table AS a query is constant, and has as many columns as it names."""
    app = SqlFlow("shop")
    app.stream("s", "k BIGINT")
    with pytest.raises(PenstockError, match="expected") as error:
        app.sql(program)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT a FROM (VALUES (1), ('x'::INT)) AS t(a)", 'column 29: .*found "CAST'),
        ("SELECT k FROM s WHERE c IN (VALUES ('a'), (error('b')))", 'found "ERROR'),
        (
            "SELECT s.k FROM s JOIN (VALUES (1, 1 // 0 + 'x'::INT)) AS t(k, v) USING (k)",
            "expected constants",
        ),
        ("SELECT regexp_extract(c, '(?=a)') AS y FROM s", 'column 8: .*found "REGEXP_EXTRACT'),
        ("SELECT k FROM s WHERE regexp_replace(c, '(?<a', '') = ''", 'found "REGEXP_REPLACE'),
        ("SELECT k FROM s WHERE c ~ '(?=a)'", "neither look-ahead nor back-references"),
    ],
)
def test_a_constant_that_fails_is_refused_when_the_program_is_read(query: str, found: str) -> None:
    """VALUES without a value, and patterns that the library lacks, are named with their view."""
    app = SqlFlow("shop")
    app.sql("CREATE STREAM s (k BIGINT, c STRING)")
    with pytest.raises(PenstockError, match=f"(?s)the view 'v': .*{found}"):
        app.view("v", sql=query)


def test_a_pattern_of_each_row_is_no_constant() -> None:
    """What depends on a row fails for that row alone; what is never looked for may be anything."""
    stream = SqlFlow("shop").stream("s", "c STRING, p STRING")
    stream.select(x="regexp_extract(c, p)", y="regexp_extract(c, '(a)', 1)", z="'(?=a)'")
    with pytest.raises(PenstockError, match="expected a regular expression that RE2 knows"):
        stream.where("regexp_extract(c, '(?=a)') = 'b'")
