"""The history of groups' lag, while the page is served.

A log knows how far a group is, not how far it was. So the page's server looks now and then and keeps what it
saw, in tiers: a tier has, for each stretch of its width, the largest lag that was seen. Peaks survive, and
what is kept is bounded whatever the time: `len(stretches) <= kept` in each tier.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.core.time import instant_text
from penstock.errors import PenstockError

__all__ = ["GROUPS_MAX", "LagHistory"]

LOOK_S: Final = 10.0
"""Between two looks."""
LOOK_SHARE_MAX: Final = 0.05
"""Of the time that looking may take: where there are many groups, looks are further apart."""
GROUPS_MAX: Final = 200
"""Followed; a look asks for the offsets of each."""
TOPICS_MAX: Final = 20
"""Of a group, those with the largest lag."""
LINES_MAX: Final = 8
"""Of a chart."""
TIERS: Final = ((10, 400), (60, 400), (300, 320), (1800, 350))
"""Seconds of a stretch, and how many are kept: more than an hour, six hours, a day and a week."""
NONE: Final = -1
"""The lag in a topic that the group didn't have then."""


def next_look_s(now_s: float, took_s: float) -> float:
    """How long to wait for the next look: until a step of the clock, so that no stretch is left out.

    Args:
        now_s: since 1970.
        took_s: how long the last look took.
    """
    wait_s = LOOK_S - now_s % LOOK_S
    return wait_s + math.ceil(max(took_s / LOOK_SHARE_MAX - wait_s, 0.0) / LOOK_S) * LOOK_S


class _Tier:
    """Stretches of one width with the largest lag in each, by topic."""

    def __init__(self, width_s: int, kept: int) -> None:
        self.width_s, self.kept = width_s, kept
        self.starts_s = array("q")
        self.lags: dict[str, array[int]] = {}

    def add(self, now_s: int, lags: Mapping[str, int]) -> None:
        start = now_s - now_s % self.width_s
        if not self.starts_s or self.starts_s[-1] < start:
            self.starts_s.append(start)
            for column in self.lags.values():
                column.append(NONE)
        for topic, lag in lags.items():
            column = self.lags.setdefault(topic, array("q", [NONE] * len(self.starts_s)))
            column[-1] = max(column[-1], lag)
        if len(self.starts_s) > self.kept:
            for one in (self.starts_s, *self.lags.values()):
                del one[0]
            for topic in [t for t, column in self.lags.items() if max(column) == NONE]:
                del self.lags[topic]

    def check(self) -> None:
        """Asserts what always holds."""
        assert len(self.starts_s) <= self.kept
        assert list(self.starts_s) == sorted(set(self.starts_s))
        assert all(len(column) == len(self.starts_s) for column in self.lags.values())


class LagHistory:
    """What was seen of each group.

    Args:
        look: gives each group's lag by topic, of at most `GROUPS_MAX` groups.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, Mapping[str, int]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._look, self._clock = look, clock
        self._groups: dict[str, list[_Tier]] = {}
        self._since: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks until `close`, in a thread."""
        self._thread = threading.Thread(target=self._run, name="penstock-lag", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the looks; one that is under way isn't waited for."""
        self._stop.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            begun = time.monotonic()
            with contextlib.suppress(PenstockError, OSError):  # the chart has a gap
                self.add(self._look())
            wait_s = next_look_s(self._clock(), time.monotonic() - begun)

    def add(self, seen: Mapping[str, Mapping[str, int]]) -> None:
        """Keeps what a look has seen; forgets groups that were not seen for as long as is kept."""
        now_s = int(self._clock())
        width_s, kept = TIERS[-1]
        with self._lock:
            for name, tiers in list(self._groups.items()):
                if tiers[-1].starts_s[-1] < now_s - width_s * kept:
                    del self._groups[name], self._since[name]
            for name, lags in seen.items():
                if name not in self._groups and len(self._groups) >= GROUPS_MAX:
                    continue
                self._since.setdefault(name, now_s)
                largest = sorted(lags, key=lambda topic: -lags[topic])[:TOPICS_MAX]
                for tier in self._groups.setdefault(name, [_Tier(*one) for one in TIERS]):
                    tier.add(now_s, {topic: lags[topic] for topic in largest})

    def series(self, group: str, range_s: float) -> dict[str, Any]:
        """Lines for a chart, a topic each, over the time before now.

        Args:
            group: its name.
            range_s: how long; beyond a week, a week.

        Returns:
            `windows`, `series` and the rest as `/api/views/{name}/series` has them; `since`, the first look
            at this group that is kept, None where there is none.
        """
        with self._lock:
            tiers = self._groups.get(group, [_Tier(*one) for one in TIERS])
            tier = next((one for one in tiers if one.width_s * one.kept >= range_s), tiers[-1])
            oldest_s = self._clock() - range_s - tier.width_s
            rows = [i for i, start in enumerate(tier.starts_s) if start > oldest_s]
            lines = {
                topic: [None if column[i] == NONE else column[i] for i in rows]
                for topic, column in tier.lags.items()
            }
            starts = [tier.starts_s[i] for i in rows]
            since = self._since.get(group)
            if since is not None:
                since = max(since, tiers[-1].starts_s[0])
        lines = {t: values for t, values in lines.items() if any(v is not None for v in values)}
        shown = sorted(lines, key=lambda t: -max(v or 0 for v in lines[t]))[:LINES_MAX]
        return {
            "measure": "lag",
            "every_ms": tier.width_s * 1_000,
            "windows": [[instant_text(start * 1_000_000), None] for start in starts],
            "series": [{"key": topic, "values": lines[topic]} for topic in shown],
            "keys_total": len(lines),
            "since": None if since is None else instant_text(since * 1_000_000),
        }

    def check(self) -> None:
        """Asserts what always holds."""
        with self._lock:
            assert len(self._groups) <= GROUPS_MAX
            assert self._groups.keys() == self._since.keys()
            for tiers in self._groups.values():
                for tier in tiers:
                    tier.check()
