"""Rows on their way to the shard of their key: the parcel of operators that keep whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK, WEIGHT, followed
from penstock.core.keys import cut, hash_columns
from penstock.core.narrow import narrow, widen
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.ops.operator import Prepared
from penstock.ops.windows import NOTHING_YET_US
from penstock.state.bag import Bag
from penstock.state.layout import concat

__all__ = ["HASH", "Everywhere", "Routed", "RowParcels", "delta_of", "in_time", "routed"]

HASH: Final = "$hash"  # int64, of the key


@dataclass(frozen=True)
class Routed:
    """Rows with the hash of their key.

    Attributes:
        batch: `$hash`, then `$time`, `$weight` and `$watermark` where rows have them, then the rows' own
            columns.
    """

    batch: pa.RecordBatch

    def cut(self, shards: int) -> list[Routed]:
        """The rows of each shard, in the order that they have here."""
        return [Routed(part) for part in cut(self.batch, self.hashes, shards)]

    def to_bytes(self) -> bytes:
        """An Arrow IPC stream of narrow columns."""
        batch = narrow(self.batch)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return sink.getvalue().to_pybytes()

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.batch)

    @property
    def hashes(self) -> Vector:
        """Of the keys: int64[n]."""
        return vectors.raw(self.batch.column(0))

    @property
    def times_us(self) -> Vector:
        """Event times: int64[n]."""
        return vectors.raw(self.batch.column(TIME))

    @property
    def weights(self) -> Vector | None:
        """int64[n]; None where each is +1."""
        if WEIGHT not in self.batch.schema.names:
            return None
        return vectors.raw(self.batch.column(WEIGHT))

    @staticmethod
    def combine(parts: Sequence[Routed]) -> Routed:
        """One parcel of several, in their order; there is at least one."""
        return parts[0] if len(parts) == 1 else Routed(concat([part.batch for part in parts]))


@dataclass(frozen=True)
class Everywhere(Routed):
    """Rows that every shard gets."""

    def cut(self, shards: int) -> list[Routed]:
        """All rows, for each shard."""
        return [self] * shards


@dataclass(frozen=True)
class RowParcels:
    """How rows travel as they are.

    Attributes:
        columns: of the rows.
        timed: whether they have `$time`.
        weighted: whether they have `$weight`.
        marked: whether they have `$watermark`.
        judged: whether those that lie before their own watermark are late, and left out.
        everywhere: where each shard gets all, the columns that they are found by there; None: a shard gets
            those of its keys.
    """

    columns: pa.Schema
    timed: bool = False
    weighted: bool = False
    marked: bool = False
    judged: bool = False
    everywhere: tuple[str, ...] | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a parcel."""
        fields: list[pa.Field] = [pa.field(HASH, pa.int64())]
        fields += [pa.field(TIME, TIMESTAMP)] if self.timed else []
        fields += [pa.field(WEIGHT, pa.int64())] if self.weighted else []
        fields += [pa.field(WATERMARK, pa.int64())] if self.marked else []
        return pa.schema([*fields, *(pa.field(f.name, f.type) for f in self.columns)])

    def empty(self) -> pa.RecordBatch:
        """No rows of a parcel."""
        return pa.RecordBatch.from_pylist([], self.schema)

    def prepared(self, rows: pa.Table, key: Sequence[str]) -> Prepared:
        """A parcel of rows, with the hash of their key; see `routed`."""
        late = None
        if self.judged:
            rows, late = in_time(rows)
        if self.everywhere is None:
            return Prepared(routed(rows, key, self.schema), late)
        return Prepared(Everywhere(routed(rows, self.everywhere, self.schema).batch), late)

    def combine(self, parts: Sequence[Routed]) -> Routed:
        """One parcel of several, in their order; there is at least one."""
        whole = Routed.combine(parts)
        return whole if self.everywhere is None else Everywhere(whole.batch)

    def parse(self, blob: bytes | memoryview | pa.Buffer) -> Routed:
        """Reads what `Routed.to_bytes` gave.

        Raises:
            SchemaError: the blob is of other rows.
        """
        with pa.ipc.open_stream(pa.py_buffer(blob)) as stream:
            batch = stream.read_next_batch()
        if batch.schema.names != self.schema.names:
            raise SchemaError(
                f"expected the columns {self.schema.names}; found {batch.schema.names}"
            )
        return Routed(widen(batch, self.schema))


def routed(rows: pa.Table, key: Sequence[str], schema: pa.Schema) -> Routed:
    """Makes a parcel of rows.

    Args:
        rows: any, with at least the columns that the parcel has.
        key: the columns whose hash decides the shard; none puts all rows on one.
        schema: of the parcel, from `RowParcels`. Where it has `$weight` and the rows don't, each is +1;
            where it has `$watermark` and they don't, none is late.

    Raises:
        SchemaError: a column has another type.
    """
    rows = followed(rows)
    found: dict[str, pa.Array] = {}
    for field in schema:
        if field.name in rows.column_names:
            found[field.name] = vectors.contiguous(rows.column(field.name))
            if found[field.name].type != field.type:
                raise SchemaError(
                    f"expected {field.name!r} as {field.type}; found {found[field.name].type}"
                )
    found[HASH] = vectors.from_int64(hash_columns([found[name] for name in key], len(rows)))
    if WEIGHT in schema.names and WEIGHT not in found:
        found[WEIGHT] = vectors.from_int64(np.ones(len(rows), np.int64))
    if WATERMARK in schema.names and WATERMARK not in found:
        found[WATERMARK] = vectors.from_int64(np.full(len(rows), NOTHING_YET_US))
    return Routed(pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema))


def delta_of(bag: Bag, parts: Sequence[Routed]) -> pa.RecordBatch:
    """What parcels bring to a bag without stretches: sorted, each row once."""
    if not parts:
        return bag.layout.empty()
    rows = Routed.combine(parts)
    return bag.delta(rows.batch, rows.hashes, rows.weights, None)


def in_time(rows: pa.Table) -> tuple[pa.Table, Vector | None]:
    """The rows that don't lie before their own watermark, and the positions of those that do.

    Rows without a watermark are those of an operator that keeps its promise, and never late.
    """
    if WATERMARK not in rows.column_names or not len(rows):
        return rows, None
    times = vectors.raw(vectors.contiguous(rows.column(TIME)))
    late = times < vectors.raw(vectors.contiguous(rows.column(WATERMARK)))
    if not late.any():
        return rows, None
    return rows.filter(pa.array(~late)), np.flatnonzero(late)
