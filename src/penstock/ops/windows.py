"""Windows in event time, and the kernels that place rows in them.

A row of event time t belongs to each window [w, w + size) that contains t, where w - offset is a
multiple of `every` (of `size`, if the window tumbles). Hopping windows share *panes*: stretches of
gcd(size, every), each of which lies wholly inside or outside any window. Rows are aggregated per pane,
and windows put together from panes when they are read, so state does not grow with size / every.

A session is a window that the rows of a key make themselves: a maximal set of them in which each lies
less than the gap after the one before. See `penstock.ops.sessions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Final, Literal

import numpy as np
from numba import njit, types

from penstock.core.time import DAY_US, duration_text
from penstock.core.vectors import Vector
from penstock.errors import FlowError

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

    >>> Window("hopping", size_us=300, every_us=60).pane_us
    60
    """

    kind: Literal["none", "tumbling", "hopping", "session"]
    size_us: int = 0
    every_us: int = 0
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "tumbling", "hopping", "session"):
            raise FlowError(
                f"expected the window none, tumbling, hopping or session; found {self.kind!r}"
            )
        if self.kind == "none":
            return
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
        """What `$window` in state steps by; not of sessions."""
        return gcd(self.size_us, self.every_us)

    @property
    def paned(self) -> bool:
        """Whether a window may have several panes."""
        return self.kind == "hopping" and self.pane_us < self.size_us

    @staticmethod
    def from_spec(spec: Mapping[str, Any]) -> Window:
        """Reads what `to_spec` gave."""
        return Window(spec["kind"], spec["size_us"], spec["every_us"], spec["offset_us"])

    def to_spec(self) -> dict[str, Any]:
        """The same as JSON."""
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
        out = np.empty(len(times_us), np.int64)
        _floor(times_us, self.pane_us, self.offset_us, out)
        return out

    def firsts(self, times_us: Vector) -> Vector:
        """The start of the first window that contains each time."""
        out = np.empty(len(times_us), np.int64)
        _first(times_us, self.size_us, self.every_us, self.offset_us, out)
        return out

    def lasts(self, times_us: Vector) -> Vector:
        """The start of the last window that contains each time."""
        out = np.empty(len(times_us), np.int64)
        _floor(times_us, self.every_us, self.offset_us, out)
        return out


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
