"""Values that a record can't hold, of every type: a capture takes them all, and says what it has lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.capture.sources import MysqlSource, PostgresSource, Source, SqliteSource

from penstock.capture import status

POSTGRES = {
    "smallint": ["-32768"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["'NaN'", "'-Infinity'", "3.4028235e38", "1e-45"],
    "double precision": ["'NaN'", "'Infinity'", "1.7976931348623157e308"],
    "numeric": ["'NaN'", "'Infinity'", "10::numeric ^ 10000", "1e-16383"],
    "numeric(20, 5)": ["'NaN'", "999999999999999.99999"],
    "numeric[]": ["'{NaN,1}'", "'{{1,2},{NaN,4}}'"],
    "money": ["'92233720368547758.07'", "'-92233720368547758.08'"],
    "date": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'"],
    "time": ["'24:00'"],
    "timetz": ["'23:59:60+15:59:59'", "'00:00-15:59:59'"],
    "timestamp": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-12-31 23:59:59.999999'"],
    "timestamptz": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-12-31'"],
    "interval": [
        "'1000000 years'",
        "'300000 years'",
        "'-178000000 years'",
        "'-1 mon 2 days -3:04'",
    ],
    "interval[]": ["'{1 day,1000000 years}'"],
    "text": ["E'\\u0001\\u001f\"\\\\'", "''"],
    "text[]": ["'[2:3]={NULL,\"{\"}'", "'{}'"],
    "bytea": ["''", "'\\x00ff'"],
    "bit(9)": ["B'111111111'"],
    "varbit": ["''"],
    "jsonb": ["'1e400'", "'null'"],
    "json": ["(repeat('[', 900) || repeat(']', 900))::json"],
    "point": ["'(NaN,Infinity)'"],
    "polygon": ["'((0,0),(1,Infinity))'"],
    "inet": ["'::ffff:1.2.3.4/96'"],
    "int4range": ["'empty'", "'(,)'"],
    "nummultirange": ["'{(,NaN]}'"],
    "tsvector": ["'a:1,2 ''b''''c'':3A'"],
    "pg_lsn": ["'FFFFFFFF/FFFFFFFF'"],
    "oidvector": ["'1 2'"],
    "uuid": ["'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
}
MARIADB = {
    "bigint unsigned": ["18446744073709551615"],
    "bigint": ["-9223372036854775808"],
    "decimal(65, 30)": ["-99999999999999999999999999999999999.999999999999999999999999999999"],
    "float": ["3.40282e38", "1e-45"],
    "double": ["1.7976931348623157e308"],
    "date": ["'0000-00-00'", "'2024-00-00'", "'2024-02-30'", "'9999-12-31'"],
    "datetime(6)": ["'0000-00-00'", "'2024-02-30 23:59:59.999999'", "'9999-12-31 23:59:59.999999'"],
    "datetime": ["'2024-00-01'"],
    "timestamp(3)": ["'0000-00-00'", "'2038-01-19 03:14:07.999'"],
    "time(6)": ["'-838:59:59.999999'"],
    "year": ["0", "2155"],
    "bit(64)": ["b'1'", "~0"],
    "text": ["''", "repeat('\\0', 10)"],
    "varchar(30) character set eucjpms": ["_utf8mb4'\uff5e\u2225\uff0d\uffe0\u2460\u9ad9'"],
    "varchar(30) character set euckr": ["_utf8mb4'갂똠'"],
    "text compressed": ["repeat('abc', 1000)", "''"],
    "varbinary(300) compressed": ["repeat('abc', 90)"],
    "blob": ["x'00ff'"],
    "enum('', 'a')": ["''", "2"],
    "set('a', 'b')": ["''", "3"],
    "geometry": [
        "ST_GeomFromText('GEOMETRYCOLLECTION EMPTY')",
        "ST_GeomFromText('POINT(1e308 -0)')",
    ],
    "uuid": ["'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
    "inet6": ["'::'"],
}
SQLITE = {
    "integer": ["-9223372036854775808", "'text'", "1e999", "x'00'"],
    "decimal(5, 2)": ["9e999", "-9e999", "1e-300", "'12,5'", "x'ff'"],
    "boolean": ["'perhaps'", "2", "0.5", "9e999"],
    "datetime": ["'2024-02-30 25:61'", "-1", "x'00'"],
    "date": ["'never'", "1e300"],
    "text": ["CAST(x'ff00fe' AS TEXT)", "CAST(x'eda080' AS TEXT)", "9e999", "x''"],
    "real": ["'NaN'", "9e999"],
    "": ["9e999", "CAST(x'00' AS TEXT)"],
}


def table_of(types: dict[str, list[str]], size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Columns of types, and values of one column each."""
    columns = [f"c{i} {type_}" for i, type_ in enumerate(types)]
    values = [(f"c{i}", one) for i, some in enumerate(types.values()) for one in some]
    assert len(values) >= size
    return columns, values


def kinds(source: Source) -> tuple[dict[str, list[str]], str]:
    """The types of a database, and how a table is made."""
    if isinstance(source, PostgresSource):
        return POSTGRES, "CREATE TABLE t (id int PRIMARY KEY, {})"
    if isinstance(source, MysqlSource):
        return MARIADB, "CREATE TABLE t (id int PRIMARY KEY, {})"
    assert isinstance(source, SqliteSource)
    return SQLITE, "CREATE TABLE t (id int PRIMARY KEY, {})"


def insert(source: Source, first: int, values: list[tuple[str, str]]) -> None:
    """Inserts a row for each value."""
    rows = [
        f"INSERT INTO t (id, {name}) VALUES ({i}, {value})"
        for i, (name, value) in enumerate(values, first)
    ]
    if isinstance(source, MysqlSource):
        rows = ["SET sql_mode = 'ALLOW_INVALID_DATES,ANSI'", *rows]
    source.execute(";\n".join(rows))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["precise", "readable"])
@pytest.mark.parametrize("choice", ["null", "letter"])
def test_a_value_never_ends_a_capture(any_source, how: Any, choice: Any) -> None:
    """Hostile values of every type come in a snapshot and as changes: each row is written, or is a dead
    letter, the same in both, and what was lost is counted.
    """
    types, statement = kinds(any_source)
    columns, values = table_of(types, 10)
    any_source.execute(statement.format(", ".join(columns)))
    insert(any_source, 0, values)
    settings = {"values": how, "on_unreadable": choice}
    any_source.run(**settings)
    insert(any_source, len(values), values)
    any_source.run(**settings)
    rows = any_source.table(any_source.topic("t"), "id")
    found = status(any_source.name, any_source.log, url=any_source.url)
    letters = any_source.letters()
    assert len(rows) + len(letters) == 2 * len(values)
    assert (
        found.letters == len(letters) == (sum(found.unread.values()) if choice == "letter" else 0)
    )
    if how == "precise" and not isinstance(any_source, SqliteSource):
        assert found.unread
    for i, (name, value) in enumerate(values):
        first, second = rows.get((i,)), rows.get((i + len(values),))
        assert (first is None) == (second is None), (name, value)
        if first is not None:
            assert first.get(name) == second.get(name), (name, value, types)
