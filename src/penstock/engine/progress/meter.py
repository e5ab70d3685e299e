"""Counts what the graph's nodes do in a batch, on one lane. Costs some dictionary look-ups a chunk."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Clock", "Meter"]

ROWS_IN, ROWS_OUT, LATE, SECONDS = range(4)
UNKNOWN: Final = -1  # rows out of a node that has no reader aren't computed


@dataclass
class Clock:
    """Seconds by part of the work."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, part: str, since: float) -> float:
        """Adds the time from `since` until now, which it gives (`time.perf_counter`)."""
        now = time.perf_counter()
        self.seconds[part] += now - since
        return now


class Meter:
    """Rows in, rows out, late rows and seconds, by a node's identity."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[float]] = {}

    def _of(self, node: str) -> list[float]:
        return self._nodes.setdefault(node, [0, UNKNOWN, 0, 0.0])

    def got(self, node: str, rows: int) -> None:
        """Rows were handed to a node."""
        self._of(node)[ROWS_IN] += rows

    def gave(self, node: str, rows: int) -> None:
        """A node gave rows, retractions included."""
        entry = self._of(node)
        entry[ROWS_OUT] = max(0, entry[ROWS_OUT]) + rows

    def read(self, node: str, rows: int, seconds: float) -> None:
        """A source's records were made rows."""
        self.got(node, rows)
        self.gave(node, rows)
        self._of(node)[SECONDS] += seconds

    def late(self, node: str, rows: int) -> None:
        """Rows came too late for a node."""
        self._of(node)[LATE] += rows

    def took(self, node: str, since: float) -> None:
        """A node was at work from `since` (`time.perf_counter`) until now."""
        self._of(node)[SECONDS] += time.perf_counter() - since

    def report(self) -> dict[str, list[float]]:
        """By node: rows in, rows out (below 0: unknown), late rows, seconds."""
        return self._nodes
