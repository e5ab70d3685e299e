"""Events of the binary log and MySQL's own types, from bytes: what no server here writes."""

from __future__ import annotations

import itertools
import struct
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.databases.mysql.binlog import (
    Kind,
    Places,
    TableMap,
    place,
    refuse,
    rows_begin,
    table_map,
)
from penstock.capture.databases.mysql.columns import Column, Definition, definition_of
from penstock.capture.databases.mysql.groups.group import HELD_BYTES, Group
from penstock.capture.databases.mysql.json import json_text
from penstock.capture.databases.mysql.rows import decoder
from penstock.capture.databases.mysql.stream import Stream
from penstock.capture.envelope import Record
from penstock.capture.unread import Losses
from penstock.errors import CorruptError, SetupError


def encoded(value: Any, *, large: bool) -> tuple[int, bytes]:
    """A value's type and bytes, as json_binary.h describes them."""
    match value:
        case None | True | False:
            return 4, bytes([{None: 0, True: 1, False: 2}[value]])
        case int():
            fits = -(1 << 15) <= value < 1 << 15
            return (5, struct.pack("<h", value)) if fits else (9, struct.pack("<q", value))
        case float():
            return 11, struct.pack("<d", value)
        case str():
            data, size, length = value.encode(), b"", len(value.encode())
            while length >= 0x80:
                size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
            return 12, size + bytes([length]) + data
        case _:
            return container(value, large=large)


def container(value: Any, *, large: bool) -> tuple[int, bytes]:
    width, pack = (4, "<I") if large else (2, "<H")
    is_object = isinstance(value, dict)
    items = [*value.values()] if is_object else value
    keys = [key.encode() for key in value] if is_object else []
    at = 2 * width + len(keys) * (width + 2) + len(items) * (1 + width)
    head, body = b"", b""
    for key in keys:
        head += struct.pack(pack, at + len(body)) + struct.pack("<H", len(key))
        body += key
    for item in items:
        kind, data = encoded(item, large=large)
        if kind in {4, 5}:
            head += bytes([kind]) + data.ljust(width, b"\0")
        else:
            head += bytes([kind]) + struct.pack(pack, at + len(body))
            body += data
    sizes = struct.pack(pack, len(items)) + struct.pack(pack, at + len(body))
    return (0 if is_object else 2) + large, sizes + head + body


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=200),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_json_comes_back(value, large) -> None:
    """Objects and arrays, small and large, of numbers, texts and literals."""
    kind, data = encoded(value, large=large)
    assert orjson.loads(json_text(bytes([kind]) + data)) == value


def test_json_s_decimals_and_times_are_read() -> None:
    """They are opaque: a field's type and its bytes."""
    decimal = bytes([15, 246, 6, 4, 2]) + bytes.fromhex("8c32")  # 12.50, of four digits
    packed = ((2024 * 13 + 2) << 5 | 29) << 17 | 13 << 12 | 45 << 6 | 30
    moment = bytes([15, 12, 8]) + struct.pack("<q", packed << 24 | 5)
    assert json_text(decimal) == "12.50"
    assert json_text(moment) == '"2024-02-29 13:45:30.000005"'
    assert json_text(b"") == "null"
    with pytest.raises(CorruptError, match="expected MySQL's JSON"):
        json_text(b"\x00\x05")


def described(types: list[int], metas: bytes, extra: bytes = b"") -> bytes:
    """The body of a table map."""
    size = (len(types) + 7) // 8
    return b"\x01d\0\x01t\0" + bytes([len(types), *types, len(metas)]) + metas + bytes(size) + extra


