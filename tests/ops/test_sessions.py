"""Sessions against a naive recomputation and DuckDB, at every step, however the input is cut."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.keys import hash_columns
from penstock.errors import CorruptError, FlowError, SchemaError
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Context,
    SessionAggregate,
    Window,
)
from penstock.ops.aggregates import Column
from penstock.state import MemoryStateFiles, trace

INPUT = pa.schema(
    [("k", pa.string()), ("j", pa.int32()), ("x", pa.int64()), ("v", pa.float64()), ("s", pa.string())]
)  # fmt: skip
LATENESS = 7


SMALL = {"TINY_ROWS": 2, "FUEL_MIN": 1, "FUEL_PER_ROW": 2, "LINK_ROWS_MIN": 2, "PIECE_ROWS_MIN": 4,
         "PIECE_ROWS_MAX": 16, "FAN_IN": 3}  # fmt: skip
USUAL = {name: getattr(trace, name) for name in SMALL}


def sizes(monkeypatch: pytest.MonkeyPatch, values: dict[str, int]) -> None:
    """Sets how large runs and pieces are."""
    for name, value in values.items():
        monkeypatch.setattr(trace, name, value)
    monkeypatch.setattr("penstock.state.runs.PIECE_ROWS_MAX", values["PIECE_ROWS_MAX"])


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, pieces and fuel so small that a few rows make many merges."""
    sizes(monkeypatch, SMALL)


def spec(gap: int, **options: Any) -> AggregateSpec:
    """All aggregates there are, of sessions."""
    k, x, v, s = (Column(n, INPUT.field(n).type) for n in ("k", "x", "v", "s"))
    aggregates = (
        Aggregate("n", "count"), Aggregate("nx", "count", x), Aggregate("sx", "sum", x),
        Aggregate("sv", "sum", v), Aggregate("ax", "avg", x), Aggregate("av", "avg", v),
        Aggregate("lo", "min", v), Aggregate("hi", "max", x), Aggregate("least", "min", s),
        Aggregate("most", "max", s), Aggregate("nk", "count", k),
    )  # fmt: skip
    keys = (Column("k", pa.string()), Column("j", pa.int32()))
    return AggregateSpec(keys, Window("session", gap), aggregates, "$time", **options)


def sessions(rows: list[Any], gap: int) -> dict[Any, Any]:
    """The reference: all rows sorted and cut; (start, last, key) -> the aggregates of `spec`."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for t, row in rows:
        groups[row[:2]].append((t, row))
    found = {}
    for key, some in groups.items():
        some.sort(key=lambda one: one[0])
        cuts = [i for i in range(1, len(some)) if some[i][0] - some[i - 1][0] >= gap]
        for lo, hi in zip([0, *cuts], [*cuts, len(some)], strict=True):
            part = [row for _, row in some[lo:hi]]
            k, _, x, v, s = ([r[i] for r in part if r[i] is not None] for i in range(5))
            total = float(sum(Fraction(a) for a in v))
            found[some[lo][0], some[hi - 1][0], *key] = (
                len(part), len(x), sum(x) if x else None, total if v else None,
                sum(x) / len(x) if x else None, total / len(v) if v else None,
                min(v, default=None), max(x, default=None), min(s, default=None),
                max(s, default=None), len(k),
            )  # fmt: skip
    return found


def shown(found: dict[Any, Any], gap: int) -> Counter[Any]:
    """What `counted` makes of the reference's sessions."""
    return Counter(
        {
            (_instant(start), _instant(last + gap), *key, *values): 1
            for (start, last, *key), values in found.items()
        }
    )


def _instant(us: int) -> Any:
    return pa.scalar(us, pa.timestamp("us", "UTC")).as_py()


def weak(columns: Any, rows: int) -> Any:
    """A hash with two values."""
    return hash_columns(columns, rows) % 2


row = st.tuples(
    st.sampled_from(["a", "bb", None]),
    st.sampled_from([1, None]),
    st.sampled_from([None, -5, 3, 2**40]),
    st.sampled_from([0.1, 0.2, -0.3, 1e9, -1e9, None]),
    st.sampled_from([None, "x", "yy", ""]),
)
event = st.tuples(st.integers(-12, 18), row)
batches = st.lists(st.lists(st.tuples(st.integers(0, 1), event), max_size=10), max_size=7)


