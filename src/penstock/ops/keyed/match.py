"""Row patterns over a stream: what matches among each key's rows, in the order of their time.

    rows of a key, by time; rows of one time by the columns of `order`, then by what is in them
    matches = those of the pattern in these rows, one after the other (`penstock.patterns`)

Rows wait until the frontier has passed their time, so none can come between two that were seen, and matches
are a function of the rows in time, however they came. A match is given once, as soon as nothing that may
still come can change it: with the row after which the search need not look further, or when its first row
lies further back than `within`. That instant is its event time, so the operator promises what its input does.

An attempt that is undecided keeps its rows. It is bounded by `within` in time, and by `rows_max` in rows:
one that looks at more rows is given up, as if it failed, and its first row is refused.

State. Rows that wait, by time; by key, those that an attempt, or PREV, still needs; a row a key that says
where the next attempt begins; and the instants at which `within` ends undecided attempts, by time. A key of
which nothing is needed is forgotten, unless the pattern counts its matches or asks for its first row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector, from_int64, raw
from penstock.ops.codec import RARE
from penstock.ops.operator import Context, Operator, Port, Step, Traits
from penstock.ops.over.window_functions import Ordered
from penstock.ops.rolling.waiting import STRETCH_US, Waiting, low_of
from penstock.ops.routed import Routed
from penstock.ops.rows import Refused
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.patterns import Matcher, Matches, Resume, RowPattern
from penstock.state.bag import ROW, Bag, negated, plain, repeated, weights_of
from penstock.state.layout import WINDOW, concat, hashes

__all__ = ["Match", "Matching", "Partitions"]

SKIP: Final = "$skip"  # int64, how many of the kept rows lie before the next attempt
NUMBER: Final = "$number"  # int64, how many matches there were
GONE: Final = "$gone"  # int64, 1 where rows of the key are no longer kept
DUE: Final = (
    "$due"  # int64, after which time the next attempt ends though no row comes; `NEVER` is none
)
COVERED: Final = "$covered"  # a byte for each kept row: whether it is of a match
NEVER: Final = 2**63 - 1


@dataclass(frozen=True)
class Partitions:
    """Rows of some keys in their order.

    Attributes:
        rows: of all keys, in the layout of their bag, one for each time that it is there.
        order: int64[rows], which each was, in what they were taken from.
        starts: int64[keys + 1], where those of each key begin.
    """

    rows: pa.RecordBatch
    order: Vector
    starts: Vector


@dataclass(frozen=True)
class Matching(Operator):
    """What operators that match patterns have in common.

    Args:
        input: the columns of the rows.
        per: those that make up a key; none: all rows are one key's.
        order: what rows are ordered by, within one instant where they have a time.
        pattern: what is looked for, and what is given of it.
        output: the columns that come out.
        rows_max: that an attempt may look at.
    """

    input: pa.Schema
    per: tuple[str, ...]
    order: tuple[Ordered, ...]
    pattern: RowPattern
    output: pa.Schema
    rows_max: int

    @property
    @abstractmethod
    def _bag(self) -> Bag:
        """Of the rows."""

    @cached_property
    def _matcher(self) -> Matcher:
        time = TIME if TIME in self._bag.schema.names else None
        return Matcher(self.pattern, self.input, time, rows_max=self.rows_max)

    def _partitions(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> Partitions:
        """Rows by key, in the order in which they are matched.

        Args:
            keys: of all rows: `$window`, `$hash` and the key's columns; sorted, each once.
            rows: in the layout of the bag.
        """
        number = self._numbers(keys, rows)
        order = self._sorted(number, rows)
        starts = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(np.bincount(number, minlength=len(keys)), out=starts[1:])
        return Partitions(rows.take(from_int64(order)), order, starts)

    def _numbers(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> Vector:
        """The number of each row's key: int64[rows]."""
        if len(keys) == 1:
            return np.zeros(len(rows), np.int64)
        place = self._bag.place
        names = place.schema.names
        ids, _ = place.grouping(concat([keys.select(names), _at_zero(rows).select(names)]))
        number = np.empty(len(keys), np.int64)
        number[ids[: len(keys)]] = np.arange(len(keys))
        return number[ids[len(keys) :]]

    def _sorted(self, number: Vector, rows: pa.RecordBatch) -> Vector:
        """The order of rows by key, then time, then the columns of `order`, then what is in them."""
        times = [raw(rows.column(TIME))] if TIME in rows.schema.names else []
        if times and len(rows):
            order = _by_time(number, times[0])
            if order is not None:
                return order
        if not self.order:
            return np.lexsort((raw(rows.column(ROW)), *times, number))
        columns: list[pa.Array] = [from_int64(one) for one in (number, *times)]
        keys: list[Any] = [(str(i), "ascending", "at_end") for i in range(len(columns))]
        for one in self.order:
            direction = "descending" if one.descending else "ascending"
            nulls = "at_start" if one.nulls_first else "at_end"
            keys.append((str(len(columns)), direction, nulls))
            columns.append(vectors.sortable(rows.column(one.name)))
        keys.append((str(len(columns)), "ascending", "at_end"))
        columns.append(rows.column(ROW))
        table = pa.table({str(i): column for i, column in enumerate(columns)})
        return np.asarray(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)

    def _given(self, parts: Partitions, rows: pa.Table, partition: Vector) -> pa.RecordBatch:
        """What comes out of matches: the output's columns, which may be NULL.

        Args:
            parts: that are matched.
            rows: that the matcher gave.
            partition: int64[rows], of each.
        """
        heads = parts.rows.take(from_int64(parts.starts[partition]))
        columns = []
        for field in plain(self.output):
            if field.name in rows.column_names:
                column = vectors.contiguous(rows.column(field.name))
            else:
                column = heads.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=plain(self.output))

    def _read(self, parts: Partitions) -> pa.Table:
        """Rows as the matcher reads them."""
        names = [*self.input.names, *([TIME] if TIME in parts.rows.schema.names else [])]
        return pa.Table.from_batches([parts.rows.select(names)])

    def _refused(self, parts: Partitions, found: Matches) -> list[Refused]:
        """The first rows of attempts that were given up."""
        if not len(found.abandoned.first):
            return []
        first = np.ascontiguousarray(found.abandoned.first)
        rows = parts.rows.select(self.input.names).take(from_int64(first))
        reason = (
            f"expected matches of at most {self.rows_max:,} rows, in not too many ways; found more from this "
            f"row on, for the pattern {self.pattern.pattern}. Say more in its conditions, or add within="
        )
        return [Refused(pa.Table.from_batches([rows]), reason, "pattern")]


