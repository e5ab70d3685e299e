"""Sliding windows, and windows of so many rows, against naive recomputations and DuckDB."""

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
from tests.ops.contract import Arriving, Contract, counted, delta, few_rows

from penstock.errors import CorruptError
from penstock.ops import Aggregate, Column
from penstock.ops.rolling import ranges
from penstock.ops.rolling.count_windows import CountWindows
from penstock.ops.rolling.sliding import Sliding
from penstock.state import trace

INPUT = pa.schema([("k", pa.string()), ("x", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
K, X, V, S = (Column(name, INPUT.field(name).type) for name in INPUT.names)
AT = Column("$time", pa.timestamp("us", "UTC"), True)
LATENESS = 5
AGGREGATES = (
    Aggregate("n", "count"), Aggregate("nx", "count", X), Aggregate("sx", "sum", X),
    Aggregate("sv", "sum", V), Aggregate("lo", "min", V), Aggregate("most", "max", S),
    Aggregate("first", "arg_min", X, AT), Aggregate("different", "count_distinct", S),
    Aggregate("some", "collect", X, None, 2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, pieces, fuel and spread ranges so small that a few rows make many of them."""
    few_rows(monkeypatch)
    monkeypatch.setattr(ranges, "SPREAD_ROWS_MAX", 7)


def aggregated(some: list[Any]) -> tuple[Any, ...]:
    """The aggregates of rows (time, row), naively."""
    _, x, v, s = ([r[i] for _, r in some if r[i] is not None] for i in range(4))
    first = [(t, r[1]) for t, r in some if r[1] is not None]
    return (
        len(some), len(x), sum(x) if x else None, float(sum(map(Fraction, v))) if v else None,
        min(v, default=None), max(s, default=None), min(first)[1] if first else None,
        len(set(s)), tuple(sorted(x)[:2]) or None,
    )  # fmt: skip


row = st.tuples(
    st.sampled_from(["a", "bb", None]),
    st.sampled_from([None, -5, 3, 2**40]),
    st.sampled_from([0.1, 0.2, -0.3, 1e9, None]),
    st.sampled_from([None, "x", "yy"]),
)
batches = st.lists(st.lists(st.tuples(st.integers(-8, 20), row), max_size=10), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(batches, st.integers(1, 25), st.integers(1, 3), st.integers(0, 2**16))
def test_a_sliding_window_has_the_rows_shortly_before(
    batches: Any, size: int, shards: int, seed: int
) -> None:
    """Each row comes once the watermark has passed it, with what its window has, however rows came."""
    operator = Sliding(INPUT, ("k",), AGGREGATES, tuple(INPUT.names), size)
    run = Contract(operator, shards=shards, chance=random.Random(seed), timed=True)
    stream = Arriving(run, INPUT, LATENESS)
    seen = stream.in_time
    for batch in [*batches, [(40, ("z", 1, 1.0, "z"))]]:
        stream.step(batch)
        expected = Counter(
            (t, *r, *aggregated([(u, q) for u, q in seen if q[0] == r[0] and t - size < u <= t]))
            for t, r in seen if t < stream.frontier_us
        )  # fmt: skip
        assert run.total() == expected
    run.step([delta(INPUT, [], times=[], marks=[])], [10**6])
    assert not any(list(kept.scan()) for state in run.states for kept in state.traces.values())


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(batches, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(1, 3),
       st.integers(0, 2**16))  # fmt: skip
def test_a_window_of_so_many_rows_comes_when_it_is_full(
    batches: Any, one: int, other: int, is_grouped: bool, shards: int, seed: int
) -> None:
    """Every so many rows of a group in the order of time, those of one time in an order of their own."""
    size, every = max(one, other), min(one, other)
    per = ("k",) if is_grouped else ()
    operator = CountWindows(INPUT, per, AGGREGATES, size, every)
    chance = random.Random(seed)
    runs = [Contract(operator, shards=shards, chance=chance, timed=True) for _ in range(2)]
    stream = Arriving(runs[0], INPUT, LATENESS)
    seen = stream.in_time
    for batch in [*batches, [(40, ("z", 1, 1.0, "z"))]]:
        stream.step(batch)
        groups: dict[Any, list[Any]] = defaultdict(list)
        for t, r in sorted(seen, key=lambda one: one[0]):
            if t < stream.frontier_us:
                groups[r[0] if is_grouped else None].append((t, r))
        expected = Counter(
            (some[i + size - 1][0], key, some[i][0])
            for key, some in groups.items()
            for i in range(0, len(some) - size + 1, every)
        )
        found = Counter({(t, r[0] if is_grouped else None, _us(begin)): 0
                         for t, begin, _, *r in runs[0].total()})  # fmt: skip
        for (t, begin, _, *r), count in runs[0].total().items():
            found[t, r[0] if is_grouped else None, _us(begin)] += count
        assert found == expected
        # What is in the windows, where no two rows of one time tell them apart.
        if len({(t, r[0] if is_grouped else None) for t, r in seen}) == len(seen):
            assert runs[0].total() == Counter(
                (some[i + size - 1][0], _at(some[i][0]), _at(some[i + size - 1][0]),
                 *([key] if is_grouped else []), *aggregated(some[i : i + size]))
                for key, some in groups.items() for i in range(0, len(some) - size + 1, every)
            )  # fmt: skip
    # All at once, in any order: the same windows, rows of one time included.
    chance.shuffle(seen)
    runs[1].step(
        [delta(INPUT, [r for _, r in seen], times=[t for t, _ in seen])], [stream.frontier_us]
    )
    assert runs[1].total() == runs[0].total()


def _at(us: int) -> Any:
    return pa.scalar(us, pa.timestamp("us", "UTC")).as_py()


def _us(instant: Any) -> int:
    return int(pa.scalar(instant, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py())


def test_sliding_windows_equal_duckdbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some thousand rows, aggregates are those of `RANGE BETWEEN … PRECEDING AND CURRENT ROW`."""
    monkeypatch.setattr(ranges, "SPREAD_ROWS_MAX", 2_000_000)
    monkeypatch.setattr(trace, "PIECE_ROWS_MAX", 4_000)
    monkeypatch.setattr("penstock.state.runs.PIECE_ROWS_MAX", 4_000)
    rng = np.random.default_rng(7)
    n = 6_000
    table = pa.table(
        {
            "k": rng.choice(["a", "b", "c", None], n),
            "x": pa.array(rng.integers(-(10**6), 10**6, n), mask=rng.random(n) < 0.1),
            "v": pa.array(np.round(rng.normal(0, 1e3, n), 3), mask=rng.random(n) < 0.1),
            "s": rng.choice(["x", "yy", "zzz"], n),
        },
        schema=INPUT,
    )
    times = np.sort(rng.integers(0, 2_000, n))
    table = table.append_column("$time", pa.array(times).view(pa.timestamp("us", "UTC")))
    aggregates = (
        Aggregate("n", "count"), Aggregate("sx", "sum", X), Aggregate("av", "avg", V),
        Aggregate("dev", "stddev", V), Aggregate("hi", "max", V), Aggregate("least", "min", S),
        Aggregate("half", "quantile", V, None, 0.5),
    )  # fmt: skip
    run = Contract(Sliding(INPUT, ("k",), aggregates, ("k", "x"), 100), shards=2, timed=True)
    for at in range(0, n, 1_500):
        some = table.slice(at, 1_500)
        run.step([some], [int(times[at + 1_499])])
    run.step([table.slice(0, 0)], [5_000])
    with duckdb.connect() as connection:
        connection.register("events", table.append_column("us", pa.array(times)))
        expected = connection.sql("""
            SELECT us, k, x, count(*) OVER w, (sum(x) OVER w)::BIGINT, avg(v) OVER w,
                   stddev_samp(v) OVER w, max(v) OVER w, min(s) OVER w, quantile_cont(v, 0.5) OVER w
            FROM events
            WINDOW w AS (PARTITION BY k ORDER BY us RANGE BETWEEN 99 PRECEDING AND CURRENT ROW)
        """).fetchall()
    key = lambda r: tuple((value is None, str(type(value)), value or 0) for value in r[:5])  # noqa: E731
    ours = sorted(run.total().elements(), key=key)
    theirs = sorted(expected, key=key)
    assert len(ours) == len(theirs) == n
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[:5] == other[:5]
        assert mine[8] == other[8]
        for one, two in zip(mine[5:8] + mine[9:], other[5:8] + other[9:], strict=True):
            assert one == two or one == pytest.approx(two, rel=1e-9)


def test_a_state_of_another_operator_is_refused() -> None:
    """What is kept says which traces it has."""
    sliding = Sliding(INPUT, ("k",), AGGREGATES, ("k",), 10)
    run = Contract(CountWindows(INPUT, ("k",), AGGREGATES, 2, 1))
    with pytest.raises(CorruptError, match="history"):
        sliding.open(run.files, run.states[0].describe())


def test_rows_come_in_the_order_of_their_time() -> None:
    """Of one batch, earlier rows come first."""
    operator = Sliding(INPUT, ("k",), (Aggregate("n", "count"),), ("k",), 10)
    run = Contract(operator)
    state, context = run.states[0], [5, 3, 4, 1, 2]
    rows = delta(INPUT, [("a" if t % 2 else "b", 1, 1.0, "s") for t in context], times=context)
    parcel = operator.prepare(0, rows).parcel
    from penstock.ops import Context

    step = operator.step(state, [[parcel]], Context(run.files, "s", 0, (9,)))
    assert step.changes is not None
    assert step.changes.column("$time").cast(pa.int64()).to_pylist() == [1, 2, 3, 4, 5]
    assert counted(step.changes) == {
        ("a", 1): 1,
        ("a", 2): 1,
        ("a", 3): 1,
        ("b", 1): 1,
        ("b", 2): 1,
    }


def test_sums_that_nobody_asks_for_are_not_computed() -> None:
    """Large numbers of two groups lie side by side, and their sum wouldn't fit: no window has both."""
    largest = 2**62
    rows = [(k, largest, 1.0, "s") for k in "abcdefgh"]
    total = (Aggregate("sx", "sum", X), Aggregate("n", "count"))
    batch = delta(INPUT, rows, times=list(range(8)))
    sliding = Contract(Sliding(INPUT, ("k",), total, ("k",), 100))
    counts = Contract(CountWindows(INPUT, ("k",), total, 1, 1))
    for run in (sliding, counts):
        run.step([batch], [10])
        assert {row[-2:] for row in run.total()} == {(largest, 1)}
    # Two rows apart, a third between them: windows of one row, then of two.
    apart = Contract(Sliding(INPUT, (), (Aggregate("sx", "sum", X),), ("x",), 2))
    some = [(None, x, 1.0, "s") for x in (2**62, -(2**62), 2**62, 2**61)]
    apart.step([delta(INPUT, some, times=[0, 1, 3, 4])], [10])
    assert sorted(row[-1] for row in apart.total().elements()) == [0, 2**62, 2**62, 2**62 + 2**61]
