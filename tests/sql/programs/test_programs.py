"""Programs in SQL: what they make, and what they say of mistakes."""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.flow.graph import Source, ancestors
from penstock.sql import SqlFlow
from penstock.sql.statements import statements

PROGRAM = """
-- a comment; with a semicolon
CREATE STREAM clicks (user_id BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 30 SECONDS)
  WITH (topic = 'site.clicks', format = 'json', idle = '1 second');
CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING);
CREATE VIEW named AS SELECT c.url, u.name FROM clicks c JOIN users u ON u.id = c.user_id;
CREATE MATERIALIZED VIEW per_name AS SELECT name, count(*) AS n FROM named GROUP BY name;
CREATE MATERIALIZED VIEW per_minute AS
  SELECT window_start, url, count(*) AS n FROM TUMBLE(clicks, at, INTERVAL 1 MINUTE)
  GROUP BY window_start, url;
CREATE SINK closed INTO 'per-minute' WITH (partitions = 2) AS
  SELECT window_start, url, count(*) AS n FROM TUMBLE(clicks, at, INTERVAL 1 MINUTE)
  GROUP BY window_start, url EMIT ON CLOSE;
CREATE SINK shouted INTO shouted AS SELECT upper(url) AS url FROM clicks;
CREATE SINK changed INTO changed AS SELECT name, count(*) AS n FROM named GROUP BY name EMIT CHANGES
"""


def started() -> Any:
    app = SqlFlow("shop")
    app.sql(PROGRAM)
    return ps.testing.run(app)


def test_a_program_runs() -> None:
    run = started()
    run.send("users", id=1, name="Ada")
    for second in ("05", "45"):
        run.send("site.clicks", user_id=1, url="/a", at=f"2026-01-01T12:00:{second}Z")
    run.settle()
    assert run.view("per_name").rows() == [{"name": "Ada", "n": 2}]
    assert [(row["url"], row["n"]) for row in run.view("per_minute").rows()] == [("/a", 2)]
    assert [one.value for one in run.topic("shouted")] == [b'{"url":"/A"}'] * 2
    assert run.topic("per-minute") == []
    run.send("site.clicks", user_id=2, url="/b", at="2026-01-01T12:02:00Z")
    run.settle()
    assert [one.value for one in run.topic("per-minute")] == [
        b'{"window_start":"2026-01-01T12:00:00Z","url":"/a","n":2}'
    ]
    run.send_raw("users", None, key=b"1")
    run.settle()
    assert run.view("per_name").rows() == []
    assert [b'"op":"d"' in one.value for one in run.topic("changed")] == [False, True]


def test_upserts_are_written_at_once_or_every_so_often() -> None:
    """EVERY writes a group's newest row once in so much time, and what has changed since when it is over."""
    app = SqlFlow("shop")
    counted = "SELECT k, count(*) AS n FROM s GROUP BY k"
    app.sql(f"""
        CREATE STREAM s (k STRING);
        CREATE SINK each INTO each AS {counted} EMIT UPSERTS;
        CREATE SINK paced INTO paced AS {counted} EMIT EVERY INTERVAL 10 SECONDS;
    """)
    run = ps.testing.run(app)

    def newest(topic: str) -> list[bytes | None]:
        return [one.value for one in run.topic(topic)]

    counts = [b'{"k":"a","n":%d}' % n for n in (1, 2, 3)]
    for n in (1, 2, 3):
        run.send("s", k="a")
        run.settle()
        assert newest("each") == counts[:n]
        assert newest("paced") == counts[:1]
    run.advance("10 seconds")
    assert newest("each") == counts
    assert newest("paced") == [counts[0], counts[2]]


def test_python_and_sql_read_each_other() -> None:
    app = SqlFlow("shop")
    orders = app.stream("orders", "id BIGINT, who STRING, total DOUBLE")
    big = orders.where("total > 10")
    table = app.view(
        "n_big", sql='SELECT who AS "Who", count(*) AS n FROM big GROUP BY who', tables={"big": big}
    )
    app.view("busy", table.where("n > 1"))
    app.view("names", sql="SELECT Who FROM busy")
    run = ps.testing.run(app)
    for id_, who, total in [(1, "a", 5.0), (2, "a", 11.0), (3, "a", 12.0), (4, "b", 20.0)]:
        run.send("orders", id=id_, who=who, total=total)
    run.settle()
    assert run.view("n_big").rows() == [{"Who": "a", "n": 2}, {"Who": "b", "n": 1}]
    assert run.view("busy").rows() == [{"Who": "a", "n": 2}]
    assert run.view("names").rows() == [{"Who": "a"}]


