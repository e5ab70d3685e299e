"""Rows of two bags that have the same key and times near each other.

    near(left, right) = {(l, r) : key(l) = key(r), time(l) - back <= time(r) <= time(l) + ahead}

Both sides are put into the order of (key, time), so that a row's partners lie side by side; one sweep over
both finds where they begin and end. That takes O(n log n) at most, however many rows share a key: only
rows that do match are ever looked at in pairs, and the question whether there is a partner looks at none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector, from_int64, raw
from penstock.state import kernels
from penstock.state.layout import Layout, hashes

__all__ = ["PAIRS_AT_ONCE", "Near", "near"]

PAIRS_AT_ONCE: Final = 1 << 20
"""Pairs that are written out at a time: bounds memory, and text in a column to 2 GiB."""

FEW: Final = 16  # rows of a key: up to here insertion is the fastest way to sort

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_W_I64 = types.int64[::1]


@njit(types.void(_I32, types.int64, _I64, _W_I64), cache=True, nogil=True)
def _order(key: Any, keys: Any, time: Any, out: Any) -> None:
    """Rows by key and time, those that share both as they lie: a counting sort on the keys' numbers."""
    ends = np.zeros(keys + 1, np.int64)
    for i in range(len(key)):
        ends[key[i] + 1] += 1
    for k in range(keys):
        ends[k + 1] += ends[k]
    for i in range(len(key)):
        out[ends[key[i]]] = i
        ends[key[i]] += 1
    lo = 0
    for k in range(keys):
        hi = ends[k]
        if hi - lo <= FEW:
            for i in range(lo + 1, hi):
                row = out[i]
                j = i
                while j > lo and time[out[j - 1]] > time[row]:
                    out[j] = out[j - 1]
                    j -= 1
                out[j] = row
        else:
            some = out[lo:hi].copy()
            by_time = np.argsort(time[some], kind="mergesort")
            for i in range(hi - lo):
                out[lo + i] = some[by_time[i]]
        lo = hi


@njit(types.void(_I32, _I64, _I32, _I64, types.int64, types.int64, _W_I64, _W_I64),
      cache=True, nogil=True)  # fmt: skip
def _sweep(
    key: Any, time: Any, other_key: Any, other_time: Any, back: Any, ahead: Any, lo: Any, hi: Any
) -> None:
    """Both sides are sorted by (key, time), so begins and ends only ever move on."""
    n = len(other_key)
    begin = 0
    end = 0
    for i in range(len(key)):
        k = key[i]
        first = time[i] - back
        last = time[i] + ahead
        while begin < n and (
            other_key[begin] < k or (other_key[begin] == k and other_time[begin] < first)
        ):
            begin += 1
        end = max(end, begin)
        while end < n and (other_key[end] < k or (other_key[end] == k and other_time[end] <= last)):
            end += 1
        lo[i] = begin
        hi[i] = end


@dataclass(frozen=True)
class Near:
    """The partners of the rows of one side among those of another.

    Attributes:
        rows: the one side's rows by key and time: int64[n].
        others: the other side's, likewise: int64[m].
        lo: the partners of row `rows[i]` are `others[lo[i]:hi[i]]`: int64[n].
        hi: as said.
    """

    rows: Vector
    others: Vector
    lo: Vector
    hi: Vector

    def partners(self, weights: Vector) -> Vector:
        """The sum of the weights of each row's partners, in the one side's own order: int64[n]."""
        sums = np.concatenate([[0], np.cumsum(weights[self.others])])
        found = np.empty(len(self.rows), np.int64)
        found[self.rows] = sums[self.hi] - sums[self.lo]
        return found

    def pairs(self, at_once: int = PAIRS_AT_ONCE) -> Iterator[tuple[Vector, Vector]]:
        """The pairs, as rows of the one side and of the other, some at a time.

        Args:
            at_once: how many, if no single row has more.
        """
        ends = np.cumsum(self.hi - self.lo)
        start = 0
        while start < len(ends):
            done = int(ends[start - 1]) if start else 0
            if done == ends[-1]:
                return
            stop = max(start + 1, int(np.searchsorted(ends, done + at_once, side="right")))
            total = int(ends[stop - 1]) - done
            if total:
                which, at = np.empty(total, np.int64), np.empty(total, np.int64)
                kernels.expand(self.lo[start:stop], self.hi[start:stop], which, at)
                yield self.rows[start + which], self.others[at]
            start = stop


def near(
    rows: pa.RecordBatch,
    others: pa.RecordBatch,
    on: Sequence[tuple[str, str]],
    back_us: int,
    ahead_us: int,
) -> Near:
    """Finds the partners of rows.

    Args:
        rows: in a bag's layout, with `$time`; in any order.
        others: likewise.
        on: the columns of each side that must be equal; none of them is NULL in any row.
        back_us: how far before a row its partner may lie.
        ahead_us: how far after it.
    """
    key, other_key, keys = _numbers(rows, others, on)
    time, other_time = raw(rows.column(TIME)), raw(others.column(TIME))
    order, other_order = np.empty(len(rows), np.int64), np.empty(len(others), np.int64)
    _order(key, keys, time, order)
    _order(other_key, keys, other_time, other_order)
    lo, hi = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    sides = key[order], time[order], other_key[other_order], other_time[other_order]
    _sweep(*sides, back_us, ahead_us, lo, hi)
    return Near(order, other_order, lo, hi)


def _numbers(
    rows: pa.RecordBatch, others: pa.RecordBatch, on: Sequence[tuple[str, str]]
) -> tuple[Vector, Vector, int]:
    """A number for each row's key, equal where the keys are; and how many there are."""
    fields = [pa.field(mine, rows.schema.field(mine).type) for mine, _ in on]
    both = Layout(tuple(fields), ())
    total = len(rows) + len(others)
    columns = [
        from_int64(np.zeros(total, np.int64)),
        from_int64(np.concatenate([hashes(rows), hashes(others)])),
        *(pa.concat_arrays([rows.column(mine), others.column(other)]) for mine, other in on),
    ]
    ids, first = both.grouping(pa.RecordBatch.from_arrays(columns, schema=both.schema))
    return ids[: len(rows)], ids[len(rows) :], len(first)
