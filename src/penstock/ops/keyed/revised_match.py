"""Row patterns over a table: the matches of its rows as they are, in an order of their columns.

    view(version) = the matches of the pattern in each key's rows of that version

A row that comes or goes may make a match, end it, or move where the next one begins, so the matches of a key
that changes are made anew from all its rows, and compared with those that were there. Keys are computed
together, as columns; the others aren't looked at.

State. The rows, and what was given of them, by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import from_int64
from penstock.ops.keyed.match import Matching
from penstock.ops.operator import Context, Follow, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.state import State
from penstock.patterns import Matcher
from penstock.state.bag import Bag, changes_of, negated, plain, repeated
from penstock.state.layout import hashes

__all__ = ["RevisedMatch"]


@dataclass(frozen=True)
class RevisedMatch(Matching):
    """The operator; see `Matching` for what else it is made of. `order` has at least one column.

    Args:
        row_key: columns of the output that identify its rows, where something does.
    """

    kind: ClassVar[str] = "revised match"

    row_key: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: a table."""
        return Traits(
            schema=self.output,
            ports=(Port(RowParcels(self.input, weighted=True), self.per),),
            keeps={"rows": self._bag.layout, "given": self._out.layout},
            keys=self.row_key,
            follow=Follow.ANSWER,
        )

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts] = inputs
        delta = delta_of(self._bag, parts)
        moved, refused = self._out.layout.empty(), []
        if len(delta):
            place = self._bag.place
            keys = place.group(delta.select(place.schema.names), whole=False)
            rows = self._bag.sum([self._bag.find(state.traces["rows"], keys), delta])
            some = self._partitions(keys, self._timed(repeated(rows)))
            found = self._matcher.match(self._read(some), some.starts, complete=True)
            partition = np.searchsorted(some.starts, found.source, side="right") - 1
            made = self._given(some, found.rows, partition)
            key = hashes(keys.take(from_int64(partition)))
            was = self._out.find(state.traces["given"], keys)
            moved = self._out.sum([negated(was), self._out.delta(made, key, None, None)])
            refused = self._refused(some, found)
        changes = changes_of(moved, self.output) if self.gives else None
        deltas = {"rows": delta, "given": moved}
        return Step(context.appended(state, deltas), changes, refused=refused)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        for batch in state.traces["given"].scan():
            found = repeated(batch)
            yield pa.RecordBatch.from_arrays(
                [found.column(name) for name in self.output.names], schema=self.output
            )

    # -- the work -----------------------------------------------------------------------------------

    def _timed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are matched: where a time bounds matches, those that have one."""
        is_bounded = self.pattern.within_us is not None or bool(self._matcher.program.amounts)
        if not is_bounded or not rows.column(self.order[0].name).null_count:
            return rows
        return rows.filter(rows.column(self.order[0].name).is_valid())

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _matcher(self) -> Matcher:
        first = self.order[0]
        is_time = self.input.field(first.name).type == TIMESTAMP and not first.descending
        time = first.name if is_time else None
        return Matcher(self.pattern, self.input, time, rows_max=self.rows_max)

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.input), self.per)

    @cached_property
    def _out(self) -> Bag:
        return Bag(plain(self.output), self.per)
