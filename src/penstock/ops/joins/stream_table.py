"""The join of a stream with a table as it is: each row meets the table's newest version, once.

    out(batch) = rows(batch) x table(batch)

where table(batch) has the changes that came with the batch. So what a row meets depends on when it
arrives; what the table becomes later changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.ops.joins.enriched import Enriching, enriched, plain, queries
from penstock.ops.kept import Kept
from penstock.ops.operator import Context, Prepared, Step
from penstock.ops.routed import Routed, routed, routed_schema
from penstock.state.bag import Bag, matches, weights_of
from penstock.state.layout import Layout
from penstock.state.trace import Trace

__all__ = ["StreamTableJoin"]

STREAM: Final = 0
TABLE: Final = 1


@dataclass(frozen=True)
class StreamTableJoin(Enriching):
    """The operator; see `Enriching` for what it is made of."""

    kind: ClassVar[str] = "stream table join"

    # -- what it is ---------------------------------------------------------------------------------

    def arranges(self, port: int) -> Mapping[str, object]:
        """See `Operator`: the table."""
        return {"table": self._bag} if port == TABLE else {}

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: rows wait for nothing."""
        return inputs_us[STREAM]

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:  # noqa: ARG002
        """See `Operator`."""
        return False

    @property
    def passes_late(self) -> bool:
        """See `Operator`: each row comes out, whenever it comes."""
        return True

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """See `Operator`: nothing waits for a time, so what is late is handed on."""
        return Prepared(routed(rows, self.key(port), self._parcels[port]))

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: Kept, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`.

        Raises:
            CorruptError: a file of the state is not what was written.
        """
        stream, table = inputs
        delta = self._bag.layout.empty()
        if table:
            rows = Routed.combine(table)
            delta = self._bag.delta(rows.batch, rows.hashes, rows.weights, None)
        writer = context.writer("table")
        trace = context.arranged("table").append(state.traces["table"], delta, writer)
        changes = self._joined(trace, Routed.combine(stream)) if stream else self._nothing
        return Step(Kept({"table": trace}), changes, None, writer.written, writer.bytes)

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
    def _layouts(self) -> dict[str, Layout]:
        return {"table": self._bag.layout}

    @cached_property
    def _parcels(self) -> tuple[pa.Schema, pa.Schema]:
        return (
            routed_schema(self.stream, timed=True, weighted=False, marked=True),
            routed_schema(self.table, timed=False, weighted=True),
        )

    @cached_property
    def _nothing(self) -> pa.Table:
        none = np.zeros(0, np.int64)
        rows = pa.RecordBatch.from_pylist([], self._parcels[STREAM])
        return enriched(self.schema, rows, self._bag.layout.empty(), none, none)
