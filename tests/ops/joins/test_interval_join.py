"""The interval join: after every batch what a nested loop over the rows in time finds, and DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, get_args

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, counted, delta

from penstock.core.delta import TIME
from penstock.core.keys import hash_columns
from penstock.core.schema import Schema
from penstock.ops import NO_TIME, routed
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.table_join import How
from penstock.state import intervals

LEFT = Schema.parse("k STRING, n BIGINT, x BIGINT")
RIGHT = Schema.parse("key STRING, m BIGINT, tags ARRAY<STRING>")
SCHEMAS = (LEFT.arrow, RIGHT.arrow)
ON = (("k", "key"), ("n", "m"))
HOWS = get_args(How)
BOTH = ("inner", "left", "right", "full")

keys = st.sampled_from(["a", "b", None])
left_row = st.tuples(keys, st.sampled_from([1, 2]), st.integers(0, 2))
right_row = st.tuples(keys, st.sampled_from([1, None]), st.sampled_from([None, (), ("t",)]))
times = st.integers(-6, 6)
batch = st.tuples(
    st.lists(st.tuples(left_row, times), max_size=6),
    st.lists(st.tuples(right_row, times), max_size=6),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),  # how far time moves on
    st.booleans(),
)

INTERVALS = st.one_of(
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda two: (max(two), -min(two))),
)
"""Also those that lie wholly before a row: the second bound is then below 0."""


def join(how: How, *, pairs: int = 1, before: int = 3, after: int = 5, **options: Any) -> Any:
    """The operator."""
    return IntervalJoin(LEFT, RIGHT, ON[:pairs], before, after, how, **options)


def naive(
    operator: Any, left: Counter[Any], right: Counter[Any], frontiers: tuple[int, int]
) -> Counter[Any]:
    """All pairs, one by one. Rows are (time, values), and so are the results."""
    pairs, how = len(operator.on), operator.how
    before, after = operator.before_us, operator.after_us
    found: Counter[Any] = Counter()
    met: Counter[Any] = Counter()
    for (at, one), n in left.items():
        for (time, two), m in right.items():
            equal = one[:pairs] == two[:pairs] and None not in one[:pairs]
            if equal and at - before <= time <= at + after:
                met[0, at, one] += m
                met[1, time, two] += n
                if how in BOTH:
                    found[(max(at, time), *one, *two[pairs:])] += n * m
    for (at, one), n in left.items():
        alone = not met[0, at, one] and at + after < frontiers[1]
        if (how == "semi" and met[0, at, one]) or (how == "anti" and alone):
            found[(at, *one)] += n
        if how in ("left", "full") and alone:
            found[(at, *one, *[None] * (3 - pairs))] += n
    for (at, two), n in right.items():
        if how in ("right", "full") and not met[1, at, two] and at + before < frontiers[0]:
            found[(at, *two[:pairs], *[None] * (3 - pairs), *two[pairs:])] += n
    return found


class Streams:
    """Two streams of rows in some disorder, what is in time of them, and the join."""

    def __init__(self, operator: Any, lateness: int, shards: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.run = Contract(operator, shards=shards, chance=self.chance, timed=True)
        self.operator = operator
        self.lateness = lateness
        self.known: list[Counter[Any]] = [Counter(), Counter()]
        self.newest = [0, 0]
        self.frontiers = (NO_TIME, NO_TIME)

    def step(self, come: Any, moved: tuple[int, int], *, behind: bool = False) -> None:
        """A batch of rows, as values and their distance from the newest time of their stream.

        Args:
            come: by port.
            moved: how far the streams' times move on before.
            behind: whether the frontier stays where the sources' watermarks were before the batch.
        """
        tables, lates, marks = [], [], []
        for port, rows in enumerate(come):
            self.newest[port] += moved[port]
            before = self.newest[port] - self.lateness
            at, mark, late = [], [], []
            for i, (row, distance) in enumerate(rows):
                time = self.newest[port] + distance
                at.append(time)
                mark.append(self.newest[port] - self.lateness)
                if time < mark[-1]:
                    late.append(i)
                else:
                    self.known[port][time, row] += 1
                self.newest[port] = max(self.newest[port], time)
            values = [[list(v) if isinstance(v, tuple) else v for v in row] for row, _ in rows]
            tables.append(delta(SCHEMAS[port], values, times=at, marks=mark))
            lates.append(late)
            marks.append(before if behind else self.newest[port] - self.lateness)
        self.run_step(tables, (marks[0], marks[1]))
        assert self.run.late == lates

    def change(self, moved: tuple[int, int], come: Any) -> None:
        """A batch of rows that come, and of others that go and that the frontier hasn't passed."""
        tables, now = [], []
        for port, rows in enumerate(come):
            open_ = max(self.frontiers[port], -100)
            made = [((open_ + 6 + distance, row), 1) for row, distance in rows]
            there = [one for one, n in self.known[port].items() for _ in range(n)]
            there = [one for one in there if one[0] >= open_]
            made += [(one, -1) for one in self.chance.sample(there, len(there) // 2)]
            self.chance.shuffle(made)
            for one, weight in made:
                self.known[port][one] += weight
            self.known[port] = +self.known[port]
            values = [[list(v) if isinstance(v, tuple) else v for v in row] for (_, row), _ in made]
            tables.append(
                delta(
                    SCHEMAS[port],
                    values,
                    times=[at for (at, _), _ in made],
                    weights=[weight for _, weight in made],
                )
            )
            now.append(open_ + moved[port])
        self.run_step(tables, (now[0], now[1]))

    def run_step(self, tables: list[pa.Table], frontiers: tuple[int, int]) -> None:
        """A batch; the rows given so far are those of the definition, and the new ones as promised."""
        promised = self.operator.frontier(self.frontiers)
        before = self.run.changes.copy()
        self.run.step(tables, frontiers)
        self.frontiers = frontiers
        assert self.run.total() == naive(self.operator, *self.known, frontiers)
        before.subtract(self.run.changes)
        assert all(row[0] >= promised for row, n in before.items() if n)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(24), deadline=None)
@given(
    st.lists(batch, max_size=8),
    st.integers(0, 9),
    INTERVALS,
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(),
)
def test_a_join_is_that_of_all_rows_in_time(
    how: How,
    batches: list[Any],
    lateness: int,
    interval: tuple[int, int],
    pairs: int,
    shards: int,
    seed: int,
) -> None:
    """Pairs as soon as both are there; rows without a partner as soon as none can come."""
    before, after = interval
    operator = join(how, pairs=pairs, before=before, after=after)
    streams = Streams(operator, lateness, shards, seed)
    for left, right, moved, behind in batches:
        streams.step([left, right], moved, behind=behind)
    streams.step([[], []], (1_000, 1_000))
    streams.step([[], []], (1_000, 1_000))
    assert {state.rows for state in streams.run.states} == {0}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(24), deadline=None)
