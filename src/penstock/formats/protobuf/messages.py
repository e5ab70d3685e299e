"""Messages of Protobuf to columns: what reads each field, and the values.

What lies in messages, such as a message or an array, is walked like them, for all records together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.literals import uuid_of
from penstock.core.schema import (
    DECIMAL_DIGITS_MAX,
    INTERVAL,
    JSON,
    TIME_OF_DAY,
    TIMESTAMP,
    UUID,
    Field,
    type_text,
)
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US
from penstock.errors import SchemaError
from penstock.formats.avro.rows import Rows
from penstock.formats.avro.schemas import is_wider
from penstock.formats.payloads import of_strings
from penstock.formats.protobuf import kernels, schemas
from penstock.schemas import Malformed
from penstock.schemas.protobuf import defined, parse_protobuf
from penstock.schemas.protos import ProtoEnum, ProtoField, ProtoFile, ProtoMessage
from penstock.wire.columns import gather_column

__all__ = ["File", "Found", "Message", "message_of", "said"]

_SECOND_US: Final = 1_000_000
_MICRO_NS: Final = 1_000
_PARTS: Final = {schemas.INSTANT: 2, schemas.DURATION: 2, schemas.DATE: 3, schemas.TIME: 4}
"""How many numbers such a message has."""
_DURATION_S_MAX: Final = 315_576_000_000
"""Protobuf's limit: ten thousand years."""
_EXACT: Final = Context(prec=DECIMAL_DIGITS_MAX)
_DECIMAL_BYTES_MAX: Final = 64
_VARINTS: Final[dict[str, Any]] = {
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "uint32": pa.int64(),
    "uint64": pa.int64(),
    "bool": pa.bool_(),
}
_FIXED: Final[dict[str, Any]] = {
    "float": (pa.float32(), "<f4"),
    "double": (pa.float64(), "<f8"),
    "fixed32": (pa.int64(), "<u4"),
    "sfixed32": (pa.int32(), "<i4"),
    "fixed64": (pa.int64(), "<i8"),
    "sfixed64": (pa.int64(), "<i8"),
}
_EIGHTS: Final = ("double", "fixed64", "sfixed64")
_UNSIGNED: Final = ("uint64", "fixed64")
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value": kind
    for name, kind in {
        "Double": "double",
        "Float": "float",
        "Int64": "int64",
        "UInt64": "uint64",
        "Int32": "int32",
        "UInt32": "uint32",
        "Bool": "bool",
        "String": "string",
        "Bytes": "bytes",
    }.items()
}
_KNOWN: Final[dict[str, Any]] = {
    schemas.INSTANT: TIMESTAMP,
    schemas.DURATION: INTERVAL,
    schemas.DATE: pa.date32(),
    schemas.TIME: TIME_OF_DAY,
}

_Defined: TypeAlias = Mapping[str, ProtoMessage | ProtoEnum]
Read: TypeAlias = "Callable[[Found, np.ndarray, np.ndarray], Any]"
"""Values of numbers or positions and sizes, NULL where the size is negative."""


class File:
    """A writer's schema.

    Args:
        text: as the registry has it.
        error: why it isn't read; empty: it is.
    """

    def __init__(self, text: str, error: str = "") -> None:
        self.error = error
        try:
            file = ProtoFile("", "") if error else parse_protobuf(text)
        except Malformed as malformed:
            self.error, file = str(malformed), ProtoFile("", "")
        self.messages = file.messages
        self.is_proto3 = file.syntax == "proto3"
        self.types: _Defined = dict(defined(file.messages, file.enums, file.package))

    def message(self, indexes: tuple[int, ...]) -> ProtoMessage:
        """A message: by its place in the file, then in messages.

        Raises:
            SchemaError: there is none.
        """
        among = self.messages
        for one in indexes:
            if one >= len(among):
                raise SchemaError(
                    f"expected one of {len(among)} messages of the file; found number {one}"
                )
            found = among[one]
            among = found.messages
        return found