@dataclass(frozen=True)
class Match(Matching):
    """The operator; see `Matching` for what else it is made of.

    Args:
        timed_out: whether it gives, instead of matches, attempts that `within` ended before they matched.
    """

    kind: ClassVar[str] = "match"

    timed_out: Annotated[bool, RARE] = False

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: records are keyed by the key, where its columns come out."""
        keys = self.per if set(self.per) <= set(self.output.names) else ()
        keeps = {
            "waiting": self._bag.layout,
            "kept": self._bag.layout,
            "places": self._places.layout,
            "timers": self._timers.layout,
        }
        return Traits(
            schema=self.output,
            ports=(Port(self._waiting.parcels, self.per),),
            keeps=keeps,
            keys=keys,
            placed_by=keys,
            retracts=False,
            timed=True,
            frontiers_kept=1,
        )

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: rows and undecided attempts may wait for the frontier."""
        return now_us[0] > before_us[0]

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        looked, deltas = self._looked(state, inputs, context)
        if looked is None:
            return Step(self._next(state, deltas, context), self._empty if self.gives else None)
        changes = self._changes(looked.some, looked.found) if self.gives else None
        refused = [] if self.timed_out else self._refused(looked.some, looked.found)
        return Step(self._next(state, deltas, context), changes, refused=refused)

    # -- the work -----------------------------------------------------------------------------------

    def _looked(
        self, state: State, inputs: Sequence[Sequence[Routed]], context: Context
    ) -> tuple[_Looked | None, dict[str, pa.RecordBatch]]:
        """What is found, if there is anything to look at, and what changes of the state."""
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "frontiers don't fall"
        passed, held = self._waiting.passed(state.traces["waiting"], parts, before_us, now_us)
        keys = self._touched(state, passed, now_us)
        if not len(keys):
            return None, {"waiting": held}
        before = repeated(self._bag.find(state.traces["kept"], keys))
        some = self._partitions(keys, concat([before, repeated(passed)]))
        old = self._places.find(state.traces["places"], keys)
        found = self._found(keys, some, old, now_us)
        is_new = some.order >= len(before)
        deltas = self._deltas(keys, some, is_new, old, found, found.due)
        return _Looked(keys, some, found), {"waiting": held, **deltas}

    def _next(self, state: State, deltas: dict[str, pa.RecordBatch], context: Context) -> State:
        """The next version of the state."""
        [now_us] = context.frontiers_us
        low_us = {"waiting": low_of(now_us, 0, STRETCH_US)}
        made = context.appended(state, deltas, low_us=low_us, frontiers_us=context.frontiers_us)
        return made.above({"timers": now_us}) if now_us > NO_TIME else made

    def _touched(self, state: State, passed: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
        """The keys that the frontier has passed rows of, or the end of an undecided attempt."""
        names = self._bag.place.schema.names
        found = [_at_zero(passed).select(names)]
        if now_us > NO_TIME:
            due = self._timers.sum(list(state.traces["timers"].scan(None, now_us)))
            found.append(_at_zero(due).select(names))
        return self._bag.place.group(concat(found), whole=False)

    def _found(
        self, keys: pa.RecordBatch, some: Partitions, old: pa.RecordBatch, now_us: int
    ) -> Matches:
        """The matches that are certain now."""
        resume = self._resumed(keys, some, old)
        return self._matcher.match(
            self._read(some), some.starts, complete=False, resume=resume, frontier_us=now_us
        )

    def _resumed(self, keys: pa.RecordBatch, some: Partitions, old: pa.RecordBatch) -> Resume:
        """Where the last step left each key."""
        number, starts = self._numbers(keys, old), some.starts[:-1]
        at, numbers = starts.copy(), np.zeros(len(keys), np.int64)
        whole = np.ones(len(keys), np.bool_)
        covered = np.zeros(len(some.rows), np.bool_)
        at[number] += raw(old.column(SKIP))
        numbers[number] = raw(old.column(NUMBER))
        whole[number] = raw(old.column(GONE)) == 0
        if self.pattern.unmatched:
            for key, one in zip(number, old.column(COVERED).to_pylist(), strict=True):
                of = np.frombuffer(one or b"", np.bool_)
                covered[starts[key] : starts[key] + len(of)] = of
        return Resume(at, numbers, whole, covered)

    def _timed(self, some: Partitions, found: Matches) -> tuple[pa.RecordBatch, Vector, Vector]:
        """What comes out: with `$time`; that of each row; the key of each."""
        if self.timed_out:
            rows, certain = found.timed_out.rows, np.ascontiguousarray(found.timed_out.decided)
            partition = np.ascontiguousarray(found.timed_out.partition)
        else:
            rows, certain = found.rows, found.certain
            partition = np.searchsorted(some.starts, found.source, side="right") - 1
        made = self._given(some, rows, partition)
        times = from_int64(certain).view(TIMESTAMP)
        return made.append_column(pa.field(TIME, TIMESTAMP), times), certain, partition

    def _changes(self, some: Partitions, found: Matches) -> pa.Table:
        """What comes out, in the order of its time."""
        made, certain, _ = self._timed(some, found)
        order = np.argsort(certain, kind="stable")
        return pa.Table.from_batches([made.take(from_int64(order))])

    def _deltas(
        self,
        keys: pa.RecordBatch,
        some: Partitions,
        is_new: Vector,
        old: pa.RecordBatch,
        found: Matches,
        due: Vector,
    ) -> dict[str, pa.RecordBatch]:
        """What changes of the state of some keys, whose next attempts end when they are due."""
        here, ends = np.arange(len(some.rows)), some.starts[1:]
        keep = here >= np.repeat(found.open_from, np.diff(some.starts))
        change = keep.astype(np.int64) - ~is_new
        moved = np.flatnonzero(change)
        rows = some.rows.take(from_int64(moved))
        gone = found.open_from > some.starts[:-1]
        was = self._numbers(keys, old)
        gone[was] |= raw(old.column(GONE)) != 0
        left = found.next_from
        needed = found.open_from < ends
        needed |= (left.numbers > 0) & self._matcher.is_numbered
        needed |= gone & self._matcher.is_anchored
        made: dict[str, pa.Array] = {name: keys.column(name) for name in self.per}
        made[SKIP] = from_int64(left.at - found.open_from)
        made[NUMBER] = from_int64(left.numbers)
        made[GONE] = from_int64(gone.astype(np.int64))
        made[DUE] = from_int64(due)
        if self.pattern.unmatched:
            bounds = zip(found.open_from, ends, strict=True)
            flags = [left.covered[lo:hi].astype(np.uint8).tobytes() for lo, hi in bounds]
            made[COVERED] = pa.array(flags, pa.binary())
        stays = from_int64(np.flatnonzero(needed))
        kept = pa.RecordBatch.from_pydict(made).take(stays)
        new = self._places.delta(kept, hashes(keys.take(stays)), None, None)
        places = self._places.sum([negated(old), new])
        deltas = {
            "kept": self._bag.delta(rows, hashes(rows), change[moved], None),
            "places": places,
        }
        deltas["timers"] = self._timers_of(places)
        return deltas

    def _timers_of(self, places: pa.RecordBatch) -> pa.RecordBatch:
        """How the timers change where the places change so."""
        due = raw(places.column(DUE))
        there = places.filter(pa.array(due != NEVER))
        times = raw(there.column(DUE))
        return self._timers.sum(
            [self._timers.delta(there, hashes(there), weights_of(there), times)]
        )

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _empty(self) -> pa.Table:
        return pa.schema([*plain(self.output), pa.field(TIME, TIMESTAMP)]).empty_table()

    @cached_property
    def _waiting(self) -> Waiting:
        return Waiting(self.input, self.per)

    @property
    def _bag(self) -> Bag:
        return self._waiting.bag

    @cached_property
    def _places(self) -> Bag:
        keys = [pa.field(name, self.input.field(name).type) for name in self.per]
        own: list[pa.Field] = [pa.field(name, pa.int64()) for name in (SKIP, NUMBER, GONE, DUE)]
        if self.pattern.unmatched:
            own.append(pa.field(COVERED, pa.binary()))
        return Bag(pa.schema([*keys, *own]), self.per)

    @cached_property
    def _timers(self) -> Bag:
        """A row a key that has an undecided attempt, where the time lies at which that ends."""
        keys = [pa.field(name, self.input.field(name).type) for name in self.per]
        return Bag(pa.schema([*keys, pa.field(DUE, pa.int64())]), self.per)


def _by_time(number: Vector, times: Vector) -> Vector | None:
    """The order of rows by key, then time, if no two of a key have the same: one sort of one number each."""
    first, span = int(times.min()), int(times.max()) - int(times.min()) + 1
    if (int(number.max()) + 1) * span >= 2**63:
        return None
    packed = number * span + (times - first)
    order = np.argsort(packed)
    packed = packed[order]
    return None if (packed[1:] == packed[:-1]).any() else order


@dataclass(frozen=True)
class _Looked:
    """What a step has looked at: some keys, their rows, what is found among these."""

    keys: pa.RecordBatch
    some: Partitions
    found: Matches


def _at_zero(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, of no stretch of time."""
    at = rows.schema.get_field_index(WINDOW)
    zeros = from_int64(np.zeros(len(rows), np.int64))
    return rows.set_column(at, rows.schema.field(at), zeros)
