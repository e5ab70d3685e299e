"""JSON rows to columns, by schema, and columns to JSON rows.

The rules, whatever a row looks like:

- A row is one JSON object (RFC 8259) in UTF-8, with white space around it and nothing else. Fields
  that the schema doesn't name are ignored, though they must be valid JSON. Of a key that occurs
  twice the last one counts. Objects and arrays nest at most `DEPTH_MAX` deep.
- A field that is missing or null is NULL; where the schema says NOT NULL, the row is bad.
- INT and BIGINT take integers in range, not `1.0` or `1e3`. DOUBLE takes every number that isn't
  beyond its range, correctly rounded; FLOAT the same, rounded once more. BOOLEAN takes true, false.
- TIMESTAMP takes ISO 8601 text (`2026-11-21T09:00:00.123456+01:00`; a date alone is its midnight,
  no zone means UTC, digits past the microsecond are cut off) or an integer of milliseconds since
  1970. DATE takes `YYYY-MM-DD`, or days since 1970. Years are 1 to 9999.
- DECIMAL(p, s) takes a number, or a text that is one (`"12.50"`), with at most s digits after the point that
  aren't 0, and p - s before it; it is never rounded. TIME takes `HH:MM:SS.ffffff`, or milliseconds since
  midnight; UUID its text, with or without hyphens; INTERVAL ISO 8601 (`P1DT2H30M`, no months), or
  microseconds.
- JSON takes any value, whose text it is without the space between its tokens (`penstock.formats.payloads`).
- STRING takes text; BINARY text in base64; ARRAY<T> an array whose items are T or null; STRUCT<…> an object,
  of which other members are ignored and missing ones are NULL; MAP<STRING, T> any object with members of T.

A row that doesn't fit is bad, with a reason; the others aren't touched by it.

Design: a kernel reads the rows straight from the buffer that they lie in (`_json_kernel`) and
leaves what it isn't certain of to Python (`_json_slow`), whose results take the same slots.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.literals import unscaled
from penstock.core.schema import JSON, Field, Schema, type_text
from penstock.errors import LimitError
from penstock.formats import json_kernel as kernel
from penstock.formats.json_encode import arrow_buffer, bytes_of, encode_rows
from penstock.formats.json_scan import DEPTH_MAX
from penstock.formats.json_slow import BadRowError, RowReader
from penstock.formats.json_text import PADDING, copy_text
from penstock.formats.payloads import compacted
from penstock.formats.payloads.kernel import check_texts

__all__ = [
    "DEPTH_MAX",
    "STRING_BYTES_MAX",
    "Certain",
    "Decoded",
    "JsonDecoder",
    "compiled",
    "encode_rows",
    "key_table",
]

STRING_BYTES_MAX: Final = 2**31 - 1  # of one string column: Arrow's offsets are 32 bits

_CODES: Final[dict[pa.DataType, int]] = {
    pa.bool_(): kernel.BOOLEAN,
    pa.int32(): kernel.INT,
    pa.int64(): kernel.BIGINT,
    pa.float32(): kernel.FLOAT,
    pa.float64(): kernel.DOUBLE,
    pa.string(): kernel.STRING,
    pa.timestamp("us", "UTC"): kernel.TIMESTAMP,
    pa.date32(): kernel.DATE,
    JSON: kernel.JSON,
}


@dataclass(frozen=True)
class Decoded:
    """What became of a batch of rows.

    Attributes:
        columns: the rows that fit, in order, in the schema's columns, or in those of them that were wanted.
        rows: for each of them, its index in the input, int64, ascending.
        bad_rows: the indexes of the rows that don't fit, int64, ascending.
        reasons: for each of those, what was expected and what was found.
    """

    columns: pa.RecordBatch
    rows: np.ndarray
    bad_rows: np.ndarray
    reasons: list[str]


@dataclass(frozen=True)
class Certain:
    """What the kernel is certain of in a batch of rows.

    Attributes:
        good: bool[n], the rows that it is certain of.
        columns: by field, of all rows; NULL in the others. None for a JSON column.
        texts: by field, for a JSON column: where each value begins in the buffer, and its bytes, -1 for NULL.
    """

    good: np.ndarray
    columns: list[pa.Array[Any] | None]
    texts: list[tuple[np.ndarray, np.ndarray] | None]


@dataclass
class _Slots:
    """One batch on its way: a slot of 8 bytes per field and row; what lies under a NULL is zero."""

    values: np.ndarray  # int64[fields, rows]
    lengths: np.ndarray  # int32[string fields or 1, rows]
    valid: np.ndarray  # uint8[fields, rows]
    extra: bytearray  # strings from the slow path
    lists: dict[int, dict[int, Any]]  # of fields that the kernel doesn't know, by field and row


class JsonDecoder:
    """Decodes rows of one schema. It holds no state between batches; threads may share it.

    Args:
        schema: that rows must fit.
        columns: to make of them; None is all. Whether a row fits doesn't depend on it.
        embedded: columns of type JSON whose strings have JSON in them, as Debezium writes it.

    Raises:
        SchemaError: a type that rows can't have.

    >>> import numpy as np
    >>> row = b'{"user": 7, "at": "2026-11-21T09:00:00Z"}'
    >>> decoder = JsonDecoder(Schema.parse("user BIGINT NOT NULL, at TIMESTAMP"))
    >>> decoded = decoder.decode(
    ...     np.frombuffer(row, np.uint8), np.array([0]), np.array([len(row)], np.int32)
    ... )
    >>> decoded.columns.column("user").to_pylist()
    [7]
    """

    def __init__(
        self,
        schema: Schema,
        columns: Collection[str] | None = None,
        embedded: Collection[str] = (),
    ) -> None:
        for field in schema:
            type_text(field.type)
        self.schema = schema
        self._wanted = _positions(schema, columns)
        self._arrow = pa.schema([schema.arrow.field(i) for i in self._wanted])
        self._slow = RowReader(schema, embedded)
        self._fields, self._keys = compiled(schema, frozenset(embedded))
        self._embedded = np.flatnonzero(self._fields[:, kernel.CODE] == kernel.EMBEDDED).tolist()
        self._table = key_table(self._fields, self._keys)

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """Decodes the rows that lie in a buffer.

        Args:
            buffer: uint8, C-contiguous.
            start: int64[n], where each row begins.
            length: int32[n], its bytes; -1 for a row that is null, which is bad.

        Raises:
            ValueError: a row lies outside the buffer.
            LimitError: a string column is longer than `STRING_BYTES_MAX`.
        """
        start = np.ascontiguousarray(start, np.int64)
        length = np.ascontiguousarray(length, np.int32)
        if len(start) != len(length):
            raise ValueError(
                f"expected as many starts as lengths; found {len(start)}, {len(length)}"
            )
        slots, status = self._read(buffer, start, length)
        for i in self._embedded:
            self._check_embedded(buffer, slots, i, status)
        reasons: list[str] = []
        for row in np.flatnonzero(status).tolist():
            try:
                values = self._read_slowly(buffer, int(start[row]), int(length[row]))
            except BadRowError as bad:
                reasons.append(str(bad))
                continue
            self._put(slots, row, values, len(buffer))
            status[row] = kernel.OK
        bad_rows = np.flatnonzero(status)
        rows = np.flatnonzero(status == kernel.OK) if len(bad_rows) else np.arange(len(start))
        chosen = rows if len(bad_rows) else None
        fields = self.schema.fields
        arrays = [self._column(buffer, slots, i, fields[i], chosen) for i in self._wanted]
        columns = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return Decoded(columns, rows, bad_rows, reasons)

    def certain(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Certain:
        """What needs no slow path: see `decode` for the arguments. Members of a JSON column stay where they
        are, so that they can be read in their turn.
        """
        slots, status = self._read(buffer, start, length)
        bad = np.flatnonzero(status)
        if len(bad):
            slots.valid[:, bad], slots.values[:, bad], slots.lengths[:, bad] = 0, 0, 0
        columns: list[pa.Array[Any] | None] = []
        texts: list[tuple[np.ndarray, np.ndarray] | None] = []
        for i, field in enumerate(self.schema):
            if self._fields[i, kernel.CODE] == kernel.JSON:
                size = slots.lengths[self._fields[i, kernel.TEXT_INDEX]]
                columns.append(None)
                texts.append((slots.values[i], np.where(slots.valid[i] != 0, size, np.int32(-1))))
            else:
                columns.append(self._column(buffer, slots, i, field, None))
                texts.append(None)
        return Certain(status == kernel.OK, columns, texts)

    def _read(
        self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray
    ) -> tuple[_Slots, np.ndarray]:
        fields, rows = len(self._fields), len(start)
        texts = int(np.count_nonzero(self._fields[:, kernel.TEXT_INDEX] >= 0))
        values = np.empty((fields, rows), np.int64)
        lengths = np.empty((max(texts, 1), rows), np.int32)
        valid = np.empty((fields, rows), np.uint8)
        status = np.empty(rows, np.uint8)
        slow = kernel.read_rows(
            buffer,
            start,
            length,
            self._fields,
            self._keys,
            self._table,
            *kernel.memories(fields),
            values,
            lengths,
            valid,
            status,
        )
        if slow < 0:
            raise ValueError(
                f"expected rows within {len(buffer)} bytes; "
                f"found {length[~slow]} bytes at {start[~slow]}"
            )
        return _Slots(values, lengths, valid, bytearray(), {}), status

    def _check_embedded(
        self, buffer: np.ndarray, slots: _Slots, index: int, status: np.ndarray
    ) -> None:
        """Leaves rows to the slow path whose string has something else than JSON."""
        fits = (status == kernel.OK) & (slots.valid[index] != 0)
        length = slots.lengths[self._fields[index, kernel.TEXT_INDEX]]
        length = np.where(fits, length, np.int32(0))
        name = self.schema.fields[index].name
        offsets, data = _text(buffer, slots.extra, slots.values[index], length, name)
        good = np.empty(len(length), np.uint8)
        at = bytes_of(offsets, np.int32)[:-1].astype(np.int64)
        check_texts(bytes_of(data, np.uint8), at, length, good)
        status[fits & (good == 0)] = kernel.SLOW

    def _read_slowly(self, buffer: np.ndarray, start: int, length: int) -> list[Any]:
        if length < 0:
            raise BadRowError("expected a JSON object; found no value (null)")
        return self._slow.read(buffer[start : start + length].tobytes())

    def _put(self, slots: _Slots, row: int, values: list[Any], buffer_bytes: int) -> None:
        """Writes the values of a row from the slow path into its slots."""
        for i, value in enumerate(values):
            text_index = self._fields[i, kernel.TEXT_INDEX]
            slot, size = 0, 0
            match value:
                case None:
                    pass
                case _ if self._fields[i, kernel.CODE] == kernel.OTHER:
                    slots.lists.setdefault(i, {})[row] = value
                case str():
                    text = value.encode()
                    slot, size = buffer_bytes + len(slots.extra), len(text)
                    slots.extra += text
                case float():
                    (slot,) = struct.unpack("<q", struct.pack("<d", value))
                case Decimal() if self._fields[i, kernel.CODE] == kernel.DECIMAL:
                    slot = unscaled(value)
                case _:
                    slot = int(value)
            slots.values[i, row] = slot
            slots.valid[i, row] = value is not None
            if text_index >= 0:
                slots.lengths[text_index, row] = size

    def _column(
        self, buffer: np.ndarray, slots: _Slots, index: int, field: Field, chosen: np.ndarray | None
    ) -> pa.Array[Any]:
        """One column of the rows chosen (None: all)."""
        values, valid = slots.values[index], slots.valid[index]
        if chosen is not None:
            values, valid = values[chosen], valid[chosen]
        code = self._fields[index, kernel.CODE]
        if code == kernel.OTHER:
            lists = slots.lists.get(index, {})
            rows = range(len(values)) if chosen is None else chosen.tolist()
            return pa.array([lists.get(row) for row in rows], field.type)
        nulls = len(valid) - int(np.count_nonzero(valid))
        bitmap = arrow_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if code == kernel.DECIMAL:
            return vectors.decimals(values, field.type, valid if nulls else None)
        if code in (kernel.STRING, kernel.JSON, kernel.EMBEDDED):
            lengths = slots.lengths[self._fields[index, kernel.TEXT_INDEX]]
            if chosen is not None:
                lengths = lengths[chosen]
            if code == kernel.JSON:
                _check_size(lengths, field.name)
                extra = np.frombuffer(slots.extra, np.uint8)
                return compacted(buffer, extra, values, lengths, bitmap)
            buffers = _text(buffer, slots.extra, values, lengths, field.name)
            if code == kernel.EMBEDDED:
                data = bytes_of(buffers[1], np.uint8)
                at = bytes_of(buffers[0], np.int32)[:-1].astype(np.int64)
                return compacted(data, data, at, lengths, bitmap)
        else:
            buffers = [arrow_buffer(_fixed(values, code))]
        return pa.Array.from_buffers(field.type, len(values), [bitmap, *buffers], nulls)


def _positions(schema: Schema, columns: Collection[str] | None) -> list[int]:
    """Of the wanted columns; one at least, as a batch without any has no rows."""
    if columns is None:
        return list(range(len(schema.fields)))
    found = [i for i, field in enumerate(schema) if field.name in columns]
    return found or [0]


def _fixed(slots: np.ndarray, code: int) -> np.ndarray:
    """The slots of a field as the data of its Arrow column."""
    if code in (kernel.INT, kernel.DATE):
        return slots.astype(np.int32)
    if code == kernel.FLOAT:
        return slots.view(np.float64).astype(np.float32)
    if code == kernel.BOOLEAN:
        return np.packbits(slots.astype(np.uint8), bitorder="little")
    return slots


def _text(
    buffer: np.ndarray, extra: bytearray, at: np.ndarray, length: np.ndarray, name: str
) -> list[pa.Buffer]:
    """Offsets and data of a string column."""
    total = _check_size(length, name)
    offsets = np.empty(len(at) + 1, np.int32)
    out = np.empty(total + PADDING, np.uint8)
    copy_text(buffer, np.frombuffer(extra, np.uint8), at, length, offsets, out)
    return [arrow_buffer(offsets), arrow_buffer(out[:total])]


def _check_size(length: np.ndarray, name: str) -> int:
    """The bytes of all texts of a column."""
    total = int(length.sum(dtype=np.int64))
    if total > STRING_BYTES_MAX:
        raise LimitError(
            f"field {name!r}: expected at most {STRING_BYTES_MAX} bytes of text in one batch; "
            f"found {total}. Decode fewer rows at a time"
        )
    return total


@lru_cache(maxsize=256)
def compiled(
    schema: Schema, embedded: frozenset[str] = frozenset()
) -> tuple[np.ndarray, np.ndarray]:
    """The schema as the kernel reads it: its fields, and the bytes of their keys; both are only read."""
    fields = np.zeros((len(schema.fields), kernel.FIELD_COLUMNS), np.int64)
    keys = bytearray()
    texts = 0
    for i, field in enumerate(schema):
        key = b'"' + field.name.encode() + b'":'
        plain = not any(byte < 0x20 or byte in b'"\\' for byte in key[1:-2])
        is_text = field.type in (pa.string(), JSON)
        code = _CODES.get(field.type, kernel.OTHER)
        if code == kernel.JSON and field.name in embedded:
            code = kernel.EMBEDDED
        scale = precision = 0
        if vectors.is_short_decimal(field.type):
            kind: Any = field.type
            code, scale, precision = kernel.DECIMAL, kind.scale, kind.precision
        size = len(key) if plain else 0
        text_index = texts if is_text else -1
        fields[i] = (code, field.required, len(keys), size, text_index, scale, precision)
        keys += key
        texts += is_text
    return fields, np.frombuffer(bytes(keys), np.uint8)


def key_table(fields: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A hash table from a key to its field; at most a quarter full."""
    mask = (1 << (4 * len(fields) - 1).bit_length()) - 1
    table = np.full(mask + 1, -1, np.int64)
    for i, (_, _, at, size, *_) in enumerate(fields.tolist()):
        if size:
            name = keys[at + 1 : at + size - 2]
            slot = kernel.key_slot(name, 0, len(name), mask)
            while table[slot] >= 0:
                slot = (slot + 1) & mask
            table[slot] = i
    return table
