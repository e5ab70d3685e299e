"""Row patterns over a stream whose late rows correct what was matched.

    view(version) = the matches that are certain among each key's rows which are in time, up to the frontier

It is `penstock.ops.keyed.match`, and what was given may be taken back: a row is late only if it lies more
than `correct_us` before its own watermark, and until then it takes its place among the others. So the rows of
a key are kept until the frontier has passed them by that long, and the matches among them are made anew when
one comes. Those that lie further back are final, and forgotten.

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
from penstock.ops.keyed.match import NEVER, Match, Partitions
from penstock.ops.operator import Context, Follow, Port, Prepared, Step, Traits
from penstock.ops.routed import Routed, RowParcels, routed
from penstock.ops.rows import Refused
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.patterns import Matches, Resume
from penstock.state.bag import Bag, changes_of, negated, plain, repeated
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
        deltas, moved = {"waiting": held}, self._given_bag.layout.empty()
        refused: list[Refused] = []
        if len(keys):
            before = repeated(self._bag.find(state.traces["kept"], keys))
            some = self._partitions(keys, concat([before, repeated(passed)]))
            old = self._places.find(state.traces["places"], keys)
            was = self._given_bag.find(state.traces["given"], keys)
            early = self._early(some, now_us)
            final, open_ = self._both(keys, some, early, old, now_us)
            ours, theirs = self._delta_of(keys, early, final), self._delta_of(keys, some, open_)
            moved = self._given_bag.sum([negated(was), ours, theirs])
            refused = self._refused(early, final)
            final = self._placed(some, early, final)
            due = self._due(some, early, final, open_)
            deltas |= self._deltas(keys, some, some.order >= len(before), old, final, due)
            deltas["given"] = self._given_bag.sum([negated(was), theirs])
        changes = changes_of(moved, self._given_schema) if self.gives else None
        return Step(self._next(state, deltas, context), changes, refused=refused)

    # -- the work -----------------------------------------------------------------------------------

    def _early(self, some: Partitions, now_us: int) -> Partitions:
        """The rows before which none can come any more: the first ones of each key."""
        is_early = raw(some.rows.column(TIME)) < self._final(now_us)
        sums = np.concatenate([[0], np.cumsum(is_early)]).astype(np.int64)
        rows = some.rows.filter(pa.array(is_early))
        return Partitions(rows, some.order[is_early], sums[some.starts])

    def _both(
        self,
        keys: pa.RecordBatch,
        some: Partitions,
        early: Partitions,
        old: pa.RecordBatch,
        now_us: int,
    ) -> tuple[Matches, Matches]:
        """The matches that are final, and those behind them that are certain unless late rows come.

        Rows of the former are numbered as the early ones.
        """
        final = self._matcher.match(
            self._read(early),
            early.starts,
            complete=False,
            resume=self._resumed(keys, early, old),
            frontier_us=self._final(now_us),
        )
        left = final.next_from
        covered = np.zeros(len(some.rows), np.bool_)
        covered[self._places_of(some, early)] = left.covered
        resume = Resume(
            left.at - early.starts[:-1] + some.starts[:-1],
            left.numbers,
            self._resumed(keys, some, old).whole,
            covered,
        )
        open_ = self._matcher.match(
            self._read(some), some.starts, complete=False, resume=resume, frontier_us=now_us
        )
        return final, open_

    def _places_of(self, some: Partitions, early: Partitions) -> Vector:
        """Where each early row is among all."""
        counts = np.diff(early.starts)
        behind = np.repeat(some.starts[:-1] - early.starts[:-1], counts)
        return np.asarray(np.arange(len(early.rows)) + behind)

    def _placed(self, some: Partitions, early: Partitions, final: Matches) -> Matches:
        """What there is to keep, with rows numbered as all."""
        behind = some.starts[:-1] - early.starts[:-1]
        covered = np.zeros(len(some.rows), np.bool_)
        covered[self._places_of(some, early)] = final.next_from.covered
        left = replace(final.next_from, at=final.next_from.at + behind, covered=covered)
        return replace(final, open_from=final.open_from + behind, next_from=left)

    def _due(self, some: Partitions, early: Partitions, final: Matches, open_: Matches) -> Vector:
        """When a key is to be looked at again though no row comes: something ends, or is final."""
        correct_us = self.correct_us
        ends: Vector = np.minimum(open_.due, np.minimum(final.due, NEVER - correct_us) + correct_us)
        first = some.starts[:-1] + np.diff(early.starts)  # of the rows that aren't early
        there = np.flatnonzero(first < some.starts[1:])
        times = raw(some.rows.column(TIME))
        ends[there] = np.minimum(ends[there], times[first[there]] + correct_us)
        return ends

    def _delta_of(self, keys: pa.RecordBatch, some: Partitions, found: Matches) -> pa.RecordBatch:
        """Matches as a delta of what was given."""
        made, _, partition = self._timed(some, found)
        key = hashes(keys.take(from_int64(partition)))
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
