"""The interval join: rows of two streams that share a key and happen near each other.

    pairs = {(l, r) : key(l) = key(r), time(l) - before <= time(r) <= time(l) + after}

`inner` gives the pairs; `left`, `right` and `full` also the rows of one side or both that are in none, with
NULLs; `semi` the left rows that are in one, each once; `anti` the left rows that are in none.
The result is that of all rows that were in time, whichever way they came.

Design. Each side keeps a bag of its rows, in stretches of time as wide as the interval, so that the
partners of a row lie in at most two of them. New left rows meet all right rows, new right rows the left
rows from before: each pair once. Everything is linear in the weights of both sides, so rows that are
taken back take their pairs with them.

Whether a row has no partner is decided when none can come any more: when the other side's frontier has
passed the last time at which one could lie. It is decided by a look at the other side, not by a mark on
the row, so it is right however rows were taken back and given again. From then on the other side doesn't
change within the row's reach: a row that is taken back later meets the same decision. Rows that wait
for theirs lie in a second trace in order of time, of which each batch reads what is due and no more.

Contract
    1. The output is a function of the rows in time and the frontiers; not of batches, order or shards.
    2. A row is kept while a row may come, or wait for its decision, that it is near to; then it goes, by
       whole stretches.
    3. A NULL in a key equals nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.delta import TIME, WEIGHT
from penstock.core.schema import TIMESTAMP, Field, Schema
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.ops.codec import flags
from penstock.ops.joins.table_join import How
from penstock.ops.operator import Context, Follow, Operator, Port, Prepared, Step, Traits
from penstock.ops.routed import Routed, RowParcels, in_time, routed
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state.bag import COUNT, Bag, plain, weights_of
from penstock.state.intervals import near
from penstock.state.layout import HASH, WINDOW, concat, hashes, take
from penstock.state.trace import Trace

__all__ = ["IntervalJoin"]

LEFT: Final = 0
RIGHT: Final = 1
PORTS: Final = (LEFT, RIGHT)
ROWS: Final = ("left", "right")  # the sides, and the traces of their rows, by port
WAITING: Final = ("left_waiting", "right_waiting")  # those of rows that may have no partner


@dataclass(frozen=True)
class IntervalJoin(Operator):
    """The operator.

    Args:
        left: the columns of the rows of port 0.
        right: of port 1.
        on: the columns that are equal in a pair, left's and right's.
        before_us: how far a right row may lie before its left row.
        after_us: how far after it; below 0 where it must lie so far before at least.
        how: which rows are given.
        taken_back: of each port, whether its rows have weights.
    """

    kind: ClassVar[str] = "interval join"

    left: Schema
    right: Schema
    on: tuple[tuple[str, str], ...]
    before_us: int
    after_us: int
    how: How = "inner"
    taken_back: Annotated[tuple[bool, bool], flags("left", "right")] = (False, False)

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise FlowError(
                f"expected one of the joins {', '.join(get_args(How))}; found {self.how!r}"
            )

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: what is decided last needs no right rows that change."""
        return Traits(
            schema=self.output.arrow,
            ports=tuple(Port(self._parcels[port], self.key(port)) for port in PORTS),
            follow=Follow.ANSWER,
            retracts=self.retracts,
            timed=True,
            frontiers_kept=2,
            keeps={name: self._bags[port].layout for name, port in self._traces.items()},
        )

    @cached_property
    def columns(self) -> tuple[_Output, ...]:
        """Its own columns: left's, then right's but for those that are equal."""
        equal = dict(self.on)
        found = [
            _Output(self._field(field, LEFT, equal), field.name, equal.get(field.name))
            for field in self.left
        ]
        if self.gives_pairs:
            found += [
                _Output(self._field(field, RIGHT, {}), None, field.name)
                for field in self.right
                if field.name not in equal.values()
            ]
        return tuple(found)

    def _field(self, field: Field, port: int, equal: Mapping[str, str]) -> Field:
        """A column that is NULL where its side has no row, and the other none to take its place."""
        required = field.required
        if self.decides(1 - port):
            required = required and field.name in equal and self.right[equal[field.name]].required
        return Field(field.name, field.type, required)

    @cached_property
    def output(self) -> Schema:
        """The columns of its rows.

        Raises:
            SchemaError: two of them have one name.
        """
        return Schema(tuple(column.field for column in self.columns))

    @property
    def gives_pairs(self) -> bool:
        """Whether right's columns are there."""
        return self.how not in ("semi", "anti")

    def decides(self, port: int) -> bool:
        """Whether a port's rows are given where they have no partner."""
        return self.how == "full" or self.how in (
            ("left", "anti") if port == LEFT else ("right",)
        )  # fmt: skip

    @property
    def retracts(self) -> bool:
        """Whether pairs and rows may be taken back."""
        if self.how == "anti":
            return self.taken_back[LEFT]
        return any(self.taken_back)

    def key(self, port: int) -> tuple[str, ...]:
        """The columns of a port that must be equal."""
        return tuple(pair[port] for pair in self.on)

    # -- time ---------------------------------------------------------------------------------------

    @property
    def span_us(self) -> int:
        """From the first to the last time of a row's partners."""
        return self.before_us + self.after_us

    @property
    def width_us(self) -> int:
        """Of a stretch of time: a row's partners lie in two at most."""
        return max(self.span_us, 1)

    def back_us(self, port: int) -> int:
        """How far before a row of the port its partners may lie."""
        return (self.before_us, self.after_us)[port]

    def ahead_us(self, port: int) -> int:
        """How far after it."""
        return (self.after_us, self.before_us)[port]

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: a row without its partner comes when one might have come last."""
        found = min(inputs_us)
        for port in PORTS:
            if self.decides(port) or (self.how == "semi" and port == LEFT):
                found = min(found, _minus(inputs_us[1 - port], self.ahead_us(port)))
        return found

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: whether rows may be due that wait for the other side."""
        return any(self.decides(port) and now_us[1 - port] != before_us[1 - port] for port in PORTS)

    def low_us(self, port: int, frontiers_us: Sequence[int]) -> int:
        """The first time at which a port's rows are still needed.

        A row of the other port that comes is near to rows from its own time less its `back_us` on;
        one that is still to be decided has its last partner at this port's frontier or later.
        """
        mine, others = frontiers_us[port], frontiers_us[1 - port]
        found = _minus(others, self.ahead_us(port))
        if self.decides(1 - port) or (self.how == "semi" and port == RIGHT):
            found = min(found, _minus(mine, self.span_us))
        return found

    # -- rows on their way --------------------------------------------------------------------------

    @cached_property
    def _parcels(self) -> tuple[RowParcels, ...]:
        return tuple(
            RowParcels(side.arrow, timed=True, weighted=taken_back, judged=True)
            for side, taken_back in zip((self.left, self.right), self.taken_back, strict=True)
        )

    @cached_property
    def _bags(self) -> tuple[Bag, ...]:
        time = pa.field(TIME, TIMESTAMP)
        return tuple(
            Bag(pa.schema([time, *plain(side.arrow)]), self.key(port))
            for port, side in enumerate((self.left, self.right))
        )

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """See `Operator`. Rows that can't be in the output, as their key is NULL, are left out."""
        rows, late = in_time(rows)
        if not self.decides(port):
            for name in self.key(port):
                if rows.column(name).null_count:
                    rows = rows.filter(pc.is_valid(rows.column(name)))
        return Prepared(routed(rows, self.key(port), self._parcels[port].schema), late)

    # -- state --------------------------------------------------------------------------------------

    @cached_property
    def _traces(self) -> dict[str, int]:
        """The names of the traces, and their ports."""
        kept = {ROWS[RIGHT]: RIGHT}
        if self.how != "anti":  # whose left rows only wait
            kept[ROWS[LEFT]] = LEFT
        return kept | {WAITING[port]: port for port in PORTS if self.decides(port)}

    # -- the join -----------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        moved = zip(state.frontiers_us, context.frontiers_us, strict=True)
        assert all(before <= now for before, now in moved), "frontiers don't fall"
        arrived = [self._arrived(port, parts) for port, parts in enumerate(inputs)]
        sides = [_Side(self._bags[p], state.traces.get(ROWS[p]), arrived[p][1]) for p in PORTS]
        made: list[pa.Table] = []
        if self.gives_pairs:
            made += self._pairs(sides)
        if self.how == "semi":
            made += self._semi(sides)
        for port in PORTS:
            if self.decides(port):
                due = self._due(port, arrived[port][0], state, context.frontiers_us)
                made += self._alone(port, due, sides[1 - port])
        deltas, lows_us = {}, {}
        for name, port in self._traces.items():
            if name == ROWS[port]:
                low = self.low_us(port, context.frontiers_us)
                lows_us[name] = low if low == NO_TIME else low // self.width_us * self.width_us
                deltas[name] = arrived[port][1]
            else:
                lows_us[name] = _minus(context.frontiers_us[1 - port], self.ahead_us(port))
                deltas[name] = self._by_time(port, arrived[port][0])
        kept = context.appended(state, deltas, low_us=lows_us, frontiers_us=context.frontiers_us)
        return Step(kept, self._changes(made))

    def _arrived(self, port: int, parts: Sequence[Routed]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """A port's new rows, in its bag's layout, each once; and those without a NULL in the key."""
        bag = self._bags[port]
        if not parts:
            return bag.layout.empty(), bag.layout.empty()
        rows = Routed.combine(parts)
        stretches = rows.times_us // self.width_us * self.width_us
        made = bag.delta(rows.batch, rows.hashes, rows.weights, stretches)
        keyed = made
        for name in self.key(port):
            if keyed.column(name).null_count:
                keyed = keyed.filter(pc.is_valid(keyed.column(name)))
        return made, keyed

    def _by_time(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a bag in the order of their times."""
        at = rows.schema.get_field_index(WINDOW)
        times = rows.column(TIME).view(pa.int64())
        moved = rows.set_column(at, WINDOW, times).cast(rows.schema)
        return self._bags[port].layout.group(moved, whole=False)

    def _partners(
        self, port: int, rows: pa.RecordBatch, side: _Side, *, payload: bool
    ) -> pa.RecordBatch:
        """The rows of the other port's state that may be near to rows of this one.

        Args:
            port: of the rows.
            rows: in their bag's layout; none is NULL in its key.
            side: the other port's.
            payload: whether all columns are wanted, and not just those that show whether there is a partner.
        """
        bag, key = side.bag, self.key(1 - port)
        names = bag.layout.schema.names
        if not payload:
            names = [WINDOW, HASH, *key, TIME, COUNT]
        empty = bag.layout.empty().select(names)
        if side.trace is None:
            return empty
        times = vectors.raw(rows.column(TIME))
        bounds = times - self.back_us(port), times + self.ahead_us(port)
        mine = [HASH, *self.key(port)]  # rows without any key have a length, too
        keys = pa.RecordBatch.from_arrays([rows.column(name) for name in mine], [HASH, *key])
        found = bag.near(side.trace, keys, hashes(rows), self.width_us, bounds, names)
        return concat(found) if found else empty

    def _near(self, port: int, rows: pa.RecordBatch, others: pa.RecordBatch) -> Any:
        on = self.on if port == LEFT else tuple((other, mine) for mine, other in self.on)
        return near(rows, others, on, self.back_us(port), self.ahead_us(port))

    def _pairs(self, sides: Sequence[_Side]) -> list[pa.Table]:
        """New left rows with all right rows, and new right rows with the left rows from before."""
        left, right = sides
        sets = [
            (left.keyed, self._partners(LEFT, left.keyed, right, payload=True)),
            (left.keyed, right.keyed),
            (self._partners(RIGHT, right.keyed, left, payload=True), right.keyed),
        ]
        return [
            self._pair(ones, here, others, there)
            for ones, others in sets
            if len(ones) and len(others)
            for here, there in self._near(LEFT, ones, others).pairs()
        ]

    def _semi(self, sides: Sequence[_Side]) -> list[pa.Table]:
        """Left rows that are new and have a partner, and those from before that have got or lost one."""
        left, right = sides
        before, new = self._counts(LEFT, left.keyed, right)
        made = [self._some(left.keyed, before + new > 0)]
        known = self._partners(RIGHT, right.keyed, left, payload=True)
        if len(known):
            touched = self._near(LEFT, known, right.keyed)
            some = np.flatnonzero(touched.partners(np.ones(len(right.keyed), np.int64)))
            known = known.take(vectors.from_int64(some))
            before, new = self._counts(LEFT, known, right)
            gained = (before + new > 0).astype(np.int64) - (before > 0)
            made.append(self._some(known, gained))
        return made

    def _counts(self, port: int, rows: pa.RecordBatch, side: _Side) -> tuple[Vector, Vector]:
        """How many partners each row has among those from before, and the new ones: int64[n] each."""
        before = self._partners(port, rows, side, payload=False)
        made = []
        for others in (before, side.keyed):
            count = np.zeros(len(rows), np.int64)
            if len(rows) and len(others):
                count = self._near(port, rows, others).partners(weights_of(others))
            made.append(count)
        return made[0], made[1]

    def _due(
        self,
        port: int,
        new: pa.RecordBatch,
        state: State,
        frontiers_us: Sequence[int],
    ) -> pa.RecordBatch:
        """The rows of a port that no partner can come to any more, as of this batch."""
        passed = _minus(frontiers_us[1 - port], self.ahead_us(port))
        if passed == NO_TIME:
            return new.slice(0, 0)
        times = vectors.raw(new.column(TIME))
        # What goes now may still wait there: the two cancel out in what is given.
        waiting = state.traces[WAITING[port]].scan(None, passed)
        return concat([new.filter(pa.array(times < passed)), *waiting])

    def _alone(self, port: int, due: pa.RecordBatch, side: _Side) -> list[pa.Table]:
        """Those of the rows that have no partner on the other side."""
        if not len(due):
            return []
        there = np.ones(len(due), np.bool_)
        for name in self.key(port):
            if due.column(name).null_count:
                there &= due.column(name).is_valid().to_numpy(zero_copy_only=False)
        keyed = due if there.all() else due.filter(pa.array(there))
        alone = ~there
        before, new = self._counts(port, keyed, side)
        alone[there] = before + new <= 0
        return [self._some(due, alone, port)]

    # -- rows that come out -------------------------------------------------------------------------

    def _pair(
        self, left: pa.RecordBatch, here: Vector, right: pa.RecordBatch, there: Vector
    ) -> pa.Table:
        """Pairs of rows: of `left[here[i]]` and `right[there[i]]`."""
        weights = weights_of(left)[here] * weights_of(right)[there]
        if not self.retracts and (weights != 1).any():
            here, there = np.repeat(here, weights), np.repeat(there, weights)
        ours, theirs = vectors.from_int64(here), vectors.from_int64(there)
        columns: list[pa.Array] = []
        for column in self.columns:
            if column.left is not None:
                columns.append(take(left.column(column.left), ours))
            else:
                columns.append(take(right.column(str(column.right)), theirs))
        times = np.maximum(
            vectors.raw(left.column(TIME))[here], vectors.raw(right.column(TIME))[there]
        )
        return self._table(columns, vectors.from_int64(times).view(TIMESTAMP), weights)

    def _some(self, rows: pa.RecordBatch, factor: Vector, port: int = LEFT) -> pa.Table:
        """Rows of one side, times a number each; what the other side has is NULL."""
        weights = weights_of(rows) * factor
        at = np.flatnonzero(weights)
        weights = weights[at]
        if not self.retracts:
            at = np.repeat(at, weights)
        taken = rows.take(vectors.from_int64(at))
        columns: list[pa.Array] = []
        for column in self.columns:
            name, type_ = (column.left, column.right)[port], cast("Any", column.field.type)
            columns.append(pa.nulls(len(at), type_) if name is None else taken.column(name))
        return self._table(columns, taken.column(TIME), weights)

    def _table(self, columns: list[pa.Array], times: pa.Array, weights: Vector) -> pa.Table:
        columns = [*columns, times]
        if self.retracts:
            columns.append(vectors.from_int64(weights))
        return pa.Table.from_arrays(columns, schema=self._changed)

    @cached_property
    def _changed(self) -> pa.Schema:
        """Of what a step gives."""
        fields = [pa.field(column.field.name, column.field.type) for column in self.columns]
        weight = [pa.field(WEIGHT, pa.int64())] if self.retracts else []
        return pa.schema([*fields, pa.field(TIME, TIMESTAMP), *weight])

    def _changes(self, made: list[pa.Table]) -> pa.Table:
        """All rows of a step; where they have weights each row once, those that go first."""
        if not made:
            return self._changed.empty_table()
        rows = pa.concat_tables(made)
        if not self.retracts or not len(rows):
            return rows
        bag = Bag(self._changed.remove(len(self._changed) - 1), ())
        batch = pa.RecordBatch.from_arrays(
            [vectors.contiguous(column) for column in rows.columns], schema=self._changed
        )
        zeros = np.zeros(len(rows), np.int64)
        each = bag.delta(batch, zeros, vectors.raw(batch.column(WEIGHT)), None)
        weights = weights_of(each)
        order = np.argsort(weights > 0, kind="stable")
        columns = [*bag.rows(each).columns, vectors.from_int64(weights)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._changed)
        return pa.Table.from_batches([batch.take(vectors.from_int64(order))])


@dataclass(frozen=True)
class _Output:
    """A column of the join's rows, and whose values it has; one that is equal on both sides, either's."""

    field: Field
    left: str | None
    right: str | None


@dataclass(frozen=True)
class _Side:
    """The rows of a port that have a key: those from before, and those of this batch."""

    bag: Bag
    trace: Trace | None
    keyed: pa.RecordBatch


def _minus(frontier_us: int, us: int) -> int:
    """A frontier moved back; what promises nothing still does."""
    return NO_TIME if frontier_us < NO_TIME + us else frontier_us - us
