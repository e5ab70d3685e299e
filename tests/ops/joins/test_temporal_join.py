"""A stream and the table of each row's time: equal to a search through all versions, and to DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.core.delta import DELETED, OFFSET
from penstock.ops import NO_TIME
from penstock.ops.joins.temporal_join import STRETCH_US, TemporalJoin

STREAM = pa.schema([("k", pa.string()), ("x", pa.int64())])
TABLE = pa.schema([("key", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
ON = (("k", "key"),)
FOR_EVER = 10**15
UNIT_US = STRETCH_US // 3  # so that frontiers come to lie within stretches


@dataclass
class Feed:
    """Rows of one port as a source's partitions give them, with watermarks."""

    lateness: int
    newest: dict[int, int] = field(default_factory=lambda: {0: NO_TIME, 1: NO_TIME})
    sent: int = 0

    @property
    def frontier(self) -> int:
        """What the plan of the next batch promises."""
        least = min(self.newest.values())
        return NO_TIME if least == NO_TIME else least - self.lateness

    def take(self, rows: list[Any]) -> tuple[list[int], list[int], list[Any]]:
        """The watermark before each row, its offset; and those that are in time, with offsets.

        Args:
            rows: key, partition, time and anything, in the order of the log.
        """
        marks, offsets, kept = [], [], []
        for row in rows:
            _, partition, at, *_ = row
            mark = self.newest[partition]
            mark = NO_TIME if mark == NO_TIME else mark - self.lateness
            marks.append(mark)
            offsets.append(self.sent)
            if at >= mark:
                kept.append((*row, self.sent))
            self.newest[partition] = max(self.newest[partition], at)
            self.sent += 1
        return marks, offsets, kept


def naive(how: str, events: list[Any], changes: list[Any]) -> Counter[Any]:
    """For each row, the last change of its key by time and offset; n is None where that is a deletion."""
    found: Counter[Any] = Counter()
    for key, _, at, x, _ in events:
        known = [
            (t, offset, n, tags) for k, _, t, n, tags, offset in changes if k == key and t <= at
        ]
        met = max(known, key=lambda one: one[:2], default=None) if key is not None else None
        if met is not None and met[2] is not None:
            found[at, key, x, *met[2:]] += 1
        elif how == "left":
            found[at, key, x, None, None] += 1
    return found


times = st.integers(0, 30).map(lambda t: t * UNIT_US)
event = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), times, st.integers(0, 1))
change = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    times,
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, (), ("t",)]),
)


def steps(run: Contract, events: list[Any], changes: list[Any], feeds: Any, at: Any) -> list[Any]:
    """One batch of rows that feeds give; those in time."""
    marks, _, kept_events = feeds[0].take(events)
    left = delta(
        STREAM, [(k, x) for k, _, _, x in events], times=[e[2] for e in events], marks=marks
    )
    marks, offsets, kept_changes = feeds[1].take(changes)
    right = delta(
        TABLE,
        [(k, n, None if n is None else tags) for k, _, _, n, tags in changes],
        times=[c[2] for c in changes],
        marks=marks,
    )
    right = right.append_column(OFFSET, pa.array(offsets, pa.int64()))
    right = right.append_column(DELETED, pa.array([c[3] is None for c in changes], pa.bool_()))
    run.step([left, right], at)
    assert [len(late) for late in run.late] == [
        len(events) - len(kept_events),
        len(changes) - len(kept_changes),
    ]
    return [kept_events, [(*c[:4], None if c[3] is None else c[4], c[5]) for c in kept_changes]]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.lists(event, max_size=5), st.lists(change, max_size=5)), max_size=8),
    st.sampled_from([0, 3 * UNIT_US, 40 * UNIT_US]),
    st.integers(1, 3),
    st.integers(),
)
def test_rows_meet_the_version_of_their_time(
    how: Any, batches: list[Any], lateness: int, shards: int, seed: int
) -> None:
    """With disorder, late rows, deletions and two changes at one time, whatever comes first; a row comes
    out once both frontiers allow it, and in the end no more is kept than the newest version of each key.
    """
    run = Contract(
        TemporalJoin(how, STREAM, TABLE, ON),
        shards=shards,
        chance=random.Random(seed),
        timed=True,
    )
    feeds = (Feed(lateness), Feed(lateness))
    rows: list[Any] = []
    versions: list[Any] = []
    for events, some in batches:
        # A key's changes lie in one partition.
        changes = [(k, int(k == "a"), t, n, tags) for k, t, n, tags in some]
        promised = (feeds[0].frontier, feeds[1].frontier)
        one, two = steps(run, events, changes, feeds, promised)
        rows += one
        versions += two
        ready = [r for r in rows if r[2] < promised[1]]
        assert run.total() == naive(how, ready, versions)
    steps(run, [], [], feeds, (FOR_EVER, FOR_EVER))
    assert run.total() == naive(how, rows, versions)
    last = {}
    for key, _, at, n, _, offset in versions:
        last[key] = max(last.get(key, (NO_TIME, 0, None)), (at, offset, n is None))
    for name, count in (
        ("waiting", 0),
        ("due", 0),
        ("versions", len([v for v in last.values() if not v[2]])),
    ):
        kept = [len(b) for state in run.states for b in state.traces[name].scan()]
        assert sum(kept) == count, name