def test_a_table_without_metadata_is_read_by_the_catalog() -> None:
    """MySQL 5.7: names, signs and labels are the catalog's, as long as its types fit."""
    table = table_map(described([3, 254, 245], bytes([247, 1, 4])))
    assert table == TableMap("d", "t", (3, 247, 245), (0, 0xF701, 4))
    columns = (Column("a", "int", unsigned=True), Column("e", "enum", labels=("x", "y")))
    catalog = Definition((*columns, Column("j", "json")), ("a",))
    assert definition_of(table, catalog, {}) == catalog
    assert definition_of(table, Definition(columns, ("a",)), {}) is None
    altered = (columns[1], columns[0], Column("j", "json"))
    assert definition_of(table, Definition(altered, ("a",)), {}) is None
    read = decoder(table, catalog.columns, b"\x07", "precise", Losses())
    row = b"\x00" + b"\xff\xff\xff\xff" + b"\x02" + struct.pack("<I", 3) + b"\x05\x07\x00"
    assert read(row, 0) == ({"a": 4294967295, "e": "y", "j": "7"}, len(row))
    assert read(b"\x07", 0) == ({"a": None, "e": None, "j": None}, 1)


class _Output:
    """Counts transactions."""

    position, tables, is_full, is_open, count = 4, {}, False, False, 0
    state = SimpleNamespace(details={"name": "c", "replica": 7, "born": [1, 50]})

    def add(self, record: Any) -> None:
        raise AssertionError(f"expected no rows here; found {record}")

    def committed(self, *_: Any) -> bool:
        self.is_open = False
        self.count += 1
        return False


QUIET: Any = SimpleNamespace(begin=lambda _: None, table="")
"""No snapshots in chunks."""


def binlog_server(dumped: list[Any] | None = None) -> Any:
    """A server that tells nothing by itself; what its binary log was asked for."""
    asked = [] if dumped is None else dumped
    return SimpleNamespace(
        name="db",
        charsets=dict,
        is_mariadb=True,
        variables=dict,
        without_transactions=set,
        dump=lambda *arguments: asked.append(arguments),
        gtids_at=lambda *_: "",
    )


def test_a_file_that_was_begun_anew_is_another_log() -> None:
    """RESET MASTER gives the first file's name to another one, as long as that: changes would be lost."""
    output: Any = _Output()
    output.position = place("bin.000001", 400)
    encoder: Any = None
    born = bytes(40)
    for time_s in (50, 51):
        stream = Stream(binlog_server(), Places("bin"), encoder, "precise", output, QUIET)
        if time_s == 50:
            stream._take((time_s, Kind.FORMAT, 1, 100, 0, 0), born)
        else:
            with pytest.raises(SetupError, match=r"RESET MASTER.*\s+between were lost"):
                stream._take((time_s, Kind.FORMAT, 1, 100, 0, 0), born)


def test_a_server_that_was_ended_goes_on_in_another_file() -> None:
    """The file doesn't say which one follows, and may end within a group; that was never committed."""
    output: Any = _Output()
    output.position = place("bin.000001", 400)
    ends: list[int] = []
    output.reached, output.committed = ends.append, lambda end, *_: bool(ends.append(end))
    encoder: Any = None
    stream = Stream(binlog_server(), Places("bin"), encoder, "precise", output, QUIET)
    gtid, end = (Kind.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0)), (Kind.XID, b"")
    first, second = (struct.pack("<Q", n) for n in (400, 4))
    born = bytes(40)
    for (kind, data), time_s, at in (
        *(((Kind.ROTATE, first + b"bin.000001"), 0, 0), ((Kind.FORMAT, born), 50, 0)),
        *((gtid, 60, 440), ((Kind.ROTATE, second + b"bin.000002"), 0, 0)),
        *(((Kind.FORMAT, born), 70, 256), (gtid, 70, 300), (end, 70, 340)),
    ):
        stream._take((time_s, kind, 1, 40, at, 0), data)
    assert ends == [place("bin.000002", 4), place("bin.000002", 340)]
    assert stream._born == 70


