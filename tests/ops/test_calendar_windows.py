"""Windows of a calendar against a naive recomputation, at every step, however the input is cut."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.calendar import Calendar
from penstock.core.time import HOUR_US, instant_us
from penstock.ops import NO_TIME, Aggregate, AggregateSpec, Column, Window, WindowedAggregate

INPUT = pa.schema([("k", pa.string()), ("x", pa.int64())])
K, X = (Column(name, INPUT.field(name).type) for name in INPUT.names)
PLACES = [("Europe/Berlin", "2025-03-28T23:00:00Z"), ("Europe/Berlin", "2025-10-24T22:00:00Z"),
          ("Pacific/Apia", "2011-12-28T10:00:00Z"), ("America/Havana", "2025-03-07T05:00:00Z")]  # fmt: skip
LATENESS = 12 * HOUR_US


def grid(zone: str, middle_us: int, days: int) -> list[int]:
    """The hours at which the date of the zone changes, or another second day begins."""
    info = ZoneInfo(zone)
    found, last = [], None
    for hour in range(-20 * 24, 20 * 24):
        at = middle_us + hour * HOUR_US
        number = (datetime.fromtimestamp(at // 1_000_000, info).date().toordinal() - 719163) // days
        if last is not None and number > last:
            found.append(at)
        last = number
    return found


def expected(rows: Any, bounds: list[int], steps: int) -> Counter[Any]:
    """The view of rows that count: (time, key, value, the watermark before, weight)."""
    groups: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for t, k, x, mark, weight in rows:
        for begin, end in zip(bounds, bounds[steps:], strict=False):
            if begin <= t < end and end > mark:
                groups[begin, end, k][0] += weight
                groups[begin, end, k][1] += weight * x
    return Counter({
        (pa.scalar(b, pa.timestamp("us", "UTC")).as_py(), pa.scalar(e, pa.timestamp("us", "UTC")).as_py(),
         k, n, total): 1
        for (b, e, k), (n, total) in groups.items() if n
    })  # fmt: skip


events = st.lists(
    st.lists(
        st.tuples(st.integers(0, 5 * 24 - 1), st.sampled_from(["a", None]), st.integers(-3, 3)),
        max_size=12,
    ),
    max_size=5,
)


@settings(max_examples=examples(40), deadline=None)
@given(events, st.sampled_from(PLACES), st.sampled_from([1, 2]), st.integers(1, 3), st.integers(1, 3),
       st.integers(0, 2**16))  # fmt: skip
def test_rows_fall_into_the_days_of_their_zone(
    batches: Any, place: tuple[str, str], days: int, steps: int, shards: int, seed: int
) -> None:
    """View, changes and closed rows are those of days that clocks make shorter, longer or leave out."""
    zone, start = place
    begin = instant_us(start)
    window = Window("hopping", calendar=Calendar(zone, days=days), steps=steps)
    aggregates = (Aggregate("n", "count"), Aggregate("x", "sum", Column("x", pa.int64(), True)))
    spec = AggregateSpec((K,), window, aggregates, "$time")
    run = Contract(WindowedAggregate(spec), shards=shards, chance=random.Random(seed))
    bounds = grid(zone, begin, days)
    seen: list[Any] = []
    newest = NO_TIME + 2 * LATENESS
    for batch in batches:
        rows, times, marks = [], [], []
        for hour, k, x in batch:
            t = begin + hour * HOUR_US
            seen.append((t, k, x, newest - LATENESS, 1))
            rows.append((k, x))
            times.append(t)
            marks.append(newest - LATENESS)
            newest = max(newest, t)
        run.step([delta(INPUT, rows, times=times, marks=marks)], [newest - LATENESS])
        everything = expected(seen, bounds, steps)
        assert run.view() == run.total() == everything
        closed = {row: 1 for row in everything if instant_us(row[1]) <= newest - LATENESS}
        assert run.closed == Counter(closed)


@settings(max_examples=examples(30), deadline=None)
@given(events, st.sampled_from(PLACES), st.integers(1, 3), st.integers(0, 2**16))
def test_rows_are_taken_back_from_their_days(
    batches: Any, place: tuple[str, str], steps: int, seed: int
) -> None:
    """What is taken back leaves the days that it was in, kept values too."""
    zone, start = place
    begin, chance = instant_us(start), random.Random(seed)
    window = Window("hopping", calendar=Calendar(zone, days=1), steps=steps)
    aggregates = (Aggregate("n", "count"), Aggregate("x", "max", X))
    spec = AggregateSpec((K,), window, aggregates, "$time", retracts=True)
    run = Contract(WindowedAggregate(spec), shards=2, chance=chance)
    bounds = grid(zone, begin, 1)
    alive: Counter[Any] = Counter()
    for batch in [*batches, None]:
        moves = [(one, 1) for one in batch or []]
        moves += [(one, -1) for one in alive.elements() if batch is None or chance.random() < 0.3]
        times = [begin + hour * HOUR_US for (hour, _, _), _ in moves]
        rows = [(k, x) for (_, k, x), _ in moves]
        run.step([delta(INPUT, rows, times=times, weights=[w for _, w in moves])])
        for one, weight in moves:
            alive[one] += weight
        most: dict[Any, list[int]] = defaultdict(list)
        for hour, k, x in alive.elements():
            for b, e in zip(bounds, bounds[steps:], strict=False):
                if b <= begin + hour * HOUR_US < e:
                    most[b, e, k].append(x)
        assert run.view() == run.total()
        assert {(instant_us(b), instant_us(e), k, n, x) for b, e, k, n, x in run.view()} == {
            (b, e, k, len(xs), max(xs)) for (b, e, k), xs in most.items()
        }
    assert not run.view()


def test_a_window_of_a_calendar_survives_its_record() -> None:
    """A pipeline's record names zone and steps; reading part of a view finds the same windows."""
    window = Window("hopping", calendar=Calendar("Europe/Berlin", months=1), steps=3)
    assert Window.from_spec(window.to_spec()) == window
    spec = AggregateSpec((), window, (Aggregate("n", "count"),), "$time")
    run = Contract(WindowedAggregate(spec))
    at = instant_us("2025-03-31T22:30:00Z")  # April in Berlin
    run.step([delta(INPUT, [("a", 1)], times=[at])])
    [batch] = run.operator.scan(run.states[0], instant_us("2025-02-15"), instant_us("2025-03-15"))
    [begin], [end] = batch["window_start"].to_pylist(), batch["window_end"].to_pylist()
    zone = ZoneInfo("Europe/Berlin")
    assert begin == datetime(2025, 3, 1, tzinfo=zone)
    assert end == datetime(2025, 6, 1, tzinfo=zone)
    assert end - begin == timedelta(days=92) - timedelta(hours=1)  # clocks were set forward