@dataclass(frozen=True)
class Found:
    """Values on their way, and whose they are.

    Attributes:
        rows: the records.
        owner: int64[n], the record that each one is of.
    """

    rows: Rows
    owner: np.ndarray

    def fail(self, mask: np.ndarray, reason: str) -> None:
        """Makes the records of some values bad."""
        if mask.any():
            bad = np.zeros(len(self.rows), np.bool_)
            bad[self.owner[mask]] = True
            self.rows.fail(bad, functools.partial(said, reason))

    def check(self, status: np.ndarray) -> None:
        """Makes the records bad whose messages weren't read."""
        self.fail(status == kernels.BROKEN, "expected a Protobuf message; found other bytes")
        self.fail(
            status == kernels.OTHER_WIRE,
            "expected fields as the schema has them; found one of another wire type",
        )


@dataclass(frozen=True)
class _Single:
    """A field that is there once, or not at all.

    Attributes:
        default: what stands for it where it isn't there; None: NULL.
    """

    number: int
    wire: int
    type: pa.DataType
    read: Read
    default: Any = None


@dataclass(frozen=True)
class _Several:
    """A repeated field, or a map."""

    number: int
    wire: int
    type: pa.DataType
    read: Read


@dataclass(frozen=True)
class Message:
    """How a message is read: a column for each member, NULL for None."""

    members: tuple[tuple[pa.DataType, _Single | _Several | None], ...]

    def read(self, found: Found, start: np.ndarray, stop: np.ndarray) -> list[Any]:
        """The columns of messages between positions."""
        single = [one for _, one in self.members if isinstance(one, _Single)]
        numbers = np.array([one.number for one in single], np.int64)
        wires = np.array([one.wire for one in single], np.int64)
        at = np.zeros((len(single), len(start)), np.int64)
        size = np.full((len(single), len(start)), -1, np.int64)
        status = np.zeros(len(start), np.uint8)
        buffer = found.rows.buffer
        start, stop = np.ascontiguousarray(start), np.ascontiguousarray(stop)
        kernels.find_fields(buffer, start, stop, numbers, wires, at, size, status)
        found.check(status)
        good = status == kernels.OK
        stop = np.where(good, stop, start)
        columns: list[Any] = []
        slot = 0
        for type_, one in self.members:
            if one is None:
                columns.append(_nulls(len(start), type_))
            elif isinstance(one, _Several):
                columns.append(_several(one, found, start, stop))
            else:
                there = np.where(good, size[slot], -1)
                column = one.read(found, at[slot], there)
                if one.default is not None:
                    column = column.fill_null(pa.scalar(one.default, column.type))
                columns.append(column if column.type == type_ else column.cast(type_))
                slot += 1
        return columns


def _nulls(count: int, type_: Any) -> Any:
    return pa.nulls(count, type_)


def _several(one: _Several, found: Found, start: np.ndarray, stop: np.ndarray) -> Any:
    ends = np.zeros(len(start) + 1, np.int64)
    none = np.zeros(0, np.int64)
    status = np.zeros(len(start), np.uint8)
    arguments = found.rows.buffer, start, stop, one.number, one.wire
    kernels.find_items(*arguments, 1, ends, none, none.copy(), status)
    found.check(status)
    at, size = np.zeros(int(ends[-1]), np.int64), np.zeros(int(ends[-1]), np.int64)
    kernels.find_items(*arguments, 0, ends, at, size, status)
    items = Found(found.rows, np.repeat(found.owner, np.diff(ends)))
    values = one.read(items, at, size)
    offsets: Any = pa.array(ends.astype(np.int32))
    if pa.types.is_map(one.type):
        return vectors.maps_of(pa.ListArray.from_arrays(offsets, values), one.type)
    kind: Any = one.type
    if values.type != kind.value_type:
        values = values.cast(kind.value_type)
    return pa.ListArray.from_arrays(offsets, values).cast(kind)


