"""Sketches: functions of the rows alone, as exact as they say, in every kind of window."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.keys import hash_columns
from penstock.errors import FlowError
from penstock.ops import (
    Aggregate,
    AggregateSpec,
    Column,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.ops.aggregates import Rows, make_function
from penstock.ops.aggregates.sketches import _estimate
from penstock.ops.rolling.sliding import Sliding
from penstock.state.sketches import entries_of, merged, sketches

INPUT = pa.schema([("k", pa.string()), ("s", pa.string()), ("v", pa.float64()), ("x", pa.int64())])
K, S, V, X = (Column(name, INPUT.field(name).type) for name in INPUT.names)
DISTINCT = Aggregate("d", "approx_count_distinct", S)
QUANTILES = (
    Aggregate("q", "approx_quantile", V, None, 0.5),
    Aggregate("most", "approx_quantile", X, None, 1),
)


def registers(values: list[str]) -> int:
    """The estimate, with registers in a dictionary."""
    found: dict[int, int] = defaultdict(int)
    for value in set(values):
        [signed] = hash_columns([pa.array([value])], 1)
        bits = f"{int(signed) % 2**64:064b}"
        rest = bits[12:]
        rank = len(rest) - len(rest.lstrip("0")) + 1
        found[int(bits[:12], 2)] = max(found[int(bits[:12], 2)], rank)
    count = np.zeros((1, 54), np.int64)
    for rank in found.values():
        count[0, rank] += 1
    return int(_estimate(count)[0])


def near(found: float | None, values: list[Any], share: float) -> bool:
    """Whether a quantile is one of the values, but for 1/128 of it."""
    if not values:
        return found is None
    exact = sorted(values)[int((len(values) - 1) * share)]
    assert found is not None
    return abs(found - exact) <= abs(exact) / 128


row = st.tuples(
    st.sampled_from(["a", None]),
    st.sampled_from([None, *"abcdefgh"]),
    st.sampled_from([None, 0.0, -0.0, 1.0, -7.25, 1e9, 1e-9, 65.5]),
    st.sampled_from([None, 0, 1, -1, 65, -65, 127, 10**12]),
)
batches = st.lists(st.lists(st.tuples(st.integers(0, 30), row), max_size=12), max_size=5)


@settings(max_examples=examples(40), deadline=None)
@given(batches, st.sampled_from(["tumbling", "hopping", "none"]), st.integers(1, 3), st.integers())
def test_a_sketch_is_that_of_all_rows(batches: Any, kind: Any, shards: int, seed: int) -> None:
    """However rows were batched, cut and merged, estimates are those of the rows at once."""
    window = Window(kind, 20, 10) if kind != "none" else Window("none")
    spec = AggregateSpec((K,), window, (DISTINCT, *QUANTILES), None if kind == "none" else "$time")
    run = Contract(WindowedAggregate(spec), shards=shards, chance=random.Random(seed))
    groups: dict[Any, list[Any]] = defaultdict(list)
    for batch in batches:
        run.step([delta(INPUT, [r for _, r in batch], times=[t for t, _ in batch])])
        for t, r in batch:
            starts = {
                "none": [0],
                "tumbling": [t // 20 * 20],
                "hopping": [t // 10 * 10, t // 10 * 10 - 10],
            }
            for start in starts[kind]:
                groups[start, r[0]].append(r)
        found = {}
        for *place, k, d, q, most in run.view():
            start = int(pa.scalar(place[0]).cast(pa.int64()).as_py()) if place else 0
            found[start, k] = d, q, most
        assert run.view() == run.total()
        assert found.keys() == groups.keys()
        for key, rows in groups.items():
            s, v, x = ([r[i] for r in rows if r[i] is not None] for i in (1, 2, 3))
            d, q, most = found[key]
            assert d == registers(s)
            assert near(q, v, 0.5)
            assert near(most, x, 1)


@settings(max_examples=examples(30), deadline=None)
@given(batches, st.integers())
def test_rows_are_taken_back_from_histograms(batches: Any, seed: int) -> None:
    """A quantile of a table is that of the rows that are there."""
    chance = random.Random(seed)
    spec = AggregateSpec((K,), Window("none"), QUANTILES, retracts=True)
    run = Contract(WindowedAggregate(spec), shards=2, chance=chance)
    alive: Counter[Any] = Counter()
    for batch in [*batches, None]:
        moves = [(r, 1) for _, r in batch or []]
        moves += [(r, -1) for r in alive.elements() if batch is None or chance.random() < 0.4]
        run.step([delta(INPUT, [r for r, _ in moves], weights=[w for _, w in moves])])
        for r, weight in moves:
            alive[r] += weight
        found = {k: (q, most) for k, q, most in run.view()}
        assert run.view() == run.total()
        for key in {r[0] for r in alive.elements()}:
            v, x = (
                [r[i] for r in alive.elements() if r[0] == key and r[i] is not None] for i in (2, 3)
            )
            assert near(found[key][0], v, 0.5)
            assert near(found[key][1], x, 1)
    assert not run.view()


@pytest.mark.parametrize("exact", [10, 1_000, 20_000, 300_000])
def test_estimates_are_within_their_error(exact: int) -> None:
    """Numbers, texts and doubles in a row: four standard errors at most, and small sets almost exactly."""
    numbers = np.arange(exact) * 37
    for column in (pa.array(numbers), pa.array(numbers.astype(str)), pa.array(numbers * 0.1)):
        function = make_function("approx_count_distinct", Column("x", column.type))
        [part] = function.parts(retracts=False)
        [made] = part.lift(Rows({"x": column}, None, np.zeros(exact, np.int32), 1))
        full = pa.RecordBatch.from_arrays([made], [part.value.name])
        [found] = function.result(full).to_pylist()
        assert abs(found - exact) <= max(exact * 0.065, 1)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([float("inf"), 1.0], 1, float("inf")),
        ([float("-inf"), 1.0], 0, float("-inf")),
        ([float("nan"), 1.0], 1, "NaN"),
        ([5e-324], 0.5, 0.0),
        ([-0.0], 0.5, 0.0),
        ([1.7976931348623157e308], 0.5, 1.79e308),
    ],
)
def test_quantiles_of_values_that_are_hardly_numbers(
    values: list[float], share: float, expected: Any
) -> None:
    """Infinities and NaN stay what they are; the smallest numbers are 0."""
    function = make_function("approx_quantile", V, None, share)
    [part] = function.parts(retracts=False)
    rows = Rows({"v": pa.array(values)}, None, np.zeros(len(values), np.int32), 1)
    full = pa.RecordBatch.from_arrays(part.lift(rows), [part.value.name])
    [found] = function.result(full).to_pylist()
    assert (
        (repr(found) == "nan")
        if expected == "NaN"
        else found == pytest.approx(expected, rel=1 / 128)
    )


def test_sketches_are_merged_in_sessions_and_sliding_windows() -> None:
    """They are put together from parts, so every window takes them."""
    times = [0, 5, 8, 40, 45]
    rows = [("a", s, float(v), v) for s, v in zip("xyxxz", (100, 200, 300, 400, 500), strict=True)]
    aggregates = (DISTINCT, QUANTILES[1])
    sessions = Contract(
        SessionAggregate(AggregateSpec((K,), Window("session", 10), aggregates, "$time"))
    )
    sliding = Contract(Sliding(INPUT, ("k",), aggregates, ("x",), 6))
    for at in range(5):
        batch = delta(INPUT, rows[at : at + 1], times=times[at : at + 1])
        sessions.step([batch], [times[at]])
        sliding.step([batch], [times[at]])
    assert sorted(row[2:] for row in sessions.view()) == [("a", 2, 302.0), ("a", 2, 502.0)]
    sliding.step([delta(INPUT, [], times=[])], [100])
    assert {(x, d) for x, d, _ in sliding.total()} == {
        (100, 1),
        (200, 2),
        (300, 2),
        (400, 1),
        (500, 2),
    }


def test_distinct_values_of_tables_are_refused() -> None:
    """A register doesn't know what it held before: the message says what does."""
    with pytest.raises(FlowError, match="Use count_distinct"):
        WindowedAggregate(AggregateSpec((K,), Window("none"), (DISTINCT,), retracts=True))


def test_sketches_keep_what_is_there() -> None:
    """Merging adds, empties to NULL, and reads slices."""
    ids = np.array([2, 0, 2, 2])
    made = sketches("histogram", np.array([5, -3, 5, 7]), np.array([1, 4, 2, -1]), ids, 3)
    assert made.is_null().to_pylist() == [False, True, False]
    assert [one.tolist() for one in entries_of("histogram", made)] == [
        [0, 2, 2],
        [-3, 5, 7],
        [4, 3, -1],
    ]
    less = sketches("histogram", np.array([-3, 7]), np.array([-4, 1]), np.array([0, 2]), 3)
    both = pa.concat_arrays([made, less])
    found = merged("histogram", both, np.array([0, 1, 2, 0, 1, 2]), 3)
    assert [one.tolist() for one in entries_of("histogram", found.slice(1, 2))] == [[1], [5], [3]]
    assert found.null_count == 2
