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
dead letter with the reason, once for as long as the group fails: a batch refuses the groups that fail as they
are now, without those that failed as they were. Where a search takes more than `CALLS_MAX` queries, groups of
a part that is left count as failing now, and as not failing before: no group that fails is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.expr.duck import EvaluationError, query_tables
from penstock.expr.halves import Calls, culprits
from penstock.expr.tried import query_of_failing, tried_query
from penstock.expr.typed import cast_rows
from penstock.ops.codec import Name
from penstock.ops.operator import Context, Follow, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.rows import Refused
from penstock.ops.state import State
from penstock.state.bag import Bag, changes_of, negated, plain, repeated, weights_of
from penstock.state.layout import HASH, concat

__all__ = ["QUERY_FAILS", "GroupQuery"]

QUERY_FAILS: Final = "the group's query fails: "
"""How the reason of a group begins."""

CALLS_MAX: Final = 500
"""Queries that a search for groups that fail may take: some 50 groups among thousands are found with it."""


@dataclass(frozen=True)
class GroupQuery(Operator):
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
    """

    kind: ClassVar[str] = "query"

    inputs: tuple[pa.Schema, ...]
    key_: Annotated[tuple[tuple[str, ...], ...], Name("key")]
    query: str
    output: pa.Schema
    placed: tuple[str, ...] = ()
    row_key: tuple[str, ...] = ()
    always: bool = False

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: a table's changes are never late."""
        return Traits(
            schema=self.output,
            ports=tuple(
                Port(RowParcels(columns, weighted=True), key, arranges={f"rows{i}": bag})
                for i, (columns, key, bag) in enumerate(
                    zip(self.inputs, self.key_, self._bags, strict=True)
                )
            ),
            keys=self.row_key,
            placed_by=self.placed,
            follow=Follow.ANSWER if self.query else Follow.EACH,
            always=self.always,
            keeps={f"rows{port}": bag.layout for port, bag in enumerate(self._bags)},
        )

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        deltas = [
            context.arranged(f"rows{port}").delta(partial(delta_of, self._bags[port], parts))
            for port, parts in enumerate(inputs)
        ]
        refused: list[Refused] = []
        changes = self._changes(state, deltas, refused) if self.gives else None
        given = dict(zip(self.traits.keeps, deltas, strict=True))
        made = context.appended(state, given, frontiers_us=(0,))  # it has been asked
        return Step(made, changes, refused=tuple(refused))

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`."""
        return self.scan_noting(state, [])

    def scan_noting(
        self,
        state: State,
        refused: list[Refused],
        lo_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: the groups for which the query fails, the first ones where they are many."""
        kept = zip(self._bags, state.traces.values(), strict=True)
        whole = [bag.sum(list(trace.scan())) for bag, trace in kept]
        if self.always or any(len(rows) for rows in whole):
            answer, error = self._answer(whole)
            yield from answer.to_batches()
            if error is not None:
                refused += self._failing(whole, self._groups(whole), error).values()

    # -- the work -----------------------------------------------------------------------------------

    def _changes(
        self, state: State, deltas: Sequence[pa.RecordBatch], refused: list[Refused]
    ) -> pa.Table:
        """The answers of the touched groups as they were, taken back, and as they are.

        Args:
            state: before the batch.
            deltas: of each port.
            refused: takes the keys of groups that fail now, and didn't before.
        """
        first = self.always and not state.frontiers_us  # nothing has been given yet
        touched = self._touched(deltas) if self.inputs else None
        if not first and (touched is None or not len(touched)):
            return changes_of(self._out.layout.empty(), self.output)
        before, after = [], []
        for bag, trace, delta in zip(self._bags, state.traces.values(), deltas, strict=True):
            assert touched is not None, "it has ports"
            names = bag.layout.schema.names[: 2 + len(bag.key)]
            there = bag.find(trace, touched.rename_columns(names))
            before.append(there)
            after.append(bag.sum([there, delta]))
        answer, error = self._answer(after)
        moved = [self._given(answer)]
        failed = {} if error is None else self._failing(after, self._groups(after), error)
        if not first:
            answer, error = self._answer(before)
            moved.append(negated(self._given(answer)))
            if error is not None and failed:
                for group in self._failed_before(before, np.array(sorted(failed), np.int64)):
                    failed.pop(group)
        refused += failed.values()
        return changes_of(self._out.sum(moved), self.output)

    def _touched(self, deltas: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The groups of all ports' changes, each once, under the first port's names."""
        place = self._bags[0].place
        parts = []
        for bag, delta in zip(self._bags, deltas, strict=True):
            names = bag.layout.schema.names[: 2 + len(bag.key)]
            parts.append(delta.select(names).rename_columns(place.schema.names))
        return place.group(concat(parts), whole=False)

    def _answer(self, rows: Sequence[pa.RecordBatch]) -> tuple[pa.Table, EvaluationError | None]:
        """What the query gives of rows in the bags' layouts; of none nothing, unless it is asked always.

        Args:
            rows: of each port.

        Returns:
            The answer, and what the query failed with, if it did for some groups.
        """
        if not self.always and not any(len(one) for one in rows):
            return self.output.empty_table(), None
        if not self.query:
            return self._table(0, rows[0]).cast(self.output), None
        try:
            return self._asked(rows, self.query), None
        except EvaluationError as error:
            return pa.concat_tables(self._of_failing(rows, self._groups(rows))), error

    def _groups(self, rows: Sequence[pa.RecordBatch]) -> np.ndarray:
        """The groups of rows, by their hash: int64[groups], ascending; one, if there is no key."""
        if not any(self.key_):
            return np.zeros(1, np.int64)
        return np.unique(np.concatenate([_hashes(one) for one in rows]))

    def _failing(
        self, rows: Sequence[pa.RecordBatch], groups: np.ndarray, error: EvaluationError
    ) -> dict[int, Refused]:
        """The groups for which the query fails; where a search takes too long, and maybe others."""
        found: dict[int, Refused] = {}
        error_of = partial(self._error_of, rows)
        for some, one in culprits(groups, error, error_of, Calls(CALLS_MAX)):
            reason = f"{QUERY_FAILS}{one}"
            if len(some) > 1:
                reason = f"the query fails for one of {len(some)} groups, or more: {one}"
            for group in some.tolist():
                key = self._key_of(_of_groups(rows, np.array([group])) if any(self.key_) else rows)
                found[group] = Refused(key, reason, key=tuple(key.column_names))
        return found

    def _failed_before(self, rows: Sequence[pa.RecordBatch], groups: np.ndarray) -> Iterator[int]:
        """Which of some groups the query failed for already, as far as a search finds them."""
        if any(self.key_):
            among = [pa.array(np.isin(_hashes(one), groups)) for one in rows]
            rows = [one.filter(those) for one, those in zip(rows, among, strict=True)]
        error_of = partial(self._error_of, rows)
        if (error := error_of(groups)) is not None:
            for some, _ in culprits(groups, error, error_of, Calls(CALLS_MAX)):
                if len(some) == 1:
                    yield int(some[0])

    def _error_of(
        self, rows: Sequence[pa.RecordBatch], groups: np.ndarray
    ) -> EvaluationError | None:
        """What the query fails with for some of the groups of rows."""
        here = _of_groups(rows, groups) if any(self.key_) else rows
        if not self.always and not any(len(one) for one in here):
            return None
        try:
            self._asked(here, self.query)
        except EvaluationError as error:
            return error
        return None

    def _of_failing(self, rows: Sequence[pa.RecordBatch], groups: np.ndarray) -> list[pa.Table]:
        """What is given of groups for some of which the query fails, in parts."""
        try:
            return [self._asked(rows, tried_query(self.query) or self.query, as_written=True)]
        except EvaluationError:
            if len(groups) == 1:
                return [self._of_one(rows)]
        middle = len(groups) // 2
        halves = groups[:middle], groups[middle:]
        return [part for half in halves for part in self._of_failing(_of_groups(rows, half), half)]

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
        return pa.table(columns, schema=plain(self.output))

    def _key_of(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        """The key of one group: a row of the columns that the first port calls it."""
        if not any(self.key_):
            return pa.table({"no column": [None]}).select([])
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
        rows = repeated(rows, np.maximum(weights_of(rows), 0))
        return pa.Table.from_batches([self._bags[port].rows(rows)])

    def _given(self, rows: pa.Table) -> pa.RecordBatch:
        """Rows as the output's bag has them, yet to be sorted."""
        batch = pa.RecordBatch.from_arrays(
            [vectors.contiguous(column) for column in rows.columns], schema=self._out.schema
        )
        return self._out.spread(batch, np.zeros(len(batch), np.int64), None, None)

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _bags(self) -> tuple[Bag, ...]:
        return tuple(
            Bag(plain(schema), key) for schema, key in zip(self.inputs, self.key_, strict=True)
        )

    @cached_property
    def _out(self) -> Bag:
        return Bag(plain(self.output), ())


def _hashes(rows: pa.RecordBatch) -> np.ndarray:
    """The hash of each row's group."""
    return np.asarray(rows.column(HASH).to_numpy())


def _of_groups(rows: Sequence[pa.RecordBatch], groups: np.ndarray) -> list[pa.RecordBatch]:
    """The rows of some groups: all between the first and the last one of int64[groups], ascending."""
    found = []
    for one in rows:
        hashes = _hashes(one)
        found.append(one.filter(pa.array((hashes >= groups[0]) & (hashes <= groups[-1]))))
    return found
