"""Aggregates over many ranges of one sequence of rows, which may overlap.

    result[i] = the aggregate of the rows [lo[i], hi[i])

What can be combined is combined by doubling: from the aggregates of all runs of 2**j rows come those of
2**(j + 1), and a range is put together from a run for each bit of its length. So n ranges over n rows take
O(n log(longest)) steps, nothing is ever subtracted, and a sum is as exact as any. Aggregates that need all
values (`Kept`) get the rows of each range, some ranges at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.vectors import Vector, from_int64
from penstock.ops.aggregates import ROWS, Kept, Part, Rows
from penstock.ops.spec import Aggregate
from penstock.state.layout import Layout, combine, concat, take

__all__ = ["aggregate_ranges"]

SPREAD_ROWS_MAX: Final = 2_000_000
"""Rows of ranges that are laid out at a time: some ten megabytes a column."""


def aggregate_ranges(
    aggregates: Sequence[Aggregate], columns: Mapping[str, pa.Array], lo: Vector, hi: Vector
) -> list[pa.Array]:
    """The aggregates of ranges of rows, a column each.

    Args:
        aggregates: what is computed.
        columns: of the rows, by name.
        lo: int64[n], the first row of each range.
        hi: int64[n], the row behind its last; there is one at least.
    """
    parts = {
        part.value.name: part
        for part in (ROWS, *(p for a in aggregates for p in a.function.parts(retracts=False)))
    }
    kept = dict.fromkeys(part.kept for part in parts.values() if part.kept is not None)
    made = _combined([p for p in parts.values() if p.kept is None], columns, lo, hi)
    for one in kept:
        made |= _spread([p for p in parts.values() if p.kept == one], one, columns, lo, hi)
    full = pa.RecordBatch.from_pydict(made)
    return [aggregate.function.result(full) for aggregate in aggregates]


def _combined(
    parts: Sequence[Part], columns: Mapping[str, pa.Array], lo: Vector, hi: Vector
) -> dict[str, pa.Array]:
    layout = Layout((), tuple(part.value for part in parts))
    names = [field.name for part in parts for field in part.value.fields]
    count = int(hi.max(initial=0))
    columns = {name: column.slice(0, count) for name, column in columns.items()}
    each = Rows(columns, None, np.arange(count, dtype=np.int32), count)
    runs = pa.RecordBatch.from_arrays([c for part in parts for c in part.lift(each)], names)
    nothing = pa.RecordBatch.from_arrays([pa.nulls(len(lo), pa.bool_())], ["$none"])
    found = layout.padded(nothing).select(names)
    lengths = (hi - lo).astype(np.int64)
    needed = _needed(lo, lengths, count)
    runs = _at(runs, np.flatnonzero(needed[0]))
    for level, mine in enumerate(needed):
        where = np.cumsum(mine) - 1  # the run that begins at each row
        some = np.flatnonzero(lengths & (1 << level))
        if len(some):
            begins = lo[some] + (lengths[some] & ((1 << level) - 1))
            found = _sum(parts, [found, _at(runs, where[begins])], some, names)
        if level + 1 < len(needed):
            longer = np.flatnonzero(needed[level + 1])
            halves = [_at(runs, where[longer + half]) for half in (0, 1 << level)]
            runs = _sum(parts, halves, np.arange(len(longer)), names)
    return dict(zip(names, found.columns, strict=True))


def _needed(lo: Vector, lengths: Vector, count: int) -> list[Vector]:
    """By level, the rows at which a run of 2**level begins that ranges are put together from: bool[rows].

    No other is computed: it might lie in two groups, and its sum, which nobody asks for, not fit.
    """
    levels = max(int(lengths.max(initial=0)).bit_length(), 1)
    needed = [np.zeros(count, np.bool_) for _ in range(levels)]
    for level in range(levels - 1, -1, -1):
        some = np.flatnonzero(lengths & (1 << level))
        needed[level][lo[some] + (lengths[some] & ((1 << level) - 1))] = True
        if level + 1 < levels:
            longer = np.flatnonzero(needed[level + 1])
            needed[level][longer] = True
            needed[level][longer + (1 << level)] = True
    return needed


def _at(runs: pa.RecordBatch, rows: Vector) -> pa.RecordBatch:
    return runs.take(from_int64(rows.astype(np.int64, copy=False)))


def _sum(
    parts: Sequence[Part], batches: Sequence[pa.RecordBatch], at: Vector, names: Sequence[str]
) -> pa.RecordBatch:
    """The first batch with the rows of the second added to those at some positions."""
    rows, groups = concat(list(batches)), len(batches[0])
    ids = np.concatenate([np.arange(groups, dtype=np.int32), at.astype(np.int32)])
    columns = [c for part in parts for c in combine(part.value, rows, ids, groups)]
    return pa.RecordBatch.from_arrays(columns, list(names))


def _spread(
    parts: Sequence[Part], kept: Kept, columns: Mapping[str, pa.Array], lo: Vector, hi: Vector
) -> dict[str, pa.Array]:
    names = [field.name for part in parts for field in part.value.fields]
    ends = np.cumsum(hi - lo)
    chunks: list[list[Any]] = [[] for _ in names]
    first = 0
    while first < len(lo) or not chunks[0]:
        base = int(ends[first - 1]) if first else 0
        end = max(int(np.searchsorted(ends, base + SPREAD_ROWS_MAX, side="right")), first + 1)
        end = min(end, len(lo))
        size = (hi - lo)[first:end]
        ids = np.repeat(np.arange(end - first, dtype=np.int32), size)
        within = np.arange(len(ids)) - np.repeat(np.cumsum(size) - size, size)
        at = from_int64(lo[first:end][ids] + within)
        values = {column.name: take(columns[column.name], at) for column in kept.columns}
        there = np.ones(len(ids), np.bool_)
        for value in values.values():
            if value.null_count:
                there &= pc.is_valid(value).to_numpy(zero_copy_only=False)
        if not there.all():
            values = {name: value.filter(pa.array(there)) for name, value in values.items()}
            ids = ids[there]
        rows = Rows(values, None, ids, end - first)
        lifted = [column for part in parts for column in part.lift(rows)]
        for chunk, column in zip(chunks, lifted, strict=True):
            chunk.append(column)
        first = end
    return {n: pa.concat_arrays(chunk) for n, chunk in zip(names, chunks, strict=True)}
