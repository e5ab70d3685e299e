"""Windows in event time, and the kernels that place rows in them.

A row of event time t belongs to each window [w, w + size) that contains t, where w - offset is a
multiple of `every` (of `size`, if the window tumbles). Hopping windows share *panes*: stretches of
gcd(size, every), each of which lies wholly inside or outside any window. Rows are aggregated per pane,
and windows put together from panes when they are read, so state does not grow with size / every.

Windows of a calendar span some of its steps, such as days of a time zone, and begin with each or every so
many of them; their panes are the steps. All that knows how long a window is asks `Window`.

A session is a window that the rows of a key make themselves: a maximal set of them in which each lies
less than the gap after the one before. See `penstock.ops.sessions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Final, Literal

import numpy as np

from penstock.core.calendar import Calendar
from penstock.core.kernels import njit, types
from penstock.core.time import DAY_US, duration_text
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.ops.codec import read_fields, written_fields

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.int64[::1]

NO_TIME: Final = -(2**63)  # event time or watermark before any row
NOTHING_YET_US: Final = -(2**62)  # likewise, below every instant and safe to subtract from
LATE: Final = 2**63 - 1  # first open window of a row that has none
PANES_MAX: Final = 100_000  # panes per window: a row of a view is put together from so many
GAP_US_MAX: Final = 3_650 * DAY_US
"""Of sessions: their ends, a gap after a row, stay within the years that all formats can name."""


@dataclass(frozen=True)
class Window:
    """How rows are put into windows.

    Args:
        kind: `none` puts all rows into one window that never closes, written as 0.
        size_us: length; the end is exclusive. Of sessions, the gap that ends one.
        every_us: from one hopping window's start to the next's; at most the size.
        offset_us: windows start at the epoch plus this.
        calendar: whose steps windows begin and end with; sizes then follow from it.
        steps: of the calendar that a window spans.

    >>> Window("hopping", size_us=300, every_us=60).pane_us
    60
    """

    kind: Literal["none", "tumbling", "hopping", "session"]
    size_us: int = 0
    every_us: int = 0
    offset_us: int = 0
    calendar: Calendar | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("none", "tumbling", "hopping", "session"):
            raise FlowError(
                f"expected the window none, tumbling, hopping or session; found {self.kind!r}"
            )
        if self.kind == "none":
            return
        if self.calendar is not None:
            object.__setattr__(self, "every_us", self.calendar.step_us)
            object.__setattr__(self, "size_us", self.calendar.step_us * self.steps)
            object.__setattr__(self, "offset_us", 0)
        if self.size_us <= 0:
            raise FlowError(
                f"expected a window's size above zero; found {duration_text(max(self.size_us, 0))}"
            )
        if self.kind == "session":
            if self.size_us > GAP_US_MAX:
                raise FlowError(
                    f"expected sessions with a gap of at most {duration_text(GAP_US_MAX)}; found "
                    f"{duration_text(self.size_us)}"
                )
            if self.every_us or self.offset_us:
                raise FlowError("expected sessions without a step or an offset; found one")
            return
        if self.kind == "tumbling":
            object.__setattr__(self, "every_us", self.size_us)
        if not 0 < self.every_us <= self.size_us:
            raise FlowError(
                f"expected windows to start every so often, at most their size "
                f"({duration_text(self.size_us)}) apart; found {self.every_us} us"
            )
        object.__setattr__(self, "offset_us", self.offset_us % self.every_us)
        if self.size_us // self.pane_us > PANES_MAX:
            raise FlowError(
                f"expected at most {PANES_MAX} panes per window; found {self.size_us // self.pane_us} of "
                f"{duration_text(self.pane_us)}. Choose a size that is a multiple of the step"
            )

    @property
    def pane_us(self) -> int:
        """What `$window` in state steps by; not of sessions, and of calendars at most."""
        return gcd(self.size_us, self.every_us)

    @property
    def paned(self) -> bool:
        """Whether a window may have several panes."""
        return self.kind == "hopping" and self.pane_us < self.size_us

    @property
    def even_us(self) -> int:
        """From one window's start to the next one's; 0 where that differs."""
        return 0 if self.calendar is not None else self.every_us

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> Window:
        """Reads what `to_spec` gave."""
        if "calendar" in spec:
            calendar = read_fields(Calendar, spec["calendar"])
            return Window(spec["kind"], calendar=calendar, steps=spec["steps"])
        return Window(spec["kind"], spec["size_us"], spec["every_us"], spec["offset_us"])

    def to_spec(self) -> dict[str, Any]:
        """The same as JSON."""
        if self.calendar is not None:
            calendar = written_fields(self.calendar)
            return {"kind": self.kind, "calendar": calendar, "steps": self.steps}
        return {
            "kind": self.kind,
            "size_us": self.size_us,
            "every_us": self.every_us,
            "offset_us": self.offset_us,
        }

    def panes(self, times_us: Vector) -> Vector:
        """The start of each row's pane (of its window, if it tumbles; 0 without windows)."""
        if self.kind == "none":
            return np.zeros(len(times_us), np.int64)
        if self.calendar is not None:
            return self.lasts(times_us)
        out = np.empty(len(times_us), np.int64)
        _floor(times_us, self.pane_us, self.offset_us, out)
        return out

    def firsts(self, times_us: Vector) -> Vector:
        """The start of the first window that contains each time."""
        if self.calendar is not None:
            return self._step(times_us, 1 - self.steps)
        out = np.empty(len(times_us), np.int64)
        _first(times_us, self.size_us, self.every_us, self.offset_us, out)
        return out

    def lasts(self, times_us: Vector) -> Vector:
        """The start of the last window that contains each time."""
        if self.calendar is not None:
            return self._step(times_us, 0)
        out = np.empty(len(times_us), np.int64)
        _floor(times_us, self.every_us, self.offset_us, out)
        return out

    def ends(self, starts_us: Vector) -> Vector:
        """The end of each window."""
        if self.calendar is not None:
            return self._step(starts_us, self.steps)
        return np.asarray(starts_us + self.size_us)

    def first(self, time_us: int) -> int:
        """The start of the first window that contains a time; all that start before have ended by then."""
        return int(self.firsts(np.array([time_us], np.int64))[0])

    def reach(self, start_us: int) -> int:
        """Behind the panes of all windows that start before a time."""
        if self.calendar is not None:
            return int(self._step(np.array([start_us - 1], np.int64), self.steps)[0])
        return start_us + self.size_us - self.pane_us

    def windows_of(self, panes_us: Vector, least_us: Vector | None) -> tuple[Vector, Vector]:
        """The windows that panes belong to, as pairs: (number of the pane, start of the window).

        Args:
            panes_us: int64[n], where panes start.
            least_us: int64[n], the first window of each; None is the first that contains it.
        """
        first, last = self.firsts(panes_us), self.lasts(panes_us)
        if least_us is not None:
            first = np.maximum(first, least_us)
        if self.calendar is not None:
            grid, at = self._placed(panes_us)
            begins = np.searchsorted(grid, first)
            count = np.maximum(at - begins + 1, 0)
        else:
            count = np.maximum((last - first) // self.every_us + 1, 0)
        which = np.repeat(np.arange(len(panes_us)), count)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        if self.calendar is not None:
            return which, grid[begins[which] + nth]
        return which, first[which] + nth * self.every_us

    def panes_of(self, starts_us: Vector) -> tuple[Vector, Vector]:
        """The panes of windows, as pairs: (number of the window, start of the pane)."""
        if self.calendar is not None:
            which = np.repeat(np.arange(len(starts_us)), self.steps)
            grid, at = self._placed(starts_us)
            return which, grid[at[which] + np.tile(np.arange(self.steps), len(starts_us))]
        panes = self.size_us // self.pane_us
        which = np.repeat(np.arange(len(starts_us)), panes)
        nth = np.tile(np.arange(panes) * self.pane_us, len(starts_us))
        return which, starts_us[which] + nth

    def _placed(self, times_us: Vector) -> tuple[Vector, Vector]:
        """Boundaries of the calendar, and the number of the last one at each time or before."""
        assert self.calendar is not None, "asked of calendars alone"
        at = np.empty(len(times_us), np.int64)
        if not len(times_us):
            return at, at
        lo, hi = int(times_us.min()), int(times_us.max())
        grid = self.calendar.boundaries(lo, hi, self.steps)
        _place(times_us, grid, at)
        return grid, np.clip(at, self.steps, len(grid) - 1 - self.steps)  # beyond all instants

    def _step(self, times_us: Vector, by: int) -> Vector:
        """The boundary so many steps after the last one at each time or before."""
        grid, at = self._placed(times_us)
        return grid[at + by] if len(at) else at


@njit(types.void(_I64, _I64, _OUT), cache=True, nogil=True)
def _place(times: Any, grid: Any, out: Any) -> None:
    at = 0
    last = len(grid) - 1
    for i in range(len(times)):
        t = times[i]
        if t < grid[at] or (at < last and t >= grid[at + 1]):
            at = max(np.searchsorted(grid, t, side="right") - 1, 0)
        out[i] = at


@njit(types.void(_I64, types.int64, types.int64, _OUT), cache=True, nogil=True)
def _floor(times: Any, step: Any, offset: Any, out: Any) -> None:
    start = np.int64(0)
    known = False
    for i in range(len(times)):
        t = times[i]
        if not known or t < start or t >= start + step:
            start = (t - offset) // step * step + offset
            known = True
        out[i] = start


@njit(types.void(_I64, types.int64, types.int64, types.int64, _OUT), cache=True, nogil=True)
def _first(times: Any, size: Any, every: Any, offset: Any, out: Any) -> None:
    for i in range(len(times)):
        last = (times[i] - offset) // every * every + offset
        out[i] = last - (size - 1 - (times[i] - last)) // every * every
