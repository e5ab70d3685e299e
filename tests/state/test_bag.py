"""The bag: rows with weights, found by key; checked against a Counter."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.core.keys import hash_columns
from penstock.core.vectors import packed
from penstock.state import MemoryStateFiles, Trace, Writer
from penstock.state.bag import COUNT, Bag, matches

SCHEMA = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string())), ("f", pa.float64())]
)
row = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.sampled_from([1, 2, None]),
    st.sampled_from([None, (), ("x",), ("x", None), ("", "x"), ("xx",)]),
    st.sampled_from([0.5, None]),
)
weighted = st.tuples(row, st.integers(-2, 2).filter(bool))


def batch(rows: list[Any]) -> pa.RecordBatch:
    """Rows as Arrow."""
    columns = [
        pa.array([list(r[i]) if isinstance(r[i], tuple) else r[i] for r in rows], f.type)
        for i, f in enumerate(SCHEMA)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def counter(found: pa.RecordBatch) -> Counter[Any]:
    """What is in a batch of a bag's layout."""
    rows = found.select(SCHEMA.names).to_pylist()
    counts = found.column(COUNT).to_pylist()
    made: Counter[Any] = Counter()
    for one, n in zip(rows, counts, strict=True):
        values = tuple(tuple(v) if isinstance(v, list) else v for v in one.values())
        assert values not in made, "each row once"
        made[values] = n
    return made


@settings(max_examples=examples(60))
@given(st.lists(st.lists(weighted, max_size=12), max_size=8), st.booleans())
def test_a_bag_is_the_sum_of_its_deltas(deltas: list[list[Any]], is_weak: bool) -> None:
    """Found by key as by a Counter, after any number of appends, reopened each time; also with few hashes."""
    bag, files = Bag(SCHEMA, ("k",)), MemoryStateFiles()
    trace = Trace(bag.layout, files)
    truth: Counter[Any] = Counter()
    for version, delta in enumerate(deltas):
        rows = batch([r for r, _ in delta])
        hashes = hash_columns([rows.column("k")], len(rows))
        hashes = hashes % 2 if is_weak else hashes
        weights = np.array([w for _, w in delta], np.int64)
        made = bag.delta(rows, hashes, weights, None)
        trace = trace.append(made, Writer(files, "s", version, "0"))
        trace.check()
        trace = Trace.open(bag.layout, files, json.loads(json.dumps(trace.describe())))
        for values, weight in delta:
            truth[values] += weight
    wanted_rows = batch([("a", None, None, None), (None, None, None, None)])
    hashes = hash_columns([wanted_rows.column("k")], 2)
    hashes = hashes % 2 if is_weak else hashes
    found = counter(bag.find(trace, bag.wanted(wanted_rows, hashes, None)))
    assert found == {r: n for r, n in truth.items() if n and r[0] in ("a", None)}
    everything = bag.sum(list(trace.scan()))
    assert counter(everything) == {r: n for r, n in truth.items() if n}


@given(st.lists(row, max_size=8), st.lists(row, max_size=8), st.booleans())
def test_matches_are_the_pairs_of_equal_keys(
    left: list[Any], right: list[Any], is_weak: bool
) -> None:
    """All pairs that a nested loop finds, in left's order; NULL matches nothing."""
    sides = []
    for rows in (left, right):
        bag, arrow = Bag(SCHEMA, ("k", "n")), batch(rows)
        hashes = hash_columns([arrow.column("k"), arrow.column("n")], len(arrow))
        hashes = hashes % 2 if is_weak else hashes
        sides.append(bag.delta(arrow, hashes, None, None))
    here, there = matches(sides[0], sides[1], [("k", "k"), ("n", "n")])
    mine, other = ([tuple(r[:2]) for r in _tuples(side)] for side in sides)
    wanted = [
        (i, j)
        for i, one in enumerate(mine)
        for j, two in enumerate(other)
        if one == two and None not in one
    ]
    assert sorted(zip(here.tolist(), there.tolist(), strict=True)) == wanted
    assert here.tolist() == sorted(here.tolist())


def _tuples(side: pa.RecordBatch) -> list[Any]:
    return [tuple(one.values()) for one in side.select(SCHEMA.names).to_pylist()]


values = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=3),
    st.none(),
)


@given(st.lists(values, max_size=10))
def test_packed_lists_are_equal_where_lists_are(rows: list[Any]) -> None:
    """Also for slices, and lists of lists."""
    for type_, given_ in (
        (pa.list_(pa.int64()), rows),
        (pa.list_(pa.list_(pa.int64())), [r and [r, None, []] for r in rows]),
    ):
        column = pa.array([None, *given_, []], type_).slice(1, len(given_))
        found = packed(column).to_pylist()
        for i, one in enumerate(given_):
            for j, two in enumerate(given_):
                assert (found[i] == found[j]) == (one == two)
