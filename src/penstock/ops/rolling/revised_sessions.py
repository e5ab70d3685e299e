"""Sessions of rows that may be taken back, or that come late and correct.

    session of a key = a maximal set of its rows in which each lies less than `gap` after the one before
    view(version)    = the sessions of all rows up to the version that were in time, with aggregates

What a session was can't be known from its aggregates once a row goes: it may fall apart. So rows are kept, by
key, as long as something may come that changes their session; the sessions of a key that is touched are
recomputed, from all its rows that are kept, and compared with what they were. That also takes
aggregates that need all values. `penstock.ops.sessions` is for rows that only ever come: it keeps
aggregates, and a batch costs it no more than its own rows.

A row is late if it lies more than `correct_us` before its own watermark. A session is closed when the
frontier has passed its end; until it lies `correct_us` behind, it may still change, and what was given as
closed is then taken back. After that it is final, and its rows are let go.

State. Rows of sessions that aren't final, by key; when they happened, by time, to know whose sessions a
frontier has passed; and final sessions, for the view, as long as `keep` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK, WEIGHT, expiring, summed
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.operator import Context, Prepared, Step, Traits
from penstock.ops.partials import checked, checked_times
from penstock.ops.rolling.ranges import aggregate_ranges
from penstock.ops.rolling.waiting import STRETCH_US, Waiting, in_order, low_of
from penstock.ops.routed import HASH, Routed, RowParcels, routed
from penstock.ops.spec import WINDOW_START, Windowed
from penstock.ops.state import State
from penstock.ops.views import timed
from penstock.ops.windows import NO_TIME
from penstock.state.bag import Bag, negated, plain, weights_of
from penstock.state.layout import WINDOW, concat, hashes
from penstock.state.trace import Trace

__all__ = ["RevisedSessions"]


@dataclass(frozen=True)
class RevisedSessions(Windowed):
    """The operator.

    Args:
        spec: what is computed; its window is of the kind "session".
    """

    kind: ClassVar[str] = "revised sessions"

    def __post_init__(self) -> None:
        assert self.spec.window.kind == "session"

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: rows are kept with all their columns, as they may be taken back."""
        layouts = {
            "rows": self._rows.layout,
            "agenda": self._agenda.layout,
            "final": self._final.layout,
        }
        return self._traits(self._parcels, layouts, reads=None)

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: sessions that may still change end later."""
        return _less(inputs_us[0], self.spec.correct_us)

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: a session may end, or go, anywhere."""
        waits = self.spec.closed or self.spec.keep_us is not None
        return waits and now_us[0] > before_us[0]

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`: a row is late if its own watermark has passed it by more than is corrected.

        Raises:
            SchemaError: a column does not fit the spec.
        """
        rows = summed(rows)
        times, late = checked_times(rows, TIME), None
        if WATERMARK in rows.column_names and len(rows):
            marks = raw(vectors.contiguous(rows.column(WATERMARK)))
            is_late = times < marks - self.spec.correct_us
            if is_late.any():
                late, rows = np.flatnonzero(is_late), rows.filter(pa.array(~is_late))
        for column in self.spec.inputs.values():
            if column.name != TIME:
                at = rows.schema.get_field_index(column.name)
                field = pa.field(column.name, column.type)
                rows = rows.set_column(at, field, checked(rows, column))
        return Prepared(routed(rows, self.keys, self._parcels.schema), late)

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`.

        Raises:
            LimitError: the sum of an integer column does not fit a BIGINT.
        """
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "frontiers don't fall"
        gap_us, correct_us = self.spec.window.size_us, self.spec.correct_us
        come, entries = self._come(parts)
        keys = self._touched(state.traces["agenda"], come, before_us, now_us)
        old = self._rows.find(state.traces["rows"], keys)
        new = self._rows.sum([old, come])
        was, now = self._sessions(old), self._sessions(new)
        is_final = now.ends <= _less(now_us, correct_us)
        gone = new.filter(pa.array(is_final[now.numbers]))
        ended = now.batch.filter(pa.array(is_final))
        ended_lasts = now.ends[is_final] - gap_us
        deltas = {
            "rows": self._rows.sum([come, negated(gone)]),
            "agenda": entries,
            "final": self._final.delta(ended, _hashes_of(ended), None, ended_lasts),
        }
        low_us = {
            "agenda": low_of(now_us, gap_us + correct_us, STRETCH_US),
            "final": self._low(now_us),
        }
        made = context.appended(state, deltas, low_us=low_us, frontiers_us=context.frontiers_us)
        changes = None
        if self.spec.changes:
            changes = self._difference(was.batch, now.batch)
            if self.spec.keep_us is not None:
                low = low_us["final"]
                stays = ~(is_final & (now.ends - gap_us < (NO_TIME if low is None else low)))
                changes = self._with_expiry(changes, was, now, stays, state, low)
        closed = None
        if self.spec.closed:
            closed = self._difference(was.closed(before_us), now.closed(now_us))
            closed = closed if self.spec.correct_us else closed.drop_columns([WEIGHT])
        return Step(made, changes, closed)

    def scan(
        self, state: State, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The view's rows, of sessions that start in [lo_us, hi_us).

        Raises:
            CorruptError: a file of the state is not what was written.
        """
        open_ = self._sessions(self._rows.sum(list(state.traces["rows"].scan()))).batch
        for batch in (open_, *state.traces["final"].scan(lo_us)):  # none starts after its last row
            starts = raw(batch.column(WINDOW_START))
            keep = np.ones(len(batch), np.bool_)
            if lo_us is not None:
                keep &= starts >= lo_us
            if hi_us is not None:
                keep &= starts < hi_us
            rows = batch.filter(pa.array(keep)).select(self.spec.schema.names)
            yield pa.RecordBatch.from_arrays(rows.columns, schema=self.spec.schema)

    # -- the work -----------------------------------------------------------------------------------

    def _come(self, parts: Sequence[Routed]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """What came, and when, as deltas of rows and agenda."""
        if not parts:
            return self._rows.layout.empty(), self._agenda.layout.empty()
        arrived = Routed.combine(parts)
        batch, hashes_, weights = arrived.batch, arrived.hashes, arrived.weights
        stretches = arrived.times_us // STRETCH_US * STRETCH_US
        return (
            self._rows.delta(batch, hashes_, weights, None),
            self._agenda.delta(batch, hashes_, weights, stretches),
        )

    def _touched(
        self, agenda: Trace, come: pa.RecordBatch, before_us: int, now_us: int
    ) -> pa.RecordBatch:
        """The keys that rows came of, and those that have rows whose end, or whose last end, was passed."""
        names = [WINDOW, HASH, *self.keys]
        parts = [come.select(names)]
        for back_us in sorted({0, self.spec.correct_us}):
            gap_us = self.spec.window.size_us + back_us
            first_us, last_us = _less(before_us, gap_us), _less(now_us, gap_us)
            if last_us > first_us:
                lo = None if first_us == NO_TIME else first_us // STRETCH_US * STRETCH_US
                for batch in agenda.scan(lo, last_us + 1):
                    times = raw(batch.column(TIME))
                    passed = batch.filter(pa.array((times > first_us) & (times <= last_us)))
                    parts.append(passed.select(names))
        found = concat(parts)
        return self._rows.wanted(found, hashes(found), None)

    def _sessions(self, rows: pa.RecordBatch) -> _Sessions:
        """The sessions of some keys' rows, in the layout of the bag."""
        numbers = self._waiting.numbers([rows])
        order = in_order(numbers, rows)
        times = raw(rows.column(TIME))[order]
        key = numbers[order]
        fresh = np.ones(len(rows), np.bool_)
        fresh[1:] = (key[1:] != key[:-1]) | (np.diff(times) >= self.spec.window.size_us)
        session = np.cumsum(fresh) - 1
        of = np.empty(len(rows), np.int64)
        of[order] = session
        weights = np.maximum(weights_of(rows)[order], 0)
        first = np.flatnonzero(fresh)
        last = np.append(first[1:], len(rows)).astype(np.int64) - 1
        spread = np.repeat(order, weights)
        hi = np.cumsum(weights)[last] if len(rows) else last
        lo = hi - np.bincount(session, weights=weights, minlength=len(first)).astype(np.int64)
        some = rows.take(from_int64(spread))
        columns = {column.name: some.column(column.name) for column in self.spec.inputs.values()}
        made = aggregate_ranges(self.spec.aggregates, columns, lo, hi)
        heads = rows.take(from_int64(order[first]))
        ends = times[last] + self.spec.window.size_us if len(rows) else times
        bounds = [from_int64(at).view(TIMESTAMP) for at in (times[first], ends)]
        keys = [heads.column(name) for name in self.keys]
        batch = pa.RecordBatch.from_arrays(
            [heads.column(HASH), *bounds, *keys, *made], schema=self._shown
        )
        return _Sessions(batch, ends, of)

    def _difference(self, was: pa.RecordBatch, now: pa.RecordBatch) -> pa.Table:
        """Sessions that are no more with weight -1, then those that are new with +1."""
        both = concat([was, now])
        weights = np.repeat(np.array([-1, 1]), [len(was), len(now)])
        delta = self._final.delta(both, _hashes_of(both), weights, None)
        order = np.argsort(weights_of(delta) > 0, kind="stable")
        delta = delta.take(from_int64(order))
        rows = delta.select(self.spec.schema.names).append_column(
            WEIGHT, from_int64(weights_of(delta))
        )
        return timed(pa.Table.from_batches([rows]))

    def _with_expiry(
        self,
        changes: pa.Table,
        was: _Sessions,
        now: _Sessions,
        stays: Vector,
        state: State,
        low_us: int | None,
    ) -> pa.Table:
        """Changes, and the sessions that retention takes now: which ended below `low_us`."""
        nothing = changes.slice(0, 0)
        before = list(state.traces["final"].scan(None, low_us)) if low_us is not None else []
        none = now.batch.slice(0, 0)
        gone = [
            self._difference(concat([batch.select(self._shown.names) for batch in before]), none)
        ] if before else []  # fmt: skip
        if stays.all():
            return expiring(changes, pa.concat_tables([nothing, *gone]), nothing)
        kept = self._difference(was.batch, now.batch.filter(pa.array(stays)))
        return expiring(nothing, pa.concat_tables([kept, *gone]), changes)

    def _low(self, now_us: int) -> int | None:
        """The least last row of the final sessions that retention still keeps."""
        keep_us = self.spec.keep_us
        if keep_us is None:
            return None
        low_us = _less(now_us, keep_us + self.spec.window.size_us)
        return None if low_us == NO_TIME else low_us + 1

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _input(self) -> pa.Schema:
        columns = {c.name: c.type for c in self.spec.inputs.values() if c.name != TIME}
        return pa.schema([pa.field(name, type_) for name, type_ in columns.items()])

    @cached_property
    def _waiting(self) -> Waiting:
        return Waiting(self._input, self.keys)

    @property
    def _rows(self) -> Bag:
        return self._waiting.bag

    @cached_property
    def _agenda(self) -> Bag:
        fields = [pa.field(key.name, key.type) for key in self.spec.keys]
        return Bag(pa.schema([pa.field(TIME, TIMESTAMP), *fields]), self.keys)

    @cached_property
    def _final(self) -> Bag:
        return Bag(plain(self.spec.schema), self.keys)

    @cached_property
    def _shown(self) -> pa.Schema:
        """Of sessions with the hash of their key."""
        return pa.schema([pa.field(HASH, pa.int64()), *self._final.schema])

    @cached_property
    def _parcels(self) -> RowParcels:
        return RowParcels(self._input, timed=True, weighted=True)


@dataclass(frozen=True)
class _Sessions:
    """Sessions of some rows.

    Attributes:
        batch: `$hash`, then the view's columns.
        ends: int64[sessions], us.
        numbers: int64[rows], the session of each row.
    """

    batch: pa.RecordBatch
    ends: Vector
    numbers: Vector

    def closed(self, frontier_us: int) -> pa.RecordBatch:
        """Those whose end a frontier has passed."""
        return self.batch.filter(pa.array(self.ends <= frontier_us))


def _hashes_of(sessions: pa.RecordBatch) -> Vector:
    """Of the keys: int64[n]."""
    return raw(sessions.column(HASH))


def _less(frontier_us: int, us: int) -> int:
    """A frontier moved back; what promises nothing still does."""
    return NO_TIME if frontier_us < NO_TIME + us else frontier_us - us
