"""The most frequent values of groups: kept in order of their counts, where a batch's changes are asked for.

    frequent(group, -count, value) = 1, for each value of the group that is there

The first rows of a group are its most frequent values, and of equally frequent ones the least. A batch looks
up the counts of the values that it brings, and moves these values: its time is that of its rows and of the
values that are asked for, and the logarithm of the group's size.

A group of which the trace has no row is read whole and put into it: nobody has asked for its changes before,
or it has no values. So each group is in it with all of its values, or not at all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.aggregates import COUNT
from penstock.ops.partials import ORDER
from penstock.state.layout import Layout, concat
from penstock.state.ordered import Side, ends, present, weights
from penstock.state.trace import Trace

__all__ = ["frequent_layout", "frequent_name", "most_frequent"]

FREQUENT: Final = "frequent."  # + the name of a trace of values


def frequent_name(name: str) -> str:
    """The trace that has the values of another in the order of their counts."""
    return FREQUENT + name


def frequent_layout(values: Layout) -> Layout:
    """Its layout, of that of the trace of values."""
    assert values.tie is not None, "it is the value"
    order = pa.field(ORDER, pa.int64())
    return Layout(values.keys, values.values, values.tie, order=order, exact=values.exact)


def most_frequent(
    values: Trace,
    frequent: Trace,
    delta: pa.RecordBatch,
    touched: pa.RecordBatch,
    number: Vector,
    most: int,
) -> tuple[Side, Side, pa.RecordBatch]:
    """The most frequent values of some groups: so many, or more.

    Args:
        values: the trace of values, without the delta.
        frequent: what is remembered of it.
        delta: of the trace of values.
        touched: the groups; sorted, each once.
        number: int64[delta], the group of each row.
        most: how many values of a group.

    Returns:
        The values before and after, with their counts as weights; and the delta of `frequent`.
    """
    layout = frequent.layout
    unknown = np.flatnonzero(~present(frequent, touched))
    group, whole = _whole(values, touched, unknown)
    was = weights(values, touched, delta, number)
    now = was + vectors.raw(delta.column(COUNT))
    left, gone = _placed(layout, delta, was, -1)
    come, here = _placed(layout, delta, now, 1)
    _, known = _placed(layout, whole, vectors.raw(whole.column(COUNT)), 1)
    moved = concat([known, gone, here])
    (had, before), after = ends(
        frequent, touched, moved, np.concatenate([group, number[left], number[come]]), most
    )
    old = np.concatenate([had, group]), concat([before, known])
    return _counted(old), _counted(after), layout.group(moved, whole=False)


def _whole(values: Trace, touched: pa.RecordBatch, some: Vector) -> Side:
    """All values of some groups, by their numbers in `touched`."""
    if not len(some):
        return some, values.layout.empty()
    which, found = values.lookup(touched.take(vectors.from_int64(some)))
    if not found:
        return some[:0], values.layout.empty()
    rows = concat(found)
    ids, first = values.layout.grouping(rows)
    summed = values.layout.fold(rows, ids, first)
    there = np.flatnonzero(vectors.raw(summed.column(COUNT)) > 0)
    return some[which[first[there]]], summed.take(vectors.from_int64(there))


def _placed(
    layout: Layout, rows: pa.RecordBatch, counts: Vector, weight: int
) -> tuple[Vector, pa.RecordBatch]:
    """Values that are there so often, where that lies in the order: their numbers, and they."""
    there = np.flatnonzero(counts > 0)
    taken = rows.take(vectors.from_int64(there))
    made = dict(zip(taken.schema.names, taken.columns, strict=True))
    made[ORDER] = vectors.from_int64(-counts[there])
    made[COUNT] = vectors.from_int64(np.full(len(there), weight, np.int64))
    columns = [made[name] for name in layout.schema.names]
    return there, pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def _counted(side: Side) -> Side:
    """Values with their counts as weights."""
    number, rows = side
    counts = vectors.from_int64(-vectors.raw(rows.column(ORDER)))
    at = rows.schema.get_field_index(COUNT)
    return number, rows.set_column(at, rows.schema.field(at), counts)
