"""The first rows of each group in some order: top-n.

    content = of each group, the n first rows by the order; ties are broken by the other columns

Where rows are only ever added, a row that isn't among the first can never be again, so the state is the
content: n rows a group. Where they may be taken back, the whole group is kept, as any row may move up. It
lies in the order of the first column that decides, and a change reads n rows and those that share a place
with the last of them (`penstock.state.ordered`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.operator import Context, Operator, Port, Prepared, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of, routed
from penstock.ops.state import State
from penstock.state.bag import COUNT, Bag, changes_of, plain, repeated, weights_of
from penstock.state.layout import Layout, concat, taken
from penstock.state.ordered import ends

__all__ = ["Top"]


@dataclass(frozen=True)
class Top(Operator):
    """The operator.

    Args:
        input: the columns of the rows.
        per: the columns that make up a group; none: all rows are one.
        order: columns, and whether the greatest comes first. NULL comes last, and NaN is the greatest number.
        n: how many rows of each group.
        takes_back: whether rows may be taken back.
        row_key: columns that identify the input's rows, where something does.
    """

    kind: ClassVar[str] = "top"

    input: pa.Schema
    per: tuple[str, ...]
    order: tuple[tuple[str, bool], ...]
    n: int
    takes_back: bool = False
    row_key: tuple[str, ...] = ()

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: of a group with one row, the group identifies it; else what did the input's rows.

        Where rows may be taken back, all are kept; else the first ones alone, which others needn't know.
        """
        arranges = {"rows": self._bag} if self.takes_back else {}
        return Traits(
            schema=self.input,
            ports=(Port(self._parcels, self.per, arranges=arranges),),
            keys=self.per if self.n == 1 else self.row_key,
            keeps={"rows": self._bag.layout},
        )

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`: without windows, no row is late."""
        parcel = routed(rows, self.per, self._parcels.schema)
        return Prepared(parcel if self.takes_back else Routed(self._firsts_of(parcel.batch)))

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        [parts] = inputs
        trace = state.traces["rows"]
        moved = self._bag.layout.empty()
        delta = delta_of(self._bag, parts)
        if len(delta):
            groups = self._groups.group(delta.select(self._groups.schema.names), whole=False)
            if self.takes_back:
                number = self._number(delta)
                (_, was), (_, now) = ends(trace, groups, delta, number, self.n)
                moved = self._moved(was, now) if self.gives else moved
            else:  # what isn't among the first can be forgotten
                there = self._bag.find(trace, groups)
                delta = moved = self._moved(there, self._bag.sum([there, delta]))
        changes = changes_of(moved, self.input) if self.gives else None
        return Step(context.appended(state, {"rows": delta}), changes)

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        rows = self._bag.sum(list(state.traces["rows"].scan()))
        rows, _ = self._firsts(rows, self._number(rows))
        found = repeated(rows)
        yield pa.RecordBatch.from_arrays(
            [found.column(name) for name in self.input.names], schema=self.input
        )

    # -- the work -----------------------------------------------------------------------------------

    def _moved(self, was: pa.RecordBatch, now: pa.RecordBatch) -> pa.RecordBatch:
        """How the first rows of some groups change: all rows of both times are put in order at once."""
        rows = concat([was, now])
        is_now = np.arange(len(rows)) >= len(was)
        there, at = self._firsts(rows, 2 * self._number(rows) + is_now)
        weights = weights_of(there) * np.where(is_now[at], 1, -1)
        column = there.schema.get_field_index(COUNT)
        signed = there.set_column(column, there.schema.field(column), vectors.from_int64(weights))
        return self._bag.sum([signed])

    def _firsts(self, rows: pa.RecordBatch, number: Vector) -> tuple[pa.RecordBatch, Vector]:
        """Of each group, the first rows by the order: with weights that add up to n, and which they were."""
        if not len(rows):
            return rows, np.zeros(0, np.int64)
        order, groups = self._sorted(rows, number)
        weights = weights_of(rows)[order]
        ends = np.cumsum(weights)
        starts = ends - weights  # rows before this one, in all groups
        begins = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1])
        base = np.repeat(starts[begins], np.diff([*begins, len(order)]))
        left = np.clip(self.n - (starts - base), 0, weights)
        keep = np.flatnonzero(left)
        found = taken(rows, order[keep])
        at = found.schema.get_field_index(COUNT)
        found = found.set_column(at, found.schema.field(at), vectors.from_int64(left[keep]))
        return found, order[keep]

    def _firsts_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same of rows that are on their way, in the order that they came in."""
        if len(rows) <= self.n:
            return rows
        order, groups = self._sorted(rows, self._number(rows))
        begins = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1])
        nth = np.arange(len(order)) - np.repeat(begins, np.diff([*begins, len(order)]))
        return rows.take(vectors.from_int64(np.sort(order[nth < self.n])))

    def _sorted(self, rows: pa.RecordBatch, number: Vector) -> tuple[Vector, Vector]:
        """The order of rows by group, then by the order; and each one's group, in that order."""
        columns = {"$group": vectors.from_int64(number)}
        by: list[tuple[str, str]] = [("$group", "ascending")]
        named = [*self.order, *((f.name, False) for f in self.input)]
        for i, (name, descending) in enumerate(named):
            columns[str(i)] = vectors.sortable(rows.column(name))
            by.append((str(i), "descending" if descending else "ascending"))
        keys: Any = [(name, direction, "at_end") for name, direction in by]
        order = pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy().astype(np.int64)
        return order, number[order]

    def _number(self, rows: pa.RecordBatch) -> Vector:
        """The number of each row's group."""
        if not self.per:
            return np.zeros(len(rows), np.int64)
        at = [vectors.from_int64(np.zeros(len(rows), np.int64)), rows.column("$hash")]
        at += [rows.column(name) for name in self.per]
        place = pa.RecordBatch.from_arrays(at, schema=self._groups.schema)
        return self._groups.grouping(place)[0].astype(np.int64)

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.input), self.per, self.order[0] if self.takes_back else None)

    @cached_property
    def _groups(self) -> Layout:
        return Layout(self._bag.layout.keys, ())

    @cached_property
    def _parcels(self) -> RowParcels:
        return RowParcels(self.input, weighted=self.takes_back)
