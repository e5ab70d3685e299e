"""Sessions of rows that come late or are taken back, against a naive recomputation at every step."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Arriving, Contract, delta, few_rows

from penstock.errors import SchemaError
from penstock.ops import Aggregate, AggregateSpec, Column, Window
from penstock.ops.rolling.revised_sessions import RevisedSessions

INPUT = pa.schema([("k", pa.string()), ("x", pa.int64()), ("v", pa.float64())])
K, X, V = (Column(name, INPUT.field(name).type) for name in INPUT.names)
AT = Column("$time", pa.timestamp("us", "UTC"), True)
AGGREGATES = (
    Aggregate("n", "count"), Aggregate("total", "sum", X), Aggregate("most", "max", V),
    Aggregate("different", "count_distinct", X), Aggregate("last", "arg_max", X, AT),
    Aggregate("all", "collect", X, None, 99),
)  # fmt: skip
LATENESS = 4


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, pieces and fuel so small that a few rows make many merges."""
    few_rows(monkeypatch)


def operator(gap: int, **options: Any) -> RevisedSessions:
    """All of it, of sessions with a gap."""
    return RevisedSessions(
        AggregateSpec((K,), Window("session", gap), AGGREGATES, "$time", **options)
    )


def sessions(rows: list[Any], gap: int) -> dict[Any, int]:
    """The reference: all rows (time, row) sorted and cut; what is shown of each session, by its end."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for t, row in sorted(rows, key=lambda one: one[0]):
        groups[row[0]].append((t, row))
    found = {}
    for key, some in groups.items():
        cuts = [i for i in range(1, len(some)) if some[i][0] - some[i - 1][0] >= gap]
        for lo, hi in zip([0, *cuts], [*cuts, len(some)], strict=True):
            x = [(t, r[1]) for t, r in some[lo:hi] if r[1] is not None]
            v = [r[2] for _, r in some[lo:hi] if r[2] is not None]
            values = sorted(one for _, one in x)
            end = some[hi - 1][0] + gap
            shown = (_at(some[lo][0]), _at(end), key, hi - lo, sum(values) if x else None,
                     max(v, default=None), len(set(values)), max(x)[1] if x else None,
                     tuple(values) or None)  # fmt: skip
            found[shown] = end
    return found


def _at(us: int) -> Any:
    return pa.scalar(us, pa.timestamp("us", "UTC")).as_py()


row = st.tuples(
    st.sampled_from(["a", None]),
    st.sampled_from([None, -5, 3]),
    st.sampled_from([0.5, -0.25, -0.0, 0.0, None]),
)
event = st.tuples(st.integers(0, 30), row)
batches = st.lists(st.lists(event, max_size=8), max_size=7)


@settings(max_examples=examples(40), deadline=None)
@given(batches, st.integers(1, 6), st.integers(0, 12), st.integers(1, 3), st.integers())
def test_late_rows_correct_sessions(
    batches: Any, gap: int, correct: int, shards: int, seed: int
) -> None:
    """View, changes and closed rows are those of all rows that came soon enough, at every step."""
    keep = {"keep_us": 10**6, "correct_us": correct} if correct else {}
    run = Contract(operator(gap, **keep), shards=shards, chance=random.Random(seed))
    stream = Arriving(run, INPUT, LATENESS, correct)
    seen = stream.in_time
    for batch in batches:
        stream.step(batch)
        expected = sessions(seen, gap)
        assert run.view() == Counter(dict.fromkeys(expected, 1))
        assert run.total() == run.view()
        closed = {shown for shown, end in expected.items() if end <= stream.frontier_us}
        assert {one for one, n in run.closed.items() if n} == closed
        assert all(n in (0, 1) for n in run.closed.values())
    run.step([delta(INPUT, [], times=[])], [10**9])
    expected = {} if correct else sessions(seen, gap)  # which are kept for ever
    assert run.view() == Counter(dict.fromkeys(expected, 1))
    assert not any(
        list(state.traces[name].scan()) for state in run.states for name in ("rows", "agenda")
    )


@settings(max_examples=examples(40), deadline=None)
@given(batches, st.integers(1, 6), st.integers(1, 3), st.integers())
def test_sessions_of_a_table_follow_it(batches: Any, gap: int, shards: int, seed: int) -> None:
    """Sessions fall apart where rows go; what the frontier has passed stays; nothing is given twice."""
    chance = random.Random(seed)
    run = Contract(operator(gap, retracts=True), shards=shards, chance=chance)
    alive: Counter[Any] = Counter()
    frontier = 0
    for batch in batches:
        moves = [(one, 1) for one in batch if one[0] >= frontier]
        moves += [
            (one, -1) for one in alive.elements() if one[0] >= frontier and chance.random() < 0.4
        ]
        rows, times = [r for (_, r), _ in moves], [t for (t, _), _ in moves]
        frontier += chance.choice([0, 0, 1, 5])
        run.step([delta(INPUT, rows, times=times, weights=[w for _, w in moves])], [frontier])
        for one, weight in moves:
            alive[one] += weight
        expected = sessions(list(alive.elements()), gap)
        assert run.view() == run.total() == Counter(dict.fromkeys(expected, 1))
        assert run.closed == Counter(
            {shown: 1 for shown, end in expected.items() if end <= frontier}
        )


def test_final_sessions_leave_the_view_in_time() -> None:
    """They are kept for as long as is said, and found by when they began."""
    run = Contract(operator(10, keep_us=100))
    run.step([delta(INPUT, [("a", 1, 1.0), ("b", 2, 1.0)], times=[0, 50])], [60])
    [batch_a], [batch_b] = (
        [b for b in run.operator.scan(run.states[0], lo, hi) if len(b)]
        for lo, hi in ((0, 10), (10, 60))
    )
    assert (batch_a["k"].to_pylist(), batch_b["k"].to_pylist()) == (["a"], ["b"])
    run.step([delta(INPUT, [], times=[])], [109])
    assert len(run.view()) == 2
    run.step([delta(INPUT, [], times=[])], [110])
    assert {row[2] for row in run.view()} == {"b"}


def test_rows_that_do_not_fit_are_refused() -> None:
    """A column of another type is named."""
    rows = delta(INPUT, [("a", 1, 1.0)], times=[0])
    with pytest.raises(SchemaError, match="'x' as int64"):
        operator(1).prepare(0, rows.set_column(1, "x", pa.array(["1"])))


def test_a_row_may_take_anothers_place() -> None:
    """One that goes and one that comes at the same time change their session."""
    run = Contract(operator(1, retracts=True))
    run.step([delta(INPUT, [("a", 1, 1.0)], times=[5], weights=[1])], [0])
    rows = [("a", 1, 1.0), ("a", 2, 1.0)]
    run.step([delta(INPUT, rows, times=[5, 5], weights=[-1, 1])], [0])
    assert run.total() == run.view()
    assert [row[4] for row in run.view()] == [2]