def cut(
    batches_: list[list[Any]], lateness: int
) -> list[tuple[list[Any], list[int], list[int], int]]:
    """Batches of two partitions' rows, each batch a little later: (rows, times, watermarks, frontier)."""
    newest = [NO_TIME, NO_TIME]
    frontier, found = NO_TIME, []
    for number, batch in enumerate(batches_):
        rows = [(partition, (t + 9 * number, r)) for partition, (t, r) in batch]
        known = min(newest)
        frontier = max(frontier, known - lateness if known != NO_TIME else NO_TIME)
        marks = []
        for partition, (t, _) in rows:
            mark = newest[partition] - lateness if newest[partition] != NO_TIME else NO_TIME
            marks.append(max(mark, frontier))
            newest[partition] = max(newest[partition], t)
        found.append(([r for _, (_, r) in rows], [t for _, (t, _) in rows], marks, frontier))
    end = max(newest) + 1_000 if max(newest) != NO_TIME else NO_TIME
    return [*found, ([], [], [], end)]


@settings(max_examples=examples(40))
@given(batches, st.integers(1, 12), st.integers(0, 15), st.integers(1, 3), st.booleans(),
       st.randoms(use_true_random=False))  # fmt: skip
def test_sessions_are_those_of_all_rows_in_time(
    batches_: list[list[Any]], gap: int, lateness: int, shards: int, is_weak: bool, chance: random.Random
) -> None:  # fmt: skip
    """The view, the changes and the closed rows, after each batch, however it is cut."""
    run = Contract(SessionAggregate(spec(gap)), shards=shards, chance=chance)
    if is_weak:
        run.operator = SessionAggregate(run.operator.spec, hash=weak)
        run.states = [run.operator.empty(run.files) for _ in range(shards)]
    in_time: list[Any] = []
    for rows, times, marks, frontier in cut(batches_, lateness):
        run.step([delta(INPUT, rows, times=times, marks=marks)], [frontier])
        late = [i for i, (t, mark) in enumerate(zip(times, marks, strict=True)) if t < mark]
        assert sorted(run.late[0]) == late
        in_time += [
            (t, r) for i, (t, r) in enumerate(zip(times, rows, strict=True)) if i not in late
        ]
        expected = sessions(in_time, gap)
        assert run.view() == shown(expected, gap)
        assert run.total() == run.view()
        final = {one: v for one, v in expected.items() if one[1] + gap <= frontier}
        assert run.closed == shown(final, gap)
    assert run.closed == run.view()


def small(gap: int = 10, **options: Any) -> SessionAggregate:
    """Sessions by k, counted."""
    total = Aggregate("sx", "sum", Column("x", pa.int64()))
    key = Column("k", pa.string())
    return SessionAggregate(
        AggregateSpec((key,), Window("session", gap), (Aggregate("n", "count"), total), "$time", **options)
    )  # fmt: skip


def put(op: SessionAggregate, state: Any, times: dict[str, list[int]], version: int, f: int) -> Any:
    """A step with rows of x = 1 at some times by key."""
    rows = [(k, 1, 1, 0.0, "") for k, some in times.items() for _ in some]
    table = delta(INPUT, rows, times=[t for some in times.values() for t in some])
    files = state.traces["open"].files
    return op.step(state, [[op.partials(table)]], Context(files, "s", version, (f,)))


def plain(table: Any) -> list[tuple[Any, ...]]:
    """(start, end, key, n) of each row, with its weight where it has one."""
    columns = [table.column(name).cast(pa.int64()) for name in ("window_start", "window_end")]
    columns += [table.column("k"), table.column("n")]
    columns += [table.column("$weight")] if "$weight" in table.column_names else []
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_a_row_joins_two_sessions() -> None:
    """Both are taken back and the joined one is given; at a distance of the gap they stay apart."""
    op = small(changes=True)
    files = MemoryStateFiles()
    one = put(op, op.empty(files), {"a": [0, 10], "b": [5]}, 0, NO_TIME)
    assert sorted(plain(one.changes)) == [
        (0, 10, "a", 1, 1),
        (5, 15, "b", 1, 1),
        (10, 20, "a", 1, 1),
    ]
    two = put(op, one.state, {"a": [9]}, 1, NO_TIME)
    assert sorted(plain(two.changes)) == [
        (0, 10, "a", 1, -1),
        (0, 20, "a", 3, 1),
        (10, 20, "a", 1, -1),
    ]
    three = put(op, two.state, {"b": [5]}, 2, NO_TIME)
    assert plain(three.changes) == [(5, 15, "b", 1, -1), (5, 15, "b", 2, 1)]


