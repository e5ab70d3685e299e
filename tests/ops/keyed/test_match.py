"""Row patterns over a stream: matches in the order of time, however the log is cut."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.effort import examples
from tests.ops.contract import Contract, delta
from tests.ops.keyed.row_patterns import Node, found

from penstock.ops import NO_TIME, Context
from penstock.ops.keyed.match import Match
from penstock.ops.keyed.partial_match import COLUMNS, PartialMatch
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import Matcher, RowPattern
from penstock.state import MemoryStateFiles

INPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.int64())])
MICROS = pa.timestamp("us", "UTC")
LATENESS = 15
WITHIN = 30

A, B, C = (("name", one) for one in "abc")
PATTERNS: dict[str, Node] = {
    "a b c": ("seq", [A, B, C]),
    "a+ b": ("seq", [("some", A, 1, None, True), B]),
    "a b*": ("seq", [A, ("some", B, 0, None, True)]),
    "a b{2,3}? c": ("seq", [A, ("some", B, 2, 3, False), C]),
    "a (b | c)+": ("seq", [A, ("some", ("or", [B, C]), 1, None, True)]),
}
DEFINES = (("a", "v = 1"), ("b", "v = 2 OR n > FIRST(a.n)"), ("c", "v = 3"))
TESTS = {
    "a": lambda rows, _, i: rows[i]["v"] == 1,
    "b": lambda rows, labels, i: rows[i]["v"] == 2 or _later(rows, labels, i),
    "c": lambda rows, _, i: rows[i]["v"] == 3,
}
MEASURES = (
    ("start", "FIRST(n)", "final"),
    ("until", "LAST(n)", "final"),
    ("rows", "count(*)", "final"),
    ("number", "MATCH_NUMBER()", "final"),
)


def _later(rows: Any, labels: Any, i: int) -> bool:
    first = [rows[at]["n"] for name, at in labels if name == "a"]
    return bool(first) and rows[i]["n"] > first[0]


def pattern(
    text: str, *, within: int | None = WITHIN, after: str = "past last row", **options: Any
) -> RowPattern:
    """The clause of a pattern of the list."""
    return RowPattern(
        pattern=text,
        defines=tuple(one for one in DEFINES if one[0] in text),
        measures=MEASURES,
        after=after,
        within_us=within,
        **options,
    )


def operator(clause: RowPattern, **options: Any) -> Match:
    """The operator of a clause."""
    matcher = Matcher(clause, INPUT, "$time")
    key = () if clause.rows == "all" else (INPUT.field("k"),)
    return Match(
        input=INPUT,
        per=("k",),
        order=(Ordered("n"),),
        pattern=clause,
        output=pa.schema([*key, *matcher.output]),
        rows_max=100,
        **options,
    )


def naive(
    there: list[tuple[int, str, int, int]], clause: RowPattern, until: int, *, timed_out: bool
) -> Counter[Any]:
    """All rows in time, sorted, at once."""
    made: Counter[Any] = Counter()
    for k in {row[1] for row in there}:
        mine = sorted((at, n, v) for at, key, n, v in there if key == k and at < until)
        rows = [{"n": n, "v": v} for _, n, v in mine]
        some, _, _ = found(
            PATTERNS[clause.pattern],
            TESTS,
            rows,
            [at for at, _, _ in mine],
            within=clause.within_us,
            until=until,
            skip=clause.after,
        )
        for one in some:
            if one.timed_out == timed_out:
                first, last = rows[one.first]["n"], rows[one.labels[-1][1]]["n"]
                made[one.decided, k, first, last, len(one.labels), one.number] += 1
    return made


class Feed:
    """Rows that come in some disorder, and the watermark behind them."""

    lateness = LATENESS
    correct = 0

    def __init__(self) -> None:
        self.newest, self.at = NO_TIME, 0
        self.there: list[tuple[int, str, int, int]] = []
        self.late = 0
        self.n = 0

    @property
    def until(self) -> int:
        """The watermark."""
        return self.newest - self.lateness if self.newest > NO_TIME else NO_TIME

    def batch(self, rows: list[tuple[int, str, int]]) -> pa.Table:
        """Some rows, each so long after the one before; it has a number of its own."""
        given, times, marks = [], [], []
        for after, k, v in rows:
            mark, at = self.until, self.at + after
            self.at = max(self.at, at)
            self.newest = max(self.newest, at)
            given.append((k, self.n, v))
            times.append(at)
            marks.append(mark)
            if at >= mark - self.correct:
                self.there.append((at, k, self.n, v))
            else:
                self.late += 1
            self.n += 1
        return delta(INPUT, given, times=times, marks=marks)


def some_rows(chance: random.Random) -> list[tuple[int, str, int]]:
    """Rows as `Feed.batch` takes them."""
    return [
        (chance.randint(-20, 25), chance.choice("xxy"), chance.choice([1, 2, 2, 3]))
        for _ in range(chance.randint(0, 10))
    ]


@pytest.mark.parametrize("seed", range(examples(60)))
def test_matches_are_those_of_the_rows_in_order(seed: int) -> None:
    """At each step, what came out is what all rows in time give at once; late rows count nowhere."""
    chance = random.Random(seed)
    timed_out = chance.random() < 0.4
    clause = pattern(
        chance.choice([*PATTERNS]),
        within=chance.choice([10, WITHIN]) if timed_out else chance.choice([None, 10, WITHIN]),
        after=chance.choice(["past last row", "next row"]),
    )
    one = operator(clause, timed_out=timed_out)
    run = Contract(one, shards=chance.randint(1, 3), chance=chance, timed=True)
    feed = Feed()
    for _ in range(8):
        before = feed.late
        run.step([feed.batch(some_rows(chance))], [feed.until])
        assert len(run.late[0]) == feed.late - before
        assert run.total() == naive(feed.there, clause, feed.until, timed_out=timed_out)
    run.step([feed.batch([])], [2**60])
    assert run.total() == naive(feed.there, clause, 2**60, timed_out=timed_out)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_each_row_is_given_once(seed: int) -> None:
    """With all rows, and unmatched ones too, every row in time comes out once, whatever batches are."""
    chance = random.Random(seed)
    clause = replace(
        pattern(chance.choice(["a b c", "a+ b", "a b*"]), within=chance.choice([10, WITHIN])),
        rows="all",
        unmatched=True,
        measures=(("what", "CLASSIFIER()", "running"), ("number", "MATCH_NUMBER()", "running")),
    )
    one = operator(clause)
    run = Contract(one, shards=chance.randint(1, 3), chance=chance)
    feed = Feed()
    for _ in range(6):
        run.step([feed.batch(some_rows(chance))], [feed.until])
    run.step([feed.batch([])], [2**60])
    expected: Counter[Any] = Counter()
    for k in {row[1] for row in feed.there}:
        mine = sorted((at, n, v) for at, key, n, v in feed.there if key == k)
        rows = [{"n": n, "v": v} for _, n, v in mine]
        times = [at for at, _, _ in mine]
        some, _, _ = found(
            PATTERNS[clause.pattern], TESTS, rows, times, within=clause.within_us, until=2**60
        )
        named = {
            at: (name.lower(), match.number)
            for match in some
            if not match.timed_out
            for name, at in match.labels
        }
        for i, row in enumerate(rows):
            expected[k, row["n"], row["v"], *named.get(i, (None, None))] += 1
    assert run.total() == expected


@pytest.mark.parametrize("seed", range(examples(20)))
def test_open_attempts_are_a_table(seed: int) -> None:
    """At each step, there is a row for each key whose first undecided attempt has matched rows."""
    chance = random.Random(seed)
    clause = replace(pattern("a b c", within=WITHIN), measures=())
    one = PartialMatch(
        input=INPUT,
        per=("k",),
        order=(Ordered("n"),),
        pattern=clause,
        output=pa.schema([INPUT.field("k"), *COLUMNS]),
        rows_max=100,
    )
    run = Contract(one, shards=chance.randint(1, 3), chance=chance)
    feed = Feed()
    for _ in range(8):
        run.step([feed.batch(some_rows(chance))], [feed.until])
        expected = Counter()
        for k in {row[1] for row in feed.there}:
            mine = sorted(
                (at, n, v) for at, key, n, v in feed.there if key == k and at < feed.until
            )
            rows, times = [{"n": n, "v": v} for _, n, v in mine], [at for at, _, _ in mine]
            _, at, _ = found(PATTERNS["a b c"], TESTS, rows, times, within=WITHIN, until=feed.until)
            if at < len(rows):
                started = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
                    microseconds=times[at]
                )
                taken = len(rows) - at
                expected[k, started, taken, "abc"[taken - 1]] += 1
        assert run.total() == expected
        assert run.view() == expected


def test_what_looks_at_too_many_rows_is_given_up() -> None:
    """An attempt beyond its bound of rows is refused with its first row, in whatever batches they come."""
    clause = pattern("a+ b", within=None)
    one = replace(operator(clause), rows_max=3)
    rows = [("x", n, v) for n, v in enumerate([1, 1, 1, 1, 1, 1, 2, 3])]
    for size in (1, 3, 8):
        files, given, refused = MemoryStateFiles(), [], []
        state = one.empty(files)
        for version, start in enumerate(range(0, 8, size)):
            some = rows[start : start + size]
            times = [*range(start, start + len(some))]
            parcel = one.prepare(0, delta(INPUT, some, times=times)).parcel
            context = Context(files, "s", version, (start + len(some),))
            step = one.step(state, [[parcel]], context)
            state = step.state
            assert step.changes is not None
            given += step.changes.select(["start", "until"]).to_pylist()
            refused += [row["n"] for letter in step.refused for row in letter.rows.to_pylist()]
        assert (given, refused) == ([{"start": 4, "until": 6}], [0, 1, 2, 3])