@given(
    st.lists(batch, max_size=8),
    INTERVALS,
    st.integers(1, 3),
    st.integers(),
)
def test_rows_that_are_taken_back_take_their_pairs_with_them(
    how: How, batches: list[Any], interval: tuple[int, int], shards: int, seed: int
) -> None:
    """What was given is that of the rows that are there, also where one was decided upon already."""
    before, after = interval
    operator = join(how, before=before, after=after, taken_back=(True, True))
    streams = Streams(operator, 0, shards, seed)
    for left, right, moved, _ in batches:
        streams.change(moved, [left, right])


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("behind", [-5, -3, 0, 3, 5])
@pytest.mark.parametrize("how", HOWS)
def test_rows_are_kept_until_the_last_moment(how: How, behind: int) -> None:
    """A partner at either end of the interval is found, be it the newest row or the oldest that is kept."""
    before, after = 3, 4
    streams = Streams(join(how, before=before, after=after), 0, 1, 0)
    for now in range(16):
        left, right = now - max(behind, 0), now - max(-behind, 0)
        come: list[list[Any]] = [[(left, (f"{left}", 1, None))] if left >= 0 else [], []]
        if right - after >= 0 and right % 2:  # the last partner
            come[1].append((right, (f"{right - after}", 1, None)))
        if right >= 0 and right % 3:  # the first
            come[1].append((right, (f"{right + before}", 1, None)))
        tables = []
        for port, rows in enumerate(come):
            streams.known[port].update(rows)
            tables.append(
                delta(SCHEMAS[port], [row for _, row in rows], times=[at for at, _ in rows])
            )
        streams.run_step(tables, (left + 1, right + 1))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", HOWS)
