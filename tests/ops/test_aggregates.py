"""Aggregate functions, each against its definition over all rows, at every step."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.core.delta import TIME, WEIGHT
from penstock.core.schema import TIMESTAMP
from penstock.errors import FlowError
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    SessionAggregate,
    Window,
    WindowedAggregate,
)
from penstock.state import MemoryStateFiles

INPUT = pa.schema([("k", pa.string()), ("x", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
X, V, S = (Column(n, INPUT.field(n).type) for n in "xvs")
AT = Column(TIME, TIMESTAMP, required=True)

AGGREGATES = (
    Aggregate("var", "variance", V), Aggregate("dev", "stddev", X),
    Aggregate("dx", "count_distinct", X), Aggregate("ds", "count_distinct", S),
    Aggregate("least", "arg_min", S, X), Aggregate("most", "arg_max", V, S),
    Aggregate("first", "arg_min", X, AT), Aggregate("last", "arg_max", X, AT),
    Aggregate("low", "min", X), Aggregate("n", "count"),
    Aggregate("p", "quantile", V, None, 0.3), Aggregate("some", "collect", S, None, 3),
    Aggregate("new", "collect_descending", X, AT, 4),
    Aggregate("often", "frequent", S, None, 2), Aggregate("how", "frequencies", S, None, 2),
    Aggregate("mode", "frequent", X, None, 1),
)  # fmt: skip

row = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([None, -5, 0, 3, 10**9, 10**9 + 1]),
    st.sampled_from([None, 0.1, -2.5, 1e9, 1e9 + 1, 0.0]),
    st.sampled_from([None, "", "x", "yy"]),
)
event = st.tuples(row, st.integers(-20, 40), st.integers(-40, 30))  # row, time, watermark before it
window = st.one_of(
    st.builds(Window, st.just("tumbling"), st.integers(1, 20), offset_us=st.integers(0, 30)),
    st.builds(
        lambda a, b, o: Window("hopping", max(a, b), min(a, b), o),
        st.integers(1, 20), st.integers(1, 20), st.integers(0, 30),
    ),
    st.just(Window("none")),
)  # fmt: skip


def windows_of(t: int, window: Window) -> list[int]:
    if window.kind == "none":
        return [0]
    last = (t - window.offset_us) // window.every_us * window.every_us + window.offset_us
    return [w for w in range(last, t - window.size_us, -window.every_us) if w <= t]


def sample_variance(values: list[Any]) -> float | None:
    exact = [Fraction(x) for x in values]
    return float(statistics.variance(exact)) if len(exact) > 1 else None


def quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    at = (len(values) - 1) * share
    low, high = (sorted(values)[round_(at)] for round_ in (math.floor, math.ceil))
    return low + (high - low) * (at - math.floor(at))


def often(values: list[Any]) -> list[tuple[Any, int]]:
    """Values with how often they are there, the most frequent first."""
    return sorted(Counter(values).items(), key=lambda one: (-one[1], one[0]))


def naive(rows: list[Any]) -> tuple[Any, ...]:
    """The aggregates of rows (k, x, v, s, time)."""
    _, x, v, s, _ = (
        [one for one in column if one is not None] for column in zip(*rows, strict=True)
    )

    def pairs(i: int, j: int) -> list[Any]:
        return [(r[j], r[i]) for r in rows if None not in (r[i], r[j])]

    variance = sample_variance(x)
    return (
        sample_variance(v), None if variance is None else math.sqrt(variance),
        len(set(x)), len(set(s)),
        min(pairs(3, 1), default=(0, None))[1], max(pairs(2, 3), default=(0, None))[1],
        min(pairs(1, 4), default=(0, None))[1], max(pairs(1, 4), default=(0, None))[1],
        min(x, default=None), len(rows), quantile(v, 0.3), tuple(sorted(s)[:3]) or None,
        tuple(one for _, one in sorted(pairs(1, 4), reverse=True)[:4]) or None,
        tuple(one for one, _ in often(s)[:2]) or None, tuple(n for _, n in often(s)[:2]) or None,
        tuple(one for one, _ in often(x)[:1]) or None,
    )  # fmt: skip


def reference(counting: Counter[Any]) -> dict[Any, Any]:
    """(window, key) -> aggregates, of (window, row and time) -> how often."""
    groups = defaultdict(list)
    for w, one in counting.elements():
        groups[w, one[0]].append(one)
    return {group: naive(rows) for group, rows in groups.items()}


def shown(rows: Counter[Any], window: Window) -> dict[Any, Any]:
    """The same of the operator's rows, each of which is there once."""
    assert set(rows.values()) <= {1}
    if window.kind == "none":
        return {(0, one[0]): one[1:] for one in rows}
    return {(round(one[0].timestamp() * 1e6), one[2]): one[3:] for one in rows}


