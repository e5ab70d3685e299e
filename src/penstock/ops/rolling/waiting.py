"""Rows that wait until the frontier has passed their time, so that a group's are seen in its order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.time import SECOND_US
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.aggregates import Column
from penstock.ops.codec import Name
from penstock.ops.operator import Context, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.spec import Aggregate
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state.bag import ROW, Bag, plain
from penstock.state.layout import HASH, Layout, hashes
from penstock.state.trace import ALWAYS, Trace

__all__ = ["STRETCH_US", "InOrder", "Waiting", "in_order", "low_of"]

STRETCH_US: Final = SECOND_US
"""Of rows that wait: what a frontier has passed within one is read again until it has passed all."""


@dataclass(frozen=True)
class Waiting:
    """How rows of some columns wait.

    Args:
        input: the columns.
        keys: those that make up a group; NULL is a value like others.
    """

    input: pa.Schema
    keys: tuple[str, ...]

    @cached_property
    def parcels(self) -> RowParcels:
        """How they travel: those of before their own watermark are late."""
        return RowParcels(self.input, timed=True, judged=True)

    @cached_property
    def bag(self) -> Bag:
        """The columns with `$time`."""
        fields = [pa.field(f.name, f.type) for f in self.input]
        return Bag(pa.schema([pa.field(TIME, TIMESTAMP), *fields]), self.keys)

    @cached_property
    def places(self) -> Layout:
        """What makes up a group."""
        return Layout(self.bag.layout.keys, ())

    def passed(
        self, trace: Trace, parts: Sequence[Routed], before_us: int, now_us: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Rows that the frontier has passed with this batch, and a delta of those that wait.

        Args:
            trace: of those that wait.
            parts: what has come.
            before_us: the frontier before.
            now_us: the frontier now.

        Returns:
            Both in the layout of the bag, each row once, with its weight.
        """
        arrived = self.bag.layout.empty()
        if parts:
            rows = Routed.combine(parts)
            arrived = self.bag.delta(rows.batch, rows.hashes, None, _stretch(rows.times_us))
        due = raw(arrived.column(TIME)) < now_us
        found = [arrived.filter(pa.array(due))]
        if now_us > before_us:
            lo = None if before_us == NO_TIME else int(_stretch(before_us))
            for batch in trace.scan(lo, now_us):
                times = raw(batch.column(TIME))
                found.append(batch.filter(pa.array((times >= before_us) & (times < now_us))))
        return self.bag.sum(found), arrived.filter(pa.array(~due))

    def numbers(self, batches: Iterable[pa.RecordBatch]) -> Vector:
        """The number of each row's group, of all batches in their order: int32[n]."""
        parts = list(batches)
        columns = [from_int64(np.zeros(sum(map(len, parts)), np.int64))]
        columns += [
            pa.concat_arrays([part.column(name) for part in parts]) for name in (HASH, *self.keys)
        ]
        place = pa.RecordBatch.from_arrays(columns, schema=self.places.schema)
        return self.places.grouping(place)[0]

    def wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The groups of some rows, to look for where stretches are 0."""
        return self.bag.wanted(rows, hashes(rows), None)


@dataclass(frozen=True)
class InOrder(Operator):
    """An operator that sees the rows of a group in the order of their time, and aggregates them.

    Rows wait, in the trace `waiting`, until the frontier has passed their time. What it needs of rows that
    were passed is in a trace of its own.

    Args:
        input: the columns of the rows.
        per: those that make up a group.
        aggregates: what is computed.
    """

    remembers: ClassVar[str]
    """The name of its own trace."""

    input: pa.Schema
    per: tuple[str, ...]
    aggregates: Annotated[tuple[Aggregate, ...], Name("computed")]

    @property
    @abstractmethod
    def _schema(self) -> pa.Schema:
        """Of the rows that come out."""

    @property
    def _own(self) -> Bag:
        """Of the rows in its own trace."""
        return self._waiting.bag

    @abstractmethod
    def _given(self, trace: Trace, passed: pa.RecordBatch) -> tuple[pa.Table, pa.RecordBatch]:
        """What comes out, in the order of its time, and the delta of its trace.

        Args:
            trace: its own.
            passed: the rows that the frontier has passed, in the layout of the bag of those that wait.
        """

    def _low(self, frontier_us: int) -> int | None:  # noqa: ARG002
        """The first stretch that its trace still needs; None is all."""
        return None

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: records are keyed by the group, where its columns come out."""
        own = set(self._schema.names) - {one.name for one in self.aggregates}
        keys = self.per if set(self.per) <= own else ()
        return Traits(
            schema=self._schema,
            ports=(Port(self._waiting.parcels, self.per),),
            keeps={"waiting": self._waiting.bag.layout, self.remembers: self._own.layout},
            keys=keys,
            placed_by=keys,
            retracts=False,
            timed=True,
            frontiers_kept=1,
        )

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: rows may wait for the frontier."""
        return now_us[0] > before_us[0]

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "frontiers don't fall"
        passed, held = self._waiting.passed(state.traces["waiting"], parts, before_us, now_us)
        changes, delta = self._given(state.traces[self.remembers], passed)
        made = context.appended(
            state,
            {"waiting": held, self.remembers: delta},
            low_us={"waiting": low_of(now_us, 0, STRETCH_US), self.remembers: self._low(now_us)},
            frontiers_us=context.frontiers_us,
        )
        return Step(made, changes)

    @cached_property
    def _waiting(self) -> Waiting:
        return Waiting(self.input, self.per)

    @cached_property
    def _columns(self) -> dict[str, Column]:
        """The columns that aggregates read, by name."""
        return {c.name: c for a in self.aggregates for c in (a.column, a.by) if c is not None}

    @cached_property
    def _changed(self) -> pa.Schema:
        """Of what comes out of a step."""
        return plain(self._schema).append(pa.field(TIME, TIMESTAMP))


def in_order(numbers: Vector, batch: pa.RecordBatch) -> Vector:
    """The order of rows of a bag by group and time; rows of one time by what is in them."""
    return np.lexsort((raw(batch.column(ROW)), raw(batch.column(TIME)), numbers))


def low_of(frontier_us: int, back_us: int, width_us: int) -> int:
    """The first stretch of which something is needed from a frontier less some time on."""
    if frontier_us < NO_TIME + 2 * (back_us + width_us):
        return ALWAYS
    return (frontier_us - back_us) // width_us * width_us


def _stretch(times_us: Any) -> Any:
    return times_us // STRETCH_US * STRETCH_US
