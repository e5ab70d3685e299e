"""How far the attempts are that a row pattern has open: a table of one row a key.

    view(version) = the first undecided attempt of each key, among the rows that the frontier has passed

State. As that of `penstock.ops.keyed.match`; and what was given, by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import from_int64, raw
from penstock.ops.keyed.match import Match, Partitions
from penstock.ops.operator import Context, Follow, Port, Step, Traits
from penstock.ops.routed import Routed
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.patterns.searching import Partial
from penstock.state.bag import Bag, changes_of, negated, plain
from penstock.state.layout import hashes

__all__ = ["COLUMNS", "PartialMatch"]

_FIELDS: list[pa.Field] = [
    pa.field("started", TIMESTAMP),
    pa.field("rows", pa.int64()),
    pa.field("reached", pa.string()),
]
COLUMNS: Final = pa.schema(_FIELDS)
"""Of an attempt: its first row's time, how many rows it has, the variable of the last one."""


@dataclass(frozen=True)
class PartialMatch(Match):
    """The operator; see `Match` for what it is made of. Its output is the key, then `COLUMNS`."""

    kind: ClassVar[str] = "partial match"

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: a table without time."""
        keeps = {
            "waiting": self._bag.layout,
            "kept": self._bag.layout,
            "places": self._places.layout,
            "timers": self._timers.layout,
            "given": self._out.layout,
        }
        return Traits(
            schema=self.output,
            ports=(Port(self._waiting.parcels, self.per),),
            keeps=keeps,
            keys=self.per,
            single=not self.per,
            follow=Follow.ANSWER,
            frontiers_kept=1,
        )

    def frontier(self, inputs_us: Sequence[int]) -> int:  # noqa: ARG002
        """See `Operator`: it has none."""
        return NO_TIME

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        looked, deltas = self._looked(state, inputs, context)
        moved = self._out.layout.empty()
        if looked is not None:
            was = self._out.find(state.traces["given"], looked.keys)
            now = self._open(looked.keys, looked.some, looked.found.partial)
            moved = self._out.sum([negated(was), now])
            deltas["given"] = moved
        changes = changes_of(moved, self.output) if self.gives else None
        return Step(self._next(state, deltas, context), changes)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        for batch in state.traces["given"].scan():
            yield pa.RecordBatch.from_arrays(
                [batch.column(name) for name in self.output.names], schema=self.output
            )

    # -- the work -----------------------------------------------------------------------------------

    def _open(self, keys: pa.RecordBatch, some: Partitions, partial: Partial) -> pa.RecordBatch:
        """Open attempts as a delta of what is given."""
        of = keys.take(from_int64(np.ascontiguousarray(partial.partition)))
        times = raw(some.rows.column(TIME))[partial.first]
        columns = [of.column(name) for name in self.per]
        columns.append(from_int64(times).view(TIMESTAMP))
        columns.append(from_int64(np.ascontiguousarray(partial.count, np.int64)))
        columns.append(pa.array(partial.variable, pa.string()))
        made = pa.RecordBatch.from_arrays(columns, schema=plain(self.output))
        return self._out.delta(made, hashes(of), None, None)

    @cached_property
    def _out(self) -> Bag:
        return Bag(plain(self.output), self.per)