@pytest.mark.slow
def test_closed_sessions_leave_as_keep_says() -> None:
    """A session is closed once, stays for `keep`, and is then gone from reads at once, from files in time."""
    op = small(keep_us=100, closed=True)
    state = op.empty(MemoryStateFiles())
    closed: list[Any] = []
    for version in range(60):
        t = version * 30
        step = put(op, state, {"a": [t, t + 5], "b": [t + 1]}, version, t)
        state = step.state
        state.check()
        closed += plain(step.closed)
        ends = [
            row.as_py() for batch in op.scan(state) for row in batch["window_end"].cast(pa.int64())
        ]
        every = [30 * v + end for v in range(version + 1) for end in (15, 11)]
        assert sorted(ends) == sorted(end for end in every if end + 100 > t)
    assert sorted(closed) == sorted(
        one
        for v in range(59)
        for one in [(30 * v, 30 * v + 15, "a", 2), (30 * v + 1, 30 * v + 11, "b", 1)]
    )
    assert state.rows <= 60


@pytest.mark.slow
def test_a_session_that_never_pauses_costs_the_same_for_ever() -> None:
    """After hundreds of batches its state is a few rows, and a batch writes as many bytes as before."""
    op, files = small(closed=True), MemoryStateFiles()
    state = op.empty(files)
    written: list[int] = []
    for version in range(400):
        step = put(op, state, {"a": [version * 5]}, version, version * 5)
        state = step.state
        written.append(sum(map(files.size, files.list("s"))) - sum(written))
        assert len(step.closed) == 0
    assert state.rows <= 12
    assert sum(written[-100:]) <= 1.2 * sum(written[100:200])
    [batch] = [one for one in op.scan(state) if len(one)]
    assert plain(batch) == [(0, 5 * 399 + 10, "a", 400)]
    step = put(op, state, {}, 400, 5 * 399 + 9)
    assert len(step.closed) == 0
    step = put(op, step.state, {}, 401, 5 * 399 + 10)
    assert plain(step.closed) == [(0, 5 * 399 + 10, "a", 400)]
    assert step.state.traces["agenda"].low_us == 5 * 399 + 1


