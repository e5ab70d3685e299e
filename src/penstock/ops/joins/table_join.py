"""The join of two tables, kept up change by change.

    join(L, R)' = join(L, R) + dL x (R + dR) + L x dR                             the product rule
    unmatched left rows of a key = L(key) where R has no row of the key, else none

so a change costs the rows of its own key on the other side, and a key's unmatched rows are written again
only when the other side's first row comes or its last one goes. Both tables are kept as bags, found by the
key; where unmatched rows matter, a count of each key stands next to them, so that whether a key has
partners is known without reading these. The joined rows aren't kept: a reader joins the bags of its version.

NULL is equal to nothing, as in SQL: a row whose key has one is unmatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import WEIGHT
from penstock.core.keys import hash_columns
from penstock.core.vectors import Vector
from penstock.ops.operator import Context, Follow, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.state import State
from penstock.state.bag import COUNT, Bag, changes_of, matches, plain, weights_of
from penstock.state.layout import HASH, WINDOW, Layout, Value, concat, taken
from penstock.state.trace import Trace

__all__ = ["How", "TableJoin"]

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
LEFT: Final = 0
RIGHT: Final = 1
SIDES: Final = ("left", "right")


@dataclass(frozen=True)
class TableJoin(Operator):
    """The operator.

    Args:
        how: which rows it gives.
        left: the left table's columns.
        right: the right table's.
        on: pairs of columns that must be equal: the left one's name, the right one's.
        keys: the columns of the result that identify its rows; none where nothing does.
    """

    kind: ClassVar[str] = "table join"

    how: How
    left: pa.Schema
    right: pa.Schema
    on: tuple[tuple[str, str], ...]
    keys: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> pa.Schema:
        """The left table's columns, then the right one's but for those that equal one of the left's."""
        lone_left, lone_right = self.how in ("left", "full"), self.how in ("right", "full")
        equal = {mine for mine, _ in self.on}
        fields = []
        for field in self.left:
            absent = lone_right and field.name not in equal
            fields.append(pa.field(field.name, field.type, field.nullable or absent))
        if self.how not in ("semi", "anti"):
            fields += [pa.field(f.name, f.type, f.nullable or lone_left) for f in self._others]
        return pa.schema(fields)

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: the key has the left column's name, whichever side a row is of."""
        return Traits(
            schema=self.schema,
            ports=(self._port(LEFT, self.left), self._port(RIGHT, self.right)),
            keys=self.keys,
            keeps=self._layouts,
            follow=Follow.FIRST if self.how in ("semi", "anti") else Follow.EACH,
        )

    def _port(self, port: int, columns: pa.Schema) -> Port:
        """It keeps each side, and its counts where they are asked for."""
        side = SIDES[port]
        forms = {side: self._bags[port], f"{side}.counts": self._count_layouts[port]}
        arranges = {name: form for name, form in forms.items() if name in self._layouts}
        return Port(RowParcels(columns, weighted=True), self.key(port), arranges=arranges)

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        layouts = {side: bag.layout for side, bag in zip(SIDES, self._bags, strict=True)}
        asked = {"left": (RIGHT,), "semi": (RIGHT,), "anti": (RIGHT,), "right": (LEFT,)}
        for side in asked.get(self.how, (LEFT, RIGHT) if self.how == "full" else ()):
            layouts[f"{SIDES[side]}.counts"] = self._count_layouts[side]
        return layouts

    def key(self, port: int) -> tuple[str, ...]:
        """The columns of a port that must be equal."""
        return tuple(pair[port] for pair in self.on)

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        deltas = [
            context.arranged(side).delta(partial(delta_of, bag, parts))
            for side, bag, parts in zip(SIDES, self._bags, inputs, strict=True)
        ]
        counts = self._counts(deltas)
        changes = self._changes(state.traces, deltas, counts) if self.gives else None
        counted = [f"{side}.counts" for side in SIDES]
        made = zip([*SIDES, *counted], [*deltas, *counts], strict=True)
        given = {name: delta for name, delta in made if name in state.traces}
        return Step(context.appended(state, given), changes)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: joins the tables of this version. A row that is there twice comes twice."""
        files = next(iter(state.traces.values())).files
        deltas = [
            self._bags[port].sum(list(state.traces[side].scan())) for port, side in enumerate(SIDES)
        ]
        found = self._changes(self.empty(files).traces, deltas, self._counts(deltas))
        times = vectors.raw(vectors.contiguous(found.column(WEIGHT)))
        rows = found.select(self.schema.names)
        if (times != 1).any():
            rows = rows.take(vectors.from_int64(np.repeat(np.arange(len(rows)), times)))
        yield from rows.to_batches()

    # -- the work -----------------------------------------------------------------------------------

    def _changes(
        self,
        before: Mapping[str, Trace],
        deltas: Sequence[pa.RecordBatch],
        counts: Sequence[pa.RecordBatch],
    ) -> pa.Table:
        """How the joined table changes: rows that go, then rows that come."""
        parts: list[pa.RecordBatch] = []
        if self.how not in ("semi", "anti"):
            parts += self._pairs(before, deltas)
        if self.how in ("left", "full", "anti"):
            parts += self._alone(LEFT, before, deltas, counts, has_partner=False)
        if self.how == "semi":
            parts += self._alone(LEFT, before, deltas, counts, has_partner=True)
        if self.how in ("right", "full"):
            parts += self._alone(RIGHT, before, deltas, counts, has_partner=False)
        parts = [part for part in parts if len(part)]
        rows = self._out_delta(concat(parts)) if parts else self._out.layout.empty()
        return changes_of(rows, self.schema)

    def _pairs(
        self, before: Mapping[str, Trace], deltas: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Pairs that come and go: dL x (R + dR) + L x dR."""
        left, right = deltas
        found = []
        if len(left):
            partners = self._bags[RIGHT].sum([*self._of_keys(before, RIGHT, left, LEFT), right])
            found.append((left, partners))
        if len(right) and (parts := self._of_keys(before, LEFT, right, RIGHT)):
            found.append((concat(parts), right))  # pairs add up, however often a row is there
        joined = []
        for mine, other in found:
            i, j = matches(mine, other, self.on)
            weights = weights_of(mine)[i] * weights_of(other)[j]
            columns = taken(mine.select(self.left.names), i).columns
            if self._others:
                columns = [*columns, *taken(other.select(self._other_names), j).columns]
            joined.append(self._joined(columns, weights))
        return joined

    def _alone(
        self,
        side: int,
        before: Mapping[str, Trace],
        deltas: Sequence[pa.RecordBatch],
        counts: Sequence[pa.RecordBatch],
        *,
        has_partner: bool,
    ) -> list[pa.RecordBatch]:
        """How the rows of one side change that have a partner, or have none.

        Of a key, before -> after: a key that stays as wanted gives the delta; one that becomes so, all its
        rows as they are now; one that ceases to be, all its rows as they were.
        """
        delta, other = deltas[side], 1 - side
        wanted = self._keys_of([(deltas[0], LEFT), (deltas[1], RIGHT)], side)
        if not len(wanted):
            return []
        was = self._count(before, other, wanted)
        now = was + self._count_in(counts[other], other, wanted)
        was_so, is_so = (was > 0) == has_partner, (now > 0) == has_partner
        stays = wanted.filter(pa.array(was_so & is_so))
        begins, ends = (
            wanted.filter(pa.array(one & ~two)) for one, two in ((is_so, was_so), (was_so, is_so))
        )
        old = self._bags[side].find(before[SIDES[side]], wanted.filter(pa.array(was_so != is_so)))
        found = [
            (self._within(delta, side, stays), 1),
            (self._within(old, side, begins), 1),
            (self._within(delta, side, begins), 1),
            (self._within(old, side, ends), -1),
        ]
        return [
            self._one_sided(side, rows, weights_of(rows) * sign)
            for rows, sign in found
            if len(rows)
        ]

    def _one_sided(self, side: int, rows: pa.RecordBatch, weights: Vector) -> pa.RecordBatch:
        """Rows of one side as joined rows."""
        there = {f.name: f.name for f in (self.left if side == LEFT else self._others)}
        there |= {mine: (mine, other)[side] for mine, other in self.on}
        columns = [
            rows.column(there[f.name]) if f.name in there else pa.nulls(len(rows), f.type)
            for f in self.schema
        ]
        return self._joined(columns, weights)

    def _joined(self, columns: Sequence[pa.Array], weights: Vector) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [*columns, vectors.from_int64(weights)], schema=self._joined_schema
        )

    @cached_property
    def _joined_schema(self) -> pa.Schema:
        """Of joined rows with weights; a column may be NOT NULL in one part and not in another."""
        fields = [pa.field(f.name, f.type) for f in self.schema]
        return pa.schema([*fields, pa.field(WEIGHT, pa.int64())])

    def _of_keys(
        self, before: Mapping[str, Trace], side: int, rows: pa.RecordBatch, of: int
    ) -> list[pa.RecordBatch]:
        """The rows that one side had of the keys of some rows of a side, in no order.

        A row may come several times; its weights add up.
        """
        return before[SIDES[side]].lookup(self._keys_of([(rows, of)], side))[1]

    def _keys_of(self, parts: Sequence[tuple[pa.RecordBatch, int]], side: int) -> pa.RecordBatch:
        """The keys of rows of either side under the names of one: sorted, each once."""
        batches = []
        for rows, of in parts:
            columns = [rows.column(WINDOW), rows.column(HASH)]
            columns += [rows.column(pair[of]) for pair in self.on]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=self._places[side].schema))
        return self._places[side].group(concat(batches), whole=False)

    def _within(self, rows: pa.RecordBatch, side: int, wanted: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose key is among some keys; NULL is a key here like others."""
        if not len(rows) or not len(wanted):
            return rows.slice(0, 0)
        number = self._number(wanted, rows.select(self._places[side].schema.names), side)
        return rows.filter(pa.array(number >= 0))

    def _count(self, before: Mapping[str, Trace], side: int, wanted: pa.RecordBatch) -> Vector:
        """int64[n]: how many rows one side had of each key, given under the other side's names."""
        renamed = wanted.rename_columns(self._places[side].schema.names)
        found = np.zeros(len(wanted), np.int64)
        which, parts = before[f"{SIDES[side]}.counts"].lookup(renamed, [COUNT])
        if len(which):
            np.add.at(found, which, vectors.raw(concat(parts).column(COUNT)))
        return self._without_null(wanted, found)

    def _count_in(self, counts: pa.RecordBatch, side: int, wanted: pa.RecordBatch) -> Vector:
        """The same of a delta of counts."""
        found = np.zeros(len(wanted), np.int64)
        if len(counts):
            renamed = wanted.rename_columns(self._places[side].schema.names)
            number = self._number(renamed, counts.select(renamed.schema.names), side)
            mine = number >= 0
            np.add.at(found, number[mine], vectors.raw(counts.column(COUNT))[mine])
        return self._without_null(wanted, found)

    def _without_null(self, wanted: pa.RecordBatch, counts: Vector) -> Vector:
        for column in wanted.columns[2:]:
            if column.null_count:
                counts = np.where(column.is_valid().to_numpy(zero_copy_only=False), counts, 0)
        return counts

    def _number(self, keys: pa.RecordBatch, rows: pa.RecordBatch, side: int) -> Vector:
        """The position in `keys` of each row's key, or -1."""
        # One side's key may be NOT NULL where the other's isn't: by their names alone they are alike.
        alike = [pa.RecordBatch.from_arrays(b.columns, rows.schema.names) for b in (keys, rows)]
        ids, first = self._places[side].grouping(concat(alike))
        leader = np.where(first < len(keys), first, -1)  # a group's first row: the keys come first
        return np.asarray(leader[ids][len(keys) :])

    # -- how it is laid out -------------------------------------------------------------------------

    def _counts(self, deltas: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """How many rows of each key the deltas bring; of those whose counts nothing asks for, nothing."""
        return [
            self._counted(port, delta)
            if f"{side}.counts" in self._layouts
            else self._count_layouts[port].empty()
            for port, (side, delta) in enumerate(zip(SIDES, deltas, strict=True))
        ]

    def _counted(self, port: int, delta: pa.RecordBatch) -> pa.RecordBatch:
        """How many rows of each key a delta brings."""
        layout = self._count_layouts[port]
        return layout.group(delta.select(layout.schema.names), whole=False)

    def _out_delta(self, part: pa.RecordBatch) -> pa.RecordBatch:
        keys = [part.column(name) for name in self._out.key]
        weights = vectors.raw(part.column(WEIGHT))
        return self._out.delta(part, hash_columns(keys, len(part)), weights, None)

    @cached_property
    def _others(self) -> list[pa.Field]:
        """The right table's columns that the left one doesn't bring."""
        equal = {other for _, other in self.on}
        return [field for field in self.right if field.name not in equal]

    @cached_property
    def _other_names(self) -> list[str]:
        return [field.name for field in self._others]

    @cached_property
    def _bags(self) -> tuple[Bag, Bag]:
        return Bag(plain(self.left), self.key(LEFT)), Bag(plain(self.right), self.key(RIGHT))

    @cached_property
    def _out(self) -> Bag:
        return Bag(plain(self.schema), self.key(LEFT))

    @cached_property
    def _places(self) -> tuple[Layout, Layout]:
        left, right = self._bags
        return left.place, right.place

    @cached_property
    def _count_layouts(self) -> tuple[Layout, Layout]:
        count = Value(COUNT, pa.int64(), "sum")
        left, right = self._places
        return Layout(left.keys, (count,)), Layout(right.keys, (count,))
