"""Which rows come too late: a function of the log alone, however it is cut into batches.

For the row at position i of a source partition,

    watermark(i) = max(event times of the rows before i in the partition) - lateness
    late for a window  <=>  window's end <= max(watermark(i), the plan's watermark)

The running maximum is carried from batch to batch in the plan. The plan's watermark is the least over all
partitions as the batch begins, so it is never above watermark(i) unless a partition was left out of
it (because it is idle): then what that closed stays closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector
from penstock.ops.windows import LATE, Window

_I64 = types.Array(types.int64, 1, "C", readonly=True)


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


@njit(types.boolean(_I64, _I64, types.int64, types.int64, types.int64, types.int64[::1]),
      cache=True, nogil=True)  # fmt: skip
def _first_open(
    times: Any, watermarks: Any, size: Any, every: Any, offset: Any, first_open: Any
) -> Any:
    last = np.int64(0)  # the last window that contains the row before
    known = False
    some = False
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
            continue
        some = True
        if last + size <= watermark:
            first_open[i] = LATE
        else:
            first_open[i] = (watermark - size - offset) // every * every + offset + every
    return some


def first_open(times_us: Vector, watermarks_us: Vector, window: Window) -> Vector | None:
    """The first window of each row that is open, when the row comes.

    Args:
        times_us: int64[n] event times.
        watermarks_us: int64[n], the watermark before each row.
        window: of the operator that the rows go to.

    Returns:
        int64[n], the starts of these windows: `LATE` of a row that is late for all of its own. None where no
        row is late for any window, which is the usual case.

    >>> import numpy as np
    >>> minute = Window("tumbling", size_us=60)
    >>> first_open(np.array([10, 130, 50]), np.array([0, 0, 100]), minute) == LATE
    array([False, False,  True])
    """
    if window.kind == "none" or not len(times_us):
        return None
    if window.calendar is not None:
        return _by_calendar(times_us, watermarks_us, window)
    found = np.empty(len(times_us), np.int64)
    some = _first_open(
        times_us, watermarks_us, window.size_us, window.every_us, window.offset_us, found
    )
    return found if some else None


def _by_calendar(times_us: Vector, watermarks_us: Vector, window: Window) -> Vector | None:
    # A window has ended if the first one that contains the watermark starts later.
    first, opened = (
        window.firsts(times_us),
        window.firsts(np.maximum(watermarks_us, times_us.min())),  # which none is late for
    )
    if not (first < opened).any():
        return None
    return np.where(window.lasts(times_us) < opened, LATE, np.maximum(first, opened))