def message_of(message: ProtoMessage, columns: Sequence[Field], file: File) -> Message:
    """What reads columns of a message.

    Raises:
        SchemaError: a column isn't what its field is, or there is a field for none of them.
    """
    fields = {one.name: one for one in message.fields}
    if not any(one.name in fields for one in columns):
        raise SchemaError(
            f"expected fields among {', '.join(one.name for one in columns)}; found "
            f"{', '.join(fields) or 'none'}"
        )
    return Message(
        tuple(
            (one.type, None if one.name not in fields else _member(fields[one.name], one, file))
            for one in columns
        )
    )


def _member(one: ProtoField, column: Field, file: File) -> _Single | _Several:
    wanted: Any = column.type
    if one.key:
        if not pa.types.is_map(wanted) or one.key != "string":
            raise _unfit(one, column)
        entry = ProtoMessage("", [ProtoField("key", 1, "string"), _valued(one)])
        pair = Field("key", pa.string()), Field("value", wanted.item_type)
        kind: Any = pa.struct([pa.field(each.name, each.type) for each in pair])
        read: Read = functools.partial(_structs, message_of(entry, pair, file), kind)
        return _Several(one.number, kernels.SIZED, wanted, read)
    if one.label == "repeated":
        if not pa.types.is_list(wanted):
            raise _unfit(one, column)
        _, read = _value(one, Field(column.name, wanted.value_type), file)
        return _Several(one.number, _wire(one), wanted, read)
    default, read = _value(one, column, file)
    is_implicit = file.is_proto3 and not one.label and not one.oneof
    return _Single(one.number, _wire(one), wanted, read, default if is_implicit else None)


def _valued(one: ProtoField) -> ProtoField:
    """A map's values as a field."""
    return ProtoField("value", 2, one.type, is_enum=one.is_enum)


def _wire(one: ProtoField) -> int:
    if one.kind == "enum" or one.kind in _VARINTS:
        return kernels.VARINT
    if one.kind in _FIXED:
        return kernels.EIGHT if one.kind in _EIGHTS else kernels.FOUR
    return kernels.SIZED


def _unfit(one: ProtoField, column: Field) -> SchemaError:
    label = "repeated " if one.label == "repeated" else ""
    return SchemaError(
        f"expected column {column.name!r} as its Protobuf field is; found {type_text(column.type)}, and "
        f"{label}{one.shown} in the field"
    )


def _value(one: ProtoField, column: Field, file: File) -> tuple[Any, Read]:
    """What reads a field's value, and what stands for one that isn't there.

    Raises:
        SchemaError: the column isn't what the field is.
    """
    wanted: Any = column.type
    if one.kind in _VARINTS and is_wider(_VARINTS[one.kind], wanted):
        return (False if one.kind == "bool" else 0), functools.partial(_numbers, one.kind)
    if one.kind in _FIXED and is_wider(_FIXED[one.kind][0], wanted):
        return 0, functools.partial(_fixed, one.kind)
    if one.kind == "string" and wanted == UUID:
        return None, _uuids
    if one.kind == "string" and wanted == JSON:
        return None, _jsons
    if wanted == {"string": pa.string(), "bytes": pa.binary()}.get(one.kind):
        return ("" if one.kind == "string" else b""), functools.partial(_texts, wanted)
    if one.is_enum and wanted == pa.string():
        enum = file.types.get(one.type)
        values = enum.values if isinstance(enum, ProtoEnum) else {}
        symbols = {number: name for name, number in reversed(values.items())}
        return symbols.get(0), functools.partial(_symbols, symbols)
    if one.type in _WRAPPERS:
        inner = ProtoMessage("", [ProtoField("value", 1, _WRAPPERS[one.type])])
        return None, functools.partial(_only, message_of(inner, (Field("value", wanted),), file))
    if _KNOWN.get(one.type) == wanted:
        return None, functools.partial(_times, one.type)
    if one.type == schemas.DECIMAL and pa.types.is_decimal128(wanted):
        return None, functools.partial(_decimals, wanted)
    declared = file.types.get(one.type)
    if pa.types.is_struct(wanted) and isinstance(declared, ProtoMessage):
        members = [Field(each.name, each.type) for each in wanted]
        return None, functools.partial(_structs, message_of(declared, members, file), wanted)
    raise _unfit(one, column)


