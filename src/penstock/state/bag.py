"""A bag: rows with weights, found by their key and, where they have one, their stretch of time.

    contents(bag) = the sum of all its deltas: row -> weight, without rows of weight 0

It is a trace whose identity is the whole row. Rows lie in the order of (stretch, hash of the key), so that
those of one key are found together. The stretch is what the trace calls a window: an operator that forgets
rows by their time puts them into stretches of some width, and lets go of whole ones (`Trace.low_us`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME, WEIGHT
from penstock.core.keys import hash_columns
from penstock.core.vectors import Vector, coarse_codes, from_int64, raw
from penstock.state import kernels
from penstock.state.kernels import grouping
from penstock.state.layout import (
    HASH,
    WINDOW,
    Layout,
    Value,
    concat,
    equal,
    hashes,
    taken,
    windows,
)
from penstock.state.trace import Trace

__all__ = [
    "COUNT",
    "FIRST",
    "ORDER",
    "Bag",
    "changes_of",
    "matches",
    "negated",
    "plain",
    "repeated",
    "weights_of",
]

FIRST: Final = -(2**63)
"""Before all places of an order as SQL's."""
COUNT: Final = "$n"  # int64, the weight of a row
ORDER: Final = "$order"  # int64, a row's place among those of its key
ROW: Final = "$row"  # int64, a hash of the row


