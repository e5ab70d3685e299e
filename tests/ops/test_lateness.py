"""Lateness: a function of the log, not of the batches it is cut into."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops import LATE, NO_TIME, Window
from penstock.ops.lateness import first_open, marks_before
from penstock.ops.windows import NOTHING_YET_US

WINDOWS = st.one_of(
    st.builds(Window, st.just("tumbling"), st.integers(1, 50), offset_us=st.integers(0, 99)),
    st.builds(
        lambda a, b, o: Window("hopping", max(a, b), min(a, b), o),
        st.integers(1, 50), st.integers(1, 50), st.integers(0, 99),
    ),
)  # fmt: skip
TIMES = st.lists(st.integers(-500, 500), max_size=60)


def opened(times, newest, lateness, plan, window):
    """The first open window of each row of a batch, as a pipeline finds it; and the newest time."""
    marks, newest = marks_before(times, newest, lateness)
    found = first_open(times, np.maximum(marks, plan), window)
    return window.firsts(times) if found is None else found, newest


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
def test_open_windows_equal_their_definition(times, lateness, plan, window):
    """First open windows, which rows are late, and the newest time are those of the definition."""
    rows = np.array(times, np.int64)
    found, newest = opened(rows, NOTHING_YET_US, lateness, plan, window)
    expected = naive(times, lateness, plan, window)
    assert found.tolist() == [w for w, _ in expected]
    assert ((found != LATE) & (found > window.firsts(rows))).tolist() == [p for _, p in expected]
    assert newest == max(times, default=NOTHING_YET_US)
    marks, _ = marks_before(rows, NOTHING_YET_US, lateness)
    is_none_late = not any(w == LATE or p for w, p in expected)
    assert (first_open(rows, np.maximum(marks, plan), window) is None) == is_none_late


@given(TIMES, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 80), WINDOWS)
def test_open_windows_do_not_depend_on_how_the_log_is_cut(times, cuts, lateness, window):
    """Any cut of a partition into batches gives the same windows to each row."""
    rows = np.array(times, np.int64)
    whole, last = opened(rows, NOTHING_YET_US, lateness, NO_TIME, window)
    newest, found = NOTHING_YET_US, []
    for batch in np.split(rows, sorted(cut for cut in cuts if cut <= len(rows))):
        some, newest = opened(batch, newest, lateness, newest - lateness, window)
        found += some.tolist()
    assert found == whole.tolist()
    assert newest == last


def test_nothing_is_late_without_windows():
    """A group by over the whole history never closes."""
    assert first_open(np.array([100, -100]), np.array([1000, 1000]), Window("none")) is None
