"""The user's own function over keyed state, rows in the order of their event time, and timers.

    for each key, in the order of time: rows, and the instants at which its state wants to be woken
        function(rows, state of these keys, until) -> rows that come out, state of these keys

Rows wait until the frontier has passed them, so a function sees those of a key in order, whatever order they
came in, and its results depend on the log alone. State is a row a key. One of its columns may say when the
key is to be looked at again, though no row comes: a timer of event time.

The function is given many keys at once, as columns: it is called once a batch and shard, not once a row.

It may be given a table next to them (`penstock.ops.keyed.rules`). Where that is as of the event time, rows
wait for its changes, too, and a batch's rows are cut where the table changes: one call for each version that
rows or timers meet.

Where the function fails, also when it is called again, it is called with halves of the keys, down to single
ones. The rows of a key for which it fails are refused, its state stays as it was, and a timer that was due is
gone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.delta import TIME
from penstock.core.keys import hash_columns
from penstock.core.names import failed_at
from penstock.core.schema import TIMESTAMP, Schema
from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, instant_text
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.expr.halves import Calls, culprits
from penstock.expr.typed import cast_given
from penstock.ops.codec import RARE, UNSAID
from penstock.ops.keyed.rules import Contents, Rules
from penstock.ops.operator import Context, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels
from penstock.ops.rows import Refused
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.state.bag import Bag, negated, plain, weights_of
from penstock.state.layout import HASH, WINDOW, Layout, concat, hashes

__all__ = ["Function", "Process"]

Function: TypeAlias = Callable[..., tuple[pa.Table, pa.Table]]
"""Of rows, state and until; and of the table, where there is one."""

STREAM: Final = 0
RULES: Final = 1
TRIES: Final = 3
"""Times that the function may fail before it is called with fewer keys."""
CALLS_MAX: Final = 2_000
"""With fewer keys, in one step. Beyond it, the rows of all keys that are left of a part are refused."""
ROUNDS_MAX: Final = 1_000
"""Times that timers of one batch may set timers that are due in the same batch."""


@dataclass
class _Failures:
    """What is refused in one step, and how many calls the searches for it have left.

    Attributes:
        refused: the rows of keys for which the function fails.
    """

    refused: list[Refused] = field(default_factory=list)
    calls: Calls = field(default_factory=lambda: Calls(CALLS_MAX))


@dataclass(frozen=True)
class Process(Operator):
    """The operator.

    Args:
        input: the columns of the rows.
        per: the key's columns.
        output: the columns of the rows that come out.
        time: the one of them that is the event time.
        state: the columns of the state: the key's first.
        wake: the one of them that says when the key wants to be looked at again; None where none does.
        name: what the function is known by, over restarts.
        function: sees what is said above; None where only the state is read.
        rules: the table that it is given; None where there is none.
    """

    kind: ClassVar[str] = "process"

    input: pa.Schema
    per: tuple[str, ...]
    output: pa.Schema
    time: str
    state: pa.Schema
    wake: str | None
    name: str
    function: Annotated[Function | None, UNSAID] = field(default=None, compare=False)
    rules: Annotated[Rules | None, RARE] = None

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: records are keyed by the key, where its columns come out.

        What the function makes of the key's columns isn't known, so they say nothing of the shard.
        """
        stream = Port(RowParcels(self.input, timed=True, judged=True), self.per)
        rules = () if self.rules is None else (self.rules.port,)
        return Traits(
            schema=self.output,
            ports=(stream, *rules),
            keys=self.per if set(self.per) <= set(self.output.names) else (),
            placed_by=(),
            retracts=False,
            timed=True,
            everywhere=frozenset({"rules"} if rules else ()),
            frontiers_kept=1 + len(rules),
            keeps=self._layouts,
        )

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        layouts = {"waiting": self._waiting.layout, "state": self._state.layout}
        if self.wake is not None:
            layouts["timers"] = self._timers.layout
        if self.rules is not None:
            layouts["rules"] = self.rules.bag.layout
        return layouts

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: what comes out later is not before what was given."""
        return self._until(inputs_us)

    def _until(self, inputs_us: Sequence[int]) -> int:
        """Up to where rows are given to the function."""
        return min(inputs_us) if self.rules and self.rules.timed else inputs_us[0]

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: rows and timers may wait for the frontier."""
        return tuple(before_us) != tuple(now_us)

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`.

        Raises:
            FlowError: the function failed, or gave what it mustn't.
        """
        parts, now_us = inputs[STREAM], context.frontiers_us
        until_us, before_us = self._until(now_us), self._until(state.frontiers_us)
        contents = None
        if self.rules is not None:
            contents = self.rules.contents(state.traces["rules"], inputs[RULES])
        arrived = [self._waiting.delta(p.batch, p.hashes, None, p.times_us) for p in parts]
        rows = self._waiting.sum(arrived)
        due = _before(rows, until_us)
        waiting = rows.filter(pa.array(~due))
        given = self._waiting.sum(
            [*state.traces["waiting"].scan(None, until_us), rows.filter(pa.array(due))]
        )
        failures = None if context.stops else _Failures()
        outs, moved = self._in_versions(state, given, until_us, before_us, contents, failures)
        deltas = {"waiting": waiting, "state": moved, "timers": self._timers_of(moved)}
        if contents is not None:
            deltas["rules"] = contents.rules.forgetting(contents, until_us)
        deltas = {name: delta for name, delta in deltas.items() if name in state.traces}
        made = context.appended(state, deltas, frontiers_us=now_us)
        if until_us > NO_TIME:
            made = made.above(dict.fromkeys({"waiting", "timers"} & deltas.keys(), until_us))
        changes = self._timed(outs) if self.gives else None
        refused = () if failures is None else tuple(failures.refused)
        return Step(made, changes, refused=refused)

    # -- the work -----------------------------------------------------------------------------------

    def _in_versions(
        self,
        state: State,
        given: pa.RecordBatch,
        until_us: int,
        before_us: int,
        contents: Contents | None,
        failures: _Failures | None,
    ) -> tuple[list[pa.Table], pa.RecordBatch]:
        """What the function gives, and how the state changes: of each version of the table, in order."""
        outs: list[pa.Table] = []
        moved = self._state.layout.empty()
        timers: list[pa.RecordBatch] = []
        if "timers" in state.traces and until_us > NO_TIME:
            timers = list(state.traces["timers"].scan(None, until_us))
        times = raw_times(given)
        ends = np.array([until_us])
        if contents is not None:
            changes = contents.times_us()
            ends = np.append(changes[changes < until_us], until_us)
        while True:
            due = self._timers.sum([*timers, self._timers_of(moved)])
            due = due.filter(pa.array(_before(due, until_us)))
            first = min(
                int(times.min()) if len(times) else until_us,
                int(vectors.raw(due.column(WINDOW)).min()) if len(due) else until_us,
            )
            if first >= until_us:
                return outs, moved
            end = int(ends[np.searchsorted(ends, first, side="right")])
            rows = given.filter(pa.array(times < end))
            given, times = given.filter(pa.array(times >= end)), times[times >= end]
            touched = self._keys_of([rows, due.filter(pa.array(_before(due, end)))])
            table = None if contents is None else contents.before(end)
            made, moved = self._called(
                state, rows, touched, moved, (before_us, end), table, failures
            )
            outs += made

    def _called(
        self,
        state: State,
        given: pa.RecordBatch,
        touched: pa.RecordBatch,
        moved: pa.RecordBatch,
        span_us: tuple[int, int],
        table: pa.Table | None,
        failures: _Failures | None,
    ) -> tuple[list[pa.Table], pa.RecordBatch]:
        """What the function gives of some keys up to a time, and how the state has changed then."""
        outs: list[pa.Table] = []
        _, until_us = span_us
        for _ in range(ROUNDS_MAX):
            if not len(touched):
                return outs, moved
            parts: list[pa.RecordBatch] = []
            old = self._state.sum(
                [self._state.find(state.traces["state"], touched), self._within(moved, touched)]
            )
            for out, made in self._made(given, old, touched, span_us, table, failures):
                outs.append(out)
                parts.append(made)
            new = self._state.sum(parts)
            moved = self._state.sum([moved, negated(old), new])
            if self.wake is None:
                return outs, moved
            given = given.slice(0, 0)
            woken = vectors.contiguous(new.column(self.wake))
            again = pc.is_valid(woken).to_numpy(zero_copy_only=False)
            again &= vectors.raw(woken) < until_us
            touched = self._keys_of([new.filter(pa.array(again))])
        text = (
            f"expected {self.name} to move {self.wake!r} on when it is woken; found it before "
            f"{instant_text(until_us)} after {ROUNDS_MAX} calls. Set it to a later time, or to NULL"
        )
        if failures is None:
            raise FlowError(text)
        # What the calls gave stays. The timers go, or they would be due again in each batch.
        awake = self._within(new, touched)
        failures.refused.append(self._refused(given, awake, text))
        return outs, self._state.sum([moved, negated(awake), self._unwoken(awake)])

    def _refused(self, given: pa.RecordBatch, state: pa.RecordBatch, reason: str) -> Refused:
        """The rows for which the function failed; the state of keys that were only woken."""
        if len(given):
            return Refused(pa.Table.from_batches([given.select(self.input.names)]), reason)
        return Refused(pa.Table.from_batches([self._state.rows(state)]), reason, key=self.per)

    def _made(
        self,
        given: pa.RecordBatch,
        old: pa.RecordBatch,
        touched: pa.RecordBatch,
        span_us: tuple[int, int],
        table: pa.Table | None,
        failures: _Failures | None,
    ) -> list[tuple[pa.Table, pa.RecordBatch]]:
        """What the function gives of some keys, and their state, in parts; where it fails, as it was."""
        if failures is None:
            return [self._call(given, old, touched, span_us, table)]
        made: list[tuple[pa.Table, pa.RecordBatch]] = []

        def part(index: np.ndarray) -> tuple[pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]:
            some = touched.take(vectors.from_int64(index))
            return self._within(given, some), self._within(old, some), some

        def failure_of(index: np.ndarray | None) -> FlowError | None:
            try:
                some = (given, old, touched) if index is None else part(index)
                made.append(self._call(*some, span_us, table))
            except FlowError as error:
                return error
            return None

        is_first = failures.calls.left == CALLS_MAX  # later ones are searched at once
        for _ in range(TRIES if is_first else 1):
            if (error := failure_of(None)) is None:
                return made
        for index, one in culprits(np.arange(len(touched)), error, failure_of, failures.calls):
            here, kept, _ = part(index)
            failures.refused.append(self._refused(here, kept, str(one)))
            made.append((self.output.empty_table(), self._unwoken(kept)))
        return made

    def _unwoken(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """State whose timers are gone: they would fail again at once."""
        if self.wake is None:
            return state
        at = state.schema.get_field_index(self.wake)
        column = pa.nulls(len(state), state.schema.field(at).type)
        return state.set_column(at, state.schema.field(at), column)

    def _call(
        self,
        given: pa.RecordBatch,
        old: pa.RecordBatch,
        touched: pa.RecordBatch,
        span_us: tuple[int, int],
        table: pa.Table | None,
    ) -> tuple[pa.Table, pa.RecordBatch]:
        before_us, until_us = span_us
        assert self.function is not None, "the state alone is no pipeline"
        rows = pa.Table.from_batches([given.select([*self.input.names, TIME])])
        order = self._order(given)
        rows = rows.take(vectors.from_int64(np.repeat(order, weights_of(given)[order])))
        kept = pa.Table.from_batches([self._state.rows(old)])
        until = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
            microseconds=min(max(until_us, INSTANT_MIN_US), INSTANT_MAX_US)
        )
        try:
            tables = () if table is None else (table,)
            found: Any = self.function(rows, kept, until, *tables)
        except Exception as error:
            raise FlowError(
                f"expected {self.name} to work; found {type(error).__name__}: {error} "
                f"({failed_at(error, self.function)})"
            ) from error
        if not isinstance(found, tuple) or [type(one) for one in found] != [pa.Table, pa.Table]:
            raise FlowError(
                f"expected {self.name} to give two pyarrow.Tables, rows and state; found {type(found)}"
            )
        out, new = (
            self._fitting(found[0], self.output, "rows"),
            self._fitting(found[1], self.state, "state"),
        )
        self._check_times(out, before_us)
        return out, self._checked(new, touched)

    def _fitting(self, table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise FlowError(
                f"expected {self.name} to give {what} with the columns {', '.join(schema.names)}; found "
                f"{', '.join(table.column_names)}"
            )
        try:
            return cast_given(table.select(schema.names), schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise FlowError(
                f"expected {self.name} to give {what} as {Schema.from_arrow(schema).text}; found: {error}"
            ) from None

    def _check_times(self, out: pa.Table, before_us: int) -> None:
        times = out.column(self.time)
        if not len(times):
            return
        if times.null_count:
            raise FlowError(f"expected an event time in {self.time!r} of each row; found NULL")
        first = int(vectors.raw(vectors.contiguous(times)).min())
        if first < before_us:
            raise FlowError(
                f"expected rows of {self.name} not before {instant_text(before_us)}, which was passed "
                f"already; found one of {instant_text(first)} in {self.time!r}. Give rows the time of what "
                "they follow from"
            )

    def _checked(self, new: pa.Table, touched: pa.RecordBatch) -> pa.RecordBatch:
        """The state that the function gave, in the bag's layout."""
        rows = new.combine_chunks().to_batches()
        batch = rows[0] if rows else pa.RecordBatch.from_pylist([], self.state)
        keys = [batch.column(name) for name in self.per]
        made = self._state.delta(batch, hash_columns(keys, len(batch)), None, None)
        own = self._keys_of([made])
        if len(own) < len(batch):
            raise FlowError(
                f"expected {self.name} to give one row of state a key; found several of one key"
            )
        if len(self._keys_of([own, touched])) > len(touched):
            raise FlowError(
                f"expected {self.name} to give state of the keys that it was given; found another key"
            )
        return made

    def _timed(self, outs: Sequence[pa.Table]) -> pa.Table:
        rows = pa.concat_tables([self.output.empty_table(), *outs]).combine_chunks()
        times = vectors.contiguous(rows.column(self.time)).cast(TIMESTAMP)
        return rows.append_column(pa.field(TIME, TIMESTAMP), times)

    def _timers_of(self, moved: pa.RecordBatch) -> pa.RecordBatch:
        """How the timers change where the state changes so."""
        layout = self._timers.layout
        if self.wake is None:
            return layout.empty()
        there = moved.filter(pc.is_valid(moved.column(self.wake)))
        times = vectors.raw(there.column(self.wake))
        return self._timers.sum(
            [self._timers.delta(there, hashes(there), weights_of(there), times)]
        )

    def _order(self, rows: pa.RecordBatch) -> Vector:
        """The order of rows by key, then time; ties as the state has them, which is no matter of chance."""
        place = self._placed(rows)
        return np.lexsort((vectors.raw(rows.column(TIME)), self._places.grouping(place)[0]))

    def _keys_of(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The keys of some rows: sorted, each once."""
        return self._places.group(concat([self._placed(part) for part in parts]), whole=False)

    def _placed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The key of each row, of whatever time."""
        zeros = vectors.from_int64(np.zeros(len(rows), np.int64))
        columns = [zeros, rows.column(HASH), *(rows.column(name) for name in self.per)]
        return pa.RecordBatch.from_arrays(columns, schema=self._places.schema)

    def _within(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of some keys."""
        if not len(rows):
            return rows
        place = self._placed(rows)
        ids, first = self._places.grouping(concat([keys, place]))
        return rows.filter(pa.array((first < len(keys))[ids][len(keys) :]))

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _waiting(self) -> Bag:
        return Bag(plain(self.input).append(pa.field(TIME, TIMESTAMP)), self.per)

    @cached_property
    def _state(self) -> Bag:
        return Bag(plain(self.state), self.per)

    @cached_property
    def _timers(self) -> Bag:
        names = [*self.per, *([] if self.wake is None else [self.wake])]
        fields = [pa.field(name, self.state.field(name).type) for name in names]
        return Bag(pa.schema(fields), self.per)

    @cached_property
    def _places(self) -> Layout:
        return Layout(self._state.layout.keys, ())


def raw_times(rows: pa.RecordBatch) -> Vector:
    """The event times of rows: int64[n]."""
    return vectors.raw(rows.column(TIME))


def _before(rows: pa.RecordBatch, until_us: int) -> Vector:
    """bool[n]: which rows of a bag lie before a time."""
    return np.asarray(vectors.raw(rows.column(WINDOW)) < until_us)
