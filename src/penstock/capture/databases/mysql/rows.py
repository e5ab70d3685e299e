"""Rows of the binary log to JSON's values: a decoder is generated for each table. Pure.

Source: MySQL's sql-common and log_event.cc, "Rows_log_event": which columns are there, which are null, then
the values, each as its type has it.
"""

from __future__ import annotations

import base64
import codecs
import ipaddress
import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.capture.database import spelled
from penstock.capture.databases.mysql import times
from penstock.capture.databases.mysql.binlog import DELETES, INSERTS, TableMap
from penstock.capture.databases.mysql.charsets import BINARY
from penstock.capture.databases.mysql.columns import Column, Definition, shape_of
from penstock.capture.databases.mysql.json import json_text
from penstock.capture.envelope import Row, Values
from penstock.capture.unread import UNREADABLE, Losses, Lost, keys_of
from penstock.errors import CorruptError, SetupError

__all__ = ["Changed", "Decoder", "Table", "decoder", "geometry", "read_rows"]

Decoder: TypeAlias = Callable[[bytes, int], tuple[Row, int]]
"""A row and where the next one begins, of an event and where the row begins."""


class Changed(NamedTuple):
    """A row that was changed.

    Attributes:
        before: as it was; None: it wasn't there.
        after: as it is; None: it is gone.
        gone: values of its former key that can't be written.
        lost: values of the new row that can't be read, or not be written.
    """

    before: Row | None
    after: Row | None
    gone: tuple[Lost, ...]
    lost: tuple[Lost, ...]


def read_rows(
    kind: int, data: bytes, p: int, decoders: tuple[Decoder, Decoder], losses: Losses
) -> list[Changed]:
    """The rows of an event: all of them are read before the first one counts, as they may not fit.

    Args:
        kind: of the event.
        data: its body.
        p: where rows begin.
        decoders: of former and of new rows.
        losses: that they fill.

    Raises:
        CorruptError: they don't end where the event ends.
    """
    found, end, (old, new) = [], len(data), decoders
    try:
        while p < end:
            one, p = old(data, p)
            first = losses.take()
            if kind in INSERTS:
                found.append(Changed(None, one, (), first))
            elif kind in DELETES:
                found.append(Changed(one, None, keys_of(first), ()))
            else:
                other, p = new(data, p)
                found.append(Changed(one, other, keys_of(first), losses.take()))
    except UNREADABLE as error:
        losses.take()
        raise CorruptError(
            f"expected rows of {end} bytes with the columns that the table has now; found that they end "
            f"elsewhere, as if a column had another length then ({error})"
        ) from None
    return found


class Table:
    """A table as its rows come: its topic, its columns, the decoders of its kinds of rows.

    One without a topic isn't captured: others follow from its rows.
    """

    def __init__(self, table_map: TableMap, definition: Definition, topic: str, since: int) -> None:
        self.table_map, self.definition, self.topic, self.since = (
            table_map,
            definition,
            topic,
            since,
        )
        self.name = table_map.schema, table_map.name
        #: Values of the row that was read last that can't be read, or not be written.
        self.losses = Losses(spelled(self.name), definition.key)
        self.is_described = False
        #: What it looks like.
        self.shape = shape_of(definition, table_map)
        self._decoders: dict[bytes, Decoder] = {}

    def decoder(self, present: bytes, values: Values) -> Decoder:
        """What reads rows that have these columns."""
        found = self._decoders.get(present)
        if found is None:
            columns = self.definition.columns
            found = decoder(self.table_map, columns, present, values, self.losses)
            self._decoders[present] = found
        return found