# -- values ------------------------------------------------------------------------------------------


def _numbers(kind: str, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    nulls = size < 0
    values: Any = at
    if kind in ("sint32", "sint64"):
        values = (at.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(at & 1)
    if kind in ("int32", "sint32"):
        return pa.array(values.astype(np.int32), mask=nulls)  # the lower bits, as Protobuf's own
    if kind == "bool":
        return pa.array(values != 0, mask=nulls)
    if kind == "uint32":
        values &= 0xFFFF_FFFF
    if kind == "uint64":
        _check_unsigned(found, values, ~nulls)
    return pa.array(values, mask=nulls)


def _fixed(kind: str, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    type_, code = _FIXED[kind]
    nulls = size < 0
    width = np.dtype(code).itemsize
    raw = np.zeros((len(at), width), np.uint8)
    some = np.flatnonzero(~nulls)
    raw[some] = found.rows.buffer[at[some, None] + np.arange(width)]
    values: Any = raw.view(code)[:, 0]
    if kind in _UNSIGNED:
        _check_unsigned(found, values, ~nulls)
    kinds: Any = type_
    return pa.array(values.astype(kinds.to_pandas_dtype()), mask=nulls)


def _check_unsigned(found: Found, values: np.ndarray, mask: np.ndarray) -> None:
    found.fail(mask & (values < 0), "expected a number below 2^63, as BIGINT; found a larger one")


def _texts(type_: pa.DataType, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    start, length = np.where(size < 0, 0, at), size.astype(np.int32)
    column: Any = gather_column(found.rows.buffer, start, length)
    if type_ == pa.binary():
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_text(one) for one in column.to_pylist()]
        wrong = np.array([one is None for one in texts]) & (size >= 0)
        found.fail(wrong, "expected text in UTF-8; found other bytes")
        return pa.array(texts, pa.string())


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _uuids(found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    made: list[bytes | None] = []
    wrong = np.zeros(len(at), np.bool_)
    for row, text in enumerate(_texts(pa.string(), found, at, size).to_pylist()):
        try:
            made.append(uuid_of(text) if text else None)  # the default of a field without presence
        except ValueError:
            made.append(None)
            wrong[row] = True
    found.fail(wrong, "expected a UUID; found another text")
    return pa.array(made, UUID)


def _jsons(found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    """JSON; the default of a field without presence is NULL."""
    texts = _texts(pa.string(), found, at, size)
    made, wrong = of_strings(pc.if_else(pc.equal(texts, pa.scalar("")), None, texts))
    found.fail(wrong, "expected JSON as text; found another text")
    return made


def _symbols(symbols: Mapping[int, str], _found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    """Names; numbers that the writer's schema has no name for are text."""
    numbers = at.astype(np.int32).tolist()
    names = [
        None if bytes_ < 0 else symbols.get(one, str(one))
        for one, bytes_ in zip(numbers, size.tolist(), strict=True)
    ]
    return pa.array(names, pa.string())


def _only(read: Message, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    """The value of a message that has one, as google.protobuf.Int64Value."""
    [column] = read.read(found, *_span(at, size))
    index: Any = pa.array(np.arange(len(at)), mask=size < 0)
    return column.take(index)


def _structs(read: Message, type_: Any, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    columns = read.read(found, *_span(at, size))
    nulls: Any = pa.array(size < 0)
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=nulls)


def _span(at: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    start = np.where(size < 0, 0, at)
    return start, start + np.maximum(size, 0)


def _parts(
    found: Found, at: np.ndarray, size: np.ndarray, wires: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The first fields of messages: numbers or positions, and sizes."""
    values = np.zeros((len(wires), len(at)), np.int64)
    sizes = np.full((len(wires), len(at)), -1, np.int64)
    status = np.zeros(len(at), np.uint8)
    numbers = np.arange(1, len(wires) + 1)
    wire_types = np.array(wires, np.int64)
    kernels.find_fields(
        found.rows.buffer, *_span(at, size), numbers, wire_types, values, sizes, status
    )
    found.check(status)
    return np.where(sizes < 0, 0, values), sizes


def _times(kind: str, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    """Instants, durations, dates and times of day."""
    parts, _ = _parts(found, at, size, [kernels.VARINT] * _PARTS[kind])
    type_, there = _KNOWN[kind], size >= 0
    if kind == schemas.DATE:
        days, fits = _days(*parts)
        column = pa.array(np.where(fits, days, 0).astype(np.int32), mask=~there).view(type_)
    else:
        micros, fits = _micros(kind, parts)
        column = pa.array(np.where(fits, micros, 0), mask=~there).view(type_)
    found.fail(there & ~fits, f"expected a {kind} that {type_text(type_)} holds; found another")
    return column


def _micros(kind: str, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if kind == schemas.TIME:
        hours, minutes, seconds, nanos = parts
        within = np.logical_and.reduce([(one >= 0) & (one < 1 << 30) for one in parts])
        hours, minutes, seconds, nanos = np.where(within, parts, 0)
        micros = ((hours * 60 + minutes) * 60 + seconds) * _SECOND_US + nanos // _MICRO_NS
        return micros, within & (micros < DAY_US)
    seconds, nanos = parts
    nanos = nanos.astype(np.int32).astype(np.int64)
    within = np.abs(seconds) <= _DURATION_S_MAX
    seconds = np.where(within, seconds, 0)
    if kind == schemas.DURATION:
        return seconds * _SECOND_US + np.sign(nanos) * (np.abs(nanos) // _MICRO_NS), within
    micros = seconds * _SECOND_US + nanos // _MICRO_NS
    return micros, within & (micros >= INSTANT_MIN_US) & (micros <= INSTANT_MAX_US)


def _days(years: np.ndarray, months: np.ndarray, days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970, and which dates there are."""
    fits = (years >= 1) & (years <= 9999) & (months >= 1) & (months <= 12)
    fits &= (days >= 1) & (days <= 31)
    month = np.where(fits, (years - 1970) * 12 + months - 1, 0).astype("datetime64[M]")
    found = month.astype("datetime64[D]") + np.where(fits, days - 1, 0)
    fits &= found.astype("datetime64[M]") == month
    return found.astype(np.int64), fits


def _decimals(type_: Any, found: Found, at: np.ndarray, size: np.ndarray) -> Any:
    wires = (kernels.SIZED, kernels.VARINT, kernels.VARINT)
    parts, sizes = _parts(found, at, size, wires)
    made: list[Decimal | None] = []
    wrong = np.zeros(len(at), np.bool_)
    scales = parts[2].astype(np.int32).tolist()
    for row, (begin, bytes_, scale) in enumerate(
        zip(parts[0].tolist(), sizes[0].tolist(), scales, strict=True)
    ):
        one = None
        if size[row] >= 0:
            one = _decimal(found.rows.buffer[begin : begin + max(bytes_, 0)], scale, type_)
            wrong[row] = one is None
        made.append(one)
    found.fail(wrong, f"expected a number that {type_text(type_)} holds; found another")
    return pa.array(made, type_)


def _decimal(data: np.ndarray, scale: int, type_: Any) -> Decimal | None:
    """The number; None where the type doesn't hold it."""
    if len(data) > _DECIMAL_BYTES_MAX or abs(scale) > _DECIMAL_BYTES_MAX:
        return None
    unscaled = int.from_bytes(data.tobytes(), "big", signed=True)
    more = type_.scale - scale
    unscaled, rest = (unscaled * 10**more, 0) if more >= 0 else divmod(unscaled, 10**-more)
    if rest or abs(unscaled) >= 10**type_.precision:
        return None
    return Decimal(unscaled).scaleb(-type_.scale, _EXACT)


def said(text: str, _: int) -> str:
    """The reason, whichever row it is."""
    return text
