"""Lateness: a function of the log, not of the batches it is cut into."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops import LATE, NO_TIME, Window, judge

WINDOWS = st.one_of(
    st.builds(Window, st.just("tumbling"), st.integers(1, 50), offset_us=st.integers(0, 99)),
    st.builds(
        lambda a, b, o: Window("hopping", max(a, b), min(a, b), o),
        st.integers(1, 50), st.integers(1, 50), st.integers(0, 99),
    ),
)  # fmt: skip
TIMES = st.lists(st.integers(-500, 500), max_size=60)


def naive(times, lateness, plan, window):
    """The definition, row by row: (first open window or LATE, is partly late)."""
    out, greatest = [], None
    for t in times:
        mark = plan if greatest is None else max(plan, greatest - lateness)
        of = [
            w
            for w in range(t - window.size_us + 1, t + 1)
            if (w - window.offset_us) % window.every_us == 0
        ]
        opened = [w for w in of if w + window.size_us > mark]
        out.append((opened[0] if opened else LATE, 0 < len(opened) < len(of)))
        greatest = t if greatest is None else max(greatest, t)
    return out


@given(TIMES, st.integers(0, 80), st.one_of(st.just(NO_TIME), st.integers(-500, 500)), WINDOWS)
def test_judge_equals_its_definition(times, lateness, plan, window):
    """First open windows, counts and the running maximum are those of the definition."""
    verdict = judge(np.array(times, np.int64), NO_TIME, lateness, plan, window)
    expected = naive(times, lateness, plan, window)
    assert verdict.first_open.tolist() == [w for w, _ in expected]
    assert verdict.late == sum(w == LATE for w, _ in expected) == len(verdict.late_rows)
    assert verdict.partly_late == sum(p for _, p in expected)
    assert verdict.max_us == max(times, default=NO_TIME)


@given(TIMES, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 80), WINDOWS)
def test_judge_does_not_see_how_the_log_is_cut(times, cuts, lateness, window):
    """Any cut of a partition into batches gives the same verdict on each row."""
    rows = np.array(times, np.int64)
    whole = judge(rows, NO_TIME, lateness, NO_TIME, window)
    greatest, found, late = NO_TIME, [], 0
    for batch in np.split(rows, sorted(cut for cut in cuts if cut <= len(rows))):
        plan = NO_TIME if greatest == NO_TIME else greatest - lateness
        verdict = judge(batch, greatest, lateness, plan, window)
        greatest, late = verdict.max_us, late + verdict.late
        found += verdict.first_open.tolist()
    assert found == whole.first_open.tolist()
    assert (greatest, late) == (whole.max_us, whole.late)


def test_nothing_is_late_without_windows():
    """A group by over the whole history never closes."""
    verdict = judge(np.array([100, -100]), NO_TIME, 0, 1000, Window("none"))
    assert (verdict.late, verdict.first_open.tolist(), verdict.max_us) == (0, [0, 0], 100)