def test_two_changes_at_one_time_are_distinguished_by_their_offsets() -> None:
    """The later one wins, also where it came in an earlier parcel of the batch, or is a deletion."""
    for second, wanted in ((7, 7), (None, None)):
        run = Contract(TemporalJoin("left", STREAM, TABLE, ON), timed=True)
        feeds = (Feed(0), Feed(0))
        changes = [("a", 0, 5, 1, None), ("a", 0, 5, second, None)]
        steps(run, [("a", 0, 5, 3)], changes, feeds, (NO_TIME, NO_TIME))
        assert not run.total()
        steps(run, [], [], feeds, (NO_TIME, 5))
        assert not run.total(), "a change at 5 may still come"
        steps(run, [], [], feeds, (NO_TIME, 6))
        assert run.total() == Counter({(5, "a", 3, wanted, None): 1})


def test_a_row_waits_for_changes_of_its_own_time() -> None:
    """Where it comes, too: the table's frontier must be above its time, not at it."""
    run = Contract(TemporalJoin("left", STREAM, TABLE, ON), timed=True)
    feeds = (Feed(0), Feed(0))
    steps(run, [("a", 0, 5, 3)], [("a", 0, 5, 1, None)], feeds, (NO_TIME, 5))
    assert not run.total()
    steps(run, [("a", 0, 5, 4)], [("a", 0, 5, 2, None)], feeds, (5, 6))
    assert run.total() == Counter({(5, "a", 3, 2, None): 1, (5, "a", 4, 2, None): 1})


def test_a_version_is_kept_as_long_as_a_row_may_ask_for_it() -> None:
    """Until the stream's frontier, too, is above the next one's beginning; a deletion goes with the last."""
    run = Contract(TemporalJoin("left", STREAM, TABLE, ON), timed=True)
    feeds = (Feed(0), Feed(0))
    changes = [("a", 0, 0, 1, None), ("a", 0, 20, 2, None), ("a", 0, 30, None, None)]

    def kept() -> int:
        return sum(len(batch) for batch in run.states[0].traces["versions"].scan())

    steps(run, [], changes, feeds, (NO_TIME, NO_TIME))
    for low, count in ((10, 3), (20, 3), (21, 2), (30, 2), (31, 0)):
        steps(run, [("a", 0, low, 0)], [], feeds, (low, 40))
        assert kept() == count
    met = [(at, n) for at, _, _, n, _ in run.total()]
    assert sorted(met, key=lambda one: one[0]) == [
        (10, 1),
        (20, 2),
        (21, 2),
        (30, None),
        (31, None),
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_duckdb_finds_the_same(how: Any) -> None:
    """Its ASOF JOIN, on random rows, without two changes of a key at one time."""
    chance = random.Random(7)
    changes = {
        (f"u{chance.randint(0, 9)}", chance.randint(0, 5_000) * 1_000): chance.choice(
            [None, *range(9)]
        )
        for _ in range(600)
    }
    events = [
        (f"u{chance.randint(0, 11)}", chance.randint(0, 6_000) * 1_000, i) for i in range(800)
    ]
    run = Contract(TemporalJoin(how, STREAM, TABLE, ON), shards=2, chance=chance, timed=True)
    feeds = (Feed(FOR_EVER), Feed(FOR_EVER))
    log = [(k, 0, at, n, None) for (k, at), n in changes.items()]
    chance.shuffle(log)
    for part in range(8):
        some = [(k, 0, at, x) for k, at, x in events[part::8]]
        frontier = NO_TIME if part < 7 else FOR_EVER
        steps(run, some, log[part::8], feeds, (NO_TIME, frontier))
    rows = pa.table({n: [e[i] for e in events] for i, n in enumerate(("k", "t", "x"))})
    versions = pa.table({n: [c[i] for c in log] for i, n in ((0, "k"), (2, "t"), (3, "n"))})
    kept = "" if how == "left" else "WHERE n IS NOT NULL"
    with duckdb.connect() as con:
        con.register("rows", rows).register("versions", versions)
        found = con.sql(
            f"SELECT rows.t, rows.k, x, n FROM rows ASOF {how} JOIN versions "
            f"ON rows.k = versions.k AND rows.t >= versions.t {kept}"
        ).fetchall()
    assert (len(found) == len(rows)) == (how == "left")
    assert run.total() == Counter((*row, None) for row in found)
    assert any(row[3] is not None for row in found)
