"""Schemas as text: arrays in both of their forms."""

from __future__ import annotations

import pytest

from penstock.core.schema import NESTING_MAX, Schema
from penstock.errors import SchemaError


def test_brackets_behind_a_type_are_arrays() -> None:
    read = Schema.parse(
        "a STRING[] NOT NULL, b BIGINT[][], c MAP<STRING, DECIMAL(5, 2)[]>, d ARRAY<INT[]>"
    )
    assert read == Schema.parse(
        "a ARRAY<STRING> NOT NULL, b ARRAY<ARRAY<BIGINT>>, c MAP<STRING, ARRAY<DECIMAL(5, 2)>>, "
        "d ARRAY<ARRAY<INT>>"
    )
    assert Schema.parse(read.text) == read


@pytest.mark.parametrize("type_", ["INT[3]", "INT[", "INT]", "INT" + "[]" * (NESTING_MAX + 1)])
def test_brackets_that_are_no_array_are_refused(type_: str) -> None:
    with pytest.raises(SchemaError, match="expected"):
        Schema.parse(f"a {type_}")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("VARCHAR(20)", "STRING"),
        ("CHAR", "STRING"),
        ("character varying(5)", "STRING"),
        ("SMALLINT", "INT"),
        ("INT2", "INT"),
        ("INT4", "INT"),
        ("INT8", "BIGINT"),
        ("REAL", "FLOAT"),
        ("FLOAT(24)", "FLOAT"),
        ("FLOAT(53)", "DOUBLE"),
        ("DOUBLE PRECISION", "DOUBLE"),
        ("NUMERIC(5, 2)", "DECIMAL(5, 2)"),
        ("TIMESTAMP(3)", "TIMESTAMP"),
        ("TIMESTAMPTZ", "TIMESTAMP"),
        ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP"),
        ("timestamp without time zone", "TIMESTAMP"),
        ("TIME WITHOUT TIME ZONE", "TIME"),
        ("BYTEA", "BINARY"),
        ("VARBINARY(16)", "BINARY"),
        ("TEXT ARRAY", "ARRAY<STRING>"),
        ("ROW<a INT, b STRUCT(c VARCHAR(3))>", "STRUCT<a INT, b STRUCT<c STRING>>"),
        ("MAP(VARCHAR, REAL[])", "MAP<STRING, ARRAY<FLOAT>>"),
    ],
)
def test_types_have_the_names_of_sql(written: str, meant: str) -> None:
    """A type that other systems write in another way is read as what it means here."""
    assert Schema.parse(f"a {written} NOT NULL, b {written} NULL") == Schema.parse(
        f"a {meant} NOT NULL, b {meant}"
    )


def test_comments_a_mark_and_a_last_comma_are_no_columns() -> None:
    """What may stand between columns in SQL may stand there in a schema's text."""
    read = Schema.parse("\ufeffa INT, -- one, two\n/* b\n, c */ d TEXT NOT /* x */ NULL, -- end")
    assert read.text == "a INT, d STRING NOT NULL"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("DEFAULT 'x'", r"write coalesce\(x, 0\) in a query\); found \"DEFAULT 'x'\""),
        ("PRIMARY KEY", r"expected a key as key='id'"),
        ("UNIQUE", "a table has one row for each key"),
        ("CHECK (a > 0)", "the condition after WHERE"),
        ("REFERENCES t (a)", "join the other table"),
        ("NOT NULL NULL", "',' or the end; found 'NULL'"),
        ("'x'", "',' or the end"),
        ("(3)", "expected INT without a number"),
    ],
)
def test_constraints_that_cannot_be_kept_are_refused(column: str, message: str) -> None:
    """A promise that a topic's rows can't keep is refused with what to write, and the place is marked."""
    with pytest.raises(SchemaError, match=message) as found:
        Schema.parse(f"b INT,\n a INT {column}")
    line, mark = str(found.value).splitlines()[-2:]
    assert line.startswith("LINE 2:  a INT ")
    assert line[mark.index("^") :] == column[-len(line[mark.index("^") :]) :]


@pytest.mark.parametrize(
    "type_",
    ["SERIAL", "TIMESTAMP(9)", "TIME WITH TIME ZONE", "NUMERIC", "INT(" + "9" * 5_000 + ")"],
)
def test_types_without_a_clear_meaning_are_refused(type_: str) -> None:
    """A type that rows can't have is refused where it stands."""
    with pytest.raises(SchemaError, match="expected"):
        Schema.parse(f"a {type_}")
