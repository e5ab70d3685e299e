"""Theta sketches: functions of the rows, byte for byte those of Apache DataSketches, in every kind of window.

The reference is that library's own sketch, trimmed to its nominal size.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import datasketches
import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.sketches.murmur import theta_hashes
from penstock.core.sketches.theta import ALL, EMPTY, NOMINAL, Thetas, read, sketch, written
from penstock.duck import connection
from penstock.errors import FlowError
from penstock.ops import (
    Aggregate,
    AggregateSpec,
    Column,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.ops.rolling.sliding import Sliding

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("s", pa.binary())])
K, V, S = (Column(name, INPUT.field(name).type) for name in INPUT.names)
SKETCH = Aggregate("users", "theta_sketch_agg", V)
UNION = Aggregate("all", "theta_union_agg", S)
LG_NOMINAL = NOMINAL.bit_length() - 1
SETS = (
    (range(0),),
    (range(5, 6),),
    (range(10),),
    (range(5, 4_000),),
    (range(3_000, 20_000),),
    (range(15_000, 16_000), range(19_000, 40_000)),
    (range(100_000, 130_000),),
)


def library(values: Any) -> Any:
    """The library's sketch of some values."""
    made = datasketches.update_theta_sketch(LG_NOMINAL)
    for value in values:
        made.update(value)
    made.trim()
    return made.compact(True)


def ours(values: Any, type_: pa.DataType | None = None) -> Thetas:
    """The sketch of some values."""
    hashes = theta_hashes(pa.array(values, type_))
    return sketch(hashes, np.zeros(len(hashes), np.int64), np.full(1, ALL))


def as_bytes(made: Thetas) -> bytes:
    """One sketch as a value."""
    [found] = written(made).to_pylist()
    assert isinstance(found, bytes)
    return found


def whole(parts: Any) -> list[int]:
    """The values of some ranges."""
    return [value for part in parts for value in part]


@pytest.mark.parametrize(
    "values",
    [
        [7],
        [7, 7, -7],
        list(range(NOMINAL)),
        list(range(NOMINAL + 1)),
        list(range(50_000)),
        [0.0, -0.0, 1.5, float("nan"), float("inf"), -1e300],
        [f"{'ä' * (i % 40)}{i}" for i in range(9_000)],
    ],
    ids=["one", "few", "nominal", "one more", "many", "doubles", "texts"],
)
def test_a_sketch_has_the_bytes_of_the_librarys(values: list[Any]) -> None:
    """Of numbers, doubles and texts of all lengths, below and above the size from which it is an estimate."""
    made = ours(values)
    assert as_bytes(made) == library(values).serialize()
    assert written(read(written(made))).equals(written(made))
    assert made.estimates[0] == pytest.approx(library(values).get_estimate(), rel=1e-12)


def test_a_sketch_of_nothing_is_empty_and_the_empty_text_a_value() -> None:
    """The library skips the empty text; here it counts, as in count_distinct."""
    assert as_bytes(ours([], pa.int64())) == library([]).serialize() == EMPTY
    assert ours(["", "a"]).estimates.tolist() == [2]


@pytest.mark.quick_cases(27)
@pytest.mark.parametrize("left", SETS)
@pytest.mark.parametrize("right", SETS)
def test_set_operations_have_the_bytes_of_the_librarys(left: Any, right: Any) -> None:
    """Union, intersection and difference, of exact sketches and of estimates, in each relation."""
    a, b = whole(left), whole(right)
    mine, other = ours(a, pa.int64()), ours(b, pa.int64())
    union = datasketches.theta_union(LG_NOMINAL)
    both = datasketches.theta_intersection()
    for one in (library(a), library(b)):
        union.update(one)
        both.update(one)
    assert as_bytes(mine.union(other)) == union.get_result().serialize()
    assert as_bytes(mine.intersection(other)) == both.get_result().serialize()
    less = datasketches.theta_a_not_b().compute(library(a), library(b))
    assert as_bytes(mine.difference(other)) == less.serialize()


def test_set_operations_go_row_by_row() -> None:
    """A column of sketches gives what its sketches give one by one."""
    sets = [whole(one) for one in SETS]
    left = pa.concat_arrays([written(ours(one, pa.int64())) for one in sets])
    right = left.take(pa.array(list(reversed(range(len(sets))))))
    for name in ("union", "intersection", "difference"):
        found = written(getattr(read(left), name)(read(right)))
        alone = [
            as_bytes(getattr(read(left.slice(i, 1)), name)(read(right.slice(i, 1))))
            for i in range(len(sets))
        ]
        assert found.to_pylist() == alone


@pytest.mark.slow
def test_estimates_and_bounds_are_those_of_the_sizes() -> None:
    """Of 150 pairs of sets, most sizes lie between the bounds, which are the library's but for rounding."""
    chance = np.random.default_rng(3)
    inside, errors, trials = 0, [], 150
    for _ in range(trials):
        first, shared = int(chance.integers(0, 2**40)), int(chance.integers(500, 9_500))
        a = ours(np.arange(first, first + 10_000))
        b = ours(np.arange(first + 10_000 - shared, first + 20_000 - shared))
        both = a.intersection(b)
        low, high = both.bounds()
        inside += bool(low[0] <= shared <= high[0])
        errors.append(float(a.union(b).estimates[0]) / (20_000 - shared) - 1)
        theirs = datasketches.compact_theta_sketch.deserialize(as_bytes(both))
        if both.counts[0] > 120:  # below that, the library looks bounds up
            assert abs(low[0] - theirs.get_lower_bound(2)) < 0.51
            assert abs(high[0] - theirs.get_upper_bound(2)) < 0.51
    assert 0.9 * trials < inside < trials
    assert 0.008 < np.std(errors) < 0.02


row = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9), st.booleans())
batches = st.lists(st.lists(st.tuples(st.integers(0, 30), row), max_size=10), max_size=5)


@settings(max_examples=examples(24), deadline=None)
@given(batches, st.sampled_from(["tumbling", "hopping", "none"]), st.integers(1, 3), st.integers())
def test_a_sketch_is_that_of_all_rows(batches: Any, kind: Any, shards: int, seed: int) -> None:
    """However rows were batched, cut and merged, sketches have the bytes of the rows at once."""
    window = Window(kind, 20, 10) if kind != "none" else Window("none")
    spec = AggregateSpec((K,), window, (SKETCH, UNION), None if kind == "none" else "$time")
    run = Contract(WindowedAggregate(spec), shards=shards, chance=random.Random(seed))
    groups: dict[Any, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for batch in batches:
        rows = []
        for t, (k, number, there) in batch:
            # one of ten numbers stands for thousands, so that groups pass the nominal size
            many = range(1_500 * number, 1_500 * number + 1_500)
            value = number if there else None
            rows.append((k, value, as_bytes(ours(many)) if there else None))
            starts = {
                "none": [0],
                "tumbling": [t // 20 * 20],
                "hopping": [t // 10 * 10, t // 10 * 10 - 10],
            }
            for start in starts[kind]:
                values, union = groups[start, k]
                values.update([number] if there else [])
                union.update(many if there else [])
        run.step([delta(INPUT, rows, times=[t for t, _ in batch])])
        assert run.view() == run.total()
        found = {}
        for *place, k, users, all_ in run.view():
            start = int(pa.scalar(place[0]).cast(pa.int64()).as_py()) if place else 0
            found[start, k] = users, all_
        wanted = {
            key: (library(v).serialize(), library(u).serialize()) for key, (v, u) in groups.items()
        }
        assert found == wanted


def test_sketches_are_merged_in_sessions_and_sliding_windows() -> None:
    """They are put together from parts, so every window takes them."""
    times, values = [0, 5, 8, 40, 45], [1, 2, 1, 1, 3]
    sessions = Contract(
        SessionAggregate(AggregateSpec((K,), Window("session", 10), (SKETCH,), "$time"))
    )
    sliding = Contract(Sliding(INPUT, ("k",), (SKETCH,), ("v",), 6))
    for at, value in zip(times, values, strict=True):
        batch = delta(INPUT, [("a", value, None)], times=[at])
        sessions.step([batch], [at])
        sliding.step([batch], [at])
    two, other = library([1, 2]).serialize(), library([1, 3]).serialize()
    assert {found[-1] for found in sessions.view()} == {two, other}
    sliding.step([delta(INPUT, [], times=[])], [100])
    one = library([1]).serialize()
    sets = Counter(found[-1] for found in sliding.total().elements())
    assert sets == {one: 2, two: 2, other: 1}


@pytest.mark.parametrize("aggregate", [SKETCH, UNION])
def test_sketches_of_tables_are_refused(aggregate: Aggregate) -> None:
    """A hash doesn't know how often its value was there: the message says so."""
    with pytest.raises(FlowError, match="without retractions"):
        WindowedAggregate(AggregateSpec((K,), Window("none"), (aggregate,), retracts=True))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(SETS), st.integers(0, 63), st.integers(0, 255), st.integers(-20, 20))
def test_what_is_no_sketch_is_refused(values: Any, at: int, byte: int, longer: int) -> None:
    """Bytes that were changed or cut are an error of their own kind, or again a sketch."""
    value = bytearray(as_bytes(ours(whole(values), pa.int64())))
    value[at % len(value)] = byte
    cut = bytes(value[:longer]) if longer < 0 else bytes(value) + bytes(longer)
    try:
        found = read(pa.array([None, cut, EMPTY], pa.binary()))
    except ValueError as error:
        assert "expected a theta sketch" in str(error)  # noqa: PT017 - either is right
        return
    assert found.counts[[0, 2]].tolist() == [0, 0]
    assert (found.hashes < found.thetas[found.rows]).all()
    assert found.union(found).counts.tolist() == np.minimum(found.counts, NOMINAL).tolist()


def test_functions_of_sketches_in_sql() -> None:
    """They are row by row, NULL of NULL; aggregates are those of the engine; an odd value is an error."""
    con = connection()
    query = (
        "SELECT theta_sketch_estimate(theta_union(a, b)), theta_sketch_estimate(theta_intersection(a, b)), "
        "theta_sketch_estimate(theta_difference(a, b)), theta_sketch_lower_bound(a), "
        "theta_sketch_upper_bound(a) FROM (SELECT theta_sketch_agg(x) AS a, "
        "theta_sketch_agg(CASE WHEN x > 7 THEN x + 1 END) AS b FROM range(10) AS t(x))"
    )
    assert con.sql(query).fetchall() == [(11, 1, 9, 10, 10)]
    [(found,)] = con.sql("SELECT theta_sketch_agg(x) FROM range(9000) AS t(x)").fetchall()
    assert found == library(range(9_000)).serialize()
    [(found,)] = con.sql(
        "SELECT theta_union_agg(s) FROM (SELECT theta_sketch_agg(x) AS s FROM range(9000) AS t(x) "
        "GROUP BY x % 7 UNION ALL SELECT NULL)"
    ).fetchall()
    assert found == library(range(9_000)).serialize()
    none = con.sql("SELECT theta_sketch_agg(x), theta_sketch_estimate(NULL) FROM range(0) AS t(x)")
    assert none.fetchall() == [(EMPTY, None)]
    with pytest.raises(duckdb.Error, match="expected a theta sketch"):
        con.sql("SELECT theta_sketch_estimate('no sketch'::BLOB)").fetchall()
