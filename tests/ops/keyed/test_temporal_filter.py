"""Rows that are there from one time to another: equal to a filter of all rows, at every frontier."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.ops import NO_TIME
from penstock.ops.keyed.temporal_filter import TemporalFilter

MICROS = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("a", MICROS), ("b", MICROS)])
SECOND = 1_000_000

instant = st.one_of(st.none(), st.integers(-3, 25).map(lambda n: n * SECOND // 4))
row = st.tuples(st.sampled_from(["x", "y", None]), instant, instant)
batches = st.lists(st.tuples(st.lists(row, max_size=6), st.integers(0, 8)), max_size=5)


def there(rows: Counter[Any], now: int, *, starts: bool, ends: bool) -> Counter[Any]:
    """The rows that are there at a time."""

    def lasts(one: Any) -> bool:
        _, start, end = one
        if (starts and start is None) or (ends and end is None):
            return False
        return (not starts or start <= now) and (not ends or end > now)

    found = {(k, _time(a), _time(b)): n for (k, a, b), n in rows.items() if lasts((k, a, b))}
    return Counter({key: n for key, n in found.items() if n})


def _time(us: int | None) -> Any:
    return pa.scalar(us, MICROS).as_py()


@settings(max_examples=examples(30))
@given(batches, st.sampled_from(["starts", "ends", "both"]), st.booleans(), st.integers())
def test_rows_come_and_go(changes: Any, bounds: str, clock: bool, seed: int) -> None:
    """The content is what a filter of all rows gives, whatever the batches, shards and clocks."""
    chance = random.Random(seed)
    starts, ends = bounds != "ends", bounds != "starts"
    operator = TemporalFilter(
        ROWS, ("k",), "a" if starts else None, "b" if ends else None, (1, 2) if clock else (0,)
    )
    run = Contract(operator, shards=2, chance=chance)
    rows: Counter[Any] = Counter()
    now = NO_TIME
    for come, moved in changes:
        gone = [one for one in rows.elements() if chance.random() < 0.3]
        rows.update(come)
        rows.subtract(gone)
        if moved:
            now = max(now, -SECOND) + moved * SECOND // 3
        weights = [1] * len(come) + [-1] * len(gone)
        inputs = [delta(ROWS, come + gone, weights=weights)]
        frontiers = [now]
        if clock:
            inputs += [delta(ROWS, come), delta(ROWS, [])]
            frontiers = [NO_TIME, *chance.sample([now, now + SECOND * bool(moved)], 2)]
        run.step(inputs, frontiers)
        expected = there(rows, now, starts=starts, ends=ends)
        assert run.view() == expected
        assert run.total() == expected


@pytest.mark.parametrize("bound", ["starts", "ends"])
def test_state_is_released(bound: str) -> None:
    """What has ended, and what no longer waits, isn't kept."""
    starts, ends = ("a", None) if bound == "starts" else (None, "b")
    run = Contract(TemporalFilter(ROWS, ("k",), starts, ends))
    name = "waiting" if bound == "starts" else "there"
    run.step([delta(ROWS, [("x", n * SECOND, n * SECOND) for n in range(10, 50)])], (SECOND,))
    assert run.states[0].traces[name].rows == 40
    run.step([delta(ROWS, [])], (50 * SECOND,))
    assert run.states[0].traces[name].rows == 0
