"""The windowed aggregate: an incremental group-by over windows in event time.

    view(version) = group by (window, keys) of all rows up to the version that were not late
    view(version) = view(version - 1) ++ changes(version)

Rows become partials on the map side (`partials`), which are appended to a trace on the shard that
owns their keys (`step`). Where rows are only ever added, an append needs no look at the state: the view
is combined when it is read. Only `changes` looks up what it replaces, and only `closed` reads windows, each
once, when the plan's watermark passes their end.

Contract
    1. A step is a function of state, partials and context: retried, it gives the same rows.
    2. All rows of a key are on one shard; which one is the caller's choice.
    3. `closed` gives each closed window once, provided rows were judged against the same watermarks; with
       `correct_us`, what late rows change of it later is taken back and given again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK, WEIGHT, expiring, followed, summed
from penstock.core.vectors import Vector
from penstock.ops.codec import UNSAID
from penstock.ops.lateness import first_open
from penstock.ops.operator import Context, Prepared, Step, Traits
from penstock.ops.partials import GROUPS, Hash, Mapper, Partials, standard_hash
from penstock.ops.reading.remembered import remembered
from penstock.ops.spec import WINDOW_END, WINDOW_START, Windowed
from penstock.ops.state import State, described
from penstock.ops.views import Assembler, timed
from penstock.ops.windows import LATE, NO_TIME
from penstock.state.files import StateFiles
from penstock.state.layout import Layout
from penstock.state.trace import ALWAYS, Trace


@dataclass(frozen=True)
class WindowedAggregate(Windowed):
    """The operator.

    Args:
        spec: what is computed.
        hash: of key columns; a test may give a weak one.
    """

    kind: ClassVar[str] = "aggregate"

    hash: Annotated[Hash, UNSAID] = field(default=standard_hash, repr=False)

    def __post_init__(self) -> None:
        """Refuses at once what can't be computed of rows that may be taken back."""
        _ = self.spec.parts

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: without keys and windows, all rows are one group."""
        whole = self._traits(self._mapper.parcels, self._layouts, reads=self.spec.reads)
        return replace(whole, single=not self.keys)

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: windows that are open, or may be corrected, end later."""
        [watermark] = inputs_us
        if not self.traits.timed or watermark < NO_TIME + self.spec.correct_us:
            return NO_TIME
        return watermark - self.spec.correct_us

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: whether a window goes, or ends in (before, now] and somebody waits for it."""
        [before], [now], window = before_us, now_us, self.spec.window
        if now == before:
            return False
        if self._low(now) > self._low(before):
            return True
        if not self.spec.closed:
            return False
        if before < NO_TIME + window.size_us:
            return True
        return window.first(now) > window.first(before)

    def open(self, files: StateFiles, description: Mapping[str, Any]) -> State:
        """See `Operator`: of what is remembered, states of former releases have nothing."""
        known = described(description)
        there = {
            name: layout
            for name, layout in self._layouts.items()
            if name in known["traces"] or name not in self._remembered
        }
        opened = State.open(there, files, known)
        low_us = opened.traces[GROUPS].low_us
        missing = {
            name: Trace(layout, files, low_us=low_us)
            for name, layout in self._remembered.items()
            if name not in there
        }
        return replace(opened, traces={**opened.traces, **missing})

    def check(self, state: State) -> None:
        """See `Operator`: nothing goes that the watermark hasn't passed."""
        super().check(state)
        [watermark_us] = state.frontiers_us
        for trace in state.traces.values():
            assert trace.low_us <= max(watermark_us, ALWAYS)

    def partials(
        self, rows: pa.Table | pa.RecordBatch, first_open: Vector | None = None
    ) -> Partials:
        """Aggregates rows per window and key, on the map side.

        Args:
            rows: with the columns of the spec; `$weight` if the spec says that it retracts.
            first_open: of the rows, see `penstock.ops.lateness`; None where none is late. Rows that are late
                for all windows are left out.

        Raises:
            SchemaError: a column does not fit the spec.
        """
        return self._mapper.partials(rows, first_open)

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`: a row is late for the windows that its watermark had passed."""
        window = self.spec.window
        rows = followed(rows) if window.kind == "none" else summed(rows)
        if WATERMARK not in rows.column_names or window.kind == "none":
            return Prepared(self.partials(rows))
        times = vectors.raw(vectors.contiguous(rows.column(TIME)))
        marks = vectors.raw(vectors.contiguous(rows.column(WATERMARK)))
        opened = first_open(times, marks - self.spec.correct_us, window)
        if opened is None:
            return Prepared(self.partials(rows))
        partly = np.flatnonzero((opened != LATE) & (opened > window.firsts(times)))
        return Prepared(self.partials(rows, opened), np.flatnonzero(opened == LATE), partly)

    def step(self, state: State, inputs: Sequence[Sequence[Partials]], context: Context) -> Step:
        """See `Operator`."""
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "watermarks don't fall"
        delta = self._mapper.parcels.combine(parts)
        kept = {n: state.traces[n].above(delta.tables[n]) for n in self._mapper.layouts}
        delta = Partials(kept)
        changes, known = None, dict[str, pa.RecordBatch]()
        corrects = self.spec.closed and self.spec.correct_us > 0
        if self.spec.changes or corrects:
            changes, known = self._assembler.changes(state.traces, delta)
        made = context.appended(state, {**delta.tables, **known}, frontiers_us=context.frontiers_us)
        forgotten = {  # nobody asks what changes: it would say what was
            name: replace(made.traces[name], runs=(), merges=())
            for name in self._remembered
            if name not in known
        }
        made = replace(made, traces={**made.traces, **forgotten})
        closed = None
        if self.spec.closed:
            closed = self._closed(made.traces, before_us, now_us)
            if corrects:
                assert changes is not None
                closed = self._with_corrections(changes, before_us, closed)
        low = self._low(now_us)
        if self.spec.changes and self.spec.keep_us is not None:
            assert changes is not None
            changes = self._with_expiry(changes, state.traces, low)
        if low > ALWAYS:
            made = made.above(dict.fromkeys(made.traces, low))
        return Step(made, self._timed(changes) if self.spec.changes else None, self._timed(closed))

    def _timed(self, rows: pa.Table | None) -> pa.Table | None:
        """Rows of windows with `$time`."""
        if rows is None or not self.traits.timed:
            return rows
        return timed(rows)

    def _with_corrections(self, changes: pa.Table, before_us: int, closed: pa.Table) -> pa.Table:
        """Closed rows, behind what changed in windows that had been closed before."""
        ends = vectors.raw(vectors.contiguous(changes.column(WINDOW_END)))
        again = changes.filter(pa.array(ends <= before_us))
        ones = vectors.from_int64(np.ones(len(closed), np.int64))
        return pa.concat_tables([again, closed.append_column(WEIGHT, ones)])

    def _with_expiry(self, changes: pa.Table, before: Mapping[str, Trace], low: int) -> pa.Table:
        """Changes, and the rows of windows below `low`, which retention takes now."""
        nothing = changes.slice(0, 0)
        if low <= before[GROUPS].low_us:
            return expiring(changes, nothing, nothing)
        gone = pa.Table.from_batches(
            list(self._assembler.scan(before, None, low)), self.spec.schema
        )
        gone = gone.append_column(WEIGHT, vectors.from_int64(np.full(len(gone), -1, np.int64)))
        stays = vectors.raw(vectors.contiguous(changes.column(WINDOW_START))) >= low
        return expiring(changes.filter(pa.array(stays)), gone, changes.filter(pa.array(~stays)))

    def read(self, state: State, lo_us: int | None = None, hi_us: int | None = None) -> pa.Table:
        """The view's rows, of windows that start in [lo_us, hi_us), sorted by window.

        Raises:
            CorruptError: a file of the state is not what was written.
        """
        return pa.Table.from_batches(list(self.scan(state, lo_us, hi_us)), self.spec.schema)

    def scan(
        self, state: State, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same, some rows at a time."""
        return self._assembler.scan(state.traces, lo_us, hi_us)

    def _closed(self, traces: Mapping[str, Trace], before_us: int, watermark_us: int) -> pa.Table:
        window = self.spec.window
        batches: list[pa.RecordBatch] = []
        if watermark_us > max(before_us, NO_TIME + window.size_us):
            lo = None if before_us < NO_TIME + window.size_us else window.first(before_us)
            hi = window.first(watermark_us)
            if lo is None or lo < hi:
                batches = list(self._assembler.scan(traces, lo, hi))
        return pa.Table.from_batches(batches, self.spec.schema)

    def _low(self, watermark_us: int) -> int:
        """The first window, or pane, that retention still keeps."""
        keep, window = self.spec.keep_us, self.spec.window
        if keep is None or watermark_us < NO_TIME + keep + window.size_us:
            return ALWAYS
        return window.first(watermark_us - keep)

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _mapper(self) -> Mapper:
        return Mapper(self.spec, self.hash)

    @cached_property
    def _assembler(self) -> Assembler:
        return Assembler(self.spec)

    @cached_property
    def _remembered(self) -> Mapping[str, Layout]:
        return remembered(self.spec, exact=self._mapper.layouts[GROUPS].exact)

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        return {**self._mapper.layouts, **self._remembered}
