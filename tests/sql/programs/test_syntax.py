"""Programs in SQL as people write them: what is read, and what to write instead of other systems' forms."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.errors import PenstockError, SchemaError
from penstock.sql import SqlFlow

START = "CREATE STREAM s (x BIGINT, at TIMESTAMP, WATERMARK FOR at); CREATE MATERIALIZED VIEW v AS "


def refusal(program: str) -> str:
    with pytest.raises(PenstockError) as error:
        SqlFlow("shop").sql(program)
    return str(error.value)


def test_a_program_is_read_as_other_systems_write_it() -> None:
    """Types, comments, a byte order mark, trailing commas, keys with names and NOT ENFORCED."""
    app = SqlFlow("shop")
    app.sql("""\ufeff-- first; a comment
        CREATE STREAM IF NOT EXISTS s ( -- in, the head
          id VARCHAR(20) NOT NULL, /* , */ n SMALLINT NULL,
          m MAP<STRING, ARRAY<INT>>, -- WATERMARK FOR nothing
          at TIMESTAMP(3), WATERMARK FOR at AS at - INTERVAL '5' SECOND,
        );
        CREATE TABLE t (
          CONSTRAINT pk PRIMARY KEY (a, b) NOT ENFORCED, a INT8, b TEXT, c DOUBLE PRECISION
        );
        CREATE TABLE u (a BIGINT PRIMARY KEY NOT ENFORCED NOT NULL, b REAL /* last */);
        CREATE MATERIALIZED VIEW v AS SELECT id, n, /* , */ FROM s -- the end
    """)
    nodes: dict[str, Any] = {name: table.node for name, table in app.named.items()}
    assert nodes["s"].schema.text == (
        "id STRING NOT NULL, n INT, m MAP<STRING, ARRAY<INT>>, at TIMESTAMP"
    )
    assert nodes["s"].time == ps.event_time("at", lateness="5 seconds")
    assert nodes["t"].schema.text == "a BIGINT NOT NULL, b STRING NOT NULL, c DOUBLE"
    assert nodes["u"].schema.text == "a BIGINT NOT NULL, b FLOAT"
    run = ps.testing.run(app)
    run.send("s", id="a", n=3, at="12:00:00")
    assert run.view("v").rows() == [{"id": "a", "n": 3}]


@pytest.mark.parametrize(
    ("query", "place", "message", "word"),
    [
        ("SELECT (x\nFROM s", (2, 1), "expected ')'; found 'FROM'", "FROM"),
        ("SELECT x x x FROM s", None, "expected ',', an operator, a clause or the end", "x"),
        ("SELECT x FROM s WHERE", None, "expected something after 'WHERE'; found the end", "WHERE"),
        ("SELECT x FORM s", None, "'FORM': did you mean 'FROM'?", "s"),
        ("SELECT CASE WHEN x THEN 1 FROM s", None, "expected END after CASE", "1"),
        ("SELECT 'x FROM s", None, "expected ' at the end of the text that begins here", "'"),
        ("SELECT 1 /* x", None, "expected */ at the end of the comment", "/"),
        ('SELECT "x FROM s', None, 'expected " at the end of the name', '"'),
    ],
)
def test_errors_of_syntax_are_in_own_words(
    query: str, place: tuple[int, int] | None, message: str, word: str
) -> None:
    """The message says what is expected, line and column, and marks the word; no word of a parser."""
    found = refusal(START + query)
    assert message in found
    assert "Expecting" not in found
    assert "<class" not in found
    if place is not None:
        assert f"line {place[0]}, column {place[1]}" in found
    line, mark = found.splitlines()[-2:]
    assert line[mark.index("^") : len(mark)] == word


FORMS = {
    "SELECT count(*) AS n FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(at), INTERVAL '1' MINUTE))": (
        "expected FROM TUMBLE(s, at, INTERVAL …)"
    ),
    "SELECT count(*) AS n FROM TUMBLE(s, DESCRIPTOR(at), INTERVAL 1 MINUTE) GROUP BY window_start": (
        "expected the column alone"
    ),
    "SELECT count(*) AS n FROM s GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)": "FROM TUMBLE(stream, at,",
    "SELECT PROCTIME() AS p FROM s": "WITH (time = 'processing')",
    "SELECT TO_TIMESTAMP_LTZ(x, 3) AS p FROM s": "make_timestamptz(x * 1000) of milliseconds",
    "SELECT `x` FROM s": "a name in double quotes",
    "SELECT x, count(*) AS n FROM s WINDOW TUMBLING (SIZE 30 SECONDS) GROUP BY x EMIT CHANGES": (
        "FROM TUMBLE(stream, at, INTERVAL 30 SECONDS)"
    ),
    "SELECT x, count(*) AS n FROM s WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY 5 MINUTES) GROUP BY x": (
        "FROM HOP(stream, at, INTERVAL 5 MINUTES, INTERVAL 1 HOUR)"
    ),
    "SELECT x, count(*) AS n FROM s WINDOW SESSION (60 SECONDS) GROUP BY x": "SESSION(stream, at,",
    "SELECT x FROM s EMIT CHANGES": "expected EMIT in CREATE SINK",
    "SELECT a.x FROM s a JOIN s b WITHIN 1 HOUR ON a.x = b.x": "b.at BETWEEN a.at - INTERVAL 1 HOUR",
    "SELECT rowtime FROM s": "the column of WATERMARK FOR",
    "SELECT latest_by_offset(x) AS l FROM s": "expected max_by(x, at)",
    "SELECT x FROM s WITH NO DATA": "expected the end of the query",
}


@pytest.mark.parametrize("query", FORMS)
def test_queries_of_other_systems_are_refused_with_what_to_write(query: str) -> None:
    """Windows and functions of Flink, ksqlDB and PostgreSQL have their counterparts in the message."""
    assert FORMS[query] in refusal(START + query)


STATEMENTS = {
    "CREATE STREAM t (x INT) WITH ('connector' = 'kafka')": "CREATE STREAM reads a topic of the log",
    "CREATE STREAM t (x INT) WITH (KAFKA_TOPIC = 't')": "expected topic = '…'",
    "CREATE STREAM t (x INT) WITH (VALUE_FORMAT = 'JSON')": "expected format = 'json'",
    "CREATE STREAM t (x INT) WITH (format = 'DELIMITED')": "expected format = 'csv'",
    "CREATE STREAM t AS SELECT x FROM s EMIT CHANGES": "expected CREATE VIEW t AS SELECT",
    "CREATE TABLE t AS SELECT count(*) AS n FROM s": "CREATE MATERIALIZED VIEW keeps a query's rows",
    "INSERT INTO t SELECT x FROM s": "CREATE SINK name INTO topic AS SELECT",
    "SELECT x FROM s": "CREATE MATERIALIZED VIEW name AS SELECT",
    "CREATE VIEW t (a) AS SELECT x FROM s": "CREATE VIEW t AS SELECT x AS a",
    "CREATE VIEW public.t AS SELECT x FROM s": "a name without a schema, such as t",
    "CREATE TABLE t (id SERIAL PRIMARY KEY)": "BIGINT, set by who writes, instead of SERIAL",
    "CREATE TABLE t (id INT PRIMARY KEY, x INT DEFAULT 0)": "write coalesce(x, 0) in a query",
    "CREATE STREAM t (x INT, FOREIGN KEY (x) REFERENCES u (x))": "join the other table",
    "CREATE UNIQUE INDEX i ON t (x)": "without an index",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_of_other_systems_are_refused_with_what_to_write(statement: str) -> None:
    """A statement, an option or a column's constraint that there isn't here is marked where it stands."""
    found = refusal(f"{START}SELECT x FROM s;\n{statement}")
    assert STATEMENTS[statement] in found
    assert found.startswith("line 2, column ")


def test_a_form_is_named_only_where_it_is_the_reason() -> None:
    """A column may have a name that means something elsewhere; another mistake is said as it is."""
    program = "CREATE STREAM s (rowtime BIGINT); CREATE VIEW v AS SELECT rowtime, y FROM s"
    assert 'Referenced column "y" not found' in refusal(program)
    SqlFlow("shop").sql(program.replace(", y", ""))


def test_errors_of_queries_in_python_are_marked() -> None:
    """A view's query has a caret as a program has."""
    app = SqlFlow("shop")
    app.stream("s", "x BIGINT")
    with pytest.raises(SchemaError, match=r"line 1, column 11: (.|\n)*\n {18}\^\^$"):
        app.view("v", sql="SELECT x +yy FROM s")