def test_what_is_rolled_back_is_left_out_but_for_tables_without_transactions() -> None:
    """To a savepoint, or all of it; what is larger than is held can't be taken back."""
    passed: list[Any] = []
    plain, other = ("d", "plain"), ("d", "innodb")

    def record(n: int, size: int = 1) -> Record:
        return Record("t", None, bytes(size), (), n)

    group = Group(
        lambda _, one: passed.append(one.time_ms), lambda tables: {plain} & {*tables}, "shop"
    )
    group.add(other, record(1))
    group.savepoint("a")
    group.add(other, record(2))
    group.add(plain, record(3))
    group.back_to("A")  # names don't differ in case
    group.add(other, record(4))
    assert passed == []
    group.end()
    assert passed == [1, 3, 4]
    group.add(other, record(5))
    group.add(plain, record(6))
    group.end(is_rolled_back=True)
    assert passed == [1, 3, 4, 6]
    group.add(other, record(7, HELD_BYTES))
    assert passed == [1, 3, 4, 6, 7]
    group.savepoint("b")
    group.add(other, record(8))
    group.back_to("b")
    with pytest.raises(SetupError, match="Start again"):
        group.end(is_rolled_back=True)


def test_an_xa_transaction_s_end_is_an_end() -> None:
    """XA COMMIT and XA ROLLBACK are groups of their own: what was prepared doesn't wait for the next one."""

    def query(text: bytes) -> tuple[int, bytes]:
        return Kind.QUERY, bytes(14) + text

    server: Any = binlog_server()
    output: Any = _Output()
    encoder: Any = None
    stream = Stream(server, Places("bin"), encoder, "precise", output, QUIET)
    gtid = Kind.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0)
    places = itertools.count(50, 10)
    prepared = [gtid, query(b"XA START 'x'"), query(b"XA END 'x'"), (Kind.XA_PREPARE, b"")]
    for end in (b"XA COMMIT 'x'", b"XA ROLLBACK 'x'"):
        for count, events in ((1, prepared), (2, [gtid, query(end)])):
            output.count = 0 if count == 1 else 1
            for kind, data in events:
                stream._take((0, kind, 1, 10, next(places), 0), data)
            assert (output.count, output.is_open) == (count, False)


def test_a_place_behind_four_gigabytes_is_reached_from_the_file_s_beginning() -> None:
    """The protocol's places have 32 bits: what was passed on already isn't passed on again."""
    dumped: list[Any] = []
    server: Any = binlog_server(dumped)
    output: Any = _Output()
    output.position = place("bin.000002", (1 << 32) + 100)
    encoder: Any = None
    stream = Stream(server, Places("bin"), encoder, "precise", output, QUIET)
    assert dumped == [(7, "bin.000002", 4)]
    gtid, end = (Kind.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0)), (Kind.XID, b"")
    # The second group ends where the capture was, the third one behind it.
    for (kind, data), at, count in (
        *((gtid, 50, 0), (end, 90, 0), (gtid, 1 << 31, 0), (end, 100, 0)),
        *((gtid, 150, 0), (end, 200, 1)),
    ):
        stream._take((0, kind, 1, 40, at, 0), data)
        assert output.count == count
    assert not output.is_open


def test_rows_of_both_versions_are_found() -> None:
    """Version 2 has a field more; an update has two sets of columns."""
    head = b"\x05\0\0\0\0\0" + b"\1\0"
    assert rows_begin(23, head + b"\x03\x07") == (5, b"\x07", b"\x07", 10)
    assert rows_begin(31, head + b"\x02\0" + b"\x03\x07\x03") == (5, b"\x07", b"\x03", 13)


def test_what_cannot_be_read_stops() -> None:
    """Rows with a part of the columns, types of extensions, compressed events: with the setting."""
    table, column = TableMap("d", "t", (3,), (0,)), Column("a", "int")
    with pytest.raises(SetupError, match=r"without a\. SET GLOBAL binlog_row_image = FULL"):
        decoder(table, (column,), b"\0", "precise", Losses())
    with pytest.raises(CorruptError, match="of type 200"):  # its rows are a dead letter
        decoder(TableMap("d", "t", (200,), (3,)), (column,), b"\1", "precise", Losses())
    for kind in (Kind.PARTIAL, Kind.PAYLOAD, 166):
        with pytest.raises(SetupError, match="SET GLOBAL"):
            refuse(kind)
    with pytest.raises(CorruptError, match="expected a table map"):
        table_map(b"\x01d")
