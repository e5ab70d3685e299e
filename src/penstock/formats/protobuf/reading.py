"""Protobuf's binary encoding to columns, by the schemas of a registry.

Each message is walked once for all fields that are columns (`kernels.find_fields`); what lies in it, such as
a message or an array, is walked the same way, for all records together. A record that isn't what its
schema says is bad, and no other. The sources are "Encoding" of Protobuf's documentation, and Confluent's wire
format: a zero byte, the schema's id in four bytes, and which message of the file it is.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.formats.avro.reading import UNKNOWN_IDS_MAX, Lookup
from penstock.formats.avro.rows import Rows
from penstock.formats.json import Decoded
from penstock.formats.protobuf.messages import File, Found, Message, message_of, said

__all__ = ["ProtobufDecoder"]

INDEXES_MAX: Final = 32
"""Of a message within messages: Protobuf's parsers allow as many."""


class ProtobufDecoder:
    """Decodes records of one schema. It holds no state between batches, but schemas, which don't change.

    Args:
        schema: the columns; of other fields than these nothing comes, and one that a writer doesn't have
            is NULL.
        lookup: asks a registry.
    """

    def __init__(self, schema: Schema, lookup: Lookup) -> None:
        self.schema, self._lookup = schema, lookup
        self._files: dict[int, File] = {}
        self._misfits: dict[tuple[int, tuple[int, ...]], str] = {}
        self._readings: dict[tuple[int, tuple[int, ...]], Message] = {}

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """See `penstock.formats.lines.Decoder`."""
        rows = Rows(buffer, start, length)
        ids = rows.ids()
        self._learn(rows, ids)
        kinds: list[Any] = [one.type for one in self.schema]
        found: list[Any] = [pa.nulls(len(rows), one) for one in kinds]
        for key, mask in _kinds(rows, ids):
            reading = self._reading(key)
            if reading is None:
                rows.fail(mask, functools.partial(said, self._misfits[key]))
                continue
            some = np.flatnonzero(mask & rows.good)
            columns = reading.read(Found(rows, some), rows.at[some], rows.stop[some])
            if len(some) == len(rows):
                found = columns
            else:
                place = np.full(len(rows), -1, np.int64)
                place[some] = np.arange(len(some))
                for i, column in enumerate(columns):
                    found[i] = _either(place, column, found[i])
        for one, column in zip(self.schema, found, strict=True):
            if one.required and column.null_count:
                missing = f"field {one.name!r}: expected a value (NOT NULL); found null"
                known = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
                rows.fail(~known, functools.partial(said, missing))
        bad, good = np.flatnonzero(~rows.good), np.flatnonzero(rows.good)
        chosen: Any = pa.array(good)
        taken = [one.take(chosen) for one in found] if len(bad) else found
        batch = pa.RecordBatch.from_arrays(taken, schema=self.schema.arrow)
        return Decoded(batch, good, bad, [rows.reasons[row] for row in bad.tolist()])

    def _learn(self, rows: Rows, ids: np.ndarray) -> None:
        """Asks for the schemas that aren't known yet."""
        unknown = 0
        for id_ in np.unique(ids[rows.good]).tolist():
            if id_ in self._files or unknown >= UNKNOWN_IDS_MAX:
                continue
            try:
                text = self._lookup(id_)
            except SchemaError as error:
                self._files[id_] = File("", str(error))
                continue
            if text is None:
                unknown += 1
                continue
            self._files[id_] = File(text)
        for id_, file in self._files.items():
            if file.error:
                rows.fail(ids == id_, functools.partial(said, f"schema {id_}: {file.error}"))
        rest = ~np.isin(ids, list(self._files))
        rows.fail(
            rest, lambda row: f"expected the id of a schema in the registry; found {ids[row]}"
        )

    def _reading(self, key: tuple[int, tuple[int, ...]]) -> Message | None:
        """What reads a message of a schema; None where it doesn't fit the columns."""
        if key not in self._readings and key not in self._misfits:
            id_, indexes = key
            try:
                file = self._files[id_]
                self._readings[key] = message_of(file.message(indexes), self.schema.fields, file)
            except SchemaError as error:
                self._misfits[key] = f"schema {id_}: {error}"
        return self._readings.get(key)


def _kinds(rows: Rows, ids: np.ndarray) -> list[tuple[tuple[int, tuple[int, ...]], np.ndarray]]:
    """Which records are which message of which schema; moves their cursors past that."""
    there = rows.good & (rows.at < rows.stop)
    rows.fail(~there, lambda _: "expected the number of a message; found the record's end")
    if not there.any():
        return []
    first = np.zeros(len(rows), np.uint8)
    first[there] = rows.buffer[rows.at[there]]
    plain = there & (first == 0)
    found: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    for id_ in np.unique(ids[plain]).tolist():
        found[id_, (0,)] = plain & (ids == id_)
    rows.at[plain] += 1
    for row in np.flatnonzero(there & ~plain).tolist():
        try:
            indexes, rows.at[row] = _indexes(rows.buffer, int(rows.at[row]), int(rows.stop[row]))
        except ValueError as error:
            only = np.zeros(len(rows), np.bool_)
            only[row] = True
            rows.fail(only, functools.partial(said, str(error)))
            continue
        key = int(ids[row]), indexes
        found.setdefault(key, np.zeros(len(rows), np.bool_))[row] = True
    return list(found.items())


def _indexes(buffer: np.ndarray, at: int, stop: int) -> tuple[tuple[int, ...], int]:
    """Zigzag numbers: how many, then they."""
    found: list[int] = []
    while not found or len(found) <= found[0]:
        value = shift = 0
        while True:
            if at >= stop or shift > 63:
                raise ValueError("expected the number of a message; found the record's end")
            byte = int(buffer[at])
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        value = value >> 1 ^ -(value & 1)
        if value < 0 or (not found and not 0 < value <= INDEXES_MAX):
            raise ValueError(f"expected the number of a message; found {value}")
        found.append(value)
    return tuple(found[1:]), at


def _either(place: np.ndarray, one: Any, other: Any) -> Any:
    """The first column's values at their places, the second's where there is none."""
    both = pa.concat_arrays([one, other])
    rest = len(one) + np.arange(len(place))
    index: Any = pa.array(np.where(place >= 0, place, rest))
    return both.take(index)
