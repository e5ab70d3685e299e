"""What the graph's nodes have done since the process started, and do now.

The engine reports each batch (`Progress.nodes`); pages and Prometheus want totals, and rates over some
seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

if TYPE_CHECKING:  # they load the engine
    from penstock.engine.explain import Arranged
    from penstock.engine.explain.figures import NodeFigures
    from penstock.engine.physical import Physical
    from penstock.engine.progress.nodes import NodeProgress

__all__ = ["NodeTotals", "read_graph", "write_graph"]

FILE: Final = "graph.json"
WINDOW_US: Final = 10_000_000  # rates are over these last microseconds: steady, yet alive
POINT_EVERY_US: Final = 500_000  # a rate needs no more points than that
SPAN_MIN_US: Final = 1_000_000  # of a rate: the first batch is no second of work
_COUNTED: Final = ("rows_in", "rows_out", "late_rows", "ms")
_SIZES: Final = ("state_rows", "state_bytes")


class NodeTotals:
    """Adds up what batches report. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: Mapping[str, NodeProgress] = {}
        self._totals: dict[str, dict[str, float]] = {}
        self._points: deque[tuple[int, dict[str, dict[str, float]]]] = deque()

    def take(self, nodes: Mapping[str, NodeProgress], now_us: int) -> None:
        """Takes the report of one batch."""
        with self._lock:
            if self._newest.keys() != nodes.keys():  # the first one, or another program's
                self._totals = {node: dict.fromkeys(_COUNTED, 0) for node in nodes}
                self._points.clear()
            if not self._points:
                self._points.append((now_us - SPAN_MIN_US, self._point(nodes)))
            self._newest = nodes
            for node, one in nodes.items():
                total = self._totals[node]
                for what in _COUNTED:
                    total[what] += getattr(one, what) or 0
            if len(self._points) > 1 and now_us - self._points[-2][0] < POINT_EVERY_US:
                self._points.pop()
            self._points.append((now_us, self._point(nodes)))

    def _point(self, nodes: Mapping[str, NodeProgress]) -> dict[str, dict[str, float]]:
        return {
            node: {**self._totals[node], **{what: getattr(one, what) or 0 for what in _SIZES}}
            for node, one in nodes.items()
        }

    def figures(self, now_us: int) -> dict[str, NodeFigures]:
        """By node, as JSON: what the last batch said, totals of this run, and rates."""
        with self._lock:
            while len(self._points) > 1 and self._points[1][0] <= now_us - WINDOW_US:
                self._points.popleft()
            return {node: self._figures(node, one, now_us) for node, one in self._newest.items()}

    def _figures(self, node: str, one: NodeProgress, now_us: int) -> NodeFigures:
        (first_us, first), (_, last) = self._points[0], self._points[-1]
        span_us = max(SPAN_MIN_US, now_us - max(first_us, now_us - WINDOW_US))
        change = {what: last[node][what] - first[node][what] for what in last[node]}
        per_s = {what: 1_000_000 * by / span_us for what, by in change.items()}
        total = self._totals[node]
        is_read, keeps = one.rows_out is not None, one.state_rows is not None
        return {
            "name": one.name,
            "kind": one.kind,
            "rows_in": int(total["rows_in"]),
            "rows_out": int(total["rows_out"]) if is_read else None,
            "late_rows": int(total["late_rows"]),
            "ms": one.ms,
            "state_rows": one.state_rows,
            "state_bytes": one.state_bytes,
            "oldest_us": one.oldest_us,
            "frontier_us": one.frontier_us,
            "seconds": total["ms"] / 1_000,
            "rows_in_per_s": per_s["rows_in"],
            "rows_out_per_s": per_s["rows_out"] if is_read else None,
            "busy": per_s["ms"] / 1_000,
            "growth_rows_per_s": per_s["state_rows"] if keeps else None,
            "growth_bytes_per_s": per_s["state_bytes"] if keeps else None,
        }


def write_graph(directory: Path, physical: Physical) -> None:
    """Writes where everything of a pipeline's drawing is, for the page."""
    from penstock.engine.explain import arrange

    new = directory / f"{FILE}.new"
    new.write_bytes(orjson.dumps(arrange(physical, live=True)))
    new.replace(directory / FILE)


def read_graph(directory: Path) -> Arranged | None:
    """What `write_graph` wrote; None: there is none that can be read."""
    try:
        content = orjson.loads((directory / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    is_known = isinstance(content, dict) and "boxes" in content
    return cast("Arranged", content) if is_known else None
