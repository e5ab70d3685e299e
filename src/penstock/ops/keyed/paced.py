"""A table's changes, every so often: what changed meanwhile, and came back, is nothing.

    given(tick n) = all changes between ticks n - 1 and n, added up

Ticks are those of the plan's wall clock: a batch that is the first one after a multiple of the interval
gives all that has been held back, and its own changes. So a row changes at most once an interval,
and no later than an interval after its input did, though no event may come. What is given depends on when
batches run, as any view of a table that changes does; a batch that is repeated has the same plan, and
gives the same. Added up, it is the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME, WEIGHT
from penstock.core.schema import TIMESTAMP, Schema
from penstock.core.vectors import from_int64
from penstock.ops.bases import Timeless
from penstock.ops.kept import Kept
from penstock.ops.operator import Context, Prepared, Step
from penstock.ops.routed import Routed, routed, routed_schema
from penstock.state.bag import Bag, weights_of
from penstock.state.layout import Layout

__all__ = ["Paced"]

CLOCK: Final = 1  # where the clock stands among the frontiers, behind the only port's


@dataclass(frozen=True)
class Paced(Timeless):
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

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self.input

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Operator`."""
        return self.row_key

    def key(self, port: int) -> tuple[str, ...]:  # noqa: ARG002
        """See `Operator`."""
        return self.row_key

    def emitting(self, *, changes: bool, closed: bool) -> Paced:  # noqa: ARG002
        """See `Operator`."""
        return self

    @property
    def clock_us(self) -> int:
        """See `Operator`."""
        return self.interval_us

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: changes may wait for the clock."""
        return now_us[CLOCK] > before_us[CLOCK]

    def to_spec(self) -> dict[str, Any]:
        """What it computes, as JSON."""
        return {
            "kind": self.kind,
            "input": Schema.from_arrow(self.input).text,
            "row_key": list(self.row_key),
            "interval_us": self.interval_us,
            "is_timed": self.is_timed,
        }

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> Paced:
        """The operator that `to_spec` described."""
        return Paced(
            input=Schema.parse(spec["input"]).arrow,
            row_key=tuple(spec["row_key"]),
            interval_us=spec["interval_us"],
            is_timed=spec["is_timed"],
        )

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`."""
        return Prepared(routed(rows, self.row_key, self._parcels[0]))

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: Kept, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`.

        Raises:
            CorruptError: a file of the state is not what was written.
        """
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
        writer = context.writer("held")
        held = held.append(come, writer, low_us=low_us)
        kept = Kept({"held": held}, context.frontiers_us)
        return Step(kept, self._changes(given), None, writer.written, writer.bytes)

    def scan(
        self,
        state: Kept,
        lo_us: int | None = None,
        hi_us: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: it keeps what it hasn't given, and no content."""
        raise NotImplementedError

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
        fields = [pa.field(f.name, f.type) for f in self.input]
        return Bag(pa.schema([*fields, *time]), self.row_key)

    @property
    def _promised(self) -> int:
        return 2  # the input's and the clock's

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {"held": self._bag.layout}

    @cached_property
    def _parcels(self) -> tuple[pa.Schema, ...]:
        return (routed_schema(self.input, timed=self.is_timed, weighted=True),)
