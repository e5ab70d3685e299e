"""Row patterns whose matches late rows correct: the same as over the rows in order, however they came."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.effort import examples
from tests.ops.contract import Contract
from tests.ops.keyed.test_match import (
    INPUT,
    PATTERNS,
    WITHIN,
    Feed,
    naive,
    pattern,
    some_rows,
)

from penstock.ops import NO_TIME
from penstock.ops.keyed.corrected_match import CorrectedMatch
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import Matcher

CORRECT = 40


class LateFeed(Feed):
    """Rows of which some are late, and count; the watermark is the newest row's time."""

    lateness = 0
    correct = CORRECT


@pytest.mark.parametrize("seed", range(examples(60)))
def test_late_rows_correct_matches(seed: int) -> None:
    """At each step, what was given less what was taken back is what the rows so far give at once."""
    chance = random.Random(seed)
    timed_out = chance.random() < 0.3
    clause = pattern(
        chance.choice([*PATTERNS]),
        within=chance.choice([10, WITHIN]) if timed_out else chance.choice([None, 10, WITHIN]),
        after=chance.choice(["past last row", "next row"]),
    )
    matcher = Matcher(clause, INPUT, "$time")
    one = CorrectedMatch(
        input=INPUT,
        per=("k",),
        order=(Ordered("n"),),
        pattern=clause,
        output=pa.schema([INPUT.field("k"), *matcher.output]),
        rows_max=100,
        timed_out=timed_out,
        correct_us=CORRECT,
        row_key=("k", "number"),
    )
    run = Contract(one, shards=chance.randint(1, 3), chance=chance, timed=True)
    feed = LateFeed()
    for _ in range(10):
        before = feed.late
        run.step([feed.batch(some_rows(chance))], [feed.until])
        assert len(run.late[0]) == feed.late - before
        expected: Counter[Any] = naive(feed.there, clause, feed.until, timed_out=timed_out)
        assert run.total() == expected
    run.step([feed.batch([])], [2**60])
    assert run.total() == naive(feed.there, clause, 2**60, timed_out=timed_out)
    assert one.frontier([NO_TIME]) == NO_TIME
    assert one.frontier([100]) == 100 - CORRECT
    assert sum(state.traces["given"].rows for state in run.states) == 0
