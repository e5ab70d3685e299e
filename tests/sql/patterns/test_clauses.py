"""MATCH_RECOGNIZE as a text: how it is read in every dialect, and what is refused at which place."""

from __future__ import annotations

import re

import pytest

from penstock.errors import PenstockError, SchemaError
from penstock.sql import SqlFlow
from penstock.sql.text.matches import Clause, Part, with_marks, without_clauses

PROGRAM = """
CREATE STREAM ticks (symbol STRING, at TIMESTAMP, price DOUBLE, n BIGINT,
                     WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE STREAM records (symbol STRING, at TIMESTAMP, price DOUBLE);
"""
WHOLE = r"""MATCH_RECOGNIZE (
  PARTITION BY symbol, "a b" ORDER BY at, n DESC NULLS LAST
  MEASURES FINAL LAST(up.price) AS top, count(*) AS define /* ) */
  ALL ROWS PER MATCH WITH UNMATCHED ROWS
  AFTER MATCH SKIP TO FIRST up -- )
  PATTERN (^ (strt down+? | {- up -}) up{2,} $) WITHIN INTERVAL '10' MINUTE
  KEEP 1_000 ROWS CORRECT INTERVAL 1 HOUR
  SUBSET moves = (down, up), u = (up)
  DEFINE down AS price < PREV(price) AND name <> ')', up AS (CASE WHEN price > 1 THEN 2 END) = 2
)"""
SHORT = (
    "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES last(up.price) AS top "
    "PATTERN (strt down+ up+) KEEP 100 ROWS DEFINE down AS price < prev(price), up AS price > prev(price))"
)
DIALECTS = ("duckdb", "postgres", "snowflake", "oracle", "trino", "spark", "mysql", "bigquery")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_clause_is_read_in_every_dialect(dialect: str) -> None:
    """Its parts are the same ones, and the query keeps its length and its lines."""
    query = f"SELECT * FROM t {WHOLE} AS m WHERE x = 1"
    rest, [clause] = without_clauses(query, dialect)
    assert len(rest) == len(query)
    assert rest.count("\n") == query.count("\n")
    assert rest.split() == ["SELECT", "*", "FROM", "t", "AS", "m", "WHERE", "x", "=", "1"]
    assert [one.text for one in clause.partition] == ["symbol", '"a b"']
    assert [one.text for one in clause.order] == ["at", "n DESC NULLS LAST"]
    assert [(one.text, one.name) for one in clause.measures] == [
        ("FINAL LAST(up.price)", "top"),
        ("count(*)", "define"),
    ]
    assert clause.pattern.text == "^ (strt down+? | {- up -}) up{2,} $"
    assert clause.within is not None
    assert clause.within.text == "INTERVAL '10' MINUTE"
    assert clause.keep is not None
    assert clause.keep.text == "1_000"
    assert clause.correct is not None
    assert clause.correct.text == "INTERVAL 1 HOUR"
    assert [(one.name, one.text) for one in clause.subsets] == [("moves", "down,up"), ("u", "up")]
    assert [(one.name, one.text) for one in clause.defines] == [
        ("down", "price < PREV(price) AND name <> ')'"),
        ("up", "(CASE WHEN price > 1 THEN 2 END) = 2"),
    ]
    assert (clause.rows, clause.empty, clause.unmatched) == ("all", "show", True)
    assert clause.after.text == "first up"
    assert clause.after.name == "up"
    parts = [*clause.partition, *clause.measures, clause.pattern, *clause.defines]
    assert all(query.startswith(one.text, one.start) for one in parts)


@pytest.mark.parametrize(
    ("skip", "after"),
    [
        ("PAST LAST ROW", "past last row"),
        ("TO NEXT ROW", "next row"),
        ("TO FIRST up", "first up"),
        ("TO LAST up", "last up"),
        ("TO up", "up"),
        ("TO last", "last"),
    ],
)
def test_where_the_next_match_begins(skip: str, after: str) -> None:
    """All five forms of AFTER MATCH SKIP are read, also with a variable that is called `last`."""
    text = SHORT.replace("PATTERN", f"AFTER MATCH SKIP {skip} PATTERN")
    [clause] = without_clauses(f"SELECT * FROM t {text}", "duckdb")[1]
    assert clause.after.text == after


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'MATCH_RECOGNIZE (' AS x",
        'SELECT "match_recognize" (1)',
        "SELECT 1 -- MATCH_RECOGNIZE (",
        "SELECT /* MATCH_RECOGNIZE ( */ $x$ MATCH_RECOGNIZE ( $x$",
        "SELECT match_recognize FROM t",
    ],
)
def test_what_only_looks_like_a_clause(text: str) -> None:
    """Texts, names and comments keep their words."""
    assert without_clauses(text, "duckdb") == (text, [])


