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
from tests.ops.contract import Contract, counted, delta

from penstock.core.delta import followed
from penstock.ops import NO_TIME, Context
from penstock.ops.keyed import temporal_filter
from penstock.ops.keyed.temporal_filter import TemporalFilter
from penstock.state import MemoryStateFiles

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
@given(
    batches,
    st.sampled_from(["starts", "ends", "both"]),
    st.booleans(),
    st.integers(),
    st.sampled_from([1, 2, 5, 1_000]),
)
def test_rows_come_and_go(changes: Any, bounds: str, clock: bool, seed: int, chunk: int) -> None:
    """The content is what a filter of all rows gives, whatever the batches, shards, clocks and chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temporal_filter, "CHUNK_ROWS", chunk)
        check(changes, bounds, clock, random.Random(seed))


def check(changes: Any, bounds: str, clock: bool, chance: random.Random) -> None:
    """Runs batches, and compares content and changes after each."""
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


class Steps:
    """An operator on one shard, and what it gives, table by table."""

    def __init__(self, operator: TemporalFilter) -> None:
        self.operator, self.files, self.version = operator, MemoryStateFiles(), 0
        self.state: Any = operator.empty(self.files)

    def step(self, table: pa.Table, now: int) -> list[pa.Table]:
        """Runs a batch; the tables of changes."""
        parcels = [self.operator.prepare(0, table).parcel] if len(table) else []
        context = Context(self.files, "s", self.version, (now,))
        found = self.operator.step(self.state, [parcels], context)
        assert found.changes is not None
        tables = [found.changes, *found.more]
        self.state, self.version = found.state, self.version + 1
        return tables

    def content(self) -> Counter[Any]:
        """The rows that are there."""
        return counted(pa.Table.from_batches(list(self.operator.scan(self.state)), ROWS))


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("ends", [None, "b"])
def test_what_is_taken_back_as_its_time_comes_is_never_given(chunk: int, ends: str | None) -> None:
    """A row that waits and its retraction meet, wherever chunks end: the changes name each row once."""
    steps = Steps(TemporalFilter(ROWS, ("k",), "a", ends))
    come = [("x", n // 8 * SECOND + n % 8, (1_000 + n) * SECOND) for n in range(40, 72)]
    gone = come[::3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temporal_filter, "CHUNK_ROWS", chunk)
        steps.step(delta(ROWS, come[:16], weights=[1] * 16), 0)
        steps.step(delta(ROWS, come[16:], weights=[1] * 16), 0)
        later = ("x", 6 * SECOND, 2_000 * SECOND)
        table = delta(ROWS, [*gone, later], weights=[-1] * len(gone) + [1])
        changes = pa.concat_tables(steps.step(table, 100 * SECOND))
    rows = [(k, _time(a), _time(b)) for k, a, b in [*(set(come) - set(gone)), later]]
    assert changes["$weight"].to_pylist() == [1] * len(rows)
    assert counted(followed(changes)) == Counter(rows) == steps.content()


@pytest.mark.parametrize("bounds", ["starts", "ends", "both"])
def test_a_jump_of_time_is_given_in_chunks(bounds: str) -> None:
    """No table of changes is much longer than a chunk; together they are what changed, goings first."""
    rows, chunk = 1_000, 64
    starts, ends = (None, "b") if bounds == "ends" else ("a", None if bounds == "starts" else "b")
    operator = TemporalFilter(ROWS, ("k",), starts, ends)
    come = [(f"k{n % 7}", n * SECOND, (n + rows) * SECOND) for n in range(rows)]
    come += [(f"k{n % 7}", n * SECOND, (n + 10 * rows) * SECOND) for n in range(rows)]
    steps = Steps(operator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temporal_filter, "CHUNK_ROWS", chunk)
        steps.step(delta(ROWS, come, weights=[1] * len(come)), 0)
        before = steps.content()
        now = (rows + rows // 2) * SECOND
        tables = steps.step(delta(ROWS, []), now)
        after = steps.content()
    assert after == there(Counter(come), now, starts=starts is not None, ends=ends is not None)
    changes = pa.concat_tables(tables)
    moved = counted(followed(changes))
    assert {row: n for row, n in moved.items() if n} == {
        row: after[row] - before[row] for row in before | after if after[row] != before[row]
    }
    signs = changes["$weight"].to_pylist()
    assert signs == sorted(signs), "all that go before all that come"
    assert max(map(len, tables)) <= 2 * chunk
    assert len(changes) >= rows // 2