@pytest.mark.slow
def test_old_sessions_of_a_key_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many closed sessions are kept, a step opens pieces of open ones alone."""
    op = small()
    state = op.empty(MemoryStateFiles())
    for version in range(200):
        state = put(op, state, {"a": [version * 100]}, version, version * 100).state
    assert state.traces["closed"].rows == 199
    looked: list[int] = []
    real = trace.Trace.lookup

    def lookup(self: Any, *args: Any) -> Any:
        looked.append(self.rows)
        return real(self, *args)

    monkeypatch.setattr(trace.Trace, "lookup", lookup)
    put(op, state, {"a": [20_000]}, 200, 20_000)
    assert len(looked) == 1
    assert looked[0] <= 8


@pytest.mark.slow
def test_many_sessions_are_those_of_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of rows in disorder, as gaps and islands in SQL have them."""
    sizes(monkeypatch, USUAL)
    rng = np.random.default_rng(5)
    n, gap = 40_000, 60_000_000
    table = pa.table(
        {
            "k": pa.array(rng.choice(["a", "bb", "ccc", None, "e"], n)),
            "j": pa.array(rng.integers(0, 40, n), pa.int32(), mask=rng.random(n) < 0.1),
            "x": pa.array(rng.integers(-1000, 1000, n), mask=rng.random(n) < 0.1),
            "v": pa.array(rng.random(n), mask=rng.random(n) < 0.1),
            "s": pa.array(rng.integers(0, 99, n).astype(str)),
            "$time": pa.array(rng.integers(-(10**9), 10**10, n), pa.timestamp("us", "UTC")),
        }
    )
    op = SessionAggregate(spec(gap))
    files = MemoryStateFiles()
    states = [op.empty(files) for _ in range(2)]
    for version, at in enumerate(range(0, n, 5_000)):
        parts = [op.partials(table.slice(at + half, 2_500)).cut(2) for half in (0, 2_500)]
        states = [
            op.step(
                state, [[p[i] for p in parts]], Context(files, f"s/{i}", version, (NO_TIME,))
            ).state
            for i, state in enumerate(states)
        ]
    got = pa.Table.from_batches([batch for state in states for batch in op.scan(state)])
    with duckdb.connect() as connection:
        expected = connection.sql(f"""
            WITH t AS (SELECT *, epoch_us("$time") AS us FROM "table"),
            c AS (SELECT *, us - lag(us) OVER (PARTITION BY k, j ORDER BY us) AS since FROM t),
            w AS (SELECT *, count(*) FILTER (since IS NULL OR since >= {gap})
                            OVER (PARTITION BY k, j ORDER BY us, since NULLS FIRST
                                  ROWS UNBOUNDED PRECEDING) AS nth FROM c)
            SELECT make_timestamptz(min(us)) AS window_start, make_timestamptz(max(us) + {gap}) AS window_end,
                   k, j, count(*) AS n, count(x) AS nx, sum(x)::BIGINT AS sx, fsum(v) AS sv, avg(x) AS ax,
                   favg(v) AS av, min(v) AS lo, max(x) AS hi, min(s) AS least, max(s) AS most,
                   count(k) AS nk
            FROM w GROUP BY k, j, nth""").to_arrow_table()
    by = [("window_start", "ascending"), ("k", "ascending"), ("j", "ascending")]
    got, expected = got.sort_by(by), expected.sort_by(by)
    assert got.num_rows == expected.num_rows > 10_000
    for name in got.column_names:
        ours, theirs = got[name].combine_chunks(), expected[name].combine_chunks()
        if name in ("sv", "ax", "av"):
            assert ours.null_count == theirs.null_count
            a, b = ours.fill_null(0.5).to_numpy(), theirs.fill_null(0.5).to_numpy()
            assert np.allclose(a, b, rtol=1e-12)
        else:
            assert ours.to_pylist() == theirs.to_pylist(), name


@pytest.mark.parametrize("seed", range(5))
def test_sessions_of_numbers_alone(seed: int) -> None:
    """Rows of the state that are all numbers of 64 bits are found in one batch, of all its runs."""
    rng = np.random.default_rng(seed)
    n, gap = 400, 10
    at, keys = np.sort(rng.integers(0, 150, n)), rng.integers(0, 25, n)
    at = at + rng.integers(0, 9, n)  # in disorder
    count = Aggregate("n", "count")
    number = Column("x", pa.int64())
    op = SessionAggregate(AggregateSpec((number,), Window("session", gap), (count,), "$time"))
    files = MemoryStateFiles()
    state = op.empty(files)
    for version, begin in enumerate(range(0, n, 20)):
        some = range(begin, begin + 20)
        table = delta(
            INPUT,
            [("", 0, int(keys[i]), 0.0, "") for i in some],
            times=[int(at[i]) for i in some],
        )
        context = Context(files, "s", version, (NO_TIME,))
        state = op.step(state, [[op.partials(table)]], context).state
    found: Counter[Any] = Counter()
    for batch in op.scan(state):
        starts = batch.column("window_start").cast(pa.int64()).to_pylist()
        found.update(zip(starts, *(batch.column(c).to_pylist() for c in ("x", "n")), strict=True))
    wanted: Counter[Any] = Counter()
    for key in np.unique(keys):
        times = np.sort(at[keys == key])
        parts = np.split(times, np.flatnonzero(np.diff(times) >= gap) + 1)
        wanted.update((int(part[0]), int(key), len(part)) for part in parts)
    assert found == wanted


def test_what_sessions_cannot_do_is_refused() -> None:
    """Inputs that retract, senseless gaps and another operator's state, each with a message."""
    op = small()
    with pytest.raises(SchemaError, match="without retractions"):
        op.partials(delta(INPUT, [("a", 1, 1, 0.0, "")], times=[0], weights=[1]))
    for window in ((0,), (2**60,), (5, 5), (5, 0, 3)):
        with pytest.raises(FlowError, match="expected"):
            Window("session", *window)
    with pytest.raises(CorruptError, match="agenda"):
        op.open(MemoryStateFiles(), {"traces": {"groups": {}}, "watermark_us": 0})