def decoder(
    table_map: TableMap,
    columns: tuple[Column, ...],
    present: bytes,
    values: Values,
    losses: Losses,
) -> Decoder:
    """What reads a table's rows. It raises one of `UNREADABLE` where it can't find the end of a value.

    Args:
        table_map: the table.
        columns: likewise.
        present: bits of the columns that rows have.
        values: how they are written.
        losses: takes values that can't be read.

    Raises:
        SetupError: rows don't have all columns.
        CorruptError: a column has a type whose values have no known end.
    """
    places = [i for i in range(len(columns)) if present[i // 8] >> i % 8 & 1]
    missing = [
        one.name for i, one in enumerate(columns) if i not in set(places) and not one.is_virtual
    ]
    if missing:
        raise SetupError(
            f"expected whole rows of {table_map.schema}.{table_map.name}; found some without "
            f"{', '.join(missing)}. SET GLOBAL binlog_row_image = FULL; and start again with a new snapshot"
        )
    size = (len(places) + 7) // 8
    names: dict[str, Any] = {"U16": _U16, "str": str, "NONE": bytes(size)}
    names |= {"UNREADABLE": UNREADABLE, "note": losses.note}
    names["charmap"] = codecs.charmap_decode
    body: list[tuple[int, int, list[str]]] = []
    for k, i in enumerate(places):
        body.append((k, i, _lines(i, table_map, columns[i], values, names)))
    source = ["def decode(m, p):", f" n = m[p:p + {size}]", f" p += {size}", " if n == NONE:"]
    for _, _, lines in body:
        source += [f"  {line}" for line in lines]
    source.append("  pass")
    source.append(" else:")
    for k, i, lines in body:
        source += [f"  if n[{k // 8}] & {1 << k % 8}:", f"   v{i} = None", "  else:"]
        source += [f"   {line}" for line in lines]
    source.append("  pass")
    row = ", ".join(f"{columns[i].name!r}: v{i}" for i in places)
    names["cut"] = _cut
    source += [" if p > len(m):", "  cut(m, p)", f" return {{{row}}}, p"]
    exec("\n".join(source), names)  # noqa: S102 - of types and quoted names alone
    made: Decoder = names["decode"]
    return made


def _cut(data: bytes, end: int) -> None:
    """Says that a row ends beyond its event.

    Raises:
        CorruptError: always.
    """
    raise CorruptError(f"expected rows of {len(data)} bytes; found that one ends at {end}")


def _guarded(i: int, read: str, data: str, column: Column, names: dict[str, Any]) -> list[str]:
    """Lines that read a value to `v{i}`, or lose it."""
    names[f"n{i}"] = column.name
    return [
        "try:",
        f" v{i} = {read}",
        "except UNREADABLE as error:",
        f" v{i} = note(n{i}, {data}, error)",
    ]


_U16: Final = struct.Struct("<H").unpack_from
_INTEGERS: Final = {
    (1, False): "<b",
    (1, True): "<B",
    (2, False): "<h",
    (2, True): "<H",
    (3, False): "<i",
    (3, True): "<I",
    (8, False): "<q",
    (8, True): "<Q",
    (4, False): "<f",
    (5, False): "<d",
    (4, True): "<f",
    (5, True): "<d",
}


def _lines(
    i: int, table_map: TableMap, column: Column, values: Values, names: dict[str, Any]
) -> list[str]:
    """The lines that read the value of a column to `v{i}` and continue."""
    kind, meta = table_map.types[i], table_map.metas[i]
    is_precise = values == "precise"
    unsigned = column.unsigned and not (is_precise and kind == 8)  # as Debezium's long mode
    if (kind, unsigned) in _INTEGERS:
        one = struct.Struct(_INTEGERS[kind, unsigned])
        names[f"f{i}"] = one.unpack_from
        read = f"v{i} = f{i}(m, p)[0]"
        if kind in {4, 5}:
            names[f"g{i}"] = _float32 if kind == 4 else float
            read = f"v{i} = g{i}(f{i}(m, p)[0])"
        elif kind == 8 and unsigned:
            read = f"v{i} = str(f{i}(m, p)[0])"
        return [read, f"p += {one.size}"]
    if kind in {15, 253, 254, 252, 245, 255, 242, *_COMPRESSED}:
        names[f"f{i}"] = _bytes_reader(kind, meta, column)
        if kind in {15, 253, _COMPRESSED_VARCHAR}:
            width = 1 if meta < 256 else 2
        elif kind == 254:
            width = 1 if ((meta >> 4 & 0x300) ^ 0x300) + (meta & 0xFF) < 256 else 2
        else:
            width = meta
        length = {1: "m[p]", 2: "U16(m, p)[0]"}.get(
            width, f"int.from_bytes(m[p:p + {width}], 'little')"
        )
        value = f"m[p + {width}:q]"
        charset = column.charset
        if kind in _COMPRESSED:
            names["plain"] = uncompressed
            value = f"plain({value})"
        if charset.codec == BINARY or kind in {245, 255, 242}:
            read = f"f{i}({value})"
        elif charset.characters:
            names[f"c{i}"] = charset.characters
            read = f"charmap({value}, 'replace', c{i})[0]"
        elif charset.several:
            names[f"t{i}"] = charset.text
            read = f"t{i}({value})"
        else:
            read = f"str({value}, {charset.codec!r}, 'replace')"
        guarded = _guarded(i, read, f"m[p + {width}:q]", column, names)
        return [f"q = p + {width} + {length}", *guarded, "p = q"]
    size, read_ = _fixed(kind, meta, column, table_map, is_precise=is_precise)
    names[f"f{i}"] = read_
    guarded = _guarded(i, f"f{i}(m, p)", f"m[p:p + {size}]", column, names)
    return [*guarded, f"p += {size}"]


_COMPRESSED_VARCHAR: Final = 141
_COMPRESSED: Final = {140, _COMPRESSED_VARCHAR}
"""MariaDB's columns that are compressed one by one: BLOB and TEXT, and the shorter ones."""
_ZLIB: Final = 8


def uncompressed(data: bytes) -> bytes:
    """A value of a compressed column, as MariaDB's sql/field_comp.cc has it: a byte with the method, whether
    zlib's frame is missing, and how many bytes of the length follow; then these, and the data.

    Raises:
        ValueError: its method isn't known.
        zlib.error: it is cut.
    """
    if not data:
        return b""
    method, rest = data[0] >> 4, data[0] & 7
    if method == 0:
        return data[1:]
    if method != _ZLIB:
        raise ValueError(f"expected a value that zlib has compressed; found method {method}")
    bits = -zlib.MAX_WBITS if data[0] & 8 else zlib.MAX_WBITS
    return zlib.decompress(data[1 + rest :], bits)


def _bytes_reader(kind: int, meta: int, column: Column) -> Callable[[bytes], Any]:
    if kind == 245:
        return json_text
    if kind == 255:
        return lambda data: geometry(data, is_point=column.kind == "point")
    if column.kind in _ADDRESSES:
        return _ADDRESSES[column.kind]
    if kind == 254:
        size = meta & 0xFF
        return lambda data: base64.b64encode(data.ljust(size, b"\0")).decode()
    return lambda data: base64.b64encode(data).decode()


class _Shape(NamedTuple):
    meta: int
    column: Column
    is_precise: bool


_Reader: TypeAlias = tuple[int, Callable[[bytes, int], Any]]


def _fixed(
    kind: int, meta: int, column: Column, table_map: TableMap, *, is_precise: bool
) -> tuple[int, Callable[[bytes, int], Any]]:
    """Bytes of a value, and what reads it."""
    make = _FIXED.get(kind)
    if make is None:
        raise CorruptError(
            f"expected columns of known types; found {table_map.schema}.{table_map.name}.{column.name} of "
            f"type {kind}, of an extension"
        )
    return make(_Shape(meta, column, is_precise))


def _int24(one: _Shape) -> _Reader:
    signed = not one.column.unsigned
    return 3, lambda m, p: int.from_bytes(m[p : p + 3], "little", signed=signed)


def _decimal(one: _Shape) -> _Reader:
    precision, scale = one.meta >> 8, one.meta & 0xFF
    convert, number = times.decimal_of(scale, precise=one.is_precise), times.decimal_number
    size = times.decimal_size(precision, scale)
    return size, lambda m, p: convert(number(m, p, precision, scale))


def _year(_: _Shape) -> _Reader:
    return 1, lambda m, p: 1900 + m[p] if m[p] else 0


def _date(one: _Shape) -> _Reader:
    def read(m: bytes, p: int) -> Any:
        packed = int.from_bytes(m[p : p + 3], "little")
        return times.date_of(packed >> 9, packed >> 5 & 15, packed & 31, precise=one.is_precise)

    return 3, read


def _time2(one: _Shape) -> _Reader:
    digits = one.meta
    extra = (digits + 1) // 2
    bits, unit = 8 * extra, 10 ** (6 - 2 * extra)
    middle = 0x800000 << bits

    def read(m: bytes, p: int) -> Any:
        packed = int.from_bytes(m[p : p + 3 + extra], "big") - middle
        sign, packed = (-1, -packed) if packed < 0 else (1, packed)
        clock, part = packed >> bits, packed & (1 << bits) - 1
        seconds = ((clock >> 12 & 1023) * 60 + (clock >> 6 & 63)) * 60 + (clock & 63)
        us = sign * (seconds * 1_000_000 + part * unit)
        return times.time_of(us, digits, precise=one.is_precise)

    return 3 + extra, read


def _datetime2(one: _Shape) -> _Reader:
    digits = one.meta
    extra = (digits + 1) // 2
    unit = 10 ** (6 - 2 * extra)

    def read(m: bytes, p: int) -> Any:
        whole = int.from_bytes(m[p : p + 5], "big") - 0x8000000000
        us = int.from_bytes(m[p + 5 : p + 5 + extra], "big") * unit if extra else 0
        return times.datetime_of(
            times.packed_parts(whole << 24 | us), digits, precise=one.is_precise
        )

    return 5 + extra, read


def _timestamp2(one: _Shape) -> _Reader:
    digits = one.meta
    extra = (digits + 1) // 2
    unit = 10 ** (6 - 2 * extra)

    def read(m: bytes, p: int) -> Any:
        us = int.from_bytes(m[p + 4 : p + 4 + extra], "big") * unit if extra else 0
        return times.instant_of(int.from_bytes(m[p : p + 4], "big"), us, digits)

    return 4 + extra, read


def _hires(bytes_: Sequence[int], digits: int) -> tuple[int, int]:
    """Bytes of a time with fractions in MariaDB's format before MySQL 5.6's, and microseconds of its unit."""
    return bytes_[digits], 10 ** (6 - digits)


def _timestamp(one: _Shape) -> _Reader:
    if digits := one.column.digits:
        extra, unit = _hires((0, 1, 1, 2, 2, 3, 3), digits)

        def read(m: bytes, p: int) -> Any:
            us = int.from_bytes(m[p + 4 : p + 4 + extra], "big") * unit
            return times.instant_of(int.from_bytes(m[p : p + 4], "big"), us, digits)

        return 4 + extra, read
    return 4, lambda m, p: times.instant_of(int.from_bytes(m[p : p + 4], "little"), 0, 0)


def _datetime(one: _Shape) -> _Reader:
    if digits := one.column.digits:
        size, unit = _hires((8, 6, 6, 7, 7, 7, 8), digits)

        def read_hires(m: bytes, p: int) -> Any:
            packed = int.from_bytes(m[p : p + size], "big") * unit
            parts = times.hires_parts(packed)
            return times.datetime_of(parts, digits, precise=one.is_precise)

        return size, read_hires

    def read(m: bytes, p: int) -> Any:
        day, clock = divmod(int.from_bytes(m[p : p + 8], "little"), 1_000_000)
        parts = (day // 10_000, day // 100 % 100, day % 100, clock // 10_000)
        return times.datetime_of(
            (*parts, clock // 100 % 100, clock % 100, 0), 0, precise=one.is_precise
        )

    return 8, read


_HOURS_MAX_S: Final = 838 * 3600 + 59 * 60 + 59
"""Of a TIME, which may be negative."""


def _time(one: _Shape) -> _Reader:
    if digits := one.column.digits:
        size, unit = _hires((3, 4, 4, 5, 5, 5, 6), digits)
        zero = (_HOURS_MAX_S + 1) * 1_000_000 // unit

        def read_hires(m: bytes, p: int) -> Any:
            us = (int.from_bytes(m[p : p + size], "big") - zero) * unit
            return times.time_of(us, digits, precise=one.is_precise)

        return size, read_hires

    def read(m: bytes, p: int) -> Any:
        packed = int.from_bytes(m[p : p + 3], "little", signed=True)
        sign, packed = (-1, -packed) if packed < 0 else (1, packed)
        seconds = (packed // 10_000 * 60 + packed // 100 % 100) * 60 + packed % 100
        return times.time_of(sign * seconds * 1_000_000, 0, precise=one.is_precise)

    return 3, read


def _bit(one: _Shape) -> _Reader:
    bits = (one.meta >> 8) * 8 + (one.meta & 0xFF)
    size, convert = (bits + 7) // 8, bits_of(bits, is_precise=one.is_precise)
    return size, lambda m, p: convert(int.from_bytes(m[p : p + size], "big"))


def bits_of(bits: int, *, is_precise: bool) -> Callable[[int], Any]:
    """What makes JSON of a BIT: base64, little end first, or text; precisely, one bit is a boolean."""
    if not is_precise:
        return lambda number: f"{number:0{bits}b}"
    if bits == 1:
        return bool
    size = (bits + 7) // 8
    return lambda number: base64.b64encode(number.to_bytes(size, "little")).decode()


def _enum(one: _Shape) -> _Reader:
    size, labels = one.meta & 0xFF, ("", *one.column.labels)
    return size, lambda m, p: labels[int.from_bytes(m[p : p + size], "little")]


def _set(one: _Shape) -> _Reader:
    size, labels = one.meta & 0xFF, one.column.labels

    def read(m: bytes, p: int) -> str:
        bits = int.from_bytes(m[p : p + size], "little")
        return ",".join(label for i, label in enumerate(labels) if bits >> i & 1)

    return size, read


_FIXED: Final = {
    9: _int24,
    246: _decimal,
    13: _year,
    10: _date,
    14: _date,
    19: _time2,
    18: _datetime2,
    17: _timestamp2,
    7: _timestamp,
    12: _datetime,
    11: _time,
    16: _bit,
    247: _enum,
    248: _set,
}


def _float32(value: float) -> float:
    """The shortest number that is this one with 24 bits."""
    packed = struct.pack("<f", value)
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == packed:
            return short
    return float(f"{value:.9g}")


def geometry(data: bytes, *, is_point: bool) -> dict[str, Any]:
    """A geometry: its reference system, then WKB.

    Raises:
        CorruptError: it is cut.
    """
    if len(data) < 9:
        raise CorruptError(f"expected a geometry; found {data!r}")
    srid = int.from_bytes(data[:4], "little") or None
    members = {"wkb": base64.b64encode(data[4:]).decode(), "srid": srid}
    if not is_point or len(data) < 25:
        return members
    x, y = struct.unpack_from("<dd" if data[4] else ">dd", data, 9)
    return {"x": x, "y": y, **members}


_ADDRESSES: Final[dict[str, Callable[[bytes], Any]]] = {
    "uuid": lambda data: str(uuid.UUID(bytes=data.ljust(16, b"\0"))),
    "inet4": lambda data: str(ipaddress.IPv4Address(data.ljust(4, b"\0"))),
    "inet6": lambda data: str(ipaddress.IPv6Address(data.ljust(16, b"\0"))),
}
