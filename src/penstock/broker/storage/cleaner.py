"""Compacts partitions in the background: one at a time, in one thread.

The partition that has the most to gain goes first. The thread rests as long as it works, so compaction
takes at most half a core. Its priority is that of the event loop: a thread that is descheduled while it
holds the interpreter would block all others. Segments are swapped in the event loop, so never while a
request is served (see `penstock.log.compaction.compactor`).

The thread also loads the compiled loop that looks at the records of what is produced to compacted topics,
once there is any (see `penstock.wire.inspection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.errors import PenstockError
from penstock.log.compaction.compactor import Task
from penstock.log.errors import DamagedSegmentError
from penstock.log.partition import Partition
from penstock.wire import inspection

__all__ = ["LogCleaner"]

PAUSE_S_MAX: Final = 1.0
"""Longest rest between two chunks, unless the rate is bounded."""

REPORTED_MAX: Final = 10_000
"""Most holes that are remembered as reported."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The pass is no longer wanted."""


class LogCleaner:
    """The background compaction of a broker's partitions."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        clock_ms: Callable[[], int],
        interval_s: float,
    ) -> None:
        """Prepares; `start` begins.

        Args:
            partitions: gives every partition there is.
            clock_ms: the time.
            interval_s: how often to look for something to do.
        """
        self._partitions = partitions
        self._clock_ms = clock_ms
        self._interval_s = interval_s
        self._bytes_per_s = float("inf")
        self._is_stopping = threading.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(1, "penstock-cleaner")
        self._reported: set[tuple[str, int]] = set()
        self.failures = 0

    def configure(self, interval_s: float, bytes_per_s: float) -> None:
        """From now on it looks that often, and reads that much."""
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._wake.set()
        self._bytes_per_s = bytes_per_s

    def start(self) -> None:
        """Begins to look for something to do."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Returns when no pass is under way any more, and none will begin."""
        self._is_stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._pool.shutdown()

    async def _run(self) -> None:
        while not self._is_stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_s)
            self._wake.clear()
            try:
                if inspection.is_loop_wanted():
                    await self._in_thread(inspection.load_loop)
                while not self._is_stopping.is_set() and await self.clean_one():
                    pass
            except Exception:  # noqa: BLE001 - one partition's trouble is not the others'
                _log.exception("compaction failed; it continues with the next partition")

    async def clean_one(self) -> bool:
        """Compacts the partition that has the most to gain. False if none has enough."""
        now_ms = self._clock_ms()
        due = [one for one in self._partitions() if one.compactor.is_due(now_ms)]
        if not due:
            return False
        log = max(due, key=lambda one: one.compactor.dirty_bytes(now_ms)[0])
        self._report_holes(log)
        await self._in_thread(lambda: importlib.import_module("penstock.log.compaction.cleaning"))
        began = time.perf_counter()
        task = log.compactor.plan(now_ms, _hash_key(), self._pace(log))
        if task is None:
            return False
        removed = log.compactor.removed_bytes
        try:
            await self._clean(log, task)
        except _StoppedError as stopped:
            log.compactor.end(task, stopped)
        except DamagedSegmentError as damaged:
            self.failures += 1
            log.compactor.end(task, damaged)
            _log.error("%s", damaged)
        except (OSError, PenstockError) as error:
            self.failures += 1
            log.compactor.end(task, error)
            _log.error("compaction of %s was abandoned: %s", log.directory, error)
            return False
        else:
            log.compactor.end(task)
            _log.info(
                "compacted %s up to offset %d in %.1f s: %d bytes less",
                log.directory,
                task.mapped_upto,
                time.perf_counter() - began,
                log.compactor.removed_bytes - removed,
            )
        return True

    def _report_holes(self, log: Partition) -> None:
        """Says once of each hole that it is passed over."""
        for segment in log.compactor.passed_over():
            place = log.directory, segment.base_offset
            if place not in self._reported and len(self._reported) < REPORTED_MAX:
                self._reported.add(place)
                _log.error(
                    "compaction of %s passes over offsets %d to %d, which are damaged or lost: it leaves "
                    "that segment unchanged, and keeps all tombstones after it; restore %s from a copy",
                    log.directory, segment.base_offset, segment.next_offset - 1, segment.path,
                )  # fmt: skip

    async def _clean(self, log: Partition, task: Task) -> None:
        await self._in_thread(task.map)
        while await self._in_thread(task.clean):
            log.compactor.swap(task)
            await self._in_thread(task.store)
            log.compactor.settle(task)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _pace(self, log: Partition) -> Callable[[int], None]:
        last = time.monotonic()

        def rest(size: int) -> None:
            nonlocal last
            worked_s = time.monotonic() - last
            pause_s = max(min(worked_s, PAUSE_S_MAX), size / self._bytes_per_s - worked_s)
            if self._is_stopping.wait(pause_s) or log.failure is not None:
                raise _StoppedError
            last = time.monotonic()

        return rest


def _hash_key() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)