def test_keys_with_one_hash_are_distinguished(how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither equal hashes nor equal shards make keys equal."""
    monkeypatch.setattr(routed, "hash_columns", lambda *given: hash_columns(*given) % 2)
    chance = random.Random(1)
    streams = Streams(join(how, pairs=2), 4, 2, 1)
    for _ in range(8):
        left = [((chance.choice("abcdefgh"), 1, i), chance.randint(-4, 4)) for i in range(9)]
        right = [((chance.choice("abcdefgh"), 1, None), chance.randint(-4, 4)) for _ in range(3)]
        streams.step([left, right], (chance.randint(0, 3), chance.randint(0, 3)))


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("how", HOWS)
def test_a_join_is_what_duckdb_finds(how: How) -> None:
    """Of some thousand rows in disorder, one side far ahead, with hot keys and rare ones."""
    chance = random.Random(5)
    sides = []
    for schema, name in zip(SCHEMAS, ("l", "r"), strict=True):
        rows = [
            (chance.choice([None, "hot", f"k{chance.randint(0, 40)}"]), i, None)
            for i in range(2_000)
        ]
        at = [i * 10 + chance.randint(-50, 50) for i in range(2_000)]
        sides.append((name, delta(schema, rows, times=at)))
    run = Contract(join(how, before=40, after=160), shards=2, chance=chance, timed=True)
    at, size = [0, 0], [310, 170]
    none = [side.slice(0, 0) for _, side in sides]
    while min(at) < 2_000:
        some = [side.slice(a, n) for (_, side), a, n in zip(sides, at, size, strict=True)]
        at = [min(a + n, 2_000) for a, n in zip(at, size, strict=True)]
        run.step(some, [a * 10 - 60 for a in at])
    run.step(none, [10**9, 10**9])
    words = {"inner": "", "full": "FULL OUTER", "left": "LEFT", "right": "RIGHT"}
    near = "k = key AND r.at BETWEEN l.at - 40 AND l.at + 160"
    shown = (
        "l.at, l.k, n, x"
        if how in ("semi", "anti")
        else "coalesce(greatest(l.at, r.at), l.at, r.at), coalesce(k, key), n, x, m, tags"
    )
    with duckdb.connect() as con:
        for name, side in sides:
            times = side.column(TIME).cast(pa.int64())
            con.register(name, side.drop_columns([TIME]).append_column("at", times))
        join_ = f"{words.get(how, how.upper())} JOIN r ON {near}"
        found = con.sql(f"SELECT {shown} FROM l {join_}").to_arrow_table()
    assert run.total() == counted(found)
    assert len(found) > 100


def hot(schema: pa.Schema, rows: int, shift: int) -> pa.Table:
    """Rows of one key, ten units of time apart."""
    at = np.arange(rows) * 10 + shift
    table = delta(schema, [], times=[])
    arrays = [pa.repeat("hot", rows), pa.array(np.arange(rows)), pa.nulls(rows, schema.types[2])]
    return pa.Table.from_arrays(
        [*arrays, pa.array(at).view(table.schema.types[3])], table.column_names
    )


@pytest.mark.slow
def test_rows_of_a_hot_key_meet_their_partners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000 rows of one key on each side, within one interval, each pair looked at is one given."""
    looked: list[int] = []
    expand = intervals.kernels.expand
    monkeypatch.setattr(
        intervals.kernels, "expand", lambda *rows: (looked.append(len(rows[2])), expand(*rows))
    )
    operator = join("full", before=15, after=0)
    run = Contract(operator)
    rows = 20_000
    sides = [hot(schema, rows, shift) for schema, shift in zip(SCHEMAS, (0, -3), strict=True)]
    half = rows // 2
    run.step([sides[0].slice(0, half), sides[1].slice(half)], [NO_TIME, NO_TIME])
    run.step([sides[0].slice(half), sides[1].slice(0, half)], [10**9, 10**9])
    assert sum(run.changes.values()) == 2 * rows - 1
    assert sum(looked) < 10 * rows  # two attempts of each step, and the state's own look-ups


@pytest.mark.slow
def test_state_is_that_of_the_interval() -> None:
    """However long streams run, rows that nothing can meet any more are gone."""
    run = Contract(join("full", before=300, after=500))
    sides = [hot(schema, 4_000, shift) for schema, shift in zip(SCHEMAS, (0, -3), strict=True)]
    sizes = []
    for start in range(0, 4_000, 100):
        run.step([side.slice(start, 100) for side in sides], [start * 10, start * 10])
        sizes.append(run.states[0].rows)
    # An interval of 80 rows, of each side twice; a batch more, and the whole stretches that it begins in.
    assert max(sizes[10:]) <= max(sizes[:10]) < 4 * (80 + 80 + 100 + 100)


def test_a_frontier_promises_what_may_still_come() -> None:
    """Pairs come with either stream; rows without a partner as late as the interval makes them."""
    left, right = 1_000, 900
    promised = {how: join(how, before=30, after=200).frontier([left, right]) for how in HOWS}
    assert promised == {
        "inner": 900, "left": 700, "right": 900, "full": 700, "semi": 700, "anti": 700,
    }  # fmt: skip
    assert join("right", before=150, after=0).frontier([left, right]) == 850
    assert join("left").frontier([left, NO_TIME]) == NO_TIME


def test_frontiers_wake_whoever_waits_for_them() -> None:
    """Only rows without a partner come without any row."""
    woken = {
        how: [
            join(how).wakes([1, 1], now) for now in ([1, 1], [2, 1], [1, 2])
        ]
        for how in HOWS
    }  # fmt: skip
    never = [False] * 3
    assert woken == {
        "inner": never,
        "semi": never,
        "left": [False, False, True],
        "anti": [False, False, True],
        "right": [False, True, False],
        "full": [False, True, True],
    }