@dataclass(frozen=True)
class Bag:
    """How rows of some columns are kept.

    Args:
        schema: of the rows; may have `$time`.
        key: the columns that rows are found by. Rows that are NULL in one are kept like others.
        order: a column by which those of one key lie in order, and whether the greatest comes first; None
            is no order. Values that differ may share a place (`vectors.coarse_codes`).
        nulls_first: whether NULL comes first in the order; else it comes last. None is last, too, of an order
            whose places aren't looked for (`ordered.around`).
    """

    schema: pa.Schema
    key: tuple[str, ...]
    order: tuple[str, bool] | None = None
    nulls_first: bool | None = None

    @cached_property
    def layout(self) -> Layout:
        """Of the trace."""
        return Layout(
            keys=tuple(self.schema.field(name) for name in self.key),
            values=(Value(COUNT, pa.int64(), "sum"),),
            tie=pa.field(ROW, pa.int64()),
            carried=tuple(field for field in self.schema if field.name not in self.key),
            order=None if self.order is None else pa.field(ORDER, pa.int64()),
        )

    @cached_property
    def place(self) -> Layout:
        """Of keys that are looked for."""
        return Layout(self.layout.keys, ())

    def delta(
        self,
        rows: pa.RecordBatch,
        hashes_: Vector,
        weights: Vector | None,
        stretches: Vector | None,
    ) -> pa.RecordBatch:
        """Rows as a delta of the trace: sorted, each once. See `spread`."""
        return self.layout.group(self.spread(rows, hashes_, weights, stretches), whole=False)

    def spread(
        self,
        rows: pa.RecordBatch,
        hashes_: Vector,
        weights: Vector | None,
        stretches: Vector | None,
    ) -> pa.RecordBatch:
        """Rows in the layout's columns, yet to be sorted.

        Args:
            rows: with the schema's columns; others are left out.
            hashes_: int64[n], of the key.
            weights: int64[n]; None is +1 each.
            stretches: int64[n], where in time each row lies; None is 0 each.
        """
        columns = {field.name: rows.column(field.name) for field in self.schema}
        zeros = np.zeros(len(rows), np.int64)
        columns[ROW] = from_int64(hash_columns([*columns.values()], len(rows)))
        columns[WINDOW] = from_int64(zeros if stretches is None else stretches)
        columns[HASH] = from_int64(hashes_)
        if self.order is not None:
            name, descending = self.order
            first = bool(self.nulls_first)
            places = coarse_codes(rows.column(name), descending=descending, nulls_first=first)
            if self.nulls_first is not None:
                places = np.maximum(places, FIRST + 1)
            columns[ORDER] = from_int64(places)
        columns[COUNT] = from_int64(zeros + 1 if weights is None else weights)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.layout.schema.names], schema=self.layout.schema
        )

    def wanted(
        self, keys: pa.RecordBatch, hashes_: Vector, stretches: Vector | None
    ) -> pa.RecordBatch:
        """Keys to look for: sorted, each once.

        Args:
            keys: has the key's columns, under the key's names.
            hashes_: int64[n], of the key.
            stretches: int64[n]; None is 0 each.
        """
        place = self.place
        at = np.zeros(len(keys), np.int64) if stretches is None else stretches
        columns = [from_int64(at), from_int64(hashes_), *(keys.column(name) for name in self.key)]
        return place.group(pa.RecordBatch.from_arrays(columns, schema=place.schema), whole=False)

    def near(
        self,
        trace: Trace,
        keys: pa.RecordBatch,
        hashes_: Vector,
        width_us: int,
        bounds_us: tuple[Vector, Vector],
        columns: Sequence[str] | None = None,
    ) -> list[pa.RecordBatch]:
        """The rows of some keys whose `$time` lies within bounds, or within those of another of the same key.

        Args:
            trace: has stretches as wide as said, which is as wide as any two bounds are apart.
            keys: has the key's columns, under the key's names; keys may be there several times.
            hashes_: int64[n], of the key.
            width_us: of a stretch.
            bounds_us: the first and the last time, each int64[n].
            columns: to give of the rows; all, if None.

        Returns:
            Some batches. Each run has its own part of a row.
        """
        if not len(keys) or not trace.runs:
            return []
        values = (Value("$first", pa.int64(), "min"), Value("$last", pa.int64(), "max"))
        place = Layout(self.layout.keys, values)
        first, last = bounds_us
        starts = [one // width_us * width_us for one in bounds_us]
        made = [from_int64(hashes_), *(keys.column(name) for name in self.key)]
        made += [from_int64(first), from_int64(last)]
        twice = [
            pa.RecordBatch.from_arrays([from_int64(start), *made], schema=place.schema)
            for start in starts
        ]
        if (starts[0] == starts[1]).all():
            twice = twice[:1]
        wanted = place.group(concat(twice), whole=False)
        least, most = raw(wanted.column("$first")), raw(wanted.column("$last"))
        return trace.lookup(wanted, columns, between=(TIME, least, most))[1]

    def find(
        self, trace: Trace, wanted: pa.RecordBatch, *, mostly_absent: bool = False
    ) -> pa.RecordBatch:
        """All rows of some keys (see `wanted`): in the layout's columns and order, each once."""
        _, found = trace.lookup(wanted, mostly_absent=mostly_absent)
        return self.sum(found)

    def sum(self, deltas: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Several deltas, in any order, as one: sorted, each row once, none of weight 0."""
        deltas = [one for one in deltas if len(one)]
        if not deltas:
            return self.layout.empty()
        return self.layout.group(concat(deltas), whole=True)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The schema's columns of a batch in the layout's."""
        return batch.select(self.schema.names)


def matches(
    left: pa.RecordBatch, right: pa.RecordBatch, on: Sequence[tuple[str, str]]
) -> tuple[Vector, Vector]:
    """Pairs of rows of the same stretch and key: (rows of left, rows of right), in left's order.

    Args:
        left: begins with stretch and hash; in any order.
        right: likewise, sorted by them.
        on: the columns that must be equal. NULL equals nothing.
    """
    ids, first = grouping.group(windows(left), hashes(left), None, None)
    lo, hi = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    kernels.find(windows(left)[first], hashes(left)[first], windows(right), hashes(right), lo, hi)
    lo, hi = lo[ids], hi[ids]
    total = int((hi - lo).sum())
    here, there = np.empty(total, np.int64), np.empty(total, np.int64)
    kernels.expand(lo, hi, here, there)
    keep = np.ones(total, np.bool_)
    for mine, other in on:
        ours, theirs = left.column(mine), right.column(other)
        keep &= equal(ours, here, theirs, there)
        if ours.null_count:
            keep &= ours.is_valid().to_numpy(zero_copy_only=False)[here]
    return (here, there) if keep.all() else (here[keep], there[keep])


def weights_of(batch: pa.RecordBatch) -> Vector:
    """The weights of a batch in a bag's layout: int64[n]."""
    return raw(batch.column(COUNT))


def repeated(batch: pa.RecordBatch, counts: Vector | None = None) -> pa.RecordBatch:
    """Each row as often as it is there.

    Args:
        batch: rows.
        counts: int64[n], how often; None: its weights say so, in a bag's layout.
    """
    counts = weights_of(batch) if counts is None else counts
    if (counts == 1).all():
        return batch
    return taken(batch, np.repeat(np.arange(len(batch)), counts))


def negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch in a bag's layout that takes back what the given one brings."""
    at = batch.schema.get_field_index(COUNT)
    return batch.set_column(at, batch.schema.field(at), from_int64(-weights_of(batch)))


def changes_of(moved: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Rows of a bag as a table's changes, with `$weight`: all that go before all that come.

    Args:
        moved: each row once, with how often it comes; negative where it goes.
        schema: of the table's rows.
    """
    weights = weights_of(moved)
    order = np.concatenate([np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)])
    moved = moved.take(from_int64(order))
    columns = [moved.column(name) for name in [*schema.names, COUNT]]
    return pa.Table.from_arrays(columns, schema=schema.append(pa.field(WEIGHT, pa.int64())))


def plain(schema: pa.Schema) -> pa.Schema:
    """The same columns, of which each may be NULL, as they are kept and sent."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])
