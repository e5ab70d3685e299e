"""Random patterns over random rows, against a reference by backtracking."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.effort import rounds
from tests.patterns.chance import SCHEMA, Calls, a_spec, a_table, as_rows, some_rows
from tests.patterns.reference import expected

from penstock.patterns import Matcher, RowPattern

SEED = int(os.environ.get("PENSTOCK_PATTERN_SEED", "0"))
ROUNDS = rounds("PENSTOCK_PATTERN_ROUNDS", quick=8, full=60)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_matches_are_those_of_the_reference(seed: int) -> None:
    """Whatever the pattern, the definitions and the rows, matches and their measures are the reference's."""
    rng = random.Random(SEED + seed)
    for i in range(ROUNDS):
        spec = a_spec(rng)
        partitions = [some_rows(rng, 9) for _ in range(3)]
        table, starts = a_table(partitions)
        found = Matcher(spec, SCHEMA, "at").match(table, starts, complete=True)
        wanted = [expected(spec, one) for one in partitions]
        first = [one.first + start for one, start in _with_starts(wanted, starts.tolist())]
        assert found.first.tolist() == first, (i, spec, partitions)
        assert _rows(found, spec) == [row for one in wanted for row in one.rows], (
            i,
            spec,
            partitions,
        )


def _with_starts(wanted: list[Any], starts: list[int]) -> list[tuple[Any, int]]:
    return [(m, start) for one, start in zip(wanted, starts, strict=False) for m in one.matches]


def _rows(found: Any, spec: RowPattern) -> list[dict[str, Any]]:
    if spec.rows == "one" and not spec.measures:
        return [{} for _ in found.match]
    return as_rows(found)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_cuts_into_calls_change_nothing(seed: int) -> None:
    """Whatever calls the rows come in, the output is the same, and it comes as early as it can."""
    rng = random.Random(SEED + 100 + seed)
    for i in range(ROUNDS):
        ahead = rng.random() < 0.3
        spec = a_spec(rng, ahead=ahead)
        partitions = [some_rows(rng, 9) for _ in range(2)]
        calls = Calls(Matcher(spec, SCHEMA, "at"), 2)
        given = 0
        while given < max(map(len, partitions)):
            upto = given + rng.randrange(1, 4)
            calls.give([one[given:upto] for one in partitions], complete=False)
            given = upto
            for one, rows in zip(partitions, calls.output, strict=True):
                early = expected(spec, one[:given], complete=False)
                assert ahead or rows == early.rows, (i, spec, one, given)
        calls.give([[], []], complete=True)
        for one, rows in zip(partitions, calls.output, strict=True):
            assert rows == expected(spec, one).rows, (i, spec, one)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_the_frontier_decides_as_rows_do(seed: int) -> None:
    """A match is given, or is late, as soon as the time that no further row can have says so."""
    rng = random.Random(SEED + 200 + seed)
    for i in range(ROUNDS):
        spec = a_spec(rng, ahead=False)
        rows = some_rows(rng, 9)
        calls = Calls(Matcher(spec, SCHEMA, "at"), 1)
        for given in range(1, len(rows) + 1):
            later = rows[given]["at"] if given < len(rows) else rows[-1]["at"] + 4
            calls.give([rows[given - 1 : given]], complete=False, frontier=later)
            wanted = expected(spec, rows[:given], complete=False, frontier=later)
            assert calls.output[0] == wanted.rows, (i, spec, rows, given)
            partial = [wanted.partial] if wanted.partial else []
            assert calls.partial == list(map(_begun, partial)), (i, spec, rows, given)
            assert calls.late == list(map(_begun, wanted.late)), (i, spec, rows, given)


def _begun(mapped: Any) -> tuple[int, int, str]:
    return mapped[0][0], len(mapped), mapped[-1][1]
