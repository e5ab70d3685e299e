"""The temporal filter: rows that are there from one time to another, and come and go as time passes.

    content = {row : starts(row) <= now < ends(row)}, now = the least frontier of the ports that count

A row that ends before it comes is never given; one that has yet to start waits. What comes and goes when
the frontier moves is found by its time: rows that are there lie in stretches of the time at which they end,
and rows that wait in stretches of the time at which they start. So a batch reads what it moves, and
what has ended is dropped by whole stretches. After a pause, a batch may move much more than came: that is
read, kept and given a chunk at a time.

The content depends on the rows and on now alone: not on when a row came, nor on how batches were cut.
So no row is late here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.time import SECOND_US
from penstock.core.vectors import Vector
from penstock.ops.codec import Name
from penstock.ops.operator import Context, Operator, Port, Prepared, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state import kernels
from penstock.state.bag import Bag, changes_of, negated, plain, repeated, weights_of
from penstock.state.layout import WINDOW, concat, hashes, windows
from penstock.state.trace import ALWAYS, Trace

__all__ = ["TemporalFilter"]

STRETCH_US: Final = SECOND_US
"""What ends within one is read again by each batch that moves now within it."""
CHUNK_ROWS: Final = 1 << 16
"""Rows that are moved at a time, where now has jumped."""
THERE: Final = "there"
WAITING: Final = "waiting"


@dataclass(frozen=True)
class TemporalFilter(Operator):
    """The operator.

    Args:
        input: the columns of port 0's rows. The other ports' rows aren't looked at, but their frontiers.
        key_: the columns that decide the shard.
        starts: the column of the first instant at which a row is there; None: it always was. A row in
            which it is NULL is never there.
        ends: likewise of the first instant at which it no longer is.
        clocks: the ports whose frontiers are the time.
        row_key: columns that identify rows, where something does.
    """

    kind: ClassVar[str] = "temporal filter"

    input: pa.Schema
    key_: Annotated[tuple[str, ...], Name("key")]
    starts: str | None
    ends: str | None
    clocks: tuple[int, ...] = (0,)
    row_key: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: of a clock, nothing is read but the frontier."""
        clock = Port(RowParcels(pa.schema([])), reads=frozenset())
        names = [THERE] if self.starts is None else [THERE, WAITING]
        return Traits(
            schema=self.input,
            ports=(Port(self._parcels, self.key_), *(clock for _ in range(max(self.clocks)))),
            keeps=dict.fromkeys(names, self._bag.layout),
            keys=self.row_key,
        )

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: when time passes."""
        return self._now(now_us) > self._now(before_us)

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """See `Operator`: rows that are never there are left out, and so are those of clocks."""
        if port:
            return super().prepare(port, rows.slice(0, 0))
        for name in (self.starts, self.ends):
            if name is not None and rows.column(name).null_count:
                rows = rows.filter(rows.column(name).is_valid())
        if self.starts is not None and self.ends is not None:
            there = pc.less(rows.column(self.starts), rows.column(self.ends))
            rows = rows.filter(there)
        return super().prepare(port, rows)

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        before, now = self._now(state.frontiers_us), self._now(context.frontiers_us)
        come = self._arrived(inputs[0], before, now)
        low_us = ALWAYS if now == NO_TIME else int(_stretch(now))
        traces, writer = dict(state.traces), context.writer(THERE)
        for rows in self._entering(state, come, before, now):
            low = None if self.ends is None else low_us
            traces[THERE] = traces[THERE].append(rows, writer, low_us=low)
        if WAITING in traces:
            writer = context.writer(WAITING)
            traces[WAITING] = traces[WAITING].append(come.waits, writer, low_us=low_us)
        kept = State(traces, context.frontiers_us)
        if not self.gives:
            return Step(kept)
        changes = self._changes(state, come, before, now)
        return Step(kept, next(changes), more=changes)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        now = self._now(state.frontiers_us)
        for rows in state.traces[THERE].scan():
            there = self._lasting(rows, now)
            rows_ = self._bag.rows(repeated(there, np.maximum(weights_of(there), 0)))
            yield pa.RecordBatch.from_arrays(rows_.columns, schema=self.input)

    # -- the work -----------------------------------------------------------------------------------

    def _now(self, frontiers_us: Sequence[int]) -> int:
        return min(frontiers_us[port] for port in self.clocks) if frontiers_us else NO_TIME

    def _arrived(self, parts: Sequence[Routed], before: int, now: int) -> _Arrived:
        """What came, by when it starts."""
        nothing = self._bag.layout.empty()
        if not parts:
            return _Arrived(nothing, nothing, nothing)
        rows = Routed.combine(parts)
        if self.starts is None:
            batch = self._bag.delta(rows.batch, rows.hashes, rows.weights, None)
            return _Arrived(self._bag.sum([self._placed(batch, now)]), nothing, nothing)
        stretches = _stretch(vectors.raw(rows.batch.column(self.starts)))
        batch = self._bag.delta(rows.batch, rows.hashes, rows.weights, stretches)
        starts = vectors.raw(batch.column(self.starts))
        there = self._bag.sum([self._placed(batch.filter(pa.array(starts <= before)), now)])
        enter = batch.filter(pa.array((starts > before) & (starts <= now)))
        return _Arrived(there, enter, batch.filter(pa.array(starts > now)))

    def _changes(self, state: State, come: _Arrived, before: int, now: int) -> Iterator[pa.Table]:
        """What goes, then what comes; at least one table."""
        if self.ends is not None and now > before:
            for rows in self._between(state.traces[THERE], self.ends, before, now):
                yield changes_of(negated(rows), self.input)
        for rows in self._entering(state, come, before, now):
            yield changes_of(rows, self.input)

    def _entering(
        self, state: State, come: _Arrived, before: int, now: int
    ) -> Iterator[pa.RecordBatch]:
        """Deltas of what is there, at least one: first with what came, whose time has been before."""
        rows, left = come.there, come.enter
        if WAITING in state.traces and now > before:
            assert self.starts is not None, "rows wait for it"
            held = self._bag.layout.empty()
            for chunk in self._between(state.traces[WAITING], self.starts, before, now):
                # What came may take a row back that waits, or add to it: they go together, by their place.
                # A chunk may end within a place, which then belongs to the next one.
                waited = concat([held, chunk])
                last = int(windows(waited)[-1]), int(hashes(waited)[-1])
                end, upto = _below(waited, last), _below(left, last)
                held = waited.slice(end)
                due = self._bag.sum([waited.slice(0, end), left.slice(0, upto)])
                left = left.slice(upto)
                yield self._bag.sum([rows, self._placed(due, now)])
                rows = self._bag.layout.empty()
            left = self._bag.sum([held, left])
        yield self._bag.sum([rows, self._placed(left, now)])

    def _between(
        self, trace: Trace, column: str, before: int, now: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a trace whose time is in (before, now], some at a time and never none."""
        low = None if before == NO_TIME else int(_stretch(before))
        for rows in trace.scan(low, now + 1, chunk_rows=CHUNK_ROWS):
            times = vectors.raw(rows.column(column))
            found = rows.filter(pa.array((times > before) & (times <= now)))
            if len(found):
                yield found

    def _lasting(self, rows: pa.RecordBatch, now: int) -> pa.RecordBatch:
        """Those that haven't ended."""
        if self.ends is None or now == NO_TIME:
            return rows
        return rows.filter(pa.array(vectors.raw(rows.column(self.ends)) > now))

    def _placed(self, rows: pa.RecordBatch, now: int) -> pa.RecordBatch:
        """Rows that haven't ended, where those lie that are there; yet to be sorted."""
        rows = self._lasting(rows, now)
        if self.ends is None:
            return _at(rows, np.zeros(len(rows), np.int64))
        return _at(rows, _stretch(vectors.raw(rows.column(self.ends))))

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.input), self.key_)

    @cached_property
    def _parcels(self) -> RowParcels:
        return RowParcels(self.input, weighted=True)


@dataclass(frozen=True)
class _Arrived:
    """Rows that came, sorted.

    Attributes:
        there: whose time to be there has begun before, where those lie that are there.
        enter: whose time begins with what now has become, where those lie that wait.
        waits: whose time is yet to come, likewise.
    """

    there: pa.RecordBatch
    enter: pa.RecordBatch
    waits: pa.RecordBatch


def _below(rows: pa.RecordBatch, place: tuple[int, int]) -> int:
    """How many of some sorted rows lie before a place."""
    return int(kernels.bisect(windows(rows), hashes(rows), 0, len(rows), *place, False))  # noqa: FBT003


def _stretch(times_us: Any) -> Any:
    return times_us // STRETCH_US * STRETCH_US


def _at(rows: pa.RecordBatch, stretches: Vector) -> pa.RecordBatch:
    """Rows in other stretches; they are yet to be sorted."""
    at = rows.schema.get_field_index(WINDOW)
    return rows.set_column(at, rows.schema.field(at), vectors.from_int64(stretches))
