"""Changes every so often against sums of all changes up to the newest tick."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta, few_rows

from penstock.ops import NO_TIME
from penstock.ops.keyed.paced import Paced

INPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and fuel so small that a few rows make merges."""
    few_rows(monkeypatch)


row = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3))
steps = st.lists(
    st.tuples(st.lists(st.tuples(row, st.sampled_from([1, -1])), max_size=8), st.integers(0, 15)),
    max_size=10,
)


@settings(max_examples=examples(80), deadline=None)
@given(steps, st.integers(1, 3), st.booleans(), st.integers())
def test_changes_are_added_up_between_ticks(
    batches: Any, shards: int, has_key: bool, seed: int
) -> None:
    """After a tick all changes were given; before the next one none more; what came and went never is."""
    operator = Paced(INPUT, ("k",) if has_key else (), 10)
    run = Contract(operator, shards=shards, chance=random.Random(seed))
    everything: Counter[Any] = Counter()
    shown: Counter[Any] = Counter()
    clock, tick = 1_000, NO_TIME
    for changes, passes in [*batches, ([], 30)]:
        clock += passes
        rows, weights = [one for one, _ in changes], [weight for _, weight in changes]
        for one, weight in changes:
            everything[one] += weight
        run.step([delta(INPUT, rows, weights=weights)], [NO_TIME, clock // 10 * 10])
        if clock // 10 * 10 > tick:
            tick, shown = clock // 10 * 10, Counter(everything)
        assert {r: n for r, n in run.changes.items() if n} == {r: n for r, n in shown.items() if n}
    assert operator.wakes([0, 10], [0, 20])
    assert not operator.wakes([0, 10], [5, 10])


def test_rows_that_go_come_first() -> None:
    """A change is a row that goes and one that comes, in this order."""
    operator = Paced(INPUT, ("k",), 10)
    rows = delta(INPUT, [("b", 2), ("a", 1)], weights=[1, -1])
    run = Contract(operator)
    from penstock.ops import Context

    parcel = operator.prepare(0, rows).parcel
    step = operator.step(run.states[0], [[parcel]], Context(run.files, "s", 0, (NO_TIME, 10)))
    assert step.changes is not None
    assert step.changes.column("$weight").to_pylist() == [-1, 1]
