"""Marks of producers: the tournament tree gives what a dictionary and `min` give."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.ops.producers import NAME_MAX, ProducerMarks
from penstock.ops.windows import NOTHING_YET_US

NAMES = [None, *"abcdefghijk"]


def naive(
    rows: list[tuple[str | None, int]], expected: list[str], most: int
) -> tuple[list[int], dict[str | None, int]]:
    """The mark before each row, and the marks at the end; None stands for the surplus."""
    marks: dict[str | None, int] = {}
    before = []
    for name, move in rows:
        who = name if name in marks or len(marks.keys() - {None}) < most else None
        if who not in marks:
            joins_anywhere = not marks or who in expected
            marks[who] = NOTHING_YET_US if joins_anywhere else min(marks.values())
        before.append(marks[who])
        marks[who] = max(marks[who], move)
    return before, marks


moves = st.one_of(st.integers(0, 50), st.just(NOTHING_YET_US))


@settings(max_examples=examples(300), deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(NAMES), moves), max_size=60),
    expected=st.lists(st.sampled_from(NAMES[1:]), max_size=3),
    most=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_marks_are_those_of_one_pass(
    rows: list[tuple[str | None, int]], expected: list[str], most: int, cuts: list[int]
) -> None:
    """However rows are cut into chunks and batches, each one's mark is that of a naive pass."""
    found: list[int] = []
    known: dict[str, int] = {}
    others: int | None = None
    bounds = sorted({0, len(rows), *(c for c in cuts if c < len(rows))})
    for first, last in itertools.pairwise(bounds):
        marks = ProducerMarks(known, others, expected, most)
        middle = (first + last) // 2
        for chunk in (rows[first:middle], rows[middle:last]):
            names = pa.array([name for name, _ in chunk], pa.string())
            found += marks.advance(names, np.array([m for _, m in chunk], np.int64)).tolist()
            marks.check()
        known = known | marks.touched()
        others = others if marks.touched_others() is None else marks.touched_others()
    before, after = naive(rows, expected, most)
    assert found == before
    assert {**known, **({} if others is None else {None: others})} == after


def test_long_names_stay_apart() -> None:
    """A name over the limit is cut, and is still another producer than one that begins alike."""
    marks = ProducerMarks({}, None, (), 10)
    names = ["x" * 10_000 + tail for tail in ("1", "2", "1")]
    marks.advance(pa.array(names), np.array([1, 2, 3]))
    assert sorted(marks.touched().values()) == [2, 3]
    assert all(len(name) <= NAME_MAX for name in marks.touched())