def test_queries_in_another_dialect() -> None:
    app = SqlFlow("shop")
    app.stream("orders", "id BIGINT, who STRING, tags ARRAY<STRING>")
    app.view("spark", sql="SELECT who, size(tags) AS n FROM orders", dialect="spark")
    run = ps.testing.run(app)
    run.send("orders", id=1, who="a", tags=["x", "y"])
    run.settle()
    assert run.view("spark").rows() == [{"who": "a", "n": 2}]


def test_the_timelines_of_the_literature() -> None:
    app = SqlFlow("social")
    app.table("posts", "id BIGINT, sender_id BIGINT, text STRING, timestamp TIMESTAMP", key="id")
    app.table("follows", "id STRING, follower_id BIGINT, followee_id BIGINT", key="id")
    app.view(
        "timelines",
        sql="""
            SELECT follows.follower_id AS timeline_id,
                array_agg(posts.* ORDER BY posts.timestamp DESC) AS posts
            FROM posts JOIN follows ON follows.followee_id = posts.sender_id
            GROUP BY follows.follower_id
        """,
    )
    run = ps.testing.run(app)
    run.send("posts", id=1, sender_id=7, text="first", timestamp="2026-01-01T12:00:00Z")
    run.send("posts", id=2, sender_id=7, text="second", timestamp="2026-01-01T12:01:00Z")
    run.send("follows", id="3/7", follower_id=3, followee_id=7)
    run.settle()
    [row] = run.view("timelines").rows()
    assert (row["timeline_id"], [post["text"] for post in row["posts"]]) == (3, ["second", "first"])
    run.send_raw("posts", None, key=b"2")
    run.settle()
    [row] = run.view("timelines").rows()
    assert [post["text"] for post in row["posts"]] == ["first"]
    run.send_raw("follows", None, key=b"3/7")
    run.settle()
    assert run.view("timelines").rows() == []


