"""The join of a stream with a table as it is: each row meets the table's newest version, once.

    out(batch) = rows(batch) x table(batch)

where table(batch) has the changes that came with the batch. So what a row meets depends on when it
arrives; what the table becomes later changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.ops.joins.enriched import Enriching, enriched, queries
from penstock.ops.operator import Context, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.state import State
from penstock.state.bag import Bag, matches, plain, weights_of
from penstock.state.trace import Trace

__all__ = ["StreamTableJoin"]

STREAM: Final = 0
TABLE: Final = 1


@dataclass(frozen=True)
class StreamTableJoin(Enriching):
    """The operator; see `Enriching` for what it is made of."""

    kind: ClassVar[str] = "stream table join"

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: nothing waits for a time, so each row comes out, whenever it comes."""
        stream = RowParcels(self.stream, timed=True, marked=True)
        table = RowParcels(self.table, weighted=True)
        return Traits(
            schema=self.schema,
            ports=(
                Port(stream, self.key(STREAM)),
                Port(table, self.key(TABLE), arranges={"table": self._bag}),
            ),
            retracts=False,
            timed=True,
            passes_late=True,
            keeps={"table": self._bag.layout},
        )

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: rows wait for nothing."""
        return inputs_us[STREAM]

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        stream, table = inputs
        made = context.appended(state, {"table": delta_of(self._bag, table)})
        if not stream:
            return Step(made, self._nothing)
        return Step(made, self._joined(made.traces["table"], Routed.combine(stream)))

    # -- the work -----------------------------------------------------------------------------------

    def _joined(self, trace: Trace, rows: Routed) -> pa.Table:
        names = tuple((mine, other) for mine, other in self.on)
        asked = queries(rows.batch, rows.hashes, names)
        found = self._bag.find(trace, self._bag.wanted(asked, rows.hashes, None))
        here, there = matches(asked, found, [(name, name) for name in self.key(TABLE)])
        times = weights_of(found)[there]
        if (times != 1).any():
            here, there = np.repeat(here, times), np.repeat(there, times)
        if self.how == "left":
            here, there = self._with_alone(rows.rows, here, there)
        return enriched(self.schema, rows.batch, found, here, there)

    @staticmethod
    def _with_alone(rows: int, here: Vector, there: Vector) -> tuple[Vector, Vector]:
        """Pairs, and rows without one, in the rows' order."""
        alone = np.flatnonzero(np.bincount(here, minlength=rows) == 0)
        here = np.concatenate([here, alone])
        there = np.concatenate([there, np.full(len(alone), -1)])
        order = np.argsort(here, kind="stable")
        return here[order], there[order]

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.table), self.key(TABLE))

    @cached_property
    def _nothing(self) -> pa.Table:
        none = np.zeros(0, np.int64)
        rows = RowParcels(self.stream, timed=True, marked=True).empty()
        return enriched(self.schema, rows, self._bag.layout.empty(), none, none)