def alike(ours: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    """Whether groups and aggregates are equal, doubles but for rounding."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-13, abs_tol=1e-13)
        return bool(a == b)

    return ours.keys() == expected.keys() and all(
        same(a, b) for group, row in ours.items() for a, b in zip(row, expected[group], strict=True)
    )


def operator(window: Window, **options: Any) -> WindowedAggregate:
    time = None if window.kind == "none" else TIME
    return WindowedAggregate(
        AggregateSpec((Column("k", pa.string()),), window, AGGREGATES, time, **options)
    )


@settings(max_examples=examples(16), deadline=None)
@given(st.lists(st.lists(event, max_size=10), max_size=5), window, st.integers(1, 3), st.integers())
@example(
    [[(("b", None, None, ""), 0, 0)], [(("b", None, None, ""), 0, 1)]],
    Window("hopping", 2, 1),
    1,
    0,
)
def test_rows_that_stay(batches: Any, window: Window, shards: int, seed: int) -> None:
    """In any order and cut, some late for some of their windows: a recomputation at every step."""
    run = Contract(operator(window), shards=shards, chance=random.Random(seed))
    counting: Counter[Any] = Counter()
    for batch in batches:
        rows, times, marks = ([one[i] for one in batch] for i in range(3))
        table = delta(INPUT, rows, times=times, marks=marks)
        run.step([table], (NO_TIME,))
        for values, t, mark in batch:
            for w in windows_of(t, window):
                if window.kind == "none" or w + window.size_us > mark:
                    counting[w, (*values, t)] += 1
        assert alike(shown(run.view(), window), reference(counting))
        assert run.total() == run.view()


@pytest.mark.slow
@settings(max_examples=examples(16), deadline=None)
@given(st.lists(st.lists(event, max_size=10), max_size=5), window, st.integers(1, 3), st.integers())
def test_rows_that_are_taken_back(batches: Any, window: Window, shards: int, seed: int) -> None:
    """Rows come and go in any number; what is left counts; of nothing, nothing is left."""
    chance = random.Random(seed)
    run = Contract(operator(window, retracts=True), shards=shards, chance=chance)
    alive: Counter[Any] = Counter()

    def feed(changes: list[Any]) -> None:
        rows, times, weights = ([one[i] for one in changes] for i in range(3))
        run.step([delta(INPUT, rows, times=times, weights=weights)])
        for values, t, weight in changes:
            alive[(*values, t)] += weight
        counting = Counter(
            {(w, one): n for one, n in alive.items() for w in windows_of(one[4], window)}
        )
        assert alike(shown(run.view(), window), reference(counting))
        assert run.total() == run.view()

    for batch in batches:
        changes = [(values, t, chance.randint(1, 3)) for values, t, _ in batch]
        for one, n in sorted(alive.items(), key=repr):
            if n and chance.random() < 0.5:
                changes.append((one[:4], one[4], -chance.randint(1, n)))
        feed(changes)
    feed([(one[:4], one[4], -n) for one, n in alive.items() if n])
    assert run.view() == Counter()


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # which would take minutes here
EXTREMES = (*(0.0, 0.1, -2.5, 1e300, -1e300, 1.7e308, -1.7e308, math.inf, -math.inf, math.nan),)
"""Small ones and large ones: what lies between would take the small ones' digits along when it leaves."""
LONGS = (0, 7, -1, 2**31, -(2**32), 2**62, 2**63 - 1, -(2**63))
MAX = 2.0**1023 * (2 - 2.0**-52)


def exact_mean(values: list[float]) -> tuple[float | None, float | None]:
    """The sum and the mean of doubles: infinite or no numbers if a value is, else rounded once."""
    if not values:
        return None, None
    if not all(map(math.isfinite, values)):
        total = sum(x for x in values if not math.isfinite(x))
        return total, total
    total = sum(map(Fraction, values))
    if abs(total) > MAX:
        infinite = math.inf if total > 0 else -math.inf
        return infinite, infinite
    as_double = float(total)
    return as_double, as_double / len(values)


@pytest.mark.slow
@settings(max_examples=examples(24), deadline=None, phases=NO_SHRINKING)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(EXTREMES), st.sampled_from(LONGS)), max_size=6),
        max_size=5,
    ),
    st.integers(1, 3),
    st.integers(),
)
@example([[(1.7e308, 2**62)] * 2, [(0.1, 7)]], 1, 3)
def test_sums_are_right_again_when_rows_leave(batches: Any, shards: int, seed: int) -> None:
    """Sums that leave a BIGINT are NULL, those of doubles infinite, for as long as they are."""
    calls = {"t": "sum", "m": "avg", "d": "stddev"}
    aggregates = [Aggregate(f"{n}{c.name}", kind, c) for c in (X, V) for n, kind in calls.items()]
    spec = AggregateSpec((), Window("none"), tuple(aggregates), None, retracts=True)
    chance = random.Random(seed)
    run = Contract(WindowedAggregate(spec), shards=shards, chance=chance)
    alive: list[tuple[float, int]] = []
    for batch in [*batches, *([[]] if batches else [])]:
        gone = [one for one in alive if chance.random() < 0.6]
        for one in gone:
            alive.remove(one)
        alive += batch
        rows = [("a", x, v, None) for v, x in gone + batch]
        run.step([delta(INPUT, rows, weights=[-1] * len(gone) + [1] * len(batch))])
        if not alive:
            assert run.view() == Counter()
            continue
        [(tx, mx, _, tv, mv, dv)] = run.view()
        whole = sum(x for _, x in alive)
        assert tx == (whole if -(2**63) <= whole < 2**63 else None)
        assert math.isclose(mx, whole / len(alive), rel_tol=1e-15)
        values = [v for v, _ in alive]
        scale = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
        for found, expected in zip(map(float, (tv, mv)), exact_mean(values), strict=True):
            close = math.isclose(found, expected, rel_tol=1e-12, abs_tol=scale * 1e-13)
            assert close or str(found) == str(expected), (values, found, expected)
        if len(alive) > 1 and not all(abs(v) < 2.0**500 for v in values):
            assert math.isnan(float(dv))
        elif len(alive) > 1 and scale < 1e100:
            expected = statistics.stdev(map(Fraction, values))
            assert math.isclose(float(dv), expected, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.slow
@settings(max_examples=examples(24), deadline=None, phases=NO_SHRINKING)
@given(st.lists(st.sampled_from(EXTREMES), min_size=1, max_size=6))
@example([1.7e308, 1.7e308, -1.7e308])
@example([1.7e308, -1.7e308, 0.1])
@example([1.7e308, 1.7e308, math.inf])
def test_a_sum_that_was_infinite_on_its_way_is_not_for_good(values: list[float]) -> None:
    """The sum and the mean of a stream's doubles are the same however its rows were batched."""
    for kind, expected in zip(("sum", "avg"), exact_mean(values), strict=True):
        assert expected is not None
        found = {str(computed(values, kind, parts)).lower() for parts in (1, 2, len(values))}
        scale = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
        close = math.isclose(float(min(found)), expected, rel_tol=1e-12, abs_tol=scale * 1e-13)
        assert len(found) == 1, (values, found)
        assert close or found == {str(expected)}, (values, found, expected)


def computed(values: Any, kind: str, parts: int = 1) -> Any:
    """An aggregate of one column, in some batches."""
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.float64())
    op = WindowedAggregate(
        AggregateSpec((), Window("none"), (Aggregate("r", kind, Column("v", column.type)),))
    )
    run = Contract(op, chance=random.Random(1))
    table = pa.table({"v": column})
    size = -(-len(table) // parts)
    for start in range(0, len(table), size):
        run.step([table.slice(start, size)])
    assert run.total() == run.view()
    [(found,)] = run.view()
    return found


ADVERSARIAL = {
    "far": [1e9 + d for d in (4, 7, 13, 16)],
    "farther": [1e12 + d for d in (0.25, 0.5, 1.0, -1.75)],
    "many": [1e9 + (i % 3 - 1) for i in range(3000)],
    "tenths": [0.1 * i for i in range(500)],
    "mixed": [1e-8, 1.0, 1e8, -1e8, 3.5],
    "small": [1e-150, 2e-150, -7e-150],
    "large": [1e150, 2e150, -1e150],
    "noise": [math.sin(i) * 1e3 + 1e7 for i in range(2000)],
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_variance_is_exact(name: str) -> None:
    """Within two units of the last place of the exact one, in one batch as in several."""
    values = ADVERSARIAL[name]
    exact = sample_variance(values)
    assert exact is not None
    for parts in (1, 7):
        found = computed(values, "variance", parts)
        assert abs(found - exact) <= 2 * math.ulp(exact)
        assert abs(computed(values, "stddev", parts) - math.sqrt(exact)) <= 2 * math.ulp(
            math.sqrt(exact)
        )
    whole = [int(v) for v in values if v == int(v) and abs(v) < 2**53]
    if len(whole) > 1:
        assert computed(pa.array(whole), "variance") == pytest.approx(
            sample_variance(whole), rel=1e-15
        )


def test_a_variance_follows_duckdb() -> None:
    """NULL below two values, 0 of equal ones; and the same number where DuckDB's is precise."""
    assert computed([1.5, None], "variance") is None
    assert computed([None, None], "stddev") is None
    assert computed([2.0, 2.0, None], "stddev") == 0.0
    op = WindowedAggregate(AggregateSpec((), Window("none"), (Aggregate("r", "variance", V),)))
    part = op.partials(pa.table({"v": [1.0, math.inf, 2.0]}))
    files = MemoryStateFiles()
    made = op.step(op.empty(files), [[part]], Context(files, "s", 0, (NO_TIME,)))
    assert math.isnan(op.read(made.state)["r"][0].as_py())
    rng = np.random.default_rng(3)
    table = pa.table({"v": rng.normal(5, 2, 5000)})
    [(variance, stddev)] = duckdb.sql("SELECT var_samp(v), stddev_samp(v) FROM 'table'").fetchall()
    assert computed(table["v"].combine_chunks(), "variance", 3) == pytest.approx(
        variance, rel=1e-12
    )
    assert computed(table["v"].combine_chunks(), "stddev", 3) == pytest.approx(stddev, rel=1e-12)


@pytest.mark.slow
def test_distinct_counts_and_arguments_are_duckdbs() -> None:
    """Of larger groups; with ties told apart by DuckDB as the definition says."""
    chance = random.Random(4)
    rows = [
        ("a", chance.randrange(900), chance.random(), chance.choice("pqrstu")) for _ in range(5000)
    ]
    run = Contract(operator(Window("none")), chance=chance)
    for start in range(0, len(rows), 1500):
        some = rows[start : start + 1500]
        run.step([delta(INPUT, some, times=range(start, start + len(some)))])
    table = delta(INPUT, rows)  # noqa: F841 - DuckDB reads it
    expected = duckdb.sql("""SELECT count(DISTINCT x), count(DISTINCT s), arg_min(s, (x, s)),
                                    arg_max(v, (s, v)) FROM "table" """).fetchall()[0]
    [found] = run.view()
    assert found[3:7] == expected
    assert found[7:9] == (rows[0][1], rows[-1][1])


def test_zeros_are_one_value_and_so_are_nans() -> None:
    """As in SQL, for a distinct count."""
    odd = float(np.array([0x7FF8000000000123]).view(np.float64)[0])
    assert computed([0.0, -0.0, math.nan, odd, 1.0, None], "count_distinct", 2) == 3


def test_a_value_in_two_panes_of_a_window_counts_once() -> None:
    """So a distinct count is no sum of those of its panes, nor of what is late for some windows."""
    op = WindowedAggregate(
        AggregateSpec(
            (), Window("hopping", 20, 10), (Aggregate("d", "count_distinct", X),), TIME, closed=True
        )
    )
    run = Contract(op, chance=random.Random(2))
    rows = [("a", x, None, None) for x in (7, 7, 8, 9)]
    run.step([delta(INPUT, rows, times=[1, 11, 12, 2], marks=[NO_TIME] * 3 + [10])], (20,))
    starts = {round(w.timestamp() * 1e6): d for w, _, d in run.view()}
    assert starts == {-10: 1, 0: 3, 10: 2}
    assert {d for *_, d in run.closed} == {1, 3}


def test_wrong_arguments_are_refused() -> None:
    """The message says what was expected and what was found."""
    tags = Column("tags", pa.list_(pa.string()))
    for make, message in [
        (lambda: Aggregate("a", "variance", S), r"numbers for variance\(s\); found string"),
        (lambda: Aggregate("a", "arg_min", X), "by another; found one alone"),
        (lambda: Aggregate("a", "arg_max", tags, X), r"ordered for arg_max\(tags\); found list"),
        (lambda: Aggregate("a", "arg_max", X, tags), r"ordered for arg_max\(tags\)"),
        (lambda: Aggregate("a", "count_distinct", tags), r"ordered for count_distinct\(tags\)"),
        (lambda: Aggregate("a", "count_distinct"), "found none"),
        (lambda: Aggregate("a", "sum", X, V), "of one column; found 'v' as well"),
        (lambda: Aggregate("a", "quantile", X, None, 2), "0 to 1.*found 2"),
        (lambda: Aggregate("a", "sum", X, None, 2), "sum without a parameter; found 2"),
        (lambda: Aggregate("a", "quantile", S, None, 0.5), r"numbers for quantile\(s\)"),
        (lambda: Aggregate("a", "collect", S, None, 0), "1 to 100000 values; found 0"),
        (lambda: Aggregate("a", "collect", tags, None, 5), r"ordered for collect\(tags\)"),
        (lambda: Aggregate("a", "count", None, V), "found 'v' as well"),
        (lambda: Aggregate("a", "frequent", S, V, 5), "of one column; found 'v' as well"),
        (lambda: Aggregate("a", "frequencies", S, None, 0), "1 to 100000 values; found 0"),
    ]:
        with pytest.raises(FlowError, match=message):
            make()


def test_nothing_of_a_row_that_was_taken_back_is_read() -> None:
    """A weight that is gone leaves no value behind, also where other values of the group stay."""
    op = WindowedAggregate(
        AggregateSpec((), Window("none"), (Aggregate("d", "count_distinct", S),), retracts=True)
    )
    run = Contract(op)
    for s, weight in (("x", 2), ("y", 1), ("x", -1), ("x", -1)):
        run.step([delta(INPUT, [("a", 1, None, s)], weights=[weight])])
    assert run.view() == Counter([(1,)])
    assert WEIGHT not in run.operator.traits.schema.names
    assert counted(pa.table({"d": [1]})) == run.total()


def test_sessions_combine_what_can_be_combined() -> None:
    """Sessions that rows join later have the aggregates of all rows."""
    functions = tuple(a for a in AGGREGATES[:10] if a.kind != "count_distinct")
    keys, gap = (Column("k", pa.string()),), Window("session", 10)
    run = Contract(SessionAggregate(AggregateSpec(keys, gap, functions, TIME)))
    rows = [
        ("a", x, x and x / 8, s)
        for x, s in ((5, "x"), (10**9, None), (7, "yy"), (7, "x"), (None, ""))
    ]
    times = [30, 12, 20, 45, 28]
    for at in range(len(rows)):
        run.step([delta(INPUT, rows[at : at + 1], times=times[at : at + 1])])
        assert run.total() == run.view()
    kept = [naive([(*rows[i], times[i]) for i in some]) for some in ((0, 1, 2, 4), (3,))]
    expected = {
        (12, "a"): (*kept[0][:2], *kept[0][4:10]),
        (45, "a"): (*kept[1][:2], *kept[1][4:10]),
    }
    assert alike(shown(run.view(), gap), expected)