MISTAKES = {
    "DROP TABLE x": "line 1, column 1: expected CREATE: a program describes what there is to be",
    "CREATE THING x": "expected CREATE STREAM, TABLE, VIEW, MATERIALIZED VIEW, SINK; found 'THING'",
    "CREATE STREAM s (x BIGINT) WITH (colour = 'red')": "line 1, column 34, STREAM s: expected the options",
    "CREATE STREAM s (x BIGGINT)": "line 1, column 20, STREAM s: expected a type (did you mean 'BIGINT'?)",
    "CREATE STREAM s (x BIGINT": "found the end of the statement",
    "CREATE STREAM s (x BIGINT, PRIMARY KEY (x))": "expected PRIMARY KEY in CREATE TABLE",
    "CREATE TABLE t (x BIGINT)": "expected PRIMARY KEY",
    "CREATE STREAM s (x BIGINT, WATERMARK FOR x AS y)": "expected WATERMARK FOR at AS at - INTERVAL 30",
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS SELECT y FROM s": (
        "line 2, column 25, VIEW v: expected a query"
    ),
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS SELEC x FROM s": (
        "line 2, column 18, VIEW v: expected SELECT; found 'SELEC' (did you mean 'SELECT'?)"
    ),
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS SELECT now() AS x FROM s": "found now()",
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS SELECT random() AS x FROM s": "found random()",
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS SELECT uuid() AS x FROM s": "found uuid()",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x, x FROM s": "column 56, VIEW v: expected columns",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x, x + 1 AS X FROM s": "found 'X' twice",
    "CREATE STREAM s (x BIGINT);\nCREATE VIEW v AS\n  SELECT x,\n    x + yy AS z FROM s": (
        "line 4, column 9, VIEW v: expected a query that DuckDB understands; found: Binder Error: Referenced "
        'column "yy" not found in FROM clause. Candidate bindings: "x"'
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM streem": "column 60, VIEW v: expected one of",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s WHERE 1 < (SELECT x, x + 1 AS y FROM s)": (
        "column 72, VIEW v: expected a query that DuckDB understands"
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x,\n sum(x) FROM s WHERE sum(x) > 1": (
        "line 2, column 22, VIEW v: expected a condition of single rows in WHERE or ON; found an aggregate. "
        "Write the condition in HAVING\n"
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS\nSELECT random() AS x FROM s": "line 2, column 8, VIEW v",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT a.x FROM s AS a,\n s AS b": (
        "VIEW v: expected a join of two streams on an equality"
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT current_date AS d FROM s": "column 53, VIEW v",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s USING SAMPLE 10%": "column 75, VIEW v: ",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s LIMIT 10%": "QUALIFY percent_rank() OVER",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s FOR UPDATE": "that only reads",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s AT (VERSION => 3)": "AS OF reads a",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT a.x FROM s a POSITIONAL JOIN s b": "no order",
    "CREATE STREAM s (x STRING); CREATE VIEW v AS SELECT DISTINCT x COLLATE NOCASE AS y FROM s": "lower(x)",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS WITH RECURSIVE r(a) USING KEY (a) AS (SELECT x FROM s "
    "UNION SELECT a FROM r) SELECT a FROM r": "expected WITH RECURSIVE without USING KEY",
    "CREATE STREAM s (x STRING); CREATE VIEW v AS SELECT s.x, g.key FROM s, json_tree(s.x) AS g": (
        "expected a table, a subquery, UNNEST, generate_series, range or json_each; found"
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x, ARRAY(SELECT x FROM s o ORDER BY x LIMIT 2) AS l "
    "FROM s": "Write (SELECT list(x ORDER BY x) FROM (SELECT …))",
    "CREATE STREAM s (x STRING); CREATE VIEW v AS SELECT histogram(length(x)) AS h FROM s": (
        "column 77, VIEW v: expected a type among"
    ),
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS DELETE FROM s": "expected one SELECT",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s TABLESAMPLE 10%": "TABLESAMPLE",
    "CREATE STREAM s (x BIGINT); CREATE SINK o INTO o AS SELECT x FROM s EMIT ON CLOSE": "expected EMIT for",
    "CREATE STREAM s (x BIGINT); CREATE SINK o INTO p AS SELECT x FROM s EMIT LATER": "EMIT ON CLOSE",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE VIEW v AS "
    "SELECT x FROM TUMBLE(s, x, INTERVAL 1 MINUTE)": "GROUP BY",
    "CREATE STREAM s (x TIMESTAMP); CREATE VIEW v AS SELECT x FROM TUMBLE(s, x, INTERVAL 1 DAY)": (
        "which WATERMARK FOR declares, or none for the records' timestamps; found 'x'"
    ),
    "CREATE STREAM s (x TIMESTAMP) WITH (time = 'processing'); CREATE VIEW v AS "
    "SELECT x FROM TUMBLE(s, x, INTERVAL 1 DAY)": "happen when they are processed; found 'x'. Omit it",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE VIEW v AS "
    "SELECT count(*) AS n FROM TUMBLE(s, INTERVAL 1 DAY)": "the event time of 's' in TUMBLE(…), 'x'",
    "CREATE STREAM s (k STRING, x TIMESTAMP, WATERMARK FOR x); CREATE VIEW w AS SELECT k FROM s; "
    "CREATE VIEW v AS SELECT count(*) AS n FROM TUMBLE(w, INTERVAL 1 DAY)": "the column with 'x' as it was",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE VIEW w AS SELECT x + INTERVAL 1 DAY AS x FROM s; "
    "CREATE VIEW v AS SELECT count(*) AS n FROM SESSION(w, INTERVAL 1 DAY)": "'x' as it was read, after the",
    "CREATE STREAM s (k STRING, x TIMESTAMP, WATERMARK FOR x); CREATE STREAM r (k STRING, x TIMESTAMP); "
    "CREATE VIEW w AS SELECT * FROM s UNION ALL SELECT * FROM r; CREATE VIEW v AS "
    "SELECT count(*) AS n FROM HOP(w, INTERVAL 1 HOUR, INTERVAL 1 DAY)": "WATERMARK FOR in each stream",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE STREAM p (x TIMESTAMP) "
    "WITH (time = 'processing'); CREATE VIEW w AS SELECT x FROM s UNION ALL SELECT x FROM p; "
    "CREATE VIEW v AS SELECT count(*) AS n FROM TUMBLE(w, INTERVAL 1 DAY)": "'x' and rows that happen when",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE STREAM p (x TIMESTAMP) "
    "WITH (time = 'processing'); CREATE VIEW w AS SELECT x FROM s UNION ALL SELECT x FROM p; "
    "CREATE VIEW v AS SELECT count(*) AS n FROM TUMBLE(w, x, INTERVAL 1 DAY)": "Cut them into windows",
    "CREATE STREAM s (x TIMESTAMP); CREATE VIEW v AS SELECT count(*) AS n "
    "FROM SLIDE(s, INTERVAL 1 DAY)": "expected a stream and its event time in SLIDE(…)",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM TUMBLE(s)": "expected a stream, its time",
    "CREATE STREAM s (x TIMESTAMP, WATERMARK FOR x); CREATE VIEW w AS SELECT x + INTERVAL 1 DAY AS x FROM s; "
    "CREATE VIEW v AS SELECT x FROM TUMBLE(w, x, INTERVAL 1 DAY)": "with 'x' as it was read; found 'x'",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM TUMBLE(s, x)": "expected an interval",
    "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT unnest([x]) AS e, unnest([1]) AS f FROM s": (
        "expected one UNNEST in SELECT"
    ),
    (
        "CREATE STREAM s (x BIGINT); CREATE VIEW v AS SELECT x FROM s WHERE (x, x) NOT IN "
        "(SELECT x, x FROM s AS o)"
    ): "Use EXISTS",
}


MISPLACED = {
    "SELECT k, x FROM s GROUP BY k": (
        "column 11: expected a column of GROUP BY, or an aggregate, in a query with groups or aggregates; "
        "found 'x'. Add it to GROUP BY, or write an aggregate such as any_value(x)\n"
    ),
    "SELECT k, sum(x) OVER () AS t FROM s GROUP BY k": (
        "write an aggregate such as any_value(x), or sum(sum(x)) OVER"
    ),
    "SELECT x FROM s WHERE rank() OVER (ORDER BY x) < 3": "column 23: expected a condition of single rows",
    "SELECT x FROM s GROUP BY x HAVING rank() OVER (ORDER BY x) < 3": "Write the condition in QUALIFY\n",
    "SELECT ntile(2) OVER (ORDER BY x) AS n FROM s GROUP BY n": "column 8: expected groups by columns",
    "SELECT k, sum(x) AS n FROM s GROUP BY n": "found an aggregate. Remove it from GROUP BY, or compute it",
    "SELECT sum(rank() OVER (ORDER BY x)) AS n FROM s": "column 12: expected an aggregate of the rows'",
    "SELECT sum(max(x)) AS n FROM s": "column 12: expected an aggregate of the rows' columns; found one",
    "SELECT sum(x) OVER (ORDER BY rank() OVER ()) AS n FROM s": "column 15: expected a window function of",
    "SELECT x, rank() OVER (ORDER BY x) AS r FROM s GROUP BY ALL": "column 48: expected GROUP BY with the",
    "SELECT x, sum(x) AS n, n + x AS m FROM s GROUP BY ALL": "both an aggregate and another column. Name the",
}


@pytest.mark.parametrize("query", MISPLACED)
def test_misplaced_aggregates_and_window_functions(query: str) -> None:
    """The message has the place, and says where they belong."""
    app = SqlFlow("shop")
    app.stream("s", "k BIGINT, x BIGINT")
    with pytest.raises(PenstockError) as error:
        app.view("v", sql=query)
    assert MISPLACED[query] in str(error.value)
    assert "DuckDB" not in str(error.value)


@pytest.mark.quick_cases(25)
@pytest.mark.parametrize("program", MISTAKES)
def test_mistakes(program: str) -> None:
    with pytest.raises(PenstockError) as error:
        SqlFlow("shop").sql(program)
    assert MISTAKES[program] in str(error.value)


def test_emit_is_a_name_where_it_is_quoted() -> None:
    query = "SELECT \"emit\" FROM s WHERE kind = 'emit'"
    [made] = statements(f"CREATE SINK o INTO p AS {query} EMIT CHANGES")
    assert (made.query, made.emit) == (query, "changes")


def test_what_a_view_is_made_of() -> None:
    app = SqlFlow("shop")
    table = app.table("t", "id BIGINT, x BIGINT", key="id")
    with pytest.raises(PenstockError, match="expected a table or sql="):
        app.view("v", table, sql="SELECT id FROM t")
    with pytest.raises(PenstockError, match="expected tables="):
        app.view("v", table, tables={"t": table})
    with pytest.raises(PenstockError, match="expected streams and tables of the app"):
        app.view(
            "v", sql="SELECT id FROM x", tables={"x": SqlFlow("other").stream("x", "id BIGINT")}
        )
    assert app.view("v", sql="SELECT id, x FROM t").schema.names == ("id", "x")


LINES = "(?P<who>.) (?P<at>.) (?P<sent>.) (?P<received>.)"
OPTIONS = {
    "WITH (lateness = '5 seconds', idle = '2 minutes')": ps.event_time(
        lateness="5 seconds", idle="2 minutes"
    ),
    "WITH (time = 'processing')": ps.processing_time(),
    ", WATERMARK FOR at AS at - INTERVAL 1 SECOND) "
    "WITH (sent = 'sent', received = 'received', ahead = '1 hour')": ps.event_time(
        "at", lateness="1 second", sent="sent", received="received", ahead="1 hour"
    ),
    ", WATERMARK FOR at) WITH (producer = 'who', expected = 'a, b', punctuated = 'who = ''end''')": (
        ps.event_time("at", producer="who", expected=["a", "b"], punctuated="who = 'end'")
    ),
    ", WATERMARK FOR at) WITH (producer_header = 'device')": ps.event_time(
        "at", producer=ps.header("device")
    ),
    "WITH (format = 'csv', delimiter = ';', null = 'NA')": ps.csv(delimiter=";", null="NA"),
    f"WITH (format = 'pattern', pattern = '{LINES}', time_format = '%H')": ps.pattern(
        LINES, time_format="%H"
    ),
}


@pytest.mark.parametrize("text", OPTIONS)
def test_options_of_streams_are_those_of_python(text: str) -> None:
    """Event time, producers' watermarks, markers, and formats of lines."""
    app = SqlFlow("shop")
    columns = "who STRING, at TIMESTAMP, sent TIMESTAMP, received TIMESTAMP"
    closed = text if text.startswith(",") else f") {text}"
    app.sql(f"CREATE STREAM s ({columns} {closed}")
    source: Any = app.named["s"].node
    assert OPTIONS[text] in (source.time, source.format)


def test_a_table_has_an_event_time() -> None:
    """For joins as of event time: a table's watermark was read and not used."""
    app = SqlFlow("shop")
    app.sql(
        "CREATE TABLE rates (k BIGINT PRIMARY KEY, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE) "
        "WITH (idle = '5 seconds')"
    )
    [source] = [one for one in ancestors(app.named["rates"].node) if isinstance(one, Source)]
    assert source.time == ps.event_time("at", lateness="1 minute", idle="5 seconds")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at TIMESTAMP) WITH (time = 'event')", "expected time = 'processing', or WATERMARK FOR"),
        (
            "at TIMESTAMP, WATERMARK FOR at) WITH (time = 'processing')",
            "found it with WATERMARK FOR",
        ),
        (
            "at TIMESTAMP, WATERMARK FOR at) WITH (lateness = '1 second')",
            "expected the lateness in",
        ),
        ("x STRING) WITH (producer = 'x', producer_header = 'x')", "found both"),
        ("x STRING) WITH (sent = 'x')", "expected the column with the time of the event"),
        (
            "x STRING) WITH (delimiter = ';')",
            "expected format = 'csv' with delimiter; found 'json'",
        ),
        (
            "x STRING) WITH (format = 'csv', delimiter = 'ab')",
            "expected a delimiter of one character",
        ),
        ("x STRING) WITH (format = 'pattern')", "expected pattern = "),
        ("x STRING) WITH (lateness = 'soon')", "lateness: expected a duration"),
    ],
)
def test_options_that_contradict_are_refused(text: str, said: str) -> None:
    """The message names the statement, and what was expected."""
    with pytest.raises(PenstockError, match=f"line 1, column 1, STREAM s: .*{re.escape(said)}"):
        SqlFlow("shop").sql(f"CREATE STREAM s ({text}")


@pytest.mark.slow
def test_expressions_that_nest_too_deeply_are_refused() -> None:
    """A chain of thousands of operators says what to write instead, which works."""
    app = SqlFlow("shop")
    app.table("t", "id BIGINT, s STRING", key="id")
    with pytest.raises(PenstockError, match=r"nest less deeply.*concat\(a, b, c\)"):
        app.view("chain", sql=f"SELECT {' || '.join(['s'] * 600)} AS x FROM t")
    app.view("whole", sql=f"SELECT concat({', '.join(['s'] * 400)}) AS x FROM t")
