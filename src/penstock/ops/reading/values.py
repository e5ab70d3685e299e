"""What a batch reads of kept values: as many as an answer needs, not the groups that it touches.

    min, max         the first or last live value of each group, by itself or by another column
    collect          as many as the list has
    count_distinct   the weights of the values that the batch brings: a value counts, or no longer does, where
                     its weight passes zero
    quantile         two values by their ranks
    frequent         as many as are asked for (`penstock.ops.reading.frequent`)
    all others       the group

How many values a group has is remembered in a trace of its own; where nobody has asked for a group's changes
yet, its values are counted once. Panes of hopping windows are read whole, as a value may be in several.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.aggregates import COUNT, Kept, Part
from penstock.ops.spec import AggregateSpec
from penstock.state import kernels
from penstock.state.layout import concat
from penstock.state.ordered import is_ranked, weights
from penstock.state.trace import Trace

__all__ = ["COUNTED", "counts_name", "readings", "recounted"]

COUNTS: Final = "counts."  # + the name of a trace of values: group -> how many different ones
COUNTED: Final = "$counted"  # int64, how many


Reading: TypeAlias = tuple[tuple[Part, ...], int | Literal["all", "counts", "ranks", "often"]]
"""Parts, and what they are lifted from: so many first values (last ones where negative), all,
counts, those of some ranks, or the most frequent ones."""


def readings(spec: AggregateSpec, kept: Kept) -> list[Reading]:
    """How a batch finds the parts that are lifted from kept values."""
    parts = tuple(part for part in spec.parts if part.kept == kept)
    is_number = is_ranked(kept.columns[0].type)
    by_rank = tuple(part for part in parts if part.ranks is not None and is_number)
    often = tuple(part for part in parts if part.often is not None)
    counted = tuple(part for part in parts if part.distinct)
    by_ends = tuple(part for part in parts if part.ends is not None)
    whole = len(by_rank) + len(often) + len(counted) + len(by_ends) < len(parts)
    if whole or spec.window.paned:
        return [(parts, "all")]
    found: list[Reading] = []
    for sign in (1, -1):
        some = tuple(part for part in by_ends if sign * (part.ends or 0) > 0)
        if some:
            found.append((some, sign * max(abs(part.ends or 0) for part in some)))
    if by_rank:
        found.append((by_rank, "ranks"))
    if often:
        found.append((often, "often"))
    return [*found, (counted, "counts")] if counted else found


def counts_name(name: str) -> str:
    """The trace that remembers how many values the groups of another have."""
    return COUNTS + name


def recounted(
    values: Trace, counts: Trace, delta: pa.RecordBatch, touched: pa.RecordBatch, number: Vector
) -> tuple[Vector, Vector, pa.RecordBatch]:
    """How many different values some groups have.

    Args:
        values: the trace of values, without the delta.
        counts: what is remembered of it.
        delta: of the trace of values.
        touched: the groups; sorted, each once.
        number: int64[delta], the group of each row.

    Returns:
        The counts before and after, int64[touched]; and the delta of `counts`.
    """
    groups = len(touched)
    before, known = np.zeros(groups, np.int64), np.zeros(groups, np.bool_)
    which, found = counts.lookup(touched, [COUNTED])
    if found:
        np.add.at(before, which, vectors.raw(concat(found).column(0)))
        known[which] = True
    unknown = np.flatnonzero(~known)
    if len(unknown):
        asked = touched.take(vectors.from_int64(unknown))
        before[unknown] = _counted(values, asked)
    was = weights(values, touched, delta, number)
    now = was + vectors.raw(delta.column(COUNT))
    crossing = (now > 0).astype(np.int64) - (was > 0)
    after = before.copy()
    np.add.at(after, number, crossing)
    change = np.where(known, after - before, after)
    made = pa.RecordBatch.from_arrays(
        [*touched.columns, vectors.from_int64(change)], schema=counts.layout.schema
    )
    return before, after, made.take(vectors.from_int64(np.flatnonzero(change)))


def _counted(values: Trace, groups: pa.RecordBatch) -> Vector:
    """How many different values some groups have, by reading all of them: int64[groups]."""
    which, found = values.lookup(groups)
    if not found:
        return np.zeros(len(groups), np.int64)
    rows = concat(found)
    ids, first = values.layout.grouping(rows)
    weight = np.empty(len(first), np.int64)
    kernels.sum_integers(vectors.raw(rows.column(COUNT)), None, None, ids, weight)
    return np.bincount(which[first[weight > 0]], minlength=len(groups))
