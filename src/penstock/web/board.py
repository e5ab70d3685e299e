"""The status board: what a running pipeline reports, kept for the page and the terminal.

Fed with the engine's progress, one per batch, by the thread that runs the pipeline; read by any
other. It keeps totals since the start, rates over the last seconds, and a bounded history for
sparklines.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

HISTORY_MAX: Final = 600  # batches: some minutes of sparkline
RATE_WINDOW_US: Final = 10_000_000  # rates are over these last microseconds: steady, yet alive


class Progress(Protocol):
    """What the engine reports after each batch."""

    @property
    def version(self) -> int:
        """The committed version of all views."""
        ...

    @property
    def batch_ms(self) -> float:
        """How long the batch took."""
        ...

    @property
    def rows(self) -> int:
        """Rows read in this batch."""
        ...

    @property
    def late_rows(self) -> int:
        """Rows that came too late in this batch."""
        ...

    @property
    def dead_rows(self) -> int:
        """Rows that could not be decoded in this batch."""
        ...

    @property
    def sources(self) -> Mapping[str, Mapping[str, Any]]:
        """By topic: `rows` read, `lag` in records, `watermark_us` or None."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """Where the batch's time went, by part of the work."""
        ...


@dataclass
class _Topic:
    rows: int = 0
    lag: int = 0
    watermark_us: int | None = None
    recent: deque[tuple[int, int]] = field(default_factory=deque)


class StatusBoard:
    """Collects progress and answers what the page and the terminal show.

    Args:
        app: the pipeline's name.
        clock_us: the wall clock, microseconds since 1970 UTC.
    """

    def __init__(self, app: str, clock_us: Callable[[], int]) -> None:
        self._app = app
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._started_us = clock_us()
        self._running = True
        self._phase = "starting"
        self._version: int | None = None
        self._batches = self._rows = self._late = self._dead = 0
        self._batch_ms: float | None = None
        self._split: dict[str, float] = {}
        self._topics: dict[str, _Topic] = {}
        self._history: deque[list[float | None]] = deque(maxlen=HISTORY_MAX)

    def phase(self, text: str) -> None:
        """Says what is going on while there are no batches yet, such as `starting Spark`."""
        with self._lock:
            self._phase = text

    def stopped(self) -> None:
        """The pipeline runs no more; what it last said stays."""
        with self._lock:
            self._running = False
            self._phase = "stopped"

    def add(self, progress: Progress) -> None:
        """Takes the report of one batch."""
        now_us = self._clock_us()
        with self._lock:
            self._phase = "running"
            self._version = progress.version
            self._batches += 1
            self._rows += progress.rows
            self._late += progress.late_rows
            self._dead += progress.dead_rows
            self._batch_ms = float(progress.batch_ms)
            self._split = {k: 1_000 * v for k, v in progress.seconds.items()}
            for name, source in progress.sources.items():
                topic = self._topics.setdefault(name, _Topic())
                topic.rows += source["rows"]
                topic.lag = source["lag"]
                topic.watermark_us = source["watermark_us"]
                topic.recent.append((now_us, source["rows"]))
            self._history.append(self._point(now_us))

    def status(self, *, history: bool = False) -> dict[str, Any]:
        """The present state as JSON-able values; `history` adds the sparklines' points."""
        now_us = self._clock_us()
        with self._lock:
            sources = {name: self._source(topic, now_us) for name, topic in self._topics.items()}
            status = {
                "app": self._app,
                "running": self._running,
                "phase": self._phase,
                "version": self._version,
                "now_us": now_us,
                "started_us": self._started_us,
                "batches": self._batches,
                "batch_ms": self._batch_ms,
                "split_ms": self._split,
                "rows": self._rows,
                "rows_per_s": sum(s["rows_per_s"] for s in sources.values()),
                "lag": sum(s["lag"] for s in sources.values()),
                "watermark_delay_ms": self._delay_ms(now_us),
                "late_rows": self._late,
                "dead_rows": self._dead,
                "sources": sources,
            }
            if history:
                status["history"] = [list(point) for point in self._history]
            return status

    def _source(self, topic: _Topic, now_us: int) -> dict[str, Any]:
        mark = topic.watermark_us
        return {
            "rows": topic.rows,
            "rows_per_s": self._rate(topic, now_us),
            "lag": topic.lag,
            "watermark_us": mark,
            "watermark_delay_ms": None if mark is None else (now_us - mark) / 1_000,
        }

    def _rate(self, topic: _Topic, now_us: int) -> float:
        while topic.recent and topic.recent[0][0] <= now_us - RATE_WINDOW_US:
            topic.recent.popleft()
        span_us = min(RATE_WINDOW_US, max(1_000_000, now_us - self._started_us))
        return sum(rows for _, rows in topic.recent) * 1_000_000 / span_us

    def _delay_ms(self, now_us: int) -> float | None:
        marks = [t.watermark_us for t in self._topics.values() if t.watermark_us is not None]
        return (now_us - min(marks)) / 1_000 if marks else None

    def _point(self, now_us: int) -> list[float | None]:
        """One point of history: ms, batch_ms, rows/s, lag, delay, late, dead."""
        return [
            now_us / 1_000,
            self._batch_ms,
            sum(self._rate(topic, now_us) for topic in self._topics.values()),
            sum(topic.lag for topic in self._topics.values()),
            self._delay_ms(now_us),
            self._late,
            self._dead,
        ]
