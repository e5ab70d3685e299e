"""The join of a stream with a table as it was: each row meets the version of its own event time.

    version(k, t) = the last change of key k, by (time, offset), among those of a time <= t
    out = { r ++ version(r.key, r.time) : r in the stream }      where that is a row, and no deletion

A row of time t is held until the changes' frontier is above t, as a change of its time or before may still
come. So what it meets is a function of both inputs' rows, however they are interleaved. A change of before
the watermark of its own partition is late, as are rows of the stream.

State. Rows that wait are kept by time: they are taken out, and forgotten, a stretch at a time. Versions are
found by key. No row will ask for a time below m, the least of both frontiers; so a version goes once the
next one of its key began before m. Which keys that may concern is kept by time, next to the versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core.delta import DELETED, OFFSET, TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.time import SECOND_US
from penstock.core.vectors import Vector, raw
from penstock.ops.joins.enriched import Enriching, enriched, queries
from penstock.ops.operator import Context, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state.bag import ROW, Bag, negated, plain, repeated, weights_of
from penstock.state.layout import Layout, concat, hashes
from penstock.state.trace import Trace

__all__ = ["TemporalJoin"]

STREAM: Final = 0
TABLE: Final = 1
STRETCH_US: Final = SECOND_US
"""Of rows that wait: what a frontier has passed within one is read again until it has passed all."""


@dataclass(frozen=True)
class TemporalJoin(Enriching):
    """The operator; see `Enriching` for what it is made of.

    The table's changes come as rows with `$time`, `$offset` and `$deleted`; `on` names its key.
    """

    kind: ClassVar[str] = "temporal join"

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: a row, or a change, of before its own watermark is late.

        Rows that come are of the stream's frontier or above, those held of the table's.
        """
        changes = RowParcels(self._changed, timed=True, judged=True)
        return Traits(
            schema=self.schema,
            ports=(Port(self._parcels, self.key(STREAM)), Port(changes, self.key(TABLE))),
            retracts=False,
            timed=True,
            frontiers_kept=2,
            keeps={
                "waiting": self._waiting.layout,
                "versions": self._versions.layout,
                "due": self._due.layout,
            },
        )

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: rows may wait for the table."""
        return now_us[TABLE] != before_us[TABLE]

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        before, now = state.frontiers_us, context.frontiers_us
        assert all(one <= two for one, two in zip(before, now, strict=True)), "frontiers don't fall"
        stream, table = (Routed.combine(parts) if parts else None for parts in inputs)
        if stream is None and table is None and now == before:
            return Step(state, self._nothing)
        ready, held = self._ready(state.traces["waiting"], stream, before[TABLE], now[TABLE])
        come = self._come(table)
        passed, due = self._passed(state.traces["due"], come, min(before), min(now))
        known = self._known(state.traces["versions"], come, ready, passed)
        gone = self._superseded(known, min(now))
        deltas = {
            "waiting": held,
            "versions": self._versions.sum([come, negated(gone)]),
            "due": due,
        }
        passed_us = {"waiting": now[TABLE], "due": min(now)}
        low_us = {name: int(_stretch(us)) for name, us in passed_us.items() if us != NO_TIME}
        made = context.appended(state, deltas, low_us=low_us, frontiers_us=now)
        return Step(made, self._joined(ready, known))

    # -- rows that wait -----------------------------------------------------------------------------

    def _ready(
        self, waiting: Trace, come: Routed | None, before_us: int, now_us: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Rows that the table's frontier has passed, with `$hash`; and a delta of those that wait."""
        names = self._parcels.schema.names
        parts = [batch.select(names) for batch in self._taken(waiting, before_us, now_us)]
        held = self._waiting.layout.empty()
        if come is not None:
            is_ready = come.times_us < now_us
            parts.append(come.batch.filter(pa.array(is_ready)).select(names))
            rest = come.batch.filter(pa.array(~is_ready))
            times = raw(rest.column(TIME))
            held = self._waiting.delta(rest, come.hashes[~is_ready], None, _stretch(times))
        if not parts:
            return self._parcels.empty(), held
        return concat(parts), held

    @staticmethod
    def _taken(trace: Trace, from_us: int, to_us: int) -> Iterator[pa.RecordBatch]:
        """Rows of a trace by stretches whose `$time` is in [from, to), as often as they are there."""
        if to_us <= from_us:
            return
        lo = None if from_us == NO_TIME else int(_stretch(from_us))
        for batch in trace.scan(lo, to_us):
            times = raw(batch.column(TIME))
            counts = np.where((times >= from_us) & (times < to_us), weights_of(batch), 0)
            yield repeated(batch, counts)

    # -- versions -----------------------------------------------------------------------------------

    def _come(self, table: Routed | None) -> pa.RecordBatch:
        """Changes as a delta of the versions."""
        if table is None:
            return self._versions.layout.empty()
        return self._versions.delta(table.batch, table.hashes, None, None)

    def _passed(
        self, due: Trace, come: pa.RecordBatch, before_us: int, now_us: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Keys of versions that began in [before, now); and a delta of those that begin later."""
        parts = [
            queries(batch, hashes(batch), self._same)
            for batch in self._taken(due, before_us, now_us)
        ]
        times = raw(come.column(TIME))
        is_passed = times < now_us
        parts.append(queries(come, hashes(come), self._same).filter(pa.array(is_passed)))
        rest = come.filter(pa.array(~is_passed))
        stretches = _stretch(times[~is_passed])
        return concat(parts), self._due.delta(rest, hashes(rest), None, stretches)

    def _known(
        self, versions: Trace, come: pa.RecordBatch, ready: pa.RecordBatch, passed: pa.RecordBatch
    ) -> pa.RecordBatch:
        """All versions of the keys that are asked for, and those that came, with their order by time."""
        asked = queries(ready, raw(ready.column(0)), self.on)
        keys = concat([_as(asked, passed.schema), passed])
        wanted = self._versions.wanted(keys, hashes(keys), None)
        return self._versions.sum([self._versions.find(versions, wanted), come])

    def _superseded(self, known: pa.RecordBatch, low_us: int) -> pa.RecordBatch:
        """The versions that no row of `low_us` or later may ask for."""
        if low_us == NO_TIME or not len(known):
            return known.slice(0, 0)
        keys = queries(known, hashes(known), self._same)
        ids, _ = self._place.grouping(_as(keys, self._place.schema))
        times = raw(known.column(TIME))
        order = np.lexsort((*_ties(known), times, ids))
        follows = np.zeros(len(known), np.bool_)  # whether a later one began before `low_us`
        one, two = order[:-1], order[1:]
        follows[one] = (ids[one] == ids[two]) & (times[two] < low_us)
        deleted = raw(known.column(DELETED)).astype(np.bool_)
        return known.filter(pa.array(follows | (deleted & (times < low_us))))

    def _joined(self, ready: pa.RecordBatch, known: pa.RecordBatch) -> pa.Table:
        """Rows with the versions of their times."""
        asked = _as(queries(ready, raw(ready.column(0)), self.on), self._place.schema)
        keys = _as(queries(known, hashes(known), self._same), self._place.schema)
        ids, _ = self._place.grouping(concat([asked, keys]))
        there = _as_of(
            ids[: len(ready)],
            raw(ready.column(TIME)),
            ids[len(ready) :],
            raw(known.column(TIME)),
            _ties(known),
        )
        deleted = raw(known.column(DELETED)).astype(np.bool_)
        met = there >= 0
        met[met] &= ~deleted[there[met]]
        for column in asked.columns[2:]:
            if column.null_count:
                met &= column.is_valid().to_numpy(zero_copy_only=False)
        there = np.where(met, there, -1)
        here = np.arange(len(ready))
        if self.how == "inner":
            here, there = here[met], there[met]
        return enriched(self.schema, ready, known, here, there)

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _same(self) -> tuple[tuple[str, str], ...]:
        """The table's key under its own names."""
        return tuple((name, name) for name in self.key(TABLE))

    @cached_property
    def _waiting(self) -> Bag:
        fields = [pa.field(TIME, TIMESTAMP), *plain(self.stream)]
        return Bag(pa.schema(fields), self.key(STREAM))

    @cached_property
    def _versions(self) -> Bag:
        return Bag(pa.schema([pa.field(TIME, TIMESTAMP), *self._changed]), self.key(TABLE))

    @cached_property
    def _due(self) -> Bag:
        fields = [pa.field(name, self.table.field(name).type) for name in self.key(TABLE)]
        return Bag(pa.schema([pa.field(TIME, TIMESTAMP), *fields]), self.key(TABLE))

    @cached_property
    def _place(self) -> Layout:
        return Layout(self._versions.layout.keys, ())

    @cached_property
    def _changed(self) -> pa.Schema:
        """The columns of a change, but for its time."""
        own = [pa.field(OFFSET, pa.int64()), pa.field(DELETED, pa.bool_())]
        return pa.schema([*own, *plain(self.table)])

    @cached_property
    def _parcels(self) -> RowParcels:
        """Of the stream: `$hash`, `$time`, and its columns."""
        return RowParcels(self.stream, timed=True, judged=True)

    @cached_property
    def _nothing(self) -> pa.Table:
        none = np.zeros(0, np.int64)
        return enriched(
            self.schema, self._parcels.empty(), self._versions.layout.empty(), none, none
        )


def _as_of(
    asked: Vector, asked_us: Vector, ids: Vector, times_us: Vector, ties: Sequence[Vector]
) -> Vector:
    """For each row that asks, the last version of its key that began at its time or before; -1 is none.

    Args:
        asked: int64[n], numbers of keys.
        asked_us: int64[n].
        ids: int64[m], numbers of the versions' keys.
        times_us: int64[m], when they began.
        ties: int64[m] each, what orders versions of one time; the last one decides first.
    """
    count = len(ids)
    zeros = np.zeros(len(asked), np.int64)
    is_asking = np.concatenate([np.zeros(count, np.int64), zeros + 1])
    key = np.concatenate([ids, asked])
    order = np.lexsort(
        (
            *(np.concatenate([tie, zeros]) for tie in ties),
            is_asking,
            np.concatenate([times_us, asked_us]),
            key,
        )
    )
    begins = np.where(order < count, np.arange(len(order)), -1)
    last = np.maximum.accumulate(begins)  # where the version before lies, be it of this key or not
    version = np.where(last >= 0, order[np.maximum(last, 0)], -1)
    version = np.where((version >= 0) & (key[version] == key[order]), version, -1)
    found = np.empty(len(asked), np.int64)
    asks = order >= count
    found[order[asks] - count] = version[asks]
    return found


def _ties(versions: pa.RecordBatch) -> tuple[Vector, Vector]:
    """What orders versions of one key and time: their offsets; the rest is for what can't be."""
    return raw(versions.column(ROW)), raw(versions.column(OFFSET))


def _stretch(times_us: Any) -> Any:
    return times_us // STRETCH_US * STRETCH_US


def _as(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)
