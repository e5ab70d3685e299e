"""How SQL's dialects write types and constraints of columns, beyond Penstock's own names.

A name is taken where its meaning is clear, and refused with what to write where a topic's rows can't keep
what it promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = [
    "ALIASES",
    "CONSTRAINTS",
    "FLOAT_DIGITS_MAX",
    "INSTEAD",
    "LENGTHS",
    "PHRASES",
    "PRECISIONS",
    "REAL_DIGITS_MAX",
    "SUBSECOND_DIGITS_MAX",
]

ALIASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("CHAR", "CHARACTER", "NCHAR", "NVARCHAR", "BPCHAR", "CLOB"), "STRING"),
    **dict.fromkeys(("TINYTEXT", "MEDIUMTEXT", "LONGTEXT"), "STRING"),
    **dict.fromkeys(("TINYINT", "SMALLINT", "MEDIUMINT", "SHORT"), "INT"),
    **dict.fromkeys(("INT1", "INT2", "INT4", "INT16", "INT32"), "INT"),
    **dict.fromkeys(
        ("INT8", "INT64"), "BIGINT"
    ),  # bytes in the first, bits in the second, as in DuckDB
    **dict.fromkeys(("REAL", "FLOAT4"), "FLOAT"),
    **dict.fromkeys(("FLOAT8",), "DOUBLE"),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMP_LTZ", "DATETIME"), "TIMESTAMP"),
    **dict.fromkeys(("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_US"), "TIMESTAMP"),
    **dict.fromkeys(("BLOB", "BYTEA", "VARBINARY"), "BINARY"),
    "ROW": "STRUCT",
}
"""One word for another."""

PHRASES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "DOUBLE": (("PRECISION",),),
    "CHARACTER": (("VARYING",),),
    "CHAR": (("VARYING",),),
    "TIMESTAMP": (
        ("WITH", "TIME", "ZONE"),
        ("WITHOUT", "TIME", "ZONE"),
        ("WITH", "LOCAL", "TIME", "ZONE"),
    ),
    "TIME": (("WITHOUT", "TIME", "ZONE"),),
}
"""Words that may follow a type's name, before or behind its length, and change nothing here."""

LENGTHS: Final = frozenset(
    {"STRING", "VARCHAR", "TEXT", "CHAR", "CHARACTER", "NCHAR", "NVARCHAR", "BPCHAR"}
    | {"BINARY", "BYTES", "BLOB", "BYTEA", "VARBINARY"}
)
"""Types with a length, which isn't checked: a topic's records are what they are."""
PRECISIONS: Final = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_LTZ", "DATETIME", "TIME"})
"""Types with a number of digits of their seconds. All have six here."""
SUBSECOND_DIGITS_MAX: Final = 6  # microseconds
REAL_DIGITS_MAX: Final = (
    24  # binary digits of FLOAT(n); with more it is a DOUBLE, as in standard SQL
)
FLOAT_DIGITS_MAX: Final = 53

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ENUM", "SET", "UNION", "INET", "CIDR", "XML"), "STRING"),
    **dict.fromkeys(
        ("SERIAL", "BIGSERIAL", "SMALLSERIAL", "SERIAL8"), "BIGINT, set by who writes,"
    ),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER"), "BIGINT"),
    **dict.fromkeys(("HUGEINT", "UBIGINT", "UHUGEINT"), "DECIMAL(38, 0)"),
    **dict.fromkeys(("NUMBER", "MONEY"), "DECIMAL(p, s)"),
    **dict.fromkeys(("JSONB", "VARIANT", "OBJECT"), "JSON"),
    **dict.fromkeys(("TIMESTAMP_NS",), "TIMESTAMP, of microseconds,"),
    **dict.fromkeys(("TIMETZ",), "TIME"),
    **dict.fromkeys(("MULTISET",), "ARRAY<type>"),
}
"""What there is instead of types that other systems have."""

CONSTRAINTS: Final[Mapping[str, str]] = {
    "DEFAULT": "columns without DEFAULT, as what a record doesn't have is NULL (write coalesce(x, 0) in a "
    "query)",
    "PRIMARY": "a key as key='id' of App.table(…), or as PRIMARY KEY in CREATE TABLE",
    "KEY": "a stream's key as key='id' of App.stream(…), or in WITH (key = 'id')",
    "UNIQUE": "columns without UNIQUE, as records aren't compared with others (a table has one row for each "
    "key: PRIMARY KEY in CREATE TABLE, key= of App.table)",
    "CHECK": "columns without CHECK (write the condition after WHERE in a query)",
    "REFERENCES": "columns without REFERENCES (join the other table in a query)",
    "CONSTRAINT": "columns without CONSTRAINT (conditions belong after WHERE in a query)",
    "FOREIGN": "columns without FOREIGN KEY (join the other table in a query)",
    "GENERATED": "computed columns as name AS expression in CREATE STREAM, or in select(…)",
    "AS": "computed columns as name AS expression in CREATE STREAM, or in select(…)",
    "COLLATE": "columns without COLLATE (compare lower(x), or icu_sort_key(x, 'de'), in a query)",
    "COMMENT": "comments after --",
    "METADATA": "columns of records' values (without WATERMARK FOR, a row's time is its record's timestamp)",
    **dict.fromkeys(
        ("AUTO_INCREMENT", "AUTOINCREMENT", "IDENTITY"),
        "numbers that are in the records, as reading a topic makes none",
    ),
    **dict.fromkeys(("UNSIGNED", "SIGNED", "ZEROFILL"), "INT or BIGINT, which have a sign, alone"),
}
"""What may follow a type in SQL and can't be kept, and what to write instead."""
