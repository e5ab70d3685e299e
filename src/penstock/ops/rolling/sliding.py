"""The sliding window: each row next to the aggregates of its group's rows shortly before it.

    out = { r ++ aggregates of { s : s.key = r.key, r.time - size < s.time <= r.time } : r in the stream }

as SQL's `RANGE BETWEEN size PRECEDING AND CURRENT ROW`, with the bound itself left out: rows of the same
time see each other, and any two less than `size` apart are in one window. A row is given when the frontier
has passed its time, as till then a row before it may come. So the output is a function of the rows in
time, however they came.

State. Rows that wait, by time. And what the aggregates need of rows that were given, found by group, in
stretches of time as wide as the window, for as long as a row that comes may look back at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.kernels import njit, types
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.partials import checked
from penstock.ops.rolling.ranges import aggregate_ranges
from penstock.ops.rolling.waiting import InOrder, low_of
from penstock.state.bag import COUNT, Bag, repeated, weights_of
from penstock.state.layout import HASH, concat, hashes
from penstock.state.trace import Trace

__all__ = ["Sliding"]

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)


@dataclass(frozen=True)
class Sliding(InOrder):
    """The operator; see `InOrder` for what else it is made of.

    Args:
        given: the columns of the rows that come out.
        size_us: how far a window reaches back.
    """

    kind: ClassVar[str] = "sliding"
    remembers: ClassVar[str] = "history"

    given: tuple[str, ...]
    size_us: int

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def _schema(self) -> pa.Schema:
        """The row's columns, then the aggregates."""
        made = [pa.field(a.name, a.type, not a.function.counts) for a in self.aggregates]
        return pa.schema([*(self.input.field(name) for name in self.given), *made])

    # -- the work -----------------------------------------------------------------------------------

    def _given(self, trace: Trace, passed: pa.RecordBatch) -> tuple[pa.Table, pa.RecordBatch]:
        """Rows that come out, and what those that come later need of them."""
        stretches = self._stretch(_times(passed))
        delta = self._own.delta(passed, hashes(passed), weights_of(passed), stretches)
        return self._aggregated(trace, repeated(passed)), delta

    def _low(self, frontier_us: int) -> int:
        return low_of(frontier_us, self.size_us - 1, self.size_us)

    def _aggregated(self, trace: Trace, rows: pa.RecordBatch) -> pa.Table:
        times = _times(rows)
        bounds = times - self.size_us + 1, times
        names = [HASH, COUNT, *self._bare.names]
        found = self._own.near(trace, rows, hashes(rows), self.size_us, bounds, names)
        before = repeated(concat(found)) if found else self._own.layout.empty().select(names)
        sides = [before.select(self._bare.names), rows.select(self._bare.names)]
        numbers = self._waiting.numbers([before, rows])
        both = concat(
            [pa.RecordBatch.from_arrays(side.columns, schema=self._bare) for side in sides]
        )
        at = _times(both)
        order = np.lexsort((at, numbers))
        asks = np.flatnonzero(order >= len(before))
        lo, hi = np.empty(len(both), np.int64), np.empty(len(both), np.int64)
        _reach(numbers[order], at[order], self.size_us, lo, hi)
        columns = {c.name: checked(both, c).take(from_int64(order)) for c in self._columns.values()}
        made = aggregate_ranges(self.aggregates, columns, lo[asks], hi[asks])
        here = order[asks] - len(before)
        sorted_ = np.argsort(times[here], kind="stable")
        out = rows.take(from_int64(here[sorted_]))
        again = from_int64(sorted_)
        columns_out = [*(out.column(name) for name in self.given), *(c.take(again) for c in made)]
        return pa.Table.from_arrays([*columns_out, out.column(TIME)], schema=self._changed)

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bare(self) -> pa.Schema:
        """What is kept of a row that was given: its time, its group, and what aggregates read."""
        names = dict.fromkeys([*self.per, *(n for n in self._columns if n != TIME)])
        fields = [pa.field(name, self.input.field(name).type) for name in names]
        return pa.schema([pa.field(TIME, TIMESTAMP), *fields])

    @cached_property
    def _own(self) -> Bag:
        return Bag(self._bare, self.per)

    def _stretch(self, times_us: Vector) -> Vector:
        return np.asarray(times_us // self.size_us * self.size_us)


def _times(rows: pa.RecordBatch) -> Vector:
    return raw(rows.column(TIME))


@njit(types.void(_I32, _I64, types.int64, types.int64[::1], types.int64[::1]),
      cache=True, nogil=True)  # fmt: skip
def _reach(groups: Any, times: Any, size: Any, lo: Any, hi: Any) -> None:
    """Of rows in the order of group and time, the range of rows in each one's window."""
    first = 0
    end = 0
    for i in range(len(times)):
        while groups[first] != groups[i] or times[first] <= times[i] - size:
            first += 1
        end = max(end, i + 1)
        while end < len(times) and groups[end] == groups[i] and times[end] == times[i]:
            end += 1
        lo[i] = first
        hi[i] = end
