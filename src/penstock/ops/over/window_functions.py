"""Window functions of SQL over each partition, computed again only where something changed.

    content = the rows, each with the values that the functions have at it

The rows lie in the order of the functions, with their values and with *totals* of the rows before (see
`Function`). A change reads the rows near it: as many as offsets and bounded frames reach, and where there
are totals, the rows behind it as far as their totals change. So `lag` and `ROWS BETWEEN 3 PRECEDING AND
CURRENT ROW` cost the same however long a partition is; a running sum costs what it changes.

What is read are *stretches*: rows of a partition that follow one another, all of them. At either end of a
stretch, rows whose values can't have changed are only looked at. Rows that are equal in the order are in the
order of their other columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector, from_int64
from penstock.ops.operator import Context, Follow, Operator, Port, Step, Traits
from penstock.ops.over import kernels
from penstock.ops.over.functions import Function, Rows, Total, totals_of
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.state import State
from penstock.state.bag import FIRST, ORDER, Bag, changes_of, negated, plain, repeated, weights_of
from penstock.state.layout import Layout, concat, equal, hashes, taken
from penstock.state.ordered import LAST, around
from penstock.state.trace import Trace

__all__ = ["Ordered", "WindowFunctions"]

COPY: Final = "$copy"  # int64, how many rows before are equal to a row in all columns
READ_ROWS: Final = 4
"""Rows that are read at each side of a change and of each piece, in addition to the needed ones; above 0."""
READ_TIMES: Final = 8
"""By how much they grow where they were too few."""


@dataclass(frozen=True)
class Ordered:
    """A column that rows are ordered by, as in SQL: NaN is the greatest number."""

    listed: ClassVar = True  # in specs

    name: str
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class WindowFunctions(Operator):
    """The operator.

    Args:
        input: the columns of the rows.
        per: those that make up a partition; none: all rows are one.
        order: what its rows are ordered by; at least one.
        functions: what is computed.
        output: the columns of the rows and of the functions.
        row_key: columns that identify the rows, where something does.
    """

    kind: ClassVar[str] = "window functions"

    input: pa.Schema
    per: tuple[str, ...]
    order: tuple[Ordered, ...]
    functions: tuple[Function, ...]
    output: pa.Schema
    row_key: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: rows have a key more for each number that they have in their partition."""
        numbers = [one.name for one in self.functions if one.kind == "row_number"]
        return Traits(
            schema=self.output,
            ports=(Port(RowParcels(self.input, weighted=True), self.per),),
            keys=self.row_key,
            other_keys=tuple((*self.per, name) for name in numbers),
            follow=Follow.EACH,
            keeps={"rows": self._kept.layout},
        )

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts] = inputs
        trace = state.traces["rows"]
        delta = delta_of(self._rows, parts)
        moved = self._moved(trace, delta) if len(delta) else self._kept.layout.empty()
        changes = self._changes(moved) if self.gives else None
        return Step(context.appended(state, {"rows": moved}), changes)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        for rows in state.traces["rows"].scan():
            found = repeated(rows)
            yield pa.RecordBatch.from_arrays(
                [found.column(name) for name in self.output.names], schema=self.output
            )

    # -- the work -----------------------------------------------------------------------------------

    def _moved(self, trace: Trace, delta: pa.RecordBatch) -> pa.RecordBatch:
        """What changes of the rows with their values and totals."""
        groups = self._groups.group(delta.select(self._groups.schema.names), whole=False)
        changed = _Places.of(self._number(groups, delta), _places(delta))
        reach = max(f.before for f in self.functions) + max(f.after for f in self.functions)
        needed = reach + bool(self._totals)
        back = np.full(len(changed.places), needed + READ_ROWS)
        ahead = back.copy()
        while True:
            known = around(trace, groups, changed.number, changed.places, back, ahead)
            short = known.hi < changed.places
            if not short.any():
                stretches = _Stretches.of(changed, known.lo, known.hi)
                old, new = self._sides(groups, stretches, known.rows, delta)
                begins, ends = new.short(stretches, needed)
                if not begins.any() and not ends.any():
                    made = self._computed(old, new)
                    ends = self._differs(stretches, old, new, made)
                    if not ends.any():
                        return self._difference(stretches, old, new, made)
                back[stretches.first[begins]] *= READ_TIMES
                ahead[stretches.last[ends]] *= READ_TIMES
            ahead[short] *= READ_TIMES

    def _sides(
        self,
        groups: pa.RecordBatch,
        stretches: _Stretches,
        found: pa.RecordBatch,
        delta: pa.RecordBatch,
    ) -> tuple[_Side, _Side]:
        """The rows of all stretches as they were, and as they are."""
        was = self._kept.sum([found])
        was = taken(
            was, np.flatnonzero(stretches.of_rows(self._number(groups, was), _places(was)) >= 0)
        )
        back = self._rows.delta(was, hashes(was), weights_of(was), None)
        now = self._rows.sum([back, delta])
        return self._side(groups, stretches, was), self._side(groups, stretches, now)

    def _side(self, groups: pa.RecordBatch, stretches: _Stretches, rows: pa.RecordBatch) -> _Side:
        """Rows in order, each as often as it is there."""
        number, places = self._number(groups, rows), _places(rows)
        which = stretches.of_rows(number, places)
        order, peers = self._sorted(rows, which)
        weights = np.maximum(weights_of(rows)[order], 0)
        at = np.repeat(order, weights)
        # Copies of a row are its peers.
        first = np.zeros(len(at), np.bool_)
        there = np.flatnonzero(weights)
        first[np.cumsum(weights)[there] - weights[there]] = True
        peers = np.repeat(peers, weights) & first
        found = taken(rows, at)
        if COPY not in rows.schema.names:
            copy = np.arange(len(at)) - np.repeat(np.cumsum(weights) - weights, weights)
            found = found.append_column(COPY, from_int64(copy))
        return _Side.of(found, which[at], places[at], peers, stretches)

    def _sorted(self, rows: pa.RecordBatch, which: Vector) -> tuple[Vector, Vector]:
        """The order of rows by stretch, then as SQL says; and which differ from the one before in it."""
        columns = [from_int64(which)]
        keys: list[Any] = [("0", "ascending", "at_end")]
        for one in self.order:
            columns.append(vectors.sortable(rows.column(one.name)))
            direction = "descending" if one.descending else "ascending"
            keys.append((str(len(keys)), direction, "at_start" if one.nulls_first else "at_end"))
        order = _order(columns, keys)
        differs = _differs(columns, order)
        if not differs.all():
            for field in self.input:
                column = rows.column(field.name)
                columns.append(vectors.packed(column) if pa.types.is_nested(field.type) else column)
                keys.append((str(len(keys)), "ascending", "at_end"))
            if COPY in rows.schema.names:  # with values that may differ
                columns.append(rows.column(COPY))
                keys.append((str(len(keys)), "ascending", "at_end"))
            order = _order(columns, keys)
            differs = _differs(columns[: 1 + len(self.order)], order)
        return order, differs

    def _computed(self, old: _Side, new: _Side) -> pa.RecordBatch:
        """The rows as they are, with totals and values."""
        here = np.arange(len(new.rows))
        anew = new.begin + new.before  # the first row of a stretch that may have changed
        inside = here < anew[new.which]
        kept = np.where(inside, old.begin[new.which] + here - new.begin[new.which], -1)
        base = np.full(len(here), -2)
        some = np.flatnonzero(anew < new.end)
        base[anew[some]] = np.where(new.before > 0, old.begin + new.before - 1, -1)[some]
        rows = Rows(
            rows=new.rows,
            lo=new.begin[new.which],
            hi=new.end[new.which],
            peers=new.peers,
            base=base,
            kept=kept,
            before=old.rows,
        )
        totals = rows.totals(self._totals)
        made = {total.name: column for total, column in totals.items()}
        made |= {one.name: rows.values(one, totals) for one in self.functions}
        columns = []
        for field in self._kept.schema:
            column = made.get(field.name)
            column = new.rows.column(field.name) if column is None else column
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._kept.schema)

    def _differs(
        self, stretches: _Stretches, old: _Side, new: _Side, made: pa.RecordBatch
    ) -> Vector:
        """bool[stretches]: whether totals at the end of one have changed, so that later rows do."""
        open_ = np.flatnonzero(stretches.hi < LAST)
        found = np.zeros(len(stretches.lo), np.bool_)
        if not len(open_):
            return found
        ours, theirs = new.end[open_] - 1, old.end[open_] - 1
        for total in self._totals:
            same = equal(made.column(total.name), ours, old.rows.column(total.name), theirs)
            found[open_] |= ~same
        return found

    def _difference(
        self, stretches: _Stretches, old: _Side, new: _Side, made: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The rows with values, less those that were there."""
        before = max(f.before for f in self.functions)
        after = max(f.after for f in self.functions)
        sides = []
        for side, rows in ((old, old.rows), (new, made)):
            here = np.arange(len(rows))
            lo = side.begin + np.where(stretches.lo > FIRST, before, 0)
            hi = side.end - np.where(stretches.hi < LAST, after, 0)
            some = np.flatnonzero((here >= lo[side.which]) & (here < hi[side.which]))
            plain = taken(rows.select(self._kept.schema.names), some)
            sides.append(self._kept.delta(plain, hashes(side.rows)[some], None, None))
        was, now = sides
        return self._kept.sum([negated(was), now])

    def _changes(self, moved: pa.RecordBatch) -> pa.Table:
        """What is given of it: rows without totals."""
        if not len(moved):
            return changes_of(self._out.layout.empty(), self.output)
        delta = self._out.delta(moved, hashes(moved), weights_of(moved), None)
        return changes_of(delta, self.output)

    def _number(self, groups: pa.RecordBatch, rows: pa.RecordBatch) -> Vector:
        """The number of each row's group."""
        if len(groups) == 1:
            return np.zeros(len(rows), np.int64)
        both = concat([groups, rows.select(self._groups.schema.names)])
        ids, _ = self._groups.grouping(both)
        number = np.empty(len(groups), np.int64)
        number[ids[: len(groups)]] = np.arange(len(groups))
        return number[ids[len(groups) :]]

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _totals(self) -> tuple[Total, ...]:
        return totals_of(self.functions, self.input)

    @cached_property
    def _rows(self) -> Bag:
        """The rows as they come."""
        return self._bag(plain(self.input))

    @cached_property
    def _kept(self) -> Bag:
        """The rows as they are kept."""
        totals = [pa.field(total.name, total.type) for total in self._totals]
        copy = pa.field(COPY, pa.int64())
        return self._bag(pa.schema([*plain(self.output), copy, *totals]))

    @cached_property
    def _out(self) -> Bag:
        return Bag(plain(self.output), self.per)

    def _bag(self, schema: pa.Schema) -> Bag:
        first = self.order[0]
        return Bag(schema, self.per, (first.name, first.descending), first.nulls_first)

    @cached_property
    def _groups(self) -> Layout:
        return Layout(self._rows.layout.keys, ())


@dataclass(frozen=True)
class _Places:
    """Where rows came or went: int64[n] each, sorted, each once."""

    number: Vector
    places: Vector

    @staticmethod
    def of(number: Vector, places: Vector) -> _Places:
        order = np.lexsort((places, number))
        number, places = number[order], places[order]
        first = np.ones(len(number), np.bool_)
        first[1:] = (number[1:] != number[:-1]) | (places[1:] != places[:-1])
        return _Places(number[first], places[first])


@dataclass(frozen=True)
class _Stretches:
    """Places of groups between which all rows are known, with some that changed; sorted, none meet.

    Attributes:
        number: int64[n], the group.
        lo: int64[n], the first place; `FIRST` where the group begins there.
        hi: int64[n], the last place; `LAST` where it ends there.
        first: int64[n], the first changed place, by its number.
        last: int64[n], likewise the last one.
        low: int64[n], the first changed place.
        high: int64[n], the last one.
    """

    number: Vector
    lo: Vector
    hi: Vector
    first: Vector
    last: Vector
    low: Vector
    high: Vector

    @staticmethod
    def of(changed: _Places, lo: Vector, hi: Vector) -> _Stretches:
        """Joins what is known near places where it overlaps."""
        number, places = changed.number, changed.places
        lo, hi, begins = lo.copy(), hi.copy(), np.empty(len(number), np.bool_)
        kernels.joined(number, lo, hi, begins)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(number)) - 1
        return _Stretches(
            number[first], lo[first], hi[last], first, last, places[first], places[last]
        )

    def of_rows(self, number: Vector, places: Vector) -> Vector:
        """The stretch of each row; -1 where it is in none."""
        n = len(self.number)
        kind = np.concatenate([np.zeros(n, np.int8), np.ones(len(number), np.int8)])
        groups, all_places = (
            np.concatenate([self.number, number]),
            np.concatenate([self.lo, places]),
        )
        order = np.lexsort((kind, all_places, groups))
        which = np.empty(len(order), np.int64)
        which[order] = np.cumsum(kind[order] == 0) - 1
        which = which[n:]
        inside = (which >= 0) & (self.number[which] == number) & (places <= self.hi[which])
        return np.where(inside, which, -1)


