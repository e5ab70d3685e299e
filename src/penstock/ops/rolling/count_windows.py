"""Windows of so many rows: the aggregates of each group's rows, every so many of them.

    r(1), r(2), … the rows of a group in the order of their time
    window k = r(k * every + 1) … r(k * every + size)

Rows are counted when the frontier has passed their time, so that none can come between them any more; rows
of one time are in the order of what is in them. So windows are a function of the rows in time, however they
came. A window is given, once, when it is full.

State. Rows that wait, by time; and by group, those that were counted and are in a window still to be filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.partials import checked
from penstock.ops.rolling.ranges import aggregate_ranges
from penstock.ops.rolling.waiting import InOrder, in_order
from penstock.ops.spec import WINDOW_END, WINDOW_START
from penstock.state.bag import repeated
from penstock.state.layout import concat, hashes
from penstock.state.trace import Trace

__all__ = ["CountWindows"]


@dataclass(frozen=True)
class CountWindows(InOrder):
    """The operator; see `InOrder` for what else it is made of.

    Args:
        size: rows of a window.
        every: rows from one window's first to the next one's; at most the size.
    """

    kind: ClassVar[str] = "count windows"
    remembers: ClassVar[str] = "counted"

    size: int
    every: int

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def _schema(self) -> pa.Schema:
        """The times of the first and the last row, the group, the aggregates."""
        times = [pa.field(name, TIMESTAMP, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        groups = [self.input.field(name) for name in self.per]
        made = [pa.field(a.name, a.type, not a.function.counts) for a in self.aggregates]
        return pa.schema([*times, *groups, *made])

    # -- the work -----------------------------------------------------------------------------------

    def _given(self, trace: Trace, passed: pa.RecordBatch) -> tuple[pa.Table, pa.RecordBatch]:
        """Windows that are full, in the order of their ends; and a delta of the rows that were counted."""
        bag = self._waiting.bag
        before = repeated(bag.find(trace, self._waiting.wanted(passed)))
        both = concat([before, repeated(passed)])
        numbers = self._waiting.numbers([both])
        order = in_order(numbers, both)
        rows = both.take(from_int64(order))
        count = np.bincount(numbers)
        base = np.cumsum(count) - count  # where each group's rows begin
        full = np.maximum((count - self.size) // self.every + 1, 0)
        which = np.repeat(np.arange(len(count)), full)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(full) - full, full)
        lo = base[which] + nth * self.every
        # Rows before the first window that isn't full are done with.
        keep = np.arange(len(rows)) >= np.repeat(base + full * self.every, count)
        is_new = order >= len(before)
        change = keep.astype(np.int64) - ~is_new
        moved = np.flatnonzero(change)
        some = rows.take(from_int64(moved))
        delta = bag.delta(some, hashes(some), change[moved], None)
        return self._windows(rows, lo), delta

    def _windows(self, rows: pa.RecordBatch, lo: Vector) -> pa.Table:
        hi = lo + self.size
        columns = {c.name: checked(rows, c) for c in self._columns.values()}
        made = aggregate_ranges(self.aggregates, columns, lo, hi)
        first, last = (rows.take(from_int64(at)) for at in (lo, hi - 1))
        groups = [first.column(name) for name in self.per]
        times = last.column(TIME)
        out = pa.RecordBatch.from_arrays(
            [first.column(TIME), times, *groups, *made, times], schema=self._changed
        )
        order = np.argsort(raw(times), kind="stable")
        return pa.Table.from_batches([out.take(from_int64(order))])
