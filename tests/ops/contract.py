"""What holds for every operator, as a harness: a test gives batches and says what they should come to.

    run = Contract(operator, shards=3, chance=random.Random(seed))
    run.step([left, right], frontiers=(10, 20))
    assert run.total() == {...}

Each step cuts its input into chunks at random, prepares, combines and cuts them for the shards, sends them as
bytes, lets each shard step from a reopened state, and does it a second time, with other chunks: both
attempts must give the same bytes. Every version's state is checked and cleared of what it doesn't need.
Now and then a state on several shards is cut into another number, which must make no difference.

Rows of a stream with event time have `$time` and `$watermark`, and each step a frontier. `Arriving` makes
them:

    run = Contract(operator, timed=True)           # the event time of what it gives is compared, too
    stream = Arriving(run, SCHEMA, lateness_us=5)
    stream.step([(time, row), …])                  # in any order of time
    assert run.total() == reference(stream.in_time, stream.frontier_us)

`few_rows(monkeypatch)` makes merges of states of few rows.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.delta import TIME, WATERMARK, WEIGHT, followed
from penstock.core.keys import shards_of
from penstock.core.vectors import packed
from penstock.ops import NO_TIME, Context, operator_from_spec
from penstock.ops.recut import recut
from penstock.ops.state import Shared
from penstock.ops.windows import NOTHING_YET_US
from penstock.state import MemoryStateFiles, vacuum
from penstock.state.layout import hashes
from penstock.state.runs import Writer
from penstock.state.trace import Trace

__all__ = ["Arriving", "Contract", "counted", "delta", "few_rows"]

RECUT = 0.2  # of the steps
MICROS = pa.timestamp("us", "UTC")


def delta(
    schema: pa.Schema,
    rows: Sequence[Sequence[Any]],
    *,
    times: Sequence[int] | None = None,
    marks: Sequence[int] | None = None,
    weights: Sequence[int] | None = None,
) -> pa.Table:
    """Rows as an operator gets them.

    Args:
        schema: of the rows.
        rows: a tuple of values for each.
        times: event times in us, as `$time`.
        marks: the watermark before each row, as `$watermark`.
        weights: as `$weight`.
    """
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    table = pa.Table.from_arrays(columns, schema=schema)
    if times is not None:
        table = table.append_column(TIME, pa.array(times, pa.int64()).view(MICROS))
    if marks is not None:
        table = table.append_column(WATERMARK, pa.array(marks, pa.int64()))
    if weights is not None:
        table = table.append_column(WEIGHT, pa.array(weights, pa.int64()))
    return table


def counted(table: pa.Table | pa.RecordBatch, *, timed: bool = False) -> Counter[Any]:
    """Rows, with how often each is there: tuples of their own columns, lists as tuples.

    Args:
        table: a delta, or a view's rows.
        timed: whether the event time in us is the first of the tuple.
    """
    names = [name for name in table.schema.names if not name.startswith("$")]
    columns = [[_plain(value) for value in table.column(name).to_pylist()] for name in names]
    if timed:
        columns.insert(0, table.column(TIME).cast(pa.int64()).to_pylist())
    weights = [1] * len(table)
    if WEIGHT in table.schema.names:
        weights = table.column(WEIGHT).to_pylist()
    found: Counter[Any] = Counter()
    for row, weight in zip(zip(*columns, strict=True), weights, strict=True):
        found[row] += weight
    return Counter({row: n for row, n in found.items() if n})


def few_rows(patch: pytest.MonkeyPatch, piece_rows: int = 16) -> None:
    """Makes runs, pieces and fuel of states so small that a few rows make many merges."""
    sizes = {
        "TINY_ROWS": 2,
        "FUEL_MIN": 1,
        "FUEL_PER_ROW": 2,
        "LINK_ROWS_MIN": 2,
        "FAN_IN": 3,
        "PIECE_ROWS_MIN": min(4, piece_rows // 2),
        "PIECE_ROWS_MAX": piece_rows,
    }
    for name, value in sizes.items():
        patch.setattr(f"penstock.state.trace.{name}", value)
    patch.setattr("penstock.state.runs.PIECE_ROWS_MAX", piece_rows)


class Contract:
    """One operator on some shards.

    Attributes:
        changes: all that it gave, added up, as those see it who follow a table.
        closed: likewise of closed rows.
        late: positions of late rows of the last step, by port: numbers in the table that it was given.
    """

    def __init__(
        self,
        operator: Any,
        *,
        shards: int = 1,
        chance: random.Random | None = None,
        timed: bool = False,
    ) -> None:
        spec = json.loads(json.dumps(operator.to_spec()))
        self.operator = operator_from_spec(spec)
        assert self.operator.to_spec() == operator.to_spec()
        self.operator = self.operator.emitting(changes=True, closed=operator.traits.closes)
        self.chance = chance or random.Random(0)
        self.timed = timed
        self.files = MemoryStateFiles()
        self.states = [self.operator.empty(self.files) for _ in range(shards)]
        self.is_cut = shards > 1
        self.version = 0
        self.stops = True  # what a step raises is seen
        self.changes: Counter[Any] = Counter()
        self.closed: Counter[Any] = Counter()
        self.late: list[list[int]] = []

    def step(self, inputs: Sequence[pa.Table], frontiers: Sequence[int] | None = None) -> None:
        """Runs one batch on all shards."""
        promised = tuple(frontiers or [NO_TIME] * len(inputs))
        self.late = [[] for _ in inputs]
        lanes = [self._cut(0, len(table)) for table in inputs]
        again = self._arrived(inputs, lanes)
        self.late = [[] for _ in inputs]
        arrived = self._arrived(inputs, lanes)
        states = []
        for shard, state in enumerate(self.states):
            one = self._attempt(state, again[shard], shard, promised, "a")
            two = self._attempt(state, arrived[shard], shard, promised, "b")
            if self.version % 4 == 0:
                self._check_arranged(state, again[shard], shard, promised, one)
            for first, second in ((one.changes, two.changes), (one.closed, two.closed)):
                assert (first is None) == (second is None)
                assert first is None or _bits(first).equals(_bits(second))
            if two.changes is not None:
                self.changes.update(counted(followed(two.changes), timed=self.timed))
            if two.closed is not None:
                self.closed.update(counted(two.closed, timed=self.timed))
            self.operator.check(two.state)
            states.append(two.state)
        self.states = states
        if self.is_cut and self.chance.random() < RECUT:
            self._recut(self.chance.randint(1, 4))
        vacuum(self.files, "s", [state.describe() for state in self.states], self.version)
        self.version += 1

    def _check_arranged(
        self, state: Any, blobs: list[list[bytes]], shard: int, promised: Any, whole: Any
    ) -> None:
        """What a port arranges depends on its rows alone, and may be made by another operator."""
        ports = range(len(blobs))
        for port in ports:
            forms = self.operator.traits.ports[port].arranges
            if not forms:
                continue
            lone = [blobs[p] if p == port else [] for p in ports]
            made = self._attempt(state, lone, shard, promised, "c", shared=forms)
            taken = self._attempt(state, blobs, shard, promised, "d", shared=forms)
            assert taken.changes is None or _bits(taken.changes).equals(_bits(whole.changes))
            for name in forms:
                rows = _content(whole.state.traces[name])
                for other in (made, taken):
                    assert _content(other.state.traces[name]).equals(rows), name

    def _recut(self, shards: int) -> None:
        """Goes on with another number of shards, as a pipeline that is scaled does."""
        for shard, state in enumerate(self.states):
            for name, trace in state.traces.items():
                if name in self.operator.traits.everywhere:
                    continue
                for rows in trace.scan():
                    there = shards_of(hashes(rows), len(self.states))
                    assert set(there.tolist()) <= {shard}, "rows lie under the hash of the key"
        described = [json.loads(json.dumps(state.describe())) for state in self.states]

        def writer(shard: int, name: str) -> Writer:
            return Writer(self.files, f"s/{shard}/{name}", self.version, "recut")

        found = recut(self.operator, self.files, described, shards, writer)
        self.states = [self.operator.open(self.files, one) for one in found]
        for state in self.states:
            self.operator.check(state)

    def total(self) -> Counter[Any]:
        """All changes, added up."""
        assert all(n > 0 for n in (+self.changes).values())
        return Counter({row: n for row, n in self.changes.items() if n})

    def view(self) -> Counter[Any]:
        """What a reader of the table sees."""
        found: Counter[Any] = Counter()
        for state in self.states:
            again = self.operator.open(self.files, json.loads(json.dumps(state.describe())))
            for batch in self.operator.scan(again):
                assert batch.schema == self.operator.traits.schema
                found.update(counted(batch))
        return found

    def _arrived(
        self, inputs: Sequence[pa.Table], lanes: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[list[bytes]]]:
        """What each shard gets, by port, of some lanes; their rows are cut into chunks anew each time."""
        arrived: list[list[list[bytes]]] = [[[] for _ in inputs] for _ in self.states]
        for port, table in enumerate(inputs):
            for lo, hi in lanes[port]:
                parts = []
                for start, end in self._cut(lo, hi):
                    prepared = self.operator.prepare(port, table.slice(start, end - start))
                    if prepared.late is not None:
                        self.late[port] += [start + int(i) for i in prepared.late]
                    parts.append(prepared.parcel)
                cut = self.operator.traits.ports[port].parcels.combine(parts).cut(len(self.states))
                for shard, piece in enumerate(cut):
                    if piece.rows:
                        arrived[shard][port].append(piece.to_bytes())
        return arrived

    def _cut(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """A range in pieces."""
        found = []
        while lo < hi:
            end = self.chance.randint(lo + 1, hi)
            found.append((lo, end))
            lo = end
        return found

    def _attempt(
        self,
        state: Any,
        blobs: list[list[bytes]],
        shard: int,
        promised: Any,
        attempt: str,
        shared: Iterable[str] = (),
    ) -> Any:
        inputs = [
            [port.parcels.parse(blob) for blob in some]
            for port, some in zip(self.operator.traits.ports, blobs, strict=True)
        ]
        opened = self.operator.open(self.files, json.loads(json.dumps(state.describe())))
        made = {name: Shared() for name in shared}
        context = Context(
            self.files, f"s/{shard}", self.version, promised, attempt, made, self.stops
        )
        if made:  # as if another operator had made them
            self.operator.step(opened, inputs, context)
        found = self.operator.step(opened, inputs, context)
        if found.changes is None:
            return found
        return replace(found, changes=pa.concat_tables([found.changes, *found.more]), more=())


class Arriving:
    """The first port's stream, of one partition: a row is late that lies too far behind one before it.

    Args:
        run: of the operator.
        schema: of the rows.
        lateness_us: how far a row may lie behind the newest one before it.
        correct_us: how much further, where the operator takes late rows as well.

    Attributes:
        in_time: the rows so far that aren't late, each with its time.
        frontier_us: behind the last step.
    """

    def __init__(
        self, run: Contract, schema: pa.Schema, lateness_us: int, correct_us: int = 0
    ) -> None:
        self._run, self._schema = run, schema
        self._lateness_us, self._correct_us = lateness_us, correct_us
        self.in_time: list[tuple[int, Any]] = []
        self.frontier_us = NO_TIME

    def step(self, batch: Sequence[tuple[int, Any]]) -> None:
        """Runs one batch of rows, each with its time, and checks which of them are late."""
        marks, late = [], []
        for i, (time_us, row) in enumerate(batch):
            marks.append(max(self.frontier_us, NOTHING_YET_US))  # as sources give them
            if time_us < marks[-1] - self._correct_us:
                late.append(i)
            else:
                self.in_time.append((time_us, row))
            self.frontier_us = max(self.frontier_us, time_us - self._lateness_us)
        times, rows = [time for time, _ in batch], [row for _, row in batch]
        table = delta(self._schema, rows, times=times, marks=marks)
        self._run.step([table], [self.frontier_us])
        assert self._run.late == [late]


def _content(trace: Trace) -> pa.Table:
    return _bits(pa.Table.from_batches(list(trace.scan()), trace.layout.schema))


def _bits(table: pa.Table) -> pa.Table:
    """A table whose doubles are their bits, and whose lists are bytes: Arrow's NaN equals nothing."""

    def bits(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        if pa.types.is_float64(column.type):
            return column.combine_chunks().view(pa.int64())
        return packed(column.combine_chunks()) if pa.types.is_nested(column.type) else column

    return pa.Table.from_arrays([bits(column) for column in table.columns], table.column_names)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_plain(one) for one in value)
    return "NaN" if isinstance(value, float) and value != value else value