def test_a_text_with_backslashes() -> None:
    """In a dialect that escapes quotes by a backslash, a text ends where that dialect ends it."""
    text = r"SELECT 'it\'s', x FROM t MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS x <> 'it\'s )') AS m"
    [clause] = without_clauses(text, "spark")[1]
    assert clause.defines == (Part(r"x <> 'it\'s )'", text.index("x <>"), "a"),)


def test_marks_of_functions() -> None:
    """RUNNING and FINAL become calls around what they are about."""
    text = "FINAL LAST(a.x, 1) / (RUNNING sum(b.x)) - first + FIRST (PREV(y))"
    assert with_marks(text, "oracle") == (
        "pattern_FINAL(pattern_LAST(a.x, 1)) / (pattern_RUNNING(sum(b.x))) - first "
        "+ pattern_FIRST (pattern_PREV(y))"
    )


def refused(query: str, dialect: str = "duckdb") -> str:
    """What is said of a query."""
    app = SqlFlow("stocks")
    app.sql(PROGRAM)
    with pytest.raises(PenstockError) as failure:
        app.view("v", sql=query, dialect=dialect)
    return str(failure.value)


@pytest.mark.parametrize(
    ("old", "new", "at", "said"),
    [
        ("MEASURES", "MEASURE", "MEASURE", "found 'MEASURE' (did you mean 'MEASURES'?)"),
        (r"PATTERN .*(?=DEFINE)", "", "MATCH_RECOGNIZE", "expected PATTERN (…)"),
        (" DEFINE.*[)]", ")", "MATCH_RECOGNIZE", "expected DEFINE with the conditions"),
        ("ORDER BY at", "", "MATCH_RECOGNIZE", "expected ORDER BY at, as a pattern is of rows"),
        ("ORDER BY at", "ORDER BY n", "n ", "expected the event time 'at' first in ORDER BY"),
        ("ORDER BY at", "ORDER BY at DESC", "at DESC", "in ascending order; found 'at DESC'"),
        ("ORDER BY at", "ORDER BY at + 1", "at + 1", "found 'at + 1'. Compute it in a subquery"),
        ("BY symbol", "BY symbl", "symbl", "found 'symbl' (did you mean 'symbol'?)"),
        ("BY symbol", "BY", "ORDER", "expected an item; found 'ORDER'"),
        (" AS top", "", "last", "expected a measure with its name, as in last(a.x) AS y"),
        ("AS top", "AS symbol", "last", "found 'symbol' twice"),
        ("MEASURES", "ONE ROW PER MATCH MEASURES", "MEASURES", "expected MEASURES before ONE ROW"),
        ("KEEP", "WITHIN 10 MINUTE KEEP", "10", "expected WITHIN INTERVAL '10' MINUTE or the"),
        ("KEEP", "WITHIN INTERVAL '1' MONTH KEEP", "INTERVAL", "of fixed length, such as"),
        ("DEFINE", "SUBSET x = (up down) DEFINE", "x = ", "expected SUBSET name = (a, b); found"),
        ("PATTERN", "AFTER MATCH SKIP PATTERN", "PATTERN", "expected PAST LAST ROW, TO NEXT ROW"),
        ("PATTERN", "ALL ROWS PER MATCH WITH EMPTY PATTERN", "WITH", "or WITH UNMATCHED ROWS"),
        ("PATTERN", "ONE ROW PER MATCH ALL ROWS PER MATCH PATTERN", "ALL", "once; found ALL ROWS"),
        (r"strt down. up.", "", "()", "expected a pattern, as in PATTERN (a b+ c); found ()"),
        (r"down. up", "down++ up", "+ up", "expected a variable"),
        ("down AS price", "down price", "down price", "expected a variable and its condition"),
        ("down AS", "down AS (", "(PARTITION", "expected ')' that closes the parenthesis here"),
        ("down AS", "down AS (SELECT 1 FROM t MATCH_RECOGNIZE (", "(PARTITION", "expected ')'"),
        ("up AS price", "upp AS price", "price > p", "in DEFINE, strt, down, up; found 'upp' (did"),
        ("up AS price", "down AS price", "price > p", "once in DEFINE; found 'down' twice"),
        (
            "DEFINE",
            "SUBSET x = (up, dow) DEFINE",
            "up, dow",
            "in SUBSET, strt, down, up; found 'dow'",
        ),
        ("DEFINE", "SUBSET up = (up, down) DEFINE", "up, down)", "which is one of PATTERN"),
        (
            "PATTERN",
            "AFTER MATCH SKIP TO FIRST u PATTERN",
            "u PATTERN",
            "in AFTER MATCH SKIP, strt",
        ),
        (
            "> prev[(]price[)][)]",
            "> prev(prise))",
            "prise",
            "'prise' in 'price > prev(prise)' (did",
        ),
        ("last[(]up.price[)]", "last(uq.price)", "uq.price", "expected one of the columns"),
        ("last[(]up.price[)]", "nosuch(up.price)", "nosuch", "nosuch"),
        ("last[(]up.price[)]", "(SELECT 1)", "(SELECT", "expected no subquery and no window"),
        (
            "last[(]up.price[)]",
            "match_rowtime()",
            "match_rowtime",
            "expected last(at), the time of",
        ),
        ("last[(]up.price[)]", "match_sequence_number()", "match_seq", "expected RUNNING count(*)"),
        ("KEEP 100", "KEEP 0", "0 ROWS", "expected from 1 to 100,000 rows in KEEP"),
        ("100 ROWS", "10", "DEFINE", "expected ROWS; found 'DEFINE'"),
        ("FROM ticks", "FROM", "MATCH_RECOGNIZE", "expected a table of FROM before"),
        ("FROM ticks", "FROM records", "at ME", "expected rows with a column of event time"),
        (" AS top PATTERN", " AS top PATERN", "PATERN", "found 'PATERN' (did you mean 'PATTERN'?)"),
        (
            "FROM ticks",
            "FROM TABLE(TUMBLE(TABLE ticks, DESCRIPTOR(at), INTERVAL '1' MINUTE))",
            "TABLE",
            "expected FROM TUMBLE(ticks, at, INTERVAL …); found 'TABLE(TUMBLE(TABLE ticks",
        ),
        (
            "FROM ticks",
            "FROM TUMBLE(ticks, at, INTERVAL '1' MINUTE)",
            "MATCH_RECOGNIZE",
            "WITHIN INTERVAL '10' MINUTE behind PATTERN bounds a match in time",
        ),
    ],
)
def test_what_is_refused(old: str, new: str, at: str, said: str) -> None:
    """The message names line and column of the mistake, and marks it."""
    query = "SELECT *\n" + re.sub(
        old, lambda _: new, f"FROM ticks {SHORT}", count=1, flags=re.DOTALL
    )
    message = refused(query)
    assert said in message
    column = query.splitlines()[1].index(at) + 1
    assert f"line 2, column {column}:" in message
    assert message.count("^\n") <= 1
    assert message.count("LINE ") == 1


