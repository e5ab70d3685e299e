"""Row patterns over a table: the matches of its rows as they are, whatever changes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.effort import examples
from tests.ops.contract import Contract, delta
from tests.ops.keyed.row_patterns import found
from tests.ops.keyed.test_match import INPUT, PATTERNS, TESTS, pattern

from penstock.ops.keyed.revised_match import RevisedMatch
from penstock.ops.over.window_functions import Ordered
from penstock.patterns import Matcher, RowPattern


def operator(clause: RowPattern) -> RevisedMatch:
    """The operator of a clause."""
    matcher = Matcher(clause, INPUT, None)
    return RevisedMatch(
        input=INPUT,
        per=("k",),
        order=(Ordered("n"), Ordered("v")),
        pattern=clause,
        output=pa.schema([INPUT.field("k"), *matcher.output]),
        rows_max=100,
        row_key=("k", "number"),
    )


def naive(rows: Counter[Any], clause: RowPattern) -> Counter[Any]:
    """The matches of all rows."""
    made: Counter[Any] = Counter()
    for k in {row[0] for row in rows}:
        mine = sorted(((n, v) for key, n, v in rows.elements() if key == k))
        some = [{"n": n, "v": v} for n, v in mine]
        times = [0] * len(mine)
        matched, _, _ = found(PATTERNS[clause.pattern], TESTS, some, times, skip=clause.after)
        for one in matched:
            first, last = some[one.first]["n"], some[one.labels[-1][1]]["n"]
            made[k, first, last, len(one.labels), one.number] += 1
    return made


@pytest.mark.parametrize("seed", range(examples(40)))
def test_matches_follow_rows_that_come_and_go(seed: int) -> None:
    """At each step, the table is the matches of its rows; all rows taken back, nothing is left."""
    chance = random.Random(seed)
    clause = pattern(
        chance.choice([*PATTERNS]),
        within=None,
        after=chance.choice(["past last row", "next row"]),
    )
    run = Contract(operator(clause), shards=chance.randint(1, 3), chance=chance)
    there: Counter[Any] = Counter()
    for _ in range(7):
        come = [
            (chance.choice("xxy"), chance.randint(0, 30), chance.choice([1, 2, 2, 3]))
            for _ in range(chance.randint(0, 8))
        ]
        gone = chance.sample([*there.elements()], min(chance.randint(0, 4), there.total()))
        there.update(come)
        there.subtract(gone)
        weights = [1] * len(come) + [-1] * len(gone)
        run.step([delta(INPUT, [*come, *gone], weights=weights)])
        assert run.total() == naive(there, clause)
        assert run.view() == run.total()
    rest = [*there.elements()]
    run.step([delta(INPUT, rest, weights=[-1] * len(rest))])
    assert run.total() == Counter()
