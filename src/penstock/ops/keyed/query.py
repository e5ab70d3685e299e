"""What a SQL query gives of each group, computed again where a group changes.

    content = the rows of query(rows of the group), of all groups

For what no operator keeps up change by change: window functions, aggregates that depend on an order, an
outer join on more than equality, INTERSECT. All rows of the inputs are kept as bags, found by the key of
their group; a batch reads the groups that it touches, once as they were and once as they are, and gives the
difference. A group's cost is its length, so such groups should be many and short.

The query is DuckDB's, over the tables `rows0`, `rows1`, … It sees all touched groups at once, so it must
treat each by itself: partition by the key, or be equal in it. Rows come in an order that depends on
them alone; the query must not depend on it where that matters.

Where the query fails, what fails for a row of the inputs is NULL to it (`tried_query`). Where it fails even
so, as an aggregate does, the groups that are to blame are found by halves, and the row of such a group has
NULL but for its key, if the output has its key. What a group gives depends on its rows alone. Its key is a
dead letter with the reason, once for as long as the group fails.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.schema import Schema
from penstock.expr.duck import EvaluationError, query_tables
from penstock.expr.tried import query_of_failing, tried_query
from penstock.expr.typed import cast_rows
from penstock.ops.bases import Timeless, changes_of
from penstock.ops.kept import Kept
from penstock.ops.operator import Context, Prepared, Step
from penstock.ops.routed import Routed, routed, routed_schema
from penstock.ops.rows import REASONS_MAX, Refused
from penstock.state.bag import Bag, negated, weights_of
from penstock.state.layout import HASH, Layout, concat

__all__ = ["QUERY_FAILS", "GroupQuery"]

QUERY_FAILS: Final = "the group's query fails: "
"""How the reason of a group begins."""


@dataclass(frozen=True)
class GroupQuery(Timeless):
    """The operator.

    Args:
        inputs: the columns of each port's rows; without ports, `always`: the rows are constant.
        key: of each port, the columns that make up a group, in one order; none: all rows are one. NULL is a
            value like others.
        query: a SELECT over `rows0`, `rows1`, …; empty keeps the only port's rows as they are.
        output: the columns that it gives, of these types.
        placed: the columns of the output that have the values of the key, if it has them all.
        row_key: columns that identify the output's rows, where something does.
        always: whether the query is asked of no rows, too, as a count is 0 then; there is no key then.
        gives: whether `step` gives changes.
    """

    kind: ClassVar[str] = "query"

    inputs: tuple[pa.Schema, ...]
    key_: tuple[tuple[str, ...], ...]
    query: str
    output: pa.Schema
    placed: tuple[str, ...] = ()
    row_key: tuple[str, ...] = ()
    always: bool = False
    gives: bool = True

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The query's columns."""
        return self.output

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Operator`."""
        return self.row_key

    def key(self, port: int) -> tuple[str, ...]:
        """See `Operator`."""
        return self.key_[port]

    def arranges(self, port: int) -> Mapping[str, object]:
        """See `Operator`."""
        return {f"rows{port}": self._bags[port]}

    @property
    def placed_by(self) -> tuple[str, ...]:
        """See `Operator`."""
        return self.placed

    def emitting(self, *, changes: bool, closed: bool) -> GroupQuery:  # noqa: ARG002
        """See `Operator`."""
        return replace(self, gives=changes)

    def to_spec(self) -> dict[str, Any]:
        """What it computes, as JSON."""
        return {
            "kind": self.kind,
            "inputs": [Schema.from_arrow(one).text for one in self.inputs],
            "key": [list(one) for one in self.key_],
            "query": self.query,
            "output": Schema.from_arrow(self.output).text,
            "placed": list(self.placed),
            "row_key": list(self.row_key),
            "always": self.always,
        }

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> GroupQuery:
        """The operator that `to_spec` described."""
        return GroupQuery(
            inputs=tuple(Schema.parse(one).arrow for one in spec["inputs"]),
            key_=tuple(tuple(one) for one in spec["key"]),
            query=spec["query"],
            output=Schema.parse(spec["output"]).arrow,
            placed=tuple(spec["placed"]),
            row_key=tuple(spec["row_key"]),
            always=spec["always"],
        )

    # -- rows on their way --------------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:
        """See `Operator`: a table's changes are never late."""
        return Prepared(routed(rows, self.key_[port], self._parcels[port]))

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: Kept, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`.

        Raises:
            CorruptError: a file of the state is not what was written.
        """
        deltas = [
            context.arranged(f"rows{port}").delta(functools.partial(self._delta, port, parts))
            for port, parts in enumerate(inputs)
        ]
        failed: dict[int, Refused] = {}
        changes = self._changes(state, deltas, failed) if self.gives else None
        traces, files, size = dict(state.traces), 0, 0
        for name, delta in zip(self._layouts, deltas, strict=True):
            writer = context.writer(name)
            traces[name] = context.arranged(name).append(traces[name], delta, writer)
            files, size = files + writer.written, size + writer.bytes
        return Step(Kept(traces, (0,)), changes, None, files, size, refused=tuple(failed.values()))

    def scan(
        self,
        state: Kept,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        return self.scan_noting(state, [])

    def scan_noting(
        self,
        state: Kept,
        refused: list[Refused],
        lo_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: the groups for which the query fails, the first ones where they are many."""
        kept = zip(self._bags, state.traces.values(), strict=True)
        whole = [bag.sum(list(trace.scan())) for bag, trace in kept]
        if self.always or any(len(rows) for rows in whole):
            failed: dict[int, Refused] = {}
            yield from self._answer(whole, failed).to_batches()
            refused += failed.values()

    # -- the work -----------------------------------------------------------------------------------

    def _changes(
        self, state: Kept, deltas: Sequence[pa.RecordBatch], failed: dict[int, Refused]
    ) -> pa.Table:
        """The answers of the touched groups as they were, taken back, and as they are.

        Args:
            state: before the batch.
            deltas: of each port.
            failed: takes the groups that fail now, and didn't before.
        """
        first = self.always and not state.frontiers_us  # nothing has been given yet
        if not self.inputs:
            made = [self._given(self._answer((), failed))] if first else []
            return changes_of(self._out.sum(made), self.output)
        touched = self._touched(deltas)
        if not len(touched) and not first:
            return changes_of(self._out.layout.empty(), self.output)
        before, after = [], []
        for bag, trace, delta in zip(self._bags, state.traces.values(), deltas, strict=True):
            names = bag.layout.schema.names[: 2 + len(bag.key)]
            there = bag.find(trace, touched.rename_columns(names))
            before.append(there)
            after.append(bag.sum([there, delta]))
        moved = [self._given(self._answer(after, failed))]
        if not first:
            known: dict[int, Refused] = {}
            moved.append(negated(self._given(self._answer(before, known))))
            for group in known:
                failed.pop(group, None)
        return changes_of(self._out.sum(moved), self.output)

    def _touched(self, deltas: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The groups of all ports' changes, each once, under the first port's names."""
        place = self._bags[0].place
        parts = []
        for bag, delta in zip(self._bags, deltas, strict=True):
            names = bag.layout.schema.names[: 2 + len(bag.key)]
            parts.append(delta.select(names).rename_columns(place.schema.names))
        return place.group(concat(parts), whole=False)

    def _answer(self, rows: Sequence[pa.RecordBatch], failed: dict[int, Refused]) -> pa.Table:
        """What the query gives of rows in the bags' layouts; of none nothing, unless it is asked always.

        Args:
            rows: of each port.
            failed: takes the groups that fail, by their hash, and why.
        """
        if not self.always and not any(len(one) for one in rows):
            return self.output.empty_table()
        if not self.query:
            return self._table(0, rows[0]).cast(self.output)
        try:
            return self._asked(rows, self.query)
        except EvaluationError as error:
            groups = np.zeros(1, np.int64)  # one of all rows
            if any(self.key_):
                groups = np.unique(np.concatenate([_hashes(one) for one in rows]))
            self._blame(rows, groups, error, failed)
            return pa.concat_tables(self._of_failing(rows, groups))

    def _blame(
        self,
        rows: Sequence[pa.RecordBatch],
        groups: np.ndarray,
        error: EvaluationError,
        failed: dict[int, Refused],
    ) -> None:
        """Finds the groups for which the query fails: the first ones, where they are many."""
        if len(groups) == 1:
            reason = f"{QUERY_FAILS}{error}"
            failed[int(groups[0])] = Refused(self._key_of(rows), reason)
            return
        for here, some in _halves(rows, groups):
            if len(failed) < REASONS_MAX:
                try:
                    self._asked(here, self.query)
                except EvaluationError as one:
                    self._blame(here, some, one, failed)

    def _of_failing(self, rows: Sequence[pa.RecordBatch], groups: np.ndarray) -> list[pa.Table]:
        """What is given of groups for some of which the query fails, in parts."""
        try:
            return [self._asked(rows, tried_query(self.query) or self.query, as_written=True)]
        except EvaluationError:
            if len(groups) == 1:
                return [self._of_one(rows)]
        return [part for half in _halves(rows, groups) for part in self._of_failing(*half)]

    def _of_one(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """What is given of one group for which the query fails."""
        tables = {f"rows{port}": self._table(port, one) for port, one in enumerate(rows)}
        try:
            return self._fitting(query_of_failing(self.query, tables))
        except EvaluationError:
            return self._null(rows)

    def _null(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """The row of a group that nothing else can be given of."""
        if not self.always and (not self.placed or len(self.placed) == len(self.output)):
            return self.output.empty_table()
        key = dict(zip(self.placed, self._key_of(rows).columns, strict=False))
        columns = [
            key[one.name] if one.name in key else pa.nulls(1, one.type) for one in self.output
        ]
        return pa.table(columns, schema=_nullable(self.output))

    def _key_of(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """The key of one group: a row of the columns that the first port calls it."""
        if not self.inputs:
            return pa.table({})
        port = next((i for i, one in enumerate(rows) if len(one)), 0)
        found = self._table(port, rows[port]).select(self.key_[port]).slice(0, 1)
        return found.rename_columns(list(self.key_[0]))

    def _asked(
        self, rows: Sequence[pa.RecordBatch], query: str, *, as_written: bool = False
    ) -> pa.Table:
        """What a query gives of rows; raises `EvaluationError`."""
        tables = {f"rows{port}": self._table(port, one) for port, one in enumerate(rows)}
        return self._fitting(query_tables(tables, query, as_written=as_written))

    def _fitting(self, found: pa.Table) -> pa.Table:
        """An answer with the output's columns; raises `EvaluationError`."""
        found = found.rename_columns(self.output.names)
        if found.schema.types == self.output.types:
            return found
        try:
            return cast_rows(found, self.output)  # NULL where DuckDB knows no type
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise EvaluationError(str(error)) from error

    def _table(self, port: int, rows: pa.RecordBatch) -> pa.Table:
        """Rows of a bag as the query sees them."""
        return self._plain(port, rows).select(self.inputs[port].names)

    def _plain(self, port: int, rows: pa.RecordBatch) -> pa.Table:
        """Rows of a bag, each as often as it is there."""
        weights = np.maximum(weights_of(rows), 0)
        if (weights != 1).any():
            at = np.repeat(np.arange(len(rows)), weights)
            rows = rows.take(vectors.from_int64(at))
        return pa.Table.from_batches([self._bags[port].rows(rows)])

    def _given(self, rows: pa.Table) -> pa.RecordBatch:
        """Rows as the output's bag has them, yet to be sorted."""
        batch = pa.RecordBatch.from_arrays(
            [vectors.contiguous(column) for column in rows.columns], schema=self._out.schema
        )
        return self._out.spread(batch, np.zeros(len(batch), np.int64), None, None)

    def _delta(self, port: int, parts: Sequence[Routed]) -> pa.RecordBatch:
        bag = self._bags[port]
        if not parts:
            return bag.layout.empty()
        rows = Routed.combine(parts)
        return bag.delta(rows.batch, rows.hashes, rows.weights, None)

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bags(self) -> tuple[Bag, ...]:
        return tuple(
            Bag(_nullable(schema), key) for schema, key in zip(self.inputs, self.key_, strict=True)
        )

    @cached_property
    def _out(self) -> Bag:
        return Bag(_nullable(self.output), ())

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        return {f"rows{port}": bag.layout for port, bag in enumerate(self._bags)}

    @cached_property
    def _parcels(self) -> tuple[pa.Schema, ...]:
        return tuple(routed_schema(one, timed=False, weighted=True) for one in self.inputs)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _hashes(rows: pa.RecordBatch) -> np.ndarray:
    """The hash of each row's group."""
    return np.asarray(rows.column(HASH).to_numpy())


def _halves(
    rows: Sequence[pa.RecordBatch], groups: np.ndarray
) -> Iterator[tuple[list[pa.RecordBatch], np.ndarray]]:
    """The rows of one half of some groups, and of the other: int64[groups], hashes in order."""
    middle = groups[len(groups) // 2]
    for below in (True, False):
        here = [one.filter(pa.array((_hashes(one) < middle) == below)) for one in rows]
        yield here, groups[(groups < middle) == below]
