"""The binary log's events: bytes to values, without I/O.

Source: MySQL's internals documentation, "Replication Protocol" and "Binary Log", and MariaDB's, "Replication
Protocol". What differs is MariaDB's own GTID event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import CorruptError, SetupError

__all__ = [
    "DELETES",
    "HEADER",
    "INSERTS",
    "ROWS",
    "UPDATES",
    "Kind",
    "Places",
    "TableMap",
    "packets",
    "place",
    "prepared_xa",
    "rows_begin",
    "table_map",
]

HEADER: Final = struct.Struct("<IBIIIH")
"""Of an event: time (s), kind, server, size, end in the file, flags."""
_U16: Final = struct.Struct("<H").unpack_from
INSERTS, UPDATES, DELETES = {23, 30}, {24, 31}, {25, 32}
"""Of rows, version 1 and 2."""
ROWS: Final = INSERTS | UPDATES | DELETES
_ROWS_V2: Final = 30
_POSITION_BITS: Final = 40


class Kind:
    """Kinds of events."""

    QUERY, ROTATE, FORMAT, XID, LOAD = 2, 4, 15, 16, 18
    TABLE_MAP, HEARTBEAT, GTID, ANONYMOUS, XA_PREPARE, PARTIAL, PAYLOAD = 19, 27, 33, 34, 38, 39, 40
    GTID_TAGGED, GTID_MARIADB = 42, 162
    COMPRESSED = frozenset(range(165, 172))


def place(file: str, position: int) -> int:
    """A place in the binary log as a number.

    >>> place("mysql-bin.000003", 4) > place("mysql-bin.000002", 1 << 33)
    True
    """
    _, _, number = file.rpartition(".")
    if not number.isdigit():
        raise CorruptError(
            f"expected a file of the binary log, such as mysql-bin.000001; found {file!r}"
        )
    return int(number) << _POSITION_BITS | position


@dataclass(frozen=True)
class Places:
    """Places in the binary log as positions of a capture. They also grow where it continues at another
    server, whose files may have smaller numbers.

    Attributes:
        base: the name of the files, without their number.
        shift: how many more a file's number is in positions.
    """

    base: str = ""
    shift: int = 0

    @staticmethod
    def of(details: Mapping[str, Any]) -> Places:
        """Those of a state."""
        return Places(details.get("log", ""), details.get("shift", 0))

    def number(self, file: str, position: int) -> int:
        """A place as a position."""
        return place(file, position) + (self.shift << _POSITION_BITS)

    def file(self, number: int) -> str:
        """The name of a position's file."""
        return f"{self.base}.{(number >> _POSITION_BITS) - self.shift:06d}"

    def text(self, number: int) -> str:
        """A position as text.

        >>> Places(shift=2).text(place("mysql-bin.000003", 1234))
        '000001:1234'
        """
        return f"{self.file(number).rpartition('.')[2]}:{number & ((1 << _POSITION_BITS) - 1)}"

    def read(self, text: str) -> int:
        """A position from such a text; what precedes the file's number doesn't count.

        >>> one = Places(shift=2)
        >>> one.read("mysql-bin.000003:1234") == one.read("000003:1234") == place("mysql-bin.000005", 1234)
        True
        """
        file, _, position = text.rpartition(":")
        return self.number(f".{file.rpartition('.')[2]}", int(position))


@dataclass(frozen=True)
class TableMap:
    """A table as the rows that follow have it.

    Attributes:
        schema: in which it is.
        name: its name.
        types: of the columns: MySQL's numbers; that of ENUM and SET for these.
        metas: lengths, digits and the like; what they are is a matter of the type.
        names: of the columns; None where the server doesn't log them (binlog_row_metadata).
        unsigned: the places of columns without a sign; None likewise.
        collations: by place, of columns with text, ENUM and SET among them; None likewise.
        labels: by place, of ENUM and SET, as bytes of their character sets; None likewise.
        key: the places of the primary key's columns, in its order; None likewise.
    """

    schema: str
    name: str
    types: tuple[int, ...]
    metas: tuple[int, ...]
    names: tuple[str, ...] | None = None
    unsigned: frozenset[int] | None = None
    collations: dict[int, int] | None = None
    labels: dict[int, tuple[bytes, ...]] | None = None
    key: tuple[int, ...] | None = None


_NUMERIC: Final = {1, 2, 3, 4, 5, 8, 9, 13, 246}
_TEXT: Final = {15, 252, 253, 254}
ENUM, SET, STRING = 247, 248, 254
_META_1: Final = {4, 5, 17, 18, 19, 242, 245, 252, 255, 140}
_META_2: Final = {15, 16, 246, 253, 141}


def table_map(data: bytes, *, is_mariadb: bool = False) -> TableMap:
    """That of an event's body, behind its table's number and flags.

    Args:
        data: the body.
        is_mariadb: whether MariaDB has written it, which counts geometries, and columns that are compressed,
            as columns with text.

    Raises:
        CorruptError: it ends early.
    """
    try:
        return _table_map(data, _TEXT | {140, 141, 255} if is_mariadb else _TEXT)
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptError(
            f"expected a table map of the binary log; found {data[:40]!r} ({error})"
        ) from None


