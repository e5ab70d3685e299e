"""Row patterns over a stream whose late rows correct what was matched.

    view(version) = the matches that are certain among each key's rows which are in time, up to the frontier

It is `penstock.ops.keyed.match`, and what was given may be taken back: a row is late only if it lies more than
`correct_us` before its own watermark, and until then it takes its place among the others. So the rows of a key
are kept until the frontier has passed them by that long, and the matches among them are made anew when one
comes. Those that lie further back are final, and forgotten.

State. As that of `match`, where what is kept begins with the next final attempt; and what was given that
isn't final, by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.keyed.match import Match, Partitions
from penstock.ops.operator import Context, Follow, Port, Prepared, Step, Traits
from penstock.ops.rolling.waiting import STRETCH_US, low_of, repeated
from penstock.ops.routed import Routed, RowParcels, routed
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.patterns import Matches
from penstock.state.bag import Bag, changes_of, negated, plain
from penstock.state.layout import concat, hashes

__all__ = ["CorrectedMatch"]


@dataclass(frozen=True)
class CorrectedMatch(Match):
    """The operator; see `Match` for what else it is made of.

    Args:
        correct_us: how far behind its watermark a row still counts.
        row_key: columns of the output that identify its rows, where something does.
    """

    kind: ClassVar[str] = "corrected match"

    correct_us: int = 0
    row_key: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: a table, whose rows have the time at which they were certain."""
        keeps = {
            "waiting": self._bag.layout,
            "kept": self._bag.layout,
            "places": self._places.layout,
            "timers": self._timers.layout,
            "given": self._given_bag.layout,
        }
        return Traits(
            schema=self.output,
            ports=(Port(self._parcels, self.per),),
            keeps=keeps,
            keys=self.row_key,
            placed_by=self.per if set(self.per) <= set(self.output.names) else (),
            follow=Follow.ANSWER,
            timed=True,
            frontiers_kept=1,
        )

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: what may still change happens later."""
        return self._final(inputs_us[0])

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`: a row is late if its own watermark has passed it by more than is corrected."""
        late = None
        if WATERMARK in rows.column_names and len(rows):
            times, marks = (
                raw(vectors.contiguous(rows.column(name))) for name in (TIME, WATERMARK)
            )
            is_late = times + self.correct_us < marks
            if is_late.any():
                late, rows = np.flatnonzero(is_late), rows.filter(pa.array(~is_late))
        return Prepared(routed(rows, self.per, self._parcels.schema), late)

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "frontiers don't fall"
        passed, held = self._waiting.passed(state.traces["waiting"], parts, before_us, now_us)
        keys = self._touched(state, passed, now_us)
        deltas, moved, refused = {"waiting": held}, self._given_bag.layout.empty(), []
        if len(keys):
            before = repeated(self._bag.find(state.traces["kept"], keys))
            some = self._partitions(keys, concat([before, repeated(passed)]))
            old = self._places.find(state.traces["places"], keys)
            final, open_ = self._both(keys, some, old, now_us)
            was = self._given_bag.find(state.traces["given"], keys)
            ours, theirs = (self._delta_of(keys, some, one) for one in (final, open_))
            moved = self._given_bag.sum([negated(was), ours, theirs])
            refused = self._refused(some, final)
            due = self._due_with_rows(some, final, open_, now_us)
            deltas |= self._deltas(keys, some, some.order >= len(before), old, final, due)
            deltas["given"] = self._given_bag.sum([negated(was), theirs])
        low_us = {"waiting": low_of(now_us, 0, STRETCH_US)}
        made = context.appended(state, deltas, low_us=low_us, frontiers_us=context.frontiers_us)
        if now_us > NO_TIME:
            made = made.above({"timers": now_us})
        changes = changes_of(moved, self._given_schema) if self.gives else None
        return Step(made, changes, refused=refused)

    # -- the work -----------------------------------------------------------------------------------

    def _both(
        self, keys: pa.RecordBatch, some: Partitions, old: pa.RecordBatch, now_us: int
    ) -> tuple[Matches, Matches]:
        """The matches that are final, and those behind them that are certain unless late rows come."""
        skip, numbers, fresh = self._resumed(keys, old)
        until_us = self._final(now_us)
        early = raw(some.rows.column(TIME)) < until_us
        counts = np.add.reduceat(np.append(early, False), some.starts[:-1]) * (
            np.diff(some.starts) > 0
        )
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        first = Partitions(some.rows.filter(pa.array(early)), some.order[early], starts)
        final = self._matcher.match(
            self._read(first),
            starts,
            until_us=until_us,
            resume=starts[:-1] + skip,
            numbers=numbers,
            fresh=fresh,
        )
        places = np.append(np.flatnonzero(early), len(early))
        behind = some.starts[:-1] - starts[:-1]
        final = replace(
            final,
            first=places[final.first],
            last=places[final.last],
            open_from=final.open_from + behind,
            next_from=final.next_from + behind,
        )
        open_ = self._matcher.match(
            self._read(some),
            some.starts,
            until_us=now_us,
            resume=final.next_from,
            numbers=final.numbers,
            fresh=fresh,
        )
        return final, open_

    def _due_with_rows(
        self, some: Partitions, final: Matches, open_: Matches, now_us: int
    ) -> Vector:
        """When a key is to be looked at again, though no row comes: something ends, or becomes final."""
        due = self._due(some, open_.next_from)
        ends = np.where(due == NO_TIME, np.iinfo(np.int64).max, due)
        times = raw(some.rows.column(TIME)) + self.correct_us
        waits = np.flatnonzero(final.next_from < some.starts[1:])
        later = np.where(times >= now_us, times, np.iinfo(np.int64).max)
        for key in waits:
            lo, hi = final.next_from[key], some.starts[key + 1]
            ends[key] = min(ends[key], later[lo:hi].min())
        if self.pattern.within_us is not None:
            last = times[final.next_from[waits]] + self.pattern.within_us
            ends[waits] = np.minimum(ends[waits], np.where(last >= now_us, last, ends[waits]))
        return np.where(ends == np.iinfo(np.int64).max, NO_TIME, ends)

    def _delta_of(self, keys: pa.RecordBatch, some: Partitions, found: Matches) -> pa.RecordBatch:
        """Matches as a delta of what was given."""
        if self.timed_out:
            assert found.timed_out is not None, "the matcher was asked for it"
            found = found.timed_out
        times = from_int64(found.decided_us).view(TIMESTAMP)
        made = self._given(some, found).append_column(pa.field(TIME, TIMESTAMP), times)
        key = hashes(keys.take(from_int64(found.partition)))
        return self._given_bag.delta(made, key, None, None)

    def _final(self, frontier_us: int) -> int:
        """Up to where nothing changes any more."""
        return NO_TIME if frontier_us < NO_TIME + self.correct_us else frontier_us - self.correct_us

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _parcels(self) -> RowParcels:
        return RowParcels(self.input, timed=True)

    @cached_property
    def _given_schema(self) -> pa.Schema:
        return pa.schema([*plain(self.output), pa.field(TIME, TIMESTAMP)])

    @cached_property
    def _given_bag(self) -> Bag:
        return Bag(self._given_schema, self.per)
