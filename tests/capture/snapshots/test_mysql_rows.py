"""Rows of MariaDB that are made JSON of many at a time are the same as one by one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.address import Address
from tests.capture.test_mysql import ROWS, TYPES
from tests.effort import examples
from tests.mariadb import pymysql

from penstock.capture.databases.mysql.charsets import Charset
from penstock.capture.databases.mysql.columns import Column, Definition
from penstock.capture.databases.mysql.server import Server
from penstock.capture.databases.mysql.snapshots import Makes, Packets, read
from penstock.capture.databases.mysql.texts import converter
from penstock.capture.databases.mysql.texts import read as read_value
from penstock.capture.unread import Losses
from penstock.errors import CorruptError

UTF8 = Charset()
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1).map(str)
DAYS = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)).map(
    lambda one: f"{one[0]:04}-{one[1]:02}-{one[2]:02}"
)
TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59)).map(
    lambda one: f" {one[0]:02}:{one[1]:02}:{one[2]:02}"
)


def moments(digits: int) -> st.SearchStrategy[str]:
    """Texts of a DATETIME."""
    part = st.integers(0, 10**digits - 1).map(lambda n: f".{n:0{digits}}" if digits else "")
    return st.tuples(DAYS, TIMES, part).map("".join)


COLUMNS: list[tuple[Column, st.SearchStrategy[Any]]] = [
    (Column("key", "int"), NUMBERS),
    (Column("zerofill", "int", unsigned=True), st.integers(0, 99).map(lambda n: f"{n:05}")),
    (Column("big", "bigint", unsigned=True), st.integers(0, (1 << 64) - 1).map(str)),
    (Column("text", "varchar", charset=UTF8), st.text(st.characters(exclude_categories=["Cs"]))),
    (Column("plain", "char", charset=UTF8), st.text("abc ", max_size=300)),
    (Column("enum", "enum", charset=UTF8, labels=("a", "b")), st.sampled_from("ab")),
    (Column("uuid", "uuid"), st.uuids().map(str)),
    (Column("bytes", "varbinary"), st.binary()),
    (
        Column("money", "decimal", size=12, digits=2),
        st.decimals(-(10**9), 10**9, places=2).map(str),
    ),
    (Column("double", "double"), st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    (Column("date", "date"), DAYS),
    *((Column(f"datetime{n}", "datetime", digits=n), moments(n)) for n in (0, 2, 3, 4, 6)),
    *((Column(f"timestamp{n}", "timestamp", digits=n), moments(n)) for n in (0, 6)),
    (Column("time", "time", digits=1), st.just("-12:13:14.5")),
    (Column("bit", "bit", size=12), st.binary(min_size=2, max_size=2)),
]
IS_BYTES = tuple(one.kind in {"varbinary", "bit"} for one, _ in COLUMNS)
DEFINITION = Definition(tuple(one for one, _ in COLUMNS), ("text", "key"))
VALUES = st.tuples(*(of if i in (0, 3) else st.none() | of for i, (_, of) in enumerate(COLUMNS)))


def sized(data: bytes) -> bytes:
    """A string with its length before it."""
    size = len(data)
    if size < 0xFB:
        return bytes([size]) + data
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + data
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little") + data
    return b"\xfe" + size.to_bytes(8, "little") + data


def row_of(values: tuple[Any, ...]) -> bytes:
    """What a row's packet has."""
    return b"".join(
        b"\xfb" if one is None else sized(one if isinstance(one, bytes) else one.encode())
        for one in values
    )


def packet_of(values: tuple[Any, ...], number: int) -> bytes:
    """A row's packet."""
    data = row_of(values)
    return len(data).to_bytes(3, "little") + bytes([number & 0xFF]) + data


def expected(definition: Definition, rows: Any, how: Any) -> list[dict[str, Any]]:
    """Rows that are converted one value at a time."""
    made = [converter(one, how) for one in definition.columns]
    names = [one.name for one in definition.columns]
    return [
        {
            name: None if value is None else read_value(convert, value, Losses(), name)
            for name, convert, value in zip(names, made, row, strict=True)
        }
        for row in rows
    ]


def check(definition: Definition, found: Any, rows: Any, how: Any) -> None:
    """Checks the JSON of rows and of their keys."""
    wanted = expected(definition, rows, how)
    assert found.values.to_pylist() == [orjson.dumps(one) for one in wanted]
    keys = [orjson.dumps({name: one[name] for name in definition.key}) for one in wanted]
    assert found.keys.to_pylist() == keys


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["precise", "readable"]))
def test_rows_are_the_same_as_one_by_one(rows, how) -> None:
    """Of all types, also dates that there aren't, and numbers that JSON has otherwise."""
    data = b"".join(packet_of(one, i) for i, one in enumerate(rows))
    found = Makes(DEFINITION, how).rows(Packets(data, len(rows), 0, IS_BYTES))
    check(DEFINITION, found, rows, how)
    assert found.last == (rows[-1][3], rows[-1][0])
    alone = Packets(bytes(4) + row_of(rows[-1]), 1, len(row_of(rows[-1])), IS_BYTES)
    check(DEFINITION, Makes(DEFINITION, how).rows(alone), rows[-1:], how)


