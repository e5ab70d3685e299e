"""What a function of the user's is given next to its rows: a table, all of which is on every shard.

As of the event time, the table comes as changes with times:

    table(t) = of each key the last change, by (time, offset), among those of a time <= t

and a row of time t meets table(t), so what it meets is the same whatever the interleaving, and on replay.
A version goes when no row may ask for it any more. As it is, the table comes as rows with weights, and a row
meets all of them that came up to its batch: that depends on when things arrive.

Every shard keeps the whole table, and reads it in each batch in which it calls the function, so it is for
thousands of rows, not for millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.core.delta import DELETED, OFFSET, TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.operator import Port
from penstock.ops.routed import Routed, RowParcels
from penstock.state.bag import ROW, Bag, negated, plain, repeated
from penstock.state.layout import HASH, WINDOW, Layout
from penstock.state.trace import Trace

__all__ = ["Contents", "Rules"]


@dataclass(frozen=True)
class Contents:
    """The table's contents at one batch, and how they have changed.

    Attributes:
        rules: what it is of.
        known: a bag's rows: versions, or rows as they are.
        delta: what the state takes over of the batch.
    """

    rules: Rules
    known: pa.RecordBatch
    delta: pa.RecordBatch

    def times_us(self) -> Vector:
        """When the table changes: int64[n], ascending, each once; of a table as it is, never."""
        if not self.rules.timed:
            return np.zeros(0, np.int64)
        return np.unique(raw(self.known.column(TIME)))

    def before(self, until_us: int) -> pa.Table:
        """The table's rows, in an order of their own, of changes of a time before `until_us`."""
        known = self.known
        if not self.rules.timed:
            return self.rules.shown(repeated(known))
        known = known.filter(pa.array(raw(known.column(TIME)) < until_us))
        last = self.rules.last(known)
        last = last[~raw(known.column(DELETED)).astype(np.bool_)[last]]
        return self.rules.shown(known.take(from_int64(last)))


@dataclass(frozen=True)
class Rules:
    """The table.

    Args:
        table: its columns.
        keys: those that identify its rows, where it comes as changes with times.
        timed: whether it does.
    """

    table: pa.Schema
    keys: tuple[str, ...]
    timed: bool

    # -- state --------------------------------------------------------------------------------------

    def contents(self, trace: Trace, parts: Sequence[Routed]) -> Contents:
        """The table's contents, with the changes of a batch."""
        delta = self.bag.layout.empty()
        if parts:
            come = Routed.combine(parts)
            delta = self.bag.delta(come.batch, come.hashes, come.weights, None)
        return Contents(self, self.bag.sum([*trace.scan(), delta]), delta)

    def forgetting(self, contents: Contents, until_us: int) -> pa.RecordBatch:
        """The batch's delta, and what no row of `until_us` or later asks for taken back."""
        if not self.timed or not len(contents.known):
            return contents.delta
        passed = contents.known.filter(pa.array(raw(contents.known.column(TIME)) <= until_us))
        gone = np.ones(len(passed), np.bool_)
        last = self.last(passed)
        gone[last] = raw(passed.column(DELETED)).astype(np.bool_)[last]
        return self.bag.sum([contents.delta, negated(passed.filter(pa.array(gone)))])

    def last(self, versions: pa.RecordBatch) -> Vector:
        """The positions of each key's last version."""
        place = Layout(self.bag.layout.keys, ())
        keys = pa.RecordBatch.from_arrays(
            [versions.column(name) for name in (WINDOW, HASH, *self.keys)], schema=place.schema
        )
        ids, _ = place.grouping(keys)
        ties = (raw(versions.column(ROW)), raw(versions.column(OFFSET)))
        order = np.lexsort((*ties, raw(versions.column(TIME)), ids))
        ends = np.ones(len(order), np.bool_)
        ends[:-1] = ids[order[1:]] != ids[order[:-1]]
        return order[ends]

    def shown(self, rows: pa.RecordBatch) -> pa.Table:
        """The table's own columns."""
        return pa.Table.from_batches([rows.select(self.table.names)])

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def bag(self) -> Bag:
        """Of the versions, or rows."""
        times = [pa.field(TIME, TIMESTAMP)] if self.timed else []
        return Bag(pa.schema([*times, *self._columns]), self.keys)

    @cached_property
    def port(self) -> Port:
        """All rows go to each shard; a change of before its own watermark is late."""
        parcels = RowParcels(
            self._columns,
            timed=self.timed,
            weighted=not self.timed,
            judged=self.timed,
            everywhere=self.keys,
        )
        return Port(parcels)

    @cached_property
    def _columns(self) -> pa.Schema:
        own: list[pa.Field] = []
        if self.timed:
            own = [pa.field(OFFSET, pa.int64()), pa.field(DELETED, pa.bool_())]
        return pa.schema([*own, *plain(self.table)])
