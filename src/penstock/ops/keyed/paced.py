"""A table's changes, every so often: what changed meanwhile, and came back, is nothing.

    given(tick n) = all changes between ticks n - 1 and n, added up

Ticks are those of the plan's wall clock: a batch that is the first one after a multiple of the interval
gives all that has been held back, and its own changes. So a row changes at most once an interval,
and no later than an interval after its input did, though no event may come. What is given depends on when
batches run, as any view of a table that changes does; a batch that is repeated has the same plan, and
gives the same. Added up, it is the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME, WEIGHT
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import from_int64
from penstock.ops.operator import Context, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.state import State
from penstock.state.bag import Bag, plain, weights_of

__all__ = ["Paced"]

CLOCK: Final = 1  # where the clock stands among the frontiers, behind the only port's


@dataclass(frozen=True)
class Paced(Operator):
    """The operator.

    Args:
        input: the table's columns.
        row_key: those that identify its rows; none where nothing does.
        interval_us: from one tick to the next one.
        is_timed: whether the table's rows have an event time, which is handed on.
    """

    kind: ClassVar[str] = "paced"

    input: pa.Schema
    row_key: tuple[str, ...]
    interval_us: int
    is_timed: bool = False

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: what is given lies at no time, as it waited for the clock."""
        parcels = RowParcels(self.input, timed=self.is_timed, weighted=True)
        return Traits(
            schema=self.input,
            ports=(Port(parcels, self.row_key),),
            keys=self.row_key,
            clock_us=self.interval_us,
            frontiers_kept=2,
            keeps={"held": self._bag.layout},
        )

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: changes may wait for the clock."""
        return now_us[CLOCK] > before_us[CLOCK]

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts], before_us, now_us = inputs, state.frontiers_us[CLOCK], context.frontiers_us[CLOCK]
        assert now_us >= before_us, "clocks of plans don't fall"
        come, held = self._bag.layout.empty(), state.traces["held"]
        if parts:
            rows = Routed.combine(parts)
            tick = np.full(rows.rows, before_us)  # all that is held since one tick lies together
            come = self._bag.delta(rows.batch, rows.hashes, rows.weights, tick)
        given, low_us = self._bag.layout.empty(), None
        if now_us > before_us:
            given, come, low_us = self._bag.sum([*held.scan(), come]), given, now_us
        made = context.appended(
            state,
            {"held": come},
            low_us={"held": low_us},
            frontiers_us=context.frontiers_us,
        )
        return Step(made, self._changes(given))

    def _changes(self, given: pa.RecordBatch) -> pa.Table:
        """Rows with weights, those that go first."""
        weights = weights_of(given)
        order = np.argsort(weights > 0, kind="stable")
        rows = self._bag.rows(given).append_column(WEIGHT, from_int64(weights))
        return pa.Table.from_batches([rows.take(from_int64(order))])

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bag(self) -> Bag:
        time = [pa.field(TIME, TIMESTAMP)] if self.is_timed else []
        return Bag(pa.schema([*plain(self.input), *time]), self.row_key)
