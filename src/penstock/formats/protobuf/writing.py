"""Columns to Protobuf's binary encoding, as vectors: `protobuf_schema` says as what.

Each column becomes pieces of bytes, one for each row; the pieces of a row, in the columns' order, are its
message. The source is "Encoding" of Protobuf's documentation; the head is Confluent's wire format: a zero
byte, the schema's id in four bytes, and a zero for the file's first message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import INTERVAL, TIME_OF_DAY, TIMESTAMP, Schema
from penstock.formats.avro.writing import decimal_bytes
from penstock.formats.pieces import Pieces, joined, texts_of, whole_columns
from penstock.formats.protobuf import kernels
from penstock.formats.protobuf.schemas import protobuf_schema
from penstock.schemas.protos import ProtoField, ProtoMessage

__all__ = ["FIRST_MESSAGE", "ProtobufEncoder", "encode_columns", "tag"]

FIRST_MESSAGE: Final = b"\0"
"""What follows the head of a registry: the message is the file's first one."""
_SECOND_US: Final = 1_000_000
_SIXTY: Final = 60
_WIRES: Final = {"float": kernels.FOUR, "double": kernels.EIGHT}
_PACKED: Final = ("bool", "int32", "int64", "float", "double")


class ProtobufEncoder:
    """Encodes rows as messages of one schema. It holds no state between batches; threads may share it.

    Args:
        schema: the columns.
        name: of the message.
        package: of the file.
        records: see `protobuf_schema`.
        earlier: see `protobuf_schema`.

    Attributes:
        text: the schema, as `.proto`.

    Raises:
        SchemaError: a column has a name or a type that Protobuf doesn't have.
    """

    def __init__(
        self,
        schema: Schema,
        name: str,
        package: str,
        records: Mapping[str, str] | None = None,
        earlier: Sequence[str] = (),
    ) -> None:
        self.schema = schema
        written = protobuf_schema(schema, name, package, records or {}, earlier)
        self.text = written.text
        self._messages = written.messages

    def encode(self, rows: pa.Table | pa.RecordBatch, head: bytes = b"") -> pa.Array:
        """The messages of rows. Of arrays and maps a NULL is written as none, and NULLs in them are left out.

        Args:
            rows: they have the columns; others aren't looked at.
            head: what each record begins with.

        Returns: binary, as many as rows.

        Raises:
            LimitError: they have more bytes than Arrow's offsets.
        """
        columns = whole_columns(rows, self.schema.names)
        return encode_columns(self._messages, columns, len(rows), head)


def encode_columns(
    messages: Sequence[ProtoMessage], columns: Sequence[Any], rows: int, head: bytes = b""
) -> pa.Array:
    """The messages of rows; see `ProtobufEncoder.encode`.

    Args:
        messages: the first one is what rows are; others are of columns that are structs.
        columns: one for each of its fields.
        rows: how many they have.
        head: what each record begins with.
    """
    made = _message(messages[0], {one.name: one for one in messages}, columns, rows, head)
    return made.column("Protobuf")


def tag(number: int, wire: int) -> bytes:
    """What a field begins with.

    >>> tag(16, 2).hex()
    '8201'
    """
    rest, out = number << 3 | wire, bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_Known = Mapping[str, ProtoMessage]


def _message(
    message: ProtoMessage, known: _Known, columns: Sequence[Any], rows: int, head: bytes = b""
) -> Pieces:
    """The columns' pieces, one after another; a column for each of the message's fields."""
    known = {**known, **{one.name: one for one in message.messages}}
    parts = [
        _field(one, known, column) for one, column in zip(message.fields, columns, strict=True)
    ]
    return joined(parts, rows, head)


def _field(one: ProtoField, known: _Known, column: Any) -> Pieces:
    """A column's values with their tags; nothing for NULL."""
    if column.null_count == len(column):
        return Pieces(np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8))
    if one.key:
        return _map(one, known, column)
    if one.label == "repeated":
        return _array(one, known, column)
    wire = _wire(one)
    return _values(one.type, known, column, tag(one.number, wire))


def _wire(one: ProtoField) -> int:
    if one.type in ("bool", "int32", "int64"):
        return kernels.VARINT
    return _WIRES.get(one.type, kernels.SIZED)


def _values(type_: str, known: _Known, column: Any, prefix: bytes) -> Pieces:
    """Values that each begin so; nothing for NULL."""
    rows, valid = len(column), _valid(column)
    head = np.frombuffer(prefix, np.uint8)
    arrow = column.type
    if type_ in ("bool", "int32", "int64"):
        return _numbers(column.cast(pa.int64()).fill_null(0).to_numpy(), valid, prefix)
    if type_ in _WIRES:
        values = np.ascontiguousarray(column.fill_null(0).to_numpy())
        made = Pieces.sized(rows, rows * (len(prefix) + values.itemsize))
        data = values.view(np.uint8)
        kernels.write_fixed(data, values.itemsize, valid, head, made.ends, made.data)
        return made
    if type_ in known:
        there = column.drop_null() if column.null_count else column
        inner = _message(known[type_], known, there.flatten(), len(there))
        at = inner.ends[np.concatenate(([0], np.cumsum(valid, dtype=np.int64)))]
        return _bytes(at, inner.data, valid, prefix)
    if arrow in (TIMESTAMP, TIME_OF_DAY, INTERVAL, pa.date32()) or pa.types.is_decimal(arrow):
        inner = joined(_parts(column), rows)
        return _bytes(inner.ends, inner.data, valid, prefix)
    return _bytes(*texts_of(column), valid, prefix)


