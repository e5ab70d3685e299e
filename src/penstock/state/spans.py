"""Combining rows over spans of neighbouring places: what overlapping windows have of the panes they share.

    spans(rows, starts, length)[i] = combine(rows at starts[i], ..., starts[i] + length - 1)

Each place is first combined with the one next to it, then with the one two further, and so on, so that after
k rounds it has what 2**k places have; a span is made of as many of these as its length has bits. With n
places that are O(n log length) combinations instead of `length` for each span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.state.layout import Value, combine, concat

__all__ = ["NONE", "spans"]

NONE: Final = -1
"""The row of a place that has none."""
_Places: TypeAlias = tuple[pa.RecordBatch, Vector]
"""Rows, and for each place the number of its row."""


def spans(
    values: Sequence[Value], rows: pa.RecordBatch, places: Vector, starts: Vector, length: int
) -> _Places:
    """Combines the rows of spans.

    Args:
        values: the columns to combine.
        rows: has their columns.
        places: int64[rows], where each row lies; several may lie in one.
        starts: int64[spans], the first place of each span.
        length: of the spans, in places: at least 1.

    Returns:
        Rows with the columns of values, and for each span the number of its row, or `NONE`.
    """
    size = 1 + max(int(places.max(initial=0)), int(starts.max(initial=0)) + length)
    names = [field.name for value in values for field in value.fields]
    known, ids = np.unique(places, return_inverse=True)
    at = np.full(size, NONE)
    at[known] = np.arange(len(known))
    level = _folded(values, rows.select(names), ids.astype(np.int32), len(known)), at
    found: _Places = level[0].slice(0, 0), np.full(len(starts), NONE)
    starts, step = starts.copy(), 1
    while True:
        if length & step:
            found = _joined(values, found, (level[0], level[1][starts]))
            starts += step
        if 2 * step > length:
            return found
        beside = np.full(size, NONE)
        beside[:-step] = level[1][step:]
        level = _joined(values, level, (level[0], beside))
        step *= 2


def _joined(values: Sequence[Value], one: _Places, other: _Places) -> _Places:
    """The rows of each place in both."""
    there = (one[1] >= 0) | (other[1] >= 0)
    number = np.where(there, np.cumsum(there) - 1, NONE)
    parts, ids = [], []
    for rows, at in (one, other):
        some = np.flatnonzero(at >= 0)
        parts.append(rows.take(vectors.from_int64(at[some])))
        ids.append(number[some])
    count = int(np.count_nonzero(there))
    made = _folded(values, concat(parts), np.concatenate(ids).astype(np.int32), count)
    return made, number


def _folded(
    values: Sequence[Value], rows: pa.RecordBatch, ids: Vector, groups: int
) -> pa.RecordBatch:
    """One row for each group."""
    fields = [field for value in values for field in value.fields]
    columns = [column for value in values for column in combine(value, rows, ids, groups)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
