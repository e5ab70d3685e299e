"""Passes what happens in a run on to its heartbeat and to the user's functions."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.app.heartbeat import Heartbeat
from penstock.engine.driver import Progress
from penstock.engine.physical import Physical
from penstock.engine.runtime import Watcher
from penstock.engine.upgrade import Backfilled

__all__ = ["Watch"]


class Watch(Watcher):
    """The watcher of an app's run.

    Args:
        heart: writes down how the run is.
        on_progress: the user's, as for `App.run`, like the other two.
        on_idle: as above.
        on_backfill: as above.
        until: whether the run is to end.
        limit_s: how long it may take from the first batch on; None: no limit.
    """

    def __init__(
        self,
        heart: Heartbeat,
        *,
        on_progress: Callable[[Progress], None] | None,
        on_idle: Callable[[], None] | None,
        on_backfill: Callable[[Backfilled], None] | None,
        until: Callable[[], bool],
        limit_s: float | None,
    ) -> None:
        self._heart = heart
        self._on_progress, self._on_idle, self._on_backfill = on_progress, on_idle, on_backfill
        self._until, self._limit_s = until, limit_s
        self._began_s: float | None = None

    def is_over(self) -> bool:
        """See `Watcher`."""
        began_s, limit_s = self._began_s, self._limit_s
        over = limit_s is not None and began_s is not None and time.monotonic() - began_s >= limit_s
        over = over or self._until()
        if over:
            self._heart.stopping()
        return over

    def spark_started(self) -> None:
        """See `Watcher`."""
        self._heart.spark_started()

    def spark_restarted(self) -> None:
        """See `Watcher`."""
        self._heart.spark_restarted()

    def gathering(self) -> None:
        """See `Watcher`."""
        self._heart.gathering()

    def planned(self, physical: Physical) -> None:
        """See `Watcher`."""
        self._heart.planned(physical)

    def progressed(self, progress: Progress) -> None:
        """See `Watcher`."""
        self._begin()
        self._heart.progressed(progress)
        if self._on_progress:
            self._on_progress(progress)

    def idled(self) -> None:
        """See `Watcher`."""
        self._begin()
        self._heart.idled()
        if self._on_idle:
            self._on_idle()

    def backfilled(self, done: Backfilled) -> None:
        """See `Watcher`."""
        self._heart.backfilled(str(done))
        if self._on_backfill:
            self._on_backfill(done)

    def _begin(self) -> None:
        if self._began_s is None:
            self._began_s = time.monotonic()