def _parts(column: Any) -> list[Pieces]:
    """The fields of a message that every compiler has."""
    if pa.types.is_decimal(column.type):
        at, data = decimal_bytes(column)
        every = np.ones(len(column), np.uint8)
        constants = (column.type.precision, column.type.scale)
        return [
            _bytes(at, data, every, tag(1, kernels.SIZED)),
            *(
                _number(number, np.full(len(column), one, np.int64))
                for number, one in enumerate(constants, 2)
            ),
        ]
    if column.type == pa.date32():
        days = column.view(pa.int32()).fill_null(0).to_numpy().astype("datetime64[D]")
        months = days.astype("datetime64[M]")
        years = months.astype("datetime64[Y]")
        parts = (
            years.astype(np.int64) + 1970,
            months.astype(np.int64) - years.astype("datetime64[M]").astype(np.int64) + 1,
            days.astype(np.int64) - months.astype("datetime64[D]").astype(np.int64) + 1,
        )
        return [_number(number, one) for number, one in enumerate(parts, 1)]
    micros = column.view(pa.int64()).fill_null(0).to_numpy()
    if column.type == TIME_OF_DAY:
        seconds, rest = np.divmod(micros, _SECOND_US)
        minutes, second = np.divmod(seconds, _SIXTY)
        hour, minute = np.divmod(minutes, _SIXTY)
        return [
            _number(number, one)
            for number, one in enumerate((hour, minute, second, rest * 1_000), 1)
        ]
    if column.type == INTERVAL:  # both parts have the sign
        seconds = np.sign(micros) * (np.abs(micros) // _SECOND_US)
    else:
        seconds = micros // _SECOND_US
    return [_number(1, seconds), _number(2, (micros - seconds * _SECOND_US) * 1_000)]


def _number(number: int, values: np.ndarray) -> Pieces:
    """A field of a message; nothing for zero, which is its default."""
    prefix = tag(number, kernels.VARINT)
    return _numbers(values, (values != 0).view(np.uint8), prefix)


def _numbers(values: np.ndarray, valid: np.ndarray, prefix: bytes) -> Pieces:
    made = Pieces.sized(len(values), len(values) * (len(prefix) + kernels.NUMBER_BYTES_MAX))
    numbers = np.ascontiguousarray(values, np.int64)
    kernels.write_numbers(numbers, valid, np.frombuffer(prefix, np.uint8), made.ends, made.data)
    return made


def _bytes(at: np.ndarray, data: np.ndarray, valid: np.ndarray, prefix: bytes) -> Pieces:
    size = int(at[-1] - at[0]) + (len(prefix) + kernels.NUMBER_BYTES_MAX) * len(valid)
    made = Pieces.sized(len(valid), size)
    kernels.write_bytes(
        np.ascontiguousarray(at), data, valid, np.frombuffer(prefix, np.uint8), made.ends, made.data
    )
    return made


def _array(one: ProtoField, known: _Known, column: Any) -> Pieces:
    """Numbers are packed; each other item has the tag."""
    first, count, at = _extents(column)
    items = column.values.slice(first, count)
    if one.type not in _PACKED:
        made = _values(one.type, known, items, tag(one.number, kernels.SIZED))
        return _gathered(made, at)
    packed = _gathered(_values(one.type, known, items, b""), at)
    valid = (np.diff(packed.ends) > 0).view(np.uint8)
    return _bytes(packed.ends, packed.data, valid, tag(one.number, kernels.SIZED))


def _map(one: ProtoField, known: _Known, column: Any) -> Pieces:
    """Entries, which are messages of key and value."""
    first, count, at = _extents(column)
    keys, items = column.keys.slice(first, count), column.items.slice(first, count)
    valid = _valid(items)
    value = _values(one.type, known, items, tag(2, _wire(one)))
    entries = joined([_values("string", known, keys, tag(1, kernels.SIZED)), value], count)
    made = _bytes(entries.ends, entries.data, valid, tag(one.number, kernels.SIZED))
    return _gathered(made, at)


def _extents(column: Any) -> tuple[int, int, np.ndarray]:
    """Of arrays the first item and how many there are; and where each array is among them: int64[n, 2]."""
    at = np.asarray(column.offsets.to_numpy()).astype(np.int64)
    if not len(at):
        return 0, 0, np.zeros((0, 2), np.int64)
    first, count = int(at[0]), int(at[-1] - at[0])
    at = at - first
    begin, end = at[:-1], np.where(_valid(column) == 1, at[1:], at[:-1])
    return first, count, np.stack([begin, end], 1)


def _gathered(items: Pieces, at: np.ndarray) -> Pieces:
    """The items of each array as one piece; what lies under NULLs is left out."""
    begin, end = items.ends[at[:, 0]], items.ends[at[:, 1]]
    ends = np.zeros(len(at) + 1, np.int64)
    np.cumsum(end - begin, out=ends[1:])
    if not len(at) or (begin[1:] == end[:-1]).all():
        first = int(begin[0]) if len(at) else 0
        return Pieces(ends, items.data[first : first + int(ends[-1])])
    data = [items.data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    return Pieces(ends, np.concatenate(data))


def _valid(column: Any) -> np.ndarray:
    if not column.null_count:
        return np.ones(len(column), np.uint8)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(known).view(np.uint8)
