"""A table from a changelog: the newest row of each key.

    table(version) = of each key the last change so far, unless that is a deletion

A key's changes lie in one partition of the topic, and their order there decides: an update takes the row of
before back. Changes that come to nothing within a batch give nothing. A column that an update gives as
unchanged (`penstock.core.delta`) keeps the value of the row before; where there is none, what was given
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.delta import DELETED, are_unchanged, may_be_unchanged
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.operator import Context, Follow, Operator, Port, Prepared, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.state import State
from penstock.state.bag import COUNT, Bag, changes_of, negated, plain
from penstock.state.layout import concat, take, taken
from penstock.state.trace import Trace

__all__ = ["Upserts"]


@dataclass(frozen=True)
class Upserts(Operator):
    """The operator.

    Args:
        schema: of the table's rows.
        keys: the columns that identify them.
    """

    kind: ClassVar[str] = "upserts"

    schema: pa.Schema
    keys: tuple[str, ...]

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`."""
        return Traits(
            schema=self.schema,
            ports=(Port(self._parcels, self.keys),),
            keys=self.keys,
            keeps={"rows": self._bag.layout},
            follow=Follow.NEWEST,
        )

    @cached_property
    def _plain(self) -> pa.Schema:
        """The columns without NOT NULL, which a deletion doesn't keep to."""
        return plain(self.schema)

    @cached_property
    def _bag(self) -> Bag:
        return Bag(self._plain, self.keys)

    @cached_property
    def _large(self) -> tuple[str, ...]:
        """The columns that an update may give as unchanged."""
        return tuple(
            f.name for f in self.schema if f.name not in self.keys and may_be_unchanged(f.type)
        )

    @cached_property
    def _parcels(self) -> RowParcels:
        return RowParcels(pa.schema([pa.field(DELETED, pa.bool_()), *self._plain]))

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """See `Operator`: no change is late, as its place in the log decides."""
        if DELETED not in rows.column_names:
            rows = rows.append_column(DELETED, pa.array(np.zeros(len(rows), np.bool_)))
        return super().prepare(port, rows)

    def check(self, state: State) -> None:
        """See `Operator`: a key has one row, once."""
        super().check(state)
        for batch in state.traces["rows"].scan():
            assert bool((raw(batch.column(COUNT)) == 1).all()), "a row is there once"
            assert len(self._bag.place.grouping(batch)[1]) == len(batch), "a key has one row"

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts] = inputs
        delta = self._bag.layout.empty()
        if parts:
            delta = self._delta(state.traces["rows"], Routed.combine(parts))
        return Step(context.appended(state, {"rows": delta}), changes_of(delta, self.schema))

    def _delta(self, trace: Trace, parcel: Routed) -> pa.RecordBatch:
        """What the last change of each key makes of the rows of before.

        Rows are sorted once, all together: most of the work is in copying them.
        """
        batch, hashes = parcel.batch, parcel.hashes
        newest, wanted, ids = self._last(batch, hashes)
        _, old = trace.lookup(wanted)
        gone = raw(batch.column(DELETED)).astype(np.bool_)
        batch = self._with_kept(batch, gone, newest, ids, lambda: self._olds(old, wanted))
        come = newest[~gone[newest]]
        new = self._bag.spread(taken(batch, come), hashes[come], None, None)
        return self._bag.sum([*map(negated, old), new])

    def _last(self, batch: pa.RecordBatch, hashes: Vector) -> tuple[Vector, pa.RecordBatch, Vector]:
        """The position of each key's last row, the keys (sorted, each once), and the key of each row."""
        place = self._bag.place
        zeros = from_int64(np.zeros(len(batch), np.int64))
        columns = [zeros, from_int64(hashes), *(batch.column(name) for name in self.keys)]
        keys = pa.RecordBatch.from_arrays(columns, schema=place.schema)
        ids, first = place.grouping(keys)
        last = np.zeros(len(first), np.int64)
        np.maximum.at(last, ids, np.arange(len(batch)))
        return last, taken(keys, first), ids

    def _olds(
        self, old: Sequence[pa.RecordBatch], wanted: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Vector]:
        """The rows of before, and which of them each key has: int64[keys], -1 for none."""
        rows = self._bag.sum(old)
        ids, _ = self._bag.place.grouping(concat([wanted, rows.select(wanted.schema.names)]))
        row = np.full(len(wanted) + len(rows), -1)
        row[ids[len(wanted) :]] = np.arange(len(rows))
        return rows, row[ids[: len(wanted)]]

    def _with_kept(
        self,
        batch: pa.RecordBatch,
        gone: Vector,
        newest: Vector,
        ids: Vector,
        olds: Callable[[], tuple[pa.RecordBatch, Vector]],
    ) -> pa.RecordBatch:
        """The batch, each key's last row with the values that it gives as unchanged.

        Such a value is that of the nearest row before that has one: in the batch, else in the state. None
        is older than a deletion.
        """
        for name in self._large:
            column = batch.column(name)
            is_kept = are_unchanged(column)
            if is_kept is None or not is_kept[newest].any():
                continue
            keys = np.flatnonzero(is_kept[newest] & ~gone[newest])
            before = _last_that(~is_kept | gone, ids, len(newest))[keys]
            rows, row = olds()
            row = row[keys]
            source = np.where(before >= 0, before, np.where(row >= 0, len(batch) + row, -1))
            source[(before >= 0) & gone[before]] = -1
            keys, source = keys[source >= 0], source[source >= 0]
            at = np.arange(len(batch))
            at[newest[keys]] = source
            both = pa.concat_arrays([column, rows.column(name)])
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), take(both, from_int64(at)))
        return batch

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        for batch in state.traces["rows"].scan():
            yield pa.RecordBatch.from_arrays(self._bag.rows(batch).columns, schema=self.schema)


def _last_that(fits: Vector, ids: Vector, keys: int) -> Vector:
    """int64[keys]: of each key the last row that fits; -1 where there is none."""
    found = np.full(keys, -1)
    at = np.flatnonzero(fits)
    np.maximum.at(found, ids[at], at)
    return found
