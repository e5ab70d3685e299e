"""Aggregates of kept values: what a batch reads of them, and that it is enough."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta, few_rows
from tests.ops.reads import count_reads

from penstock.core.delta import TIME
from penstock.core.keys import hash_columns
from penstock.ops import (
    NO_TIME,
    Aggregate,
    AggregateSpec,
    Column,
    Context,
    Window,
    WindowedAggregate,
    partials,
)
from penstock.state import MemoryStateFiles, ordered

TYPES = {"x": pa.int64(), "j": pa.int32(), "v": pa.float64(), "s": pa.string()}
TYPES |= {"d": pa.decimal128(30, 1)}
INPUT = pa.schema([("k", pa.string()), *TYPES.items()])
KINDS = {"min": None, "max": None, "count_distinct": None, "collect": 3, "collect_descending": 2}
KINDS |= {"quantile": 0.3, "frequent": 2, "frequencies": 2}
NUMBERS = ("x", "j", "v")  # what has quantiles
PAIRS = (
    ("arg_min", "s", "x", None), ("arg_max", "x", "s", None), ("arg_max", "s", "v", None),
    ("arg_min", "j", "d", None), ("collect", "x", "s", 2), ("collect_descending", "s", "v", 3),
)  # fmt: skip
POOL: dict[str, list[Any]] = {
    "x": [None, -(2**63), -1, 0, 2**40, 2**63 - 1],
    "j": [None, -(2**31), 0, 5],
    "v": [None, -math.inf, -2.5, 0.0, 0.1, math.nan],
    "s": [None, "", "x", "in common", "in common: not all"],
    "d": [None, -1, 0, 10**20],
}

Chosen = tuple[dict[str, Any], tuple[Any, ...]]
"""Kinds of each column, and pairs."""
chosen = st.tuples(
    st.sets(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2).map(
        lambda names: {name: KINDS[name] for name in sorted(names)}
    ),
    st.sets(st.sampled_from(PAIRS), max_size=2).map(lambda pairs: tuple(sorted(pairs, key=repr))),
)

row = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    *(st.sampled_from(POOL[name]) for name in TYPES),
    st.integers(0, 30),  # the time
)
window = st.sampled_from([Window("none"), Window("tumbling", 10)])


def spec(chosen: Chosen, window: Window, **options: Any) -> AggregateSpec:
    kinds, pairs = chosen
    aggregates = tuple(
        Aggregate(f"{kind}_{name}", kind, Column(name, type_), None, parameter)
        for name, type_ in TYPES.items()
        for kind, parameter in kinds.items()
        if kind != "quantile" or name in NUMBERS
    )
    aggregates += tuple(
        Aggregate(
            f"{kind}_{name}_{by}", kind, Column(name, TYPES[name]), Column(by, TYPES[by]), parameter
        )
        for kind, name, by, parameter in pairs
    )
    time = None if window.kind == "none" else TIME
    return AggregateSpec((Column("k", pa.string()),), window, aggregates, time, **options)


def order(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value


def naive(values: list[Any], kind: str, parameter: Any) -> Any:
    """An aggregate of values, none of which is NULL."""
    values = sorted(values, key=order, reverse=kind in ("max", "collect_descending"))
    shown = ["NaN" if isinstance(x, float) and math.isnan(x) else x for x in values]
    if kind == "count_distinct":
        return len(set(shown))
    if kind in ("frequent", "frequencies"):
        often = Counter(shown).most_common(
            parameter
        )  # of equally frequent ones the first: the least
        return tuple(pair[kind == "frequencies"] for pair in often) or None
    if kind == "quantile":
        return naive_quantile([float(value) for value in values], parameter)
    if parameter is None:
        return shown[0] if shown else None
    return tuple(shown[:parameter]) or None


def naive_quantile(values: list[float], share: float) -> Any:
    """Of values in order: between two of them if need be."""
    if not values:
        return None
    at = (len(values) - 1) * share
    low, high = values[math.floor(at)], values[math.ceil(at)]
    found = low if low == high else low + (high - low) * (at - math.floor(at))
    return "NaN" if math.isnan(found) else found


def naive_pair(rows: list[Any], kind: str, name: str, by: str, parameter: Any) -> Any:
    """An aggregate of one column in the order of another."""
    i, j = (1 + list(TYPES).index(one) for one in (name, by))
    pairs = [(order(one[j]), order(one[i]), one[i]) for one in rows if None not in (one[i], one[j])]
    found = [
        x
        for *_, x in sorted(pairs, key=lambda p: p[:2], reverse=kind not in ("arg_min", "collect"))
    ]
    if parameter is None:
        return found[0] if found else None
    return tuple(found[:parameter]) or None


def reference(alive: Counter[Any], window: Window, chosen: Chosen) -> Counter[Any]:
    """The view of rows that are there so often."""
    kinds, pairs = chosen
    groups = defaultdict(list)
    for one in alive.elements():
        groups[one[-1] // 10 if window.kind != "none" else 0, one[0]].append(one)
    return Counter(
        (
            key,
            *(
                naive([x[i] for x in rows if x[i] is not None], kind, parameter)
                for i, name in enumerate(TYPES, 1)
                for kind, parameter in kinds.items()
                if kind != "quantile" or name in NUMBERS
            ),
            *(naive_pair(rows, *pair) for pair in pairs),
        )
        for (_, key), rows in groups.items()
    )


def shown(rows: Counter[Any], window: Window) -> Counter[Any]:
    """Rows without their windows; several windows of a group may have the same."""
    found: Counter[Any] = Counter()
    for one, n in rows.items():
        found[one if window.kind == "none" else one[2:]] += n
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(row, max_size=12), max_size=6),
    chosen,
    window,
    st.booleans(),
    st.integers(1, 3),
    st.integers(),
)
def test_what_is_read_is_enough(
    batches: Any, chosen: Chosen, window: Window, is_weak: bool, shards: int, seed: int
) -> None:
    """Rows come and go, in runs of few rows and with hashes that collide: a recomputation at every step."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        few_rows(patch, 6)
        patch.setattr(ordered, "READ_ROWS", 1)
        patch.setattr(ordered, "READ_TIMES", 2)
        if is_weak:
            patch.setattr(partials, "hash_columns", lambda columns, n: hash_columns(columns, n) % 2)
        run = Contract(
            WindowedAggregate(spec(chosen, window, retracts=True)), shards=shards, chance=chance
        )
        alive: Counter[Any] = Counter()
        for batch in batches:
            changes = [(one, chance.randint(1, 2)) for one in batch]
            for one, n in sorted(alive.items(), key=repr):
                if n and chance.random() < 0.6:
                    changes.append((one, -chance.randint(1, n)))
            rows, weights = ([one[i] for one in changes] for i in range(2))
            table = delta(
                INPUT,
                [one[:-1] for one in rows],
                times=[one[-1] for one in rows],
                weights=weights,
            )
            run.step([table])
            for one, n in changes:
                alive[one] += n
            expected = reference(alive, window, chosen)
            assert shown(run.view(), window) == expected
            assert shown(run.total(), window) == expected