@settings(max_examples=examples(100), deadline=None)
@given(VALUES, st.data())
def test_packets_that_are_not_rows_are_refused(row, data) -> None:
    """One that is cut, that has more, or another number of values."""
    whole = row_of(row)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for body in (whole[:cut], whole + b"\x00", whole + row_of(row)):
        packet = len(body).to_bytes(3, "little") + b"\x00" + body
        with pytest.raises(CorruptError, match="rows of"):
            Makes(DEFINITION, "precise").rows(Packets(packet, 1, 0, IS_BYTES))


@pytest.mark.parametrize("key", ["t", "n"])
def test_an_empty_text_ends_the_last_row(key) -> None:
    """Its place is behind the data, where other places begin."""
    columns = (Column("n", "int"), Column("t", "varchar", charset=UTF8))
    definition = Definition(columns, (key,))
    rows = [("1", ""), ("2", "")]
    data = b"".join(packet_of(one, i) for i, one in enumerate(rows))
    packets = Packets(data, len(rows), 0, (False, False))
    check(definition, Makes(definition, "precise").rows(packets), rows, "precise")


def test_a_text_that_is_not_utf8_is_written_with_marks() -> None:
    """A server may have such from a time when it didn't look."""
    definition = Definition((Column("t", "varchar", charset=UTF8),), ("t",))
    body = sized(b"a\xffb")
    packet = len(body).to_bytes(3, "little") + b"\x00" + body
    found = Makes(definition, "precise").rows(Packets(packet, 1, 0, (False,)))
    assert orjson.loads(found.values.to_pylist()[0]) == {"t": "a\ufffdb"}


@pytest.mark.parametrize("how", ["precise", "readable"])
@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_rows_of_a_server_are_the_same_as_its_driver_s(mysql_source, how, bytes_max) -> None:
    """Of all types that a table may have, some at a time or all."""
    mysql_source.execute(TYPES)
    with mysql_source.server.session(mysql_source.database) as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for i, row in enumerate(ROWS):
            cursor.execute(f"INSERT INTO t VALUES ({i}, {row})")
        cursor.execute("INSERT INTO t (id) VALUES (9)")
    server = Server(mysql_source.url)
    definition = server.definition((mysql_source.database, "t"))
    query = "SELECT * FROM t ORDER BY id"
    with server.sql.cursor() as cursor:
        cursor.execute(query)
        rows = cursor.fetchall()
    made = Makes(definition, how)
    found = list(read(server.sql, query, 100, bytes_max))
    assert sum(one.rows for one in found) == len(rows) == len(ROWS) + 1
    assert (len(found) > 1) is (bytes_max == 1)
    done = 0
    for one in found:
        check(definition, made.rows(one), rows[done : done + one.rows], how)
        done += one.rows
    assert server.system  # the connection can be asked again
    server.close()


def test_rows_longer_than_a_packet_come_whole(mysql_source) -> None:
    """16 MB and more are several packets: exactly that much is one, and an empty one."""
    server = Server(mysql_source.url)
    [(before,)] = mysql_source.rows("SELECT @@global.max_allowed_packet")
    mysql_source.rows(f"SET GLOBAL max_allowed_packet = {64 << 20}")
    try:
        definition = Definition((Column("n", "int"), Column("t", "longtext", charset=UTF8)), ("n",))
        sizes = [3, 0xFFFFFF - 6, 5, 0xFFFFFF - 5, 2 * 0xFFFFFF + 7, 1]
        some = " UNION ALL ".join(
            f"SELECT {i} AS n, REPEAT('x', {size}) AS t" for i, size in enumerate(sizes)
        )
        blocks = list(read(server.sql, some, 100, 64 << 20))
    finally:
        mysql_source.rows(f"SET GLOBAL max_allowed_packet = {before}")
    made = Makes(definition, "precise")
    rows = [orjson.loads(one) for each in blocks for one in made.rows(each).values.to_pylist()]
    assert [(one["n"], len(one["t"])) for one in rows] == list(enumerate(sizes))
    assert server.system
    server.close()


def test_errors_of_the_server_are_said(mysql_source) -> None:
    """Before the first row, and behind some."""
    server = Server(mysql_source.url)
    with pytest.raises(pymysql.err.ProgrammingError, match="doesn't exist"):
        list(read(server.sql, "SELECT * FROM missing", 10, 10))
    late = "SELECT seq, IF(seq < 50, 1, (SELECT 1 UNION SELECT 2)) AS n FROM seq_1_to_99"
    found = read(server.sql, late, 1, 1 << 20)
    assert next(found).rows == 1
    with pytest.raises(pymysql.err.Error, match="more than 1 row"):
        list(found)
    assert server.system
    server.close()


def test_a_read_of_a_server_that_vanishes_ends(mysql_source) -> None:
    """It says so, after rows have come."""
    with Address(mysql_source.server.port) as address:
        url = f"mysql://root@127.0.0.1:{address.port}/{mysql_source.database}"
        server = Server(url)
        # More than what may be on the way already.
        found = read(server.sql, "SELECT seq, REPEAT('x', 60000) FROM seq_1_to_5000", 1, 1)
        assert next(found).rows == 1
        address.vanish()
        server.sql._sock.settimeout(1.0)  # nothing comes any more, however long it takes
        with pytest.raises(ConnectionError, match="to send rows within"):
            list(found)
        assert not server.is_connected
        server.close()
