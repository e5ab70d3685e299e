"""Columns to Avro's binary encoding, as vectors: `avro_schema` says as what.

Each column becomes pieces of bytes, one for each row; the pieces of a row, in the columns' order, are its
record. The source is the specification of Apache Avro 1.12, "Data Serialization".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIME_OF_DAY, TIMESTAMP, Field, Schema
from penstock.formats.avro import kernels
from penstock.formats.avro.schemas import avro_schema
from penstock.formats.json_encode import bytes_of
from penstock.formats.pieces import Pieces, joined, texts_of, whole_columns

__all__ = ["AvroEncoder", "decimal_bytes", "encode_columns", "headed"]

_HEAD: Final = struct.Struct(">bI")
_DECIMAL_BYTES: Final = 16
_INTEGERS: Final = {
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.date32(): pa.int32(),
    TIMESTAMP: pa.int64(),
    TIME_OF_DAY: pa.int64(),
}


def headed(id_: int) -> bytes:
    """The head of a record with a registry's schema: a zero byte, and the id in four bytes.

    >>> headed(258).hex()
    '0000000102'
    """
    return _HEAD.pack(0, id_)


class AvroEncoder:
    """Encodes rows as records of one schema. It holds no state between batches; threads may share it.

    Args:
        schema: the columns.
        name: of the record.
        namespace: of its name.
        records: see `avro_schema`.

    Attributes:
        text: the schema, as JSON.

    Raises:
        SchemaError: a column has a name or a type that Avro doesn't have.
    """

    def __init__(
        self, schema: Schema, name: str, namespace: str, records: Mapping[str, str] | None = None
    ) -> None:
        self.schema = schema
        avro = avro_schema(schema, name, namespace, records or {})
        self.text = json.dumps(avro, separators=(",", ":"))

    def encode(self, rows: pa.Table | pa.RecordBatch, head: bytes = b"") -> pa.Array:
        """The records of rows.

        Args:
            rows: they have the columns; others aren't looked at. A column NOT NULL has no NULL.
            head: what each record begins with.

        Returns: binary, as many as rows.

        Raises:
            LimitError: they have more bytes than Arrow's offsets.
        """
        columns = whole_columns(rows, self.schema.names)
        return encode_columns(self.schema.fields, columns, len(rows), head)


def encode_columns(
    fields: Sequence[Field], columns: Sequence[Any], rows: int, head: bytes = b""
) -> pa.Array:
    """The records of rows; see `AvroEncoder.encode`.

    Args:
        fields: of the record.
        columns: one for each field.
        rows: how many they have.
        head: what each record begins with.
    """
    return _record(fields, columns, rows, head).column("Avro")


def _record(fields: Sequence[Field], columns: Sequence[Any], rows: int, head: bytes) -> Pieces:
    """The columns' pieces, one after another."""
    parts = [
        _pieces(column, one.type, nullable=not one.required)
        for one, column in zip(fields, columns, strict=True)
    ]
    return joined(parts, rows, head)


def _pieces(column: Any, type_: Any, *, nullable: bool) -> Pieces:
    """A column's values, as the branch of a union where they may be NULL."""
    rows = len(column)
    valid = np.ones(rows, np.uint8)
    if rows and column.null_count == rows and nullable:
        return Pieces(np.arange(rows + 1), np.zeros(rows, np.uint8))
    if column.null_count:
        assert nullable, "a column NOT NULL has a NULL"
        valid = np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(
            np.uint8
        )
    if type_ in _INTEGERS:
        values = column.view(_INTEGERS[type_]).cast(pa.int64()).fill_null(0).to_numpy()
        made = Pieces.sized(rows, rows * (1 + kernels.NUMBER_BYTES_MAX))
        kernels.write_numbers(values, valid, nullable, made.ends, made.data)
        return made
    if pa.types.is_boolean(type_) or pa.types.is_floating(type_):
        plain = column.cast(pa.uint8()) if pa.types.is_boolean(type_) else column
        values = plain.fill_null(0).to_numpy()
        made = Pieces.sized(rows, rows * (1 + values.itemsize))
        data = np.ascontiguousarray(values).view(np.uint8)
        kernels.write_fixed(data, values.itemsize, valid, nullable, made.ends, made.data)
        return made
    if pa.types.is_struct(type_):
        members = [Field(one.name, one.type, not one.nullable) for one in type_]
        there = column.drop_null() if column.null_count else column
        inner = _record(members, there.flatten(), len(there), b"")
        at = inner.ends[np.concatenate(([0], np.cumsum(valid, dtype=np.int64)))]
        return _bytes(at, inner.data, valid, nullable=nullable, sized=False)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        return _blocks(column, type_, valid, nullable=nullable)
    if pa.types.is_decimal128(type_):
        return _bytes(*decimal_bytes(column), valid, nullable=nullable)
    return _bytes(*texts_of(column), valid, nullable=nullable)


def _bytes(
    at: np.ndarray, data: np.ndarray, valid: np.ndarray, *, nullable: bool, sized: bool = True
) -> Pieces:
    size = int(at[-1] - at[0]) + (1 + kernels.NUMBER_BYTES_MAX) * len(valid)
    made = Pieces.sized(len(valid), size)
    kernels.write_bytes(at, data, valid, nullable, sized, made.ends, made.data)
    return made


def _blocks(column: Any, type_: Any, valid: np.ndarray, *, nullable: bool) -> Pieces:
    """Arrays, and maps as arrays of key and value."""
    at = np.asarray(column.offsets.to_numpy()).astype(np.int64)
    first, count = int(at[0]), int(at[-1] - at[0])
    if pa.types.is_map(type_):
        pair = Field("key", pa.string(), required=True), Field("value", type_.item_type)
        some = [column.keys.slice(first, count), column.items.slice(first, count)]
        items = _record(pair, some, count, b"")
    else:
        items = _pieces(column.values.slice(first, count), type_.value_type, nullable=True)
    at -= first
    size = int(items.ends[-1]) + (2 + kernels.NUMBER_BYTES_MAX) * len(valid)
    made = Pieces.sized(len(valid), size)
    kernels.write_blocks(at, valid, nullable, items.ends, items.data, made.ends, made.data)
    return made


def decimal_bytes(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the bytes of decimals: the number without its point, big-endian, in two's complement.

    Of several bytes that say the same the fewest: a byte at the front that only repeats the sign is left out.
    """
    rows = len(column)
    if not rows:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    raw = bytes_of(column.buffers()[1], np.uint8)
    begin = column.offset * _DECIMAL_BYTES
    little = raw[begin : begin + rows * _DECIMAL_BYTES].reshape(rows, _DECIMAL_BYTES)
    big = little[:, ::-1]
    if column.null_count:
        known = column.is_valid().to_numpy(zero_copy_only=False)
        big = np.where(known[:, None], big, 0)
    sign = np.where(big[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    repeats = (big[:, :-1] == sign) & ((big[:, 1:] >= 0x80) == (sign == 0xFF))
    left_out = np.logical_and.accumulate(repeats, axis=1)
    kept = np.ones((rows, _DECIMAL_BYTES), np.bool_)
    kept[:, :-1] = ~left_out
    at = np.zeros(rows + 1, np.int64)
    np.cumsum(kept.sum(axis=1), out=at[1:])
    return at, np.ascontiguousarray(big[kept])
