"""Which rows come too late: a function of the log alone, however it is cut into batches.

For the row at position i of a source partition,

    watermark(i) = max(event times of the rows before i in the partition) - lateness
    late for a window  <=>  window's end <= max(watermark(i), the plan's watermark)

The running maximum is carried from batch to batch in the plan. The plan's watermark is the least over all
partitions as the batch begins, so it is never above watermark(i) unless a partition was left out of
it (because it is idle): then what that closed stays closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector
from penstock.ops.windows import LATE, NO_TIME, Window

_I64 = types.Array(types.int64, 1, "C", readonly=True)


@dataclass(frozen=True)
class Verdict:
    """What `judge` found.

    Attributes:
        first_open: int64[n], the start of the first window of each row that was open; `LATE` where
            none was.
        max_us: the greatest event time so far, to be carried on; `NO_TIME` before any row.
        late: rows that are late for all their windows.
        partly_late: rows that are late for some of their windows and counted in the others.
    """

    first_open: Vector
    max_us: int
    late: int
    partly_late: int

    @property
    def late_rows(self) -> Vector:
        """The positions of the rows that are late for all their windows."""
        return np.flatnonzero(self.first_open == LATE)


@njit(types.int64(_I64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64,
      types.int64[::1], types.int64[::1]), cache=True, nogil=True)  # fmt: skip
def _judge(
    times: Any, greatest: Any, lateness: Any, plan: Any, size: Any, every: Any, offset: Any,
    first_open: Any, counts: Any,
) -> Any:  # fmt: skip
    last = np.int64(0)  # the last window that contains the row before
    known = False
    for i in range(len(times)):
        t = times[i]
        watermark = plan
        if greatest != NO_TIME and greatest - lateness > watermark:
            watermark = greatest - lateness
        if t > greatest:
            greatest = t
        if size == 0:
            first_open[i] = 0
            continue
        if not known or t < last or t >= last + every:
            last = (t - offset) // every * every + offset
            known = True
        first = last
        if every < size:
            first = last - (size - 1 - (t - last)) // every * every
        if first + size > watermark:
            first_open[i] = first
        elif last + size <= watermark:
            first_open[i] = LATE
            counts[0] += 1
        else:
            first_open[i] = (watermark - size - offset) // every * every + offset + every
            counts[1] += 1
    return greatest


def judge(
    times_us: Vector,
    max_before_us: int,
    lateness_us: int,
    plan_watermark_us: int,
    window: Window,
) -> Verdict:
    """Judges a batch of one partition's rows, in the order of their offsets.

    Args:
        times_us: int64[n] event times; rows without one are left out by the caller.
        max_before_us: the greatest event time of the partition before this batch, or `NO_TIME`.
        lateness_us: how far behind the greatest event time rows may come.
        plan_watermark_us: of the batch's plan, or `NO_TIME`.
        window: of the operator that the rows go to.

    >>> import numpy as np
    >>> minute = Window("tumbling", size_us=60)
    >>> judge(np.array([10, 130, 50]), NO_TIME, 30, NO_TIME, minute).late
    1
    """
    first_open = np.empty(len(times_us), np.int64)
    counts = np.zeros(2, np.int64)
    size = 0 if window.kind == "none" else window.size_us
    greatest = _judge(
        times_us, max_before_us, lateness_us, plan_watermark_us,
        size, max(window.every_us, 1), window.offset_us, first_open, counts,
    )  # fmt: skip
    return Verdict(first_open, int(greatest), int(counts[0]), int(counts[1]))


@njit(types.int64(_I64, types.int64, types.int64, types.int64[::1]), cache=True, nogil=True)
def _marks_before(moves: Any, newest: Any, lateness: Any, marks: Any) -> Any:
    for i in range(len(moves)):
        marks[i] = newest - lateness
        newest = max(newest, moves[i])
    return newest


def marks_before(moves_us: Vector, newest_us: int, lateness_us: int) -> tuple[Vector, int]:
    """The watermark before each row of a partition, and the newest time after the last one.

    Args:
        moves_us: int64[n], the time to which each row moves the watermark, in the order of offsets.
        newest_us: the newest time before them.
        lateness_us: how far behind the newest time the watermark is.

    >>> import numpy as np
    >>> marks, newest = marks_before(np.array([10, 130, 50]), 20, 30)
    >>> marks.tolist(), newest
    ([-10, -10, 100], 130)
    """
    marks = np.empty(len(moves_us), np.int64)
    return marks, int(_marks_before(moves_us, newest_us, lateness_us, marks))


@njit(types.void(_I64, _I64, types.int64, types.int64, types.int64, types.int64[::1],
      types.int64[::1]), cache=True, nogil=True)  # fmt: skip
def _first_open(
    times: Any, watermarks: Any, size: Any, every: Any, offset: Any, first_open: Any, counts: Any
) -> None:
    last = np.int64(0)  # the last window that contains the row before
    known = False
    for i in range(len(times)):
        t, watermark = times[i], watermarks[i]
        if not known or t < last or t >= last + every:
            last = (t - offset) // every * every + offset
            known = True
        first = last
        if every < size:
            first = last - (size - 1 - (t - last)) // every * every
        if first + size > watermark:
            first_open[i] = first
        elif last + size <= watermark:
            first_open[i] = LATE
            counts[0] += 1
        else:
            first_open[i] = (watermark - size - offset) // every * every + offset + every
            counts[1] += 1


def first_open(times_us: Vector, watermarks_us: Vector, window: Window) -> Verdict | None:
    """Judges rows whose watermarks are known, such as those that a filter left of a batch.

    Args:
        times_us: int64[n] event times.
        watermarks_us: int64[n], the watermark before each row.
        window: of the operator that the rows go to.

    Returns:
        None where no row is late for any window, which is the usual case.
    """
    if window.kind == "none" or not len(times_us):
        return None
    if window.calendar is not None:
        return _by_calendar(times_us, watermarks_us, window)
    found = np.empty(len(times_us), np.int64)
    counts = np.zeros(2, np.int64)
    _first_open(
        times_us, watermarks_us, window.size_us, window.every_us, window.offset_us, found, counts
    )
    if not counts.any():
        return None
    return Verdict(found, int(watermarks_us.max()), int(counts[0]), int(counts[1]))


def _by_calendar(times_us: Vector, watermarks_us: Vector, window: Window) -> Verdict | None:
    # A window has ended if the first one that contains the watermark starts later.
    first, opened = (
        window.firsts(times_us),
        window.firsts(np.maximum(watermarks_us, times_us.min())),  # which none is late for
    )
    late = window.lasts(times_us) < opened
    partly = (first < opened) & ~late
    if not (late | partly).any():
        return None
    found = np.where(late, LATE, np.maximum(first, opened))
    return Verdict(found, int(watermarks_us.max()), int(late.sum()), int(partly.sum()))