def _table_map(data: bytes, text_types: set[int]) -> TableMap:
    size = data[0]
    schema, at = data[1 : 1 + size].decode(), size + 2
    size = data[at]
    name, at = data[at + 1 : at + 1 + size].decode(), at + size + 2
    count, at = _packed(data, at)
    types, at = [*data[at : at + count]], at + count
    _, at = _packed(data, at)
    metas = []
    for i, kind in enumerate(types):
        if kind == STRING:
            meta, at = data[at] << 8 | data[at + 1], at + 2
            if data[at - 2] in {ENUM, SET}:
                types[i] = data[at - 2]
        elif kind == 246:
            meta, at = data[at] << 8 | data[at + 1], at + 2
        elif kind in _META_2:
            meta, at = _U16(data, at)[0], at + 2
        elif kind in _META_1:
            meta, at = data[at], at + 1
        else:
            meta = 0
        metas.append(meta)
    at += (count + 7) // 8  # which may be null
    return TableMap(
        schema, name, tuple(types), tuple(metas), **_metadata(data, at, types, text_types)
    )


def _metadata(data: bytes, at: int, types: list[int], text_types: set[int]) -> dict:
    """The fields that a server adds with binlog_row_metadata."""
    found: dict = {}
    collations: dict[int, int] = {}
    listed = [i for i, kind in enumerate(types) if kind in {ENUM, SET}]
    texts = [i for i, kind in enumerate(types) if kind in text_types]
    labels: dict[int, tuple[bytes, ...]] = {}
    while at < len(data):
        field = data[at]
        size, at = _packed(data, at + 1)
        part, at = data[at : at + size], at + size
        match field:
            case 1:
                numbers = [i for i, kind in enumerate(types) if kind in _NUMERIC]
                found["unsigned"] = frozenset(
                    i for k, i in enumerate(numbers) if part[k // 8] & 0x80 >> k % 8
                )
            case 2 | 10:
                default, *pairs = _all_packed(part)
                others = dict(zip(pairs[::2], pairs[1::2], strict=True))
                its = texts if field == 2 else listed
                collations |= {i: others.get(k, default) for k, i in enumerate(its)}
            case 3 | 11:
                its = texts if field == 3 else listed
                collations |= dict(zip(its, _all_packed(part), strict=True))
            case 4:
                found["names"] = tuple(one.decode() for one in _strings(part))
            case 5 | 6:
                places = [
                    i for i, kind in enumerate(types) if kind == (SET if field == 5 else ENUM)
                ]
                labels |= dict(zip(places, _groups(part), strict=True))
            case 8:
                found["key"] = tuple(_all_packed(part))
            case 9:
                found["key"] = tuple(_all_packed(part)[::2])
    if labels:
        found["labels"] = labels
    if collations:
        found["collations"] = collations
    return found


def _packed(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and what is behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _all_packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        one, at = _packed(data, at)
        found.append(one)
    return found


def _strings(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = _packed(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def _groups(data: bytes) -> list[tuple[bytes, ...]]:
    found, at = [], 0
    while at < len(data):
        count, at = _packed(data, at)
        one = []
        for _ in range(count):
            size, at = _packed(data, at)
            one.append(data[at : at + size])
            at += size
        found.append(tuple(one))
    return found


_PACKET_MAX: Final = 0xFFFFFF


def packets(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The packets of what was received, and where each ends; what isn't whole yet is left out."""
    at = 0
    while len(data) - at >= 4:
        parts, size = [], _PACKET_MAX
        while size == _PACKET_MAX:  # the largest part has another one behind it
            known = len(data) - at >= 4
            size = int.from_bytes(data[at : at + 3], "little") if known else -1
            if size < 0 or len(data) - at - 4 < size:
                return
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        yield parts[0] if len(parts) == 1 else b"".join(parts), at


def rows_begin(kind: int, data: bytes) -> tuple[int, bytes, bytes, int]:
    """Of an event of rows: the table's number, which columns the old and the new rows have (one of them
    where there is one), and where rows begin.
    """
    at = 8
    if kind >= _ROWS_V2:
        at += _U16(data, at)[0]
    count, at = _packed(data, at)
    size = (count + 7) // 8
    first = second = data[at : at + size]
    at += size
    if kind in UPDATES:
        second, at = data[at : at + size], at + size
    return int.from_bytes(data[:6], "little"), first, second, at


_PREPARED, _GROUP_COMMIT = 64, 2
"""Flags of MariaDB's GTID events."""


def prepared_xa(data: bytes) -> str:
    """The XA transaction that a group of MariaDB prepares, of its GTID event, as `XA COMMIT` has it; empty
    where it is none.

    >>> prepared_xa(bytes(12) + bytes.fromhex("40010000000101AA62"))
    "X'AA',X'62',1"
    """
    flags = data[12]
    if not flags & _PREPARED:
        return ""
    at = 21 if flags & _GROUP_COMMIT else 13
    format_, first, second = struct.unpack_from("<IBB", data, at)
    name, rest = data[at + 6 : at + 6 + first], data[at + 6 + first : at + 6 + first + second]
    return f"X'{name.hex().upper()}',X'{rest.hex().upper()}',{format_}"


def refuse(kind: int) -> None:
    """Stops at what can't be read.

    Raises:
        SetupError: always, with the setting.
    """
    setting = {
        Kind.PARTIAL: "SET GLOBAL binlog_row_value_options = ''",
        Kind.PAYLOAD: "SET GLOBAL binlog_transaction_compression = OFF",
    }.get(kind, "SET GLOBAL log_bin_compress = OFF")
    raise SetupError(
        f"expected whole rows, not compressed, in the binary log; found an event of kind {kind}. "
        f"{setting}; and start again with a new snapshot"
    )
