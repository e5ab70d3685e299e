"""An operator: the rows of a stream or table that are there an odd number of times.

A process that reads a view of it finds it by an entry point, as the view's record has its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.core.vectors import from_int64
from penstock.flow.algebra.stateful import stateful
from penstock.ops import Context, Operator, Port, Routed, RowParcels, State, Step, Traits
from penstock.ops.routed import delta_of
from penstock.state.bag import COUNT, Bag, changes_of, negated, plain, weights_of
from penstock.state.layout import hashes


@dataclass(frozen=True)
class Odd(Operator):
    """The rows that are there an odd number of times, once each.

    Args:
        input: the columns of the rows.
    """

    kind: ClassVar[str] = "odd"

    input: pa.Schema

    @cached_property
    def traits(self) -> Traits:
        """Each row is its own key."""
        names = tuple(self.input.names)
        port = Port(RowParcels(self.input, weighted=True), names, arranges={"rows": self._bag})
        keeps = {"rows": self._bag.layout}
        return Traits(schema=self.input, ports=(port,), keeps=keeps, keys=names)

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """A row comes or goes when its number changes between even and odd."""
        [parts] = inputs
        come = delta_of(self._bag, parts)
        wanted = self._bag.wanted(come, hashes(come), None)
        before = self._bag.find(state.traces["rows"], wanted)
        after = self._bag.sum([before, come])
        moved = self._bag.sum([_odd(after), negated(_odd(before))])
        return Step(context.appended(state, {"rows": come}), changes_of(moved, self.input))

    def scan(
        self, state: State, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """They are counted, and no more."""
        for rows in state.traces["rows"].scan():
            columns = self._bag.rows(_odd(rows)).columns
            yield pa.RecordBatch.from_arrays(columns, schema=self.input)

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.input), tuple(self.input.names))


def _odd(rows: pa.RecordBatch) -> pa.RecordBatch:
    rows = rows.filter(pa.array(weights_of(rows) % 2 == 1))
    at = rows.schema.get_field_index(COUNT)
    return rows.set_column(at, rows.schema.field(at), from_int64(np.ones(len(rows), np.int64)))


def odd(rows: ps.Stream | ps.Table) -> ps.Table:
    """What a program calls: the rows that are there an odd number of times, once each."""
    return ps.Table(rows.flow, rows.flow.node(stateful(Odd(rows.schema.arrow), rows.node)))