@dataclass(frozen=True)
class _Side:
    """Rows of stretches in order, before a change or after it.

    Attributes:
        rows: each as often as it is there.
        which: int64[rows], the stretch of each.
        peers: bool[rows], whether it differs in the order from the one before.
        begin: int64[stretches], the first row of each.
        end: int64[stretches], the row after its last.
        before: int64[stretches], rows before the first place that changed.
        behind: int64[stretches], rows behind the last one.
    """

    rows: pa.RecordBatch
    which: Vector
    peers: Vector
    begin: Vector
    end: Vector
    before: Vector
    behind: Vector

    @staticmethod
    def of(
        rows: pa.RecordBatch, which: Vector, places: Vector, peers: Vector, stretches: _Stretches
    ) -> _Side:
        n = len(stretches.number)
        numbers = np.arange(n)
        begin = np.searchsorted(which, numbers)
        end = np.searchsorted(which, numbers, "right")
        before = np.bincount(which[places < stretches.low[which]], minlength=n)
        behind = np.bincount(which[places > stretches.high[which]], minlength=n)
        return _Side(rows, which, peers, begin, end, before, behind)

    def short(self, stretches: _Stretches, needed: int) -> tuple[Vector, Vector]:
        """bool[stretches] each: whether too few rows were read before what changed, and behind it."""
        begins = (stretches.lo > FIRST) & (self.before < needed)
        ends = (stretches.hi < LAST) & (self.behind < needed)
        return begins, ends


def _places(rows: pa.RecordBatch) -> Vector:
    return vectors.raw(rows.column(ORDER))


def _order(columns: Sequence[pa.Array], keys: Any) -> Vector:
    table = pa.table({str(i): column for i, column in enumerate(columns)})
    return pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)


def _differs(columns: Sequence[pa.Array], order: Vector) -> Vector:
    """bool[n]: whether each row, in the order, differs from the one before; the first one does."""
    found = np.ones(len(order), np.bool_)
    found[1:] = False
    for column in columns:
        found[1:] |= ~equal(column, order[:-1], column, order[1:])
    return found
