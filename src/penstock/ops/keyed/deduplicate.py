"""Duplicates left out: of rows with one key, those soon after (or before) one that was let through.

A row goes through unless one of its key whose time is less than `within` away has gone through before it. So
it depends on the order of rows in the log, and on nothing else: not on batches or shards. A key is forgotten
when no row in time can be that near any more; without `within`, never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK
from penstock.core.kernels import njit, types
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector
from penstock.ops.operator import Context, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state.bag import Bag
from penstock.state.layout import HASH, Layout, concat
from penstock.state.trace import Trace

__all__ = ["Deduplicate"]

_I64 = types.Array(types.int64, 1, "C", readonly=True)


@dataclass(frozen=True)
class Deduplicate(Operator):
    """The operator.

    Args:
        input: the columns of the rows.
        on: the columns that duplicates agree in; NULL is a value like others.
        within_us: how far apart in event time duplicates may lie; None is any.
    """

    kind: ClassVar[str] = "deduplicate"

    input: pa.Schema
    on: tuple[str, ...]
    within_us: int | None = None

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: records are keyed by what duplicates agree in.

        Where no key is forgotten, late rows are known, too, and so they are handed on.
        """
        return Traits(
            schema=self.input,
            ports=(Port(self._parcels, self.on),),
            keys=self.on,
            retracts=False,
            timed=True,
            passes_late=self.within_us is None,
            keeps={"seen": self._bag.layout},
        )

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts], [frontier_us] = inputs, context.frontiers_us
        trace, delta = state.traces["seen"], self._bag.layout.empty()
        passed = self._parcels.empty()
        if parts:
            arrived = Routed.combine(parts)
            passed = arrived.batch.filter(pa.array(self._passing(trace, arrived)))
            some = Routed(passed)
            delta = self._bag.delta(passed, some.hashes, None, self._stretch(some.times_us))
        made = context.appended(state, {"seen": delta})
        if self.within_us is not None and frontier_us >= NO_TIME + 2 * self.within_us:
            low = int(self._stretch(np.array([frontier_us - self.within_us]))[0])
            made = made.above({"seen": low})
        changes = None
        if self.gives:
            schema = self.input.append(pa.field(TIME, TIMESTAMP))
            if self._parcels.marked:
                schema = schema.append(pa.field(WATERMARK, pa.int64()))
            changes = pa.Table.from_arrays([passed.column(f.name) for f in schema], schema=schema)
        return Step(made, changes)

    # -- the work -----------------------------------------------------------------------------------

    def _passing(self, trace: Trace, rows: Routed) -> Vector:
        """bool[n]: which rows go through."""
        keys = [rows.batch.column(name) for name in self.on]
        near = [rows.times_us]
        if self.within_us is not None:
            near += [rows.times_us - self.within_us, rows.times_us + self.within_us]
        wanted = [self._place(self._stretch(times), rows.hashes, keys) for times in near]
        places = self._places.group(concat(wanted), whole=False)
        seen = self._bag.find(trace, places, mostly_absent=True)  # duplicates are few
        # One number for each key, whatever its stretch.
        zeros = np.zeros(len(seen) + rows.rows, np.int64)
        columns = [
            pa.concat_arrays([seen.column(name), rows.batch.column(name)])
            for name in (HASH, *self.on)
        ]
        both = pa.RecordBatch.from_arrays(
            [vectors.from_int64(zeros), *columns], schema=self._places.schema
        )
        ids, first = self._places.grouping(both)
        times = np.concatenate([vectors.raw(seen.column(TIME)), rows.times_us])
        passing = np.zeros(len(times), np.bool_)
        within = -1 if self.within_us is None else self.within_us
        _pass(ids.astype(np.int64), times, len(first), len(seen), within, passing)
        return passing[len(seen) :]

    def _place(self, stretches: Vector, hashes: Vector, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        columns = [vectors.from_int64(stretches), vectors.from_int64(hashes), *keys]
        return pa.RecordBatch.from_arrays(columns, schema=self._places.schema)

    def _stretch(self, times_us: Vector) -> Vector:
        if self.within_us is None:
            return np.zeros(len(times_us), np.int64)
        width = max(self.within_us, 1)
        return times_us // width * width

    @cached_property
    def _bag(self) -> Bag:
        names = dict.fromkeys(self.on)
        fields = [pa.field(name, self.input.field(name).type) for name in names]
        return Bag(pa.schema([*fields, pa.field(TIME, TIMESTAMP)]), self.on)

    @cached_property
    def _places(self) -> Layout:
        return Layout(self._bag.layout.keys, ())

    @cached_property
    def _parcels(self) -> RowParcels:
        forgets = self.within_us is not None
        return RowParcels(self.input, timed=True, marked=not forgets, judged=forgets)


@njit(types.void(_I64, _I64, types.int64, types.int64, types.int64, types.boolean[::1]),
      cache=True, nogil=True)  # fmt: skip
def _pass(ids: Any, times: Any, groups: Any, known: Any, within: Any, passing: Any) -> None:
    # Of each key, those that went through, as a list through `before`: few, as they lie apart.
    newest = np.full(groups, -1, np.int64)
    before = np.full(len(ids), -1, np.int64)
    for i in range(len(ids)):
        at = newest[ids[i]]
        if i >= known:
            while at >= 0:
                apart = times[i] - times[at]
                if within < 0 or (apart < within and -apart < within):
                    break
                at = before[at]
            if at >= 0:
                continue
        passing[i] = True
        before[i] = newest[ids[i]]
        newest[ids[i]] = i