def test_a_mistake_in_a_program() -> None:
    """Its line and column are the program's."""
    app = SqlFlow("stocks")
    app.sql(PROGRAM)
    program = f"SET a = 'b';\nCREATE VIEW v AS\n  SELECT * FROM ticks {SHORT}".replace(
        "DEFINE", "DEFIN"
    )
    with pytest.raises(PenstockError, match=r"^line 3, column 142: expected ") as failure:
        app.sql(program)
    assert "found 'DEFIN' (did you mean 'DEFINE'?)" in str(failure.value)


def test_a_clause_within_another() -> None:
    """It is refused at its place."""
    query = f"FROM t {SHORT}".replace("price < prev", f"price < (SELECT 1 FROM t {SHORT}) AND prev")
    with pytest.raises(SchemaError, match="found a MATCH_RECOGNIZE within another") as failure:
        without_clauses(query, "duckdb")
    assert failure.value.at == query.rindex("MATCH_RECOGNIZE")


def test_the_parts_of_a_clause_by_default() -> None:
    """Without words about it, a match is one row and the next begins behind it."""
    query = "FROM t MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS x > 1)"
    [clause] = without_clauses(query, "duckdb")[1]
    assert clause == Clause(
        7,
        len(query),
        Part("a", query.index("a)")),
        defines=(Part("x > 1", query.index("x >"), "a"),),
    )


def test_a_mistake_behind_a_clause() -> None:
    """Its place isn't that of an equal word in the clause."""
    query = f"SELECT symbol FROM ticks {SHORT} WHERE price > 1"
    message = refused(query)
    assert f"column {query.rindex('price') + 1}: " in message