def values_of(kind: str, by: Column | None = None) -> WindowedAggregate:
    one = Aggregate("r", kind, Column("x", pa.int64()), by, KINDS.get(kind))
    keys = (Column("k", pa.int64(), required=True),)
    return WindowedAggregate(
        AggregateSpec(keys, Window("none"), (one,), retracts=True, changes=True)
    )


def weighted(keys: Any, values: Any, weight: int) -> pa.Table:
    n = np.full(len(keys), weight)
    return pa.table({"k": np.asarray(keys), "x": np.asarray(values), "$weight": n})


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", [*KINDS, "arg_min", "arg_max"])
def test_a_batch_reads_what_it_needs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups with a hundred times as many values, a few times as many rows."""
    read = count_reads(monkeypatch)
    counts = []
    for size in (100, 10_000):
        by = Column("x", pa.int64()) if kind.startswith("arg") else None
        operator, files, chance = values_of(kind, by), MemoryStateFiles(), np.random.default_rng(1)
        state = operator.empty(files)
        values = chance.permutation(10 * size)
        keys = np.arange(len(values)) % 10
        batches = [
            weighted(keys[at : at + 20_000], values[at : at + 20_000], 1)
            for at in range(0, len(values), 20_000)
        ]
        for i in range(20):
            gone, come = i * 5 + np.arange(5), 10 * size + i * 5 + np.arange(5)
            pair = [weighted(keys[gone], values[gone], -1), weighted(keys[gone], come, 1)]
            batches.append(pa.concat_tables(pair))
        for version, batch in enumerate(batches):
            if version == len(batches) - 20:
                read.clear()
            parcel = operator.prepare(0, batch).parcel
            step = operator.step(state, [[parcel]], Context(files, "s", version, (NO_TIME,)))
            state = step.state
        counts.append(sum(read))
    times = 8 if kind == "quantile" else 4  # it looks at more runs, and halves more numbers in each
    assert 0 < counts[1] <= times * counts[0]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("kind", "name"),
    [("count_distinct", "counts.values.0"), ("frequent", "frequent.values.0"),
     ("frequencies", "frequent.values.0")],
)  # fmt: skip
def test_what_is_remembered_holds_whoever_asked_for_changes_before(kind: str, name: str) -> None:
    """Changes are right behind batches whose changes nobody asked for, and in a state without that trace."""
    asked = values_of(kind)
    silent = asked.emitting(changes=False, closed=False)
    files = MemoryStateFiles()
    state, total = asked.empty(files), Counter[Any]()
    chance = random.Random(3)
    alive: Counter[Any] = Counter()
    for version in range(40):
        operator = asked if version // 3 % 2 == 0 else silent
        if version % 5 == 0:
            described = state.describe()
            del described["traces"][name]
            state = operator.open(files, described)
        come = [(chance.randrange(3), chance.randrange(6)) for _ in range(4)]
        gone = chance.sample(sorted(alive.elements()), min(4, alive.total()) if version % 2 else 0)
        alive.update(come)
        alive.subtract(gone)
        parts = [
            weighted(*zip(*some, strict=True), n) for some, n in ((come, 1), (gone, -1)) if some
        ]
        before = counted(operator.read(state))
        parcel = operator.prepare(0, pa.concat_tables(parts)).parcel
        step = operator.step(state, [[parcel]], Context(files, "s", version, (NO_TIME,)))
        state = step.state
        state.check()
        there = {k: [x for j, x in alive.elements() if j == k] for k, _ in +alive}
        groups = {k: naive(some, kind, KINDS[kind]) for k, some in there.items()}
        now = counted(operator.read(state))
        assert now == Counter(groups.items())
        if operator is asked:
            now.subtract(before)
            total = counted(step.changes)
            assert total == Counter({one: n for one, n in now.items() if n})
