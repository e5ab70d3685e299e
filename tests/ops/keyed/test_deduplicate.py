"""Deduplication: equal to a loop over the log, however it is cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.ops import NO_TIME
from penstock.ops.keyed.deduplicate import Deduplicate

INPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("id", pa.int64())])
LATENESS = 15

row = st.tuples(
    st.sampled_from(["a", "b", None]), st.sampled_from([1, None]), st.integers(-40, 120)
)


@settings(max_examples=examples(80))
@given(
    st.lists(st.lists(row, max_size=10), max_size=6),
    st.sampled_from([None, 1, 10, 30]),
    st.sampled_from([("k",), ("k", "n")]),
    st.integers(1, 3),
    st.integers(),
)
def test_what_goes_through_is_what_a_loop_lets_through(
    batches: list[Any], within: int | None, on: Any, shards: int, seed: int
) -> None:
    """Of one partition's log, with late rows, in any batches."""
    run = Contract(
        Deduplicate(INPUT, on, within), shards=shards, chance=random.Random(seed), timed=True
    )
    newest, passed, number = NO_TIME, Counter[Any](), 0
    seen: dict[Any, list[int]] = {}
    for batch in batches:
        rows, times, marks, late = [], [], [], []
        for k, n, at in batch:
            mark = newest - LATENESS if newest > NO_TIME else NO_TIME
            newest = max(newest, at)
            rows.append((k, n, number))
            times.append(at)
            marks.append(mark)
            number += 1
            if within is not None and at < mark:
                late.append(len(rows) - 1)
                continue
            known = seen.setdefault((k, n)[: len(on)], [])
            if not any(within is None or abs(at - one) < within for one in known):
                known.append(at)
                passed[at, *rows[-1]] += 1
        frontier = newest - LATENESS if newest > NO_TIME else NO_TIME
        run.step([delta(INPUT, rows, times=times, marks=marks)], [frontier])
        assert run.late[0] == late
        assert run.total() == passed


def test_keys_are_forgotten() -> None:
    """State has the keys of the last stretch of time, and no more."""
    run = Contract(Deduplicate(INPUT, ("id",), 1_000), timed=True)
    for i in range(200):
        rows = [("a", 1, i * 100 + j) for j in range(100)]
        times = [i * 100 + j for j in range(100)]
        run.step([delta(INPUT, rows, times=times)], [i * 100])
    assert run.total().total() == 20_000
    assert (
        sum(1 for batch in run.states[0].traces["seen"].scan() for _ in range(len(batch))) < 3_000
    )
