"""Group commit: many requests wait for one fdatasync.

While a log is being synced, further requests wait for the next sync. A write that comes before the sync
begins is still part of it. So under load one fdatasync serves all the requests that arrived during the
one before it, and an idle broker answers after one. A log's thread continues with it while requests
wait: on busy processors two threads that wake each other take as long as the disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

__all__ = ["Durable", "Flusher", "is_durable", "made_durable"]

THREADS: Final = 8
"""Logs that are synced at once: the file system merges the journal commits of concurrent syncs."""
TOGETHER_MAX: Final = 16
"""Most logs without waiting requests that are synced at once; a request waits for these at most."""
RUNS_MAX: Final = 64
"""Syncs of a log after which its thread comes back, so that a checkpoint is written when it is due."""

_log = logging.getLogger(__name__)


class Task(Protocol):
    """What makes something durable."""

    end_offset: int
    """Up to where it came when it was run last."""

    def run(self) -> None:
        """Does it; may block, in another thread. Raises OSError."""
        ...

    @property
    def may_run_again(self) -> bool:
        """Whether it may be run once more, for what was written meanwhile."""
        ...


class Durable(Protocol):
    """What can be made durable: a partition, a journal."""

    failure: str | None

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to do."""
        ...

    @property
    def end_offset(self) -> int:
        """Up to where it is written."""
        ...

    @property
    def durable_offset(self) -> int:
        """Up to where it is known to be durable."""
        ...

    def begin_sync(self) -> Any:
        """A `Task` that makes durable all that is written when the task begins to run."""
        ...

    def note_durable(self, upto: int) -> None:
        """Takes note of how far it went, and that it continues."""
        ...

    def end_sync(self, task: Any, failure: OSError | None = None) -> None:
        """Takes note of how it went."""
        ...

    def repair(self) -> bool:
        """Continues after a sync that failed because the disk was full; False where that can't be."""
        ...


def is_durable(one: Durable, upto: int) -> bool:
    """Whether what was written before an offset is on the disk. That there is no failure doesn't say so:
    what has failed may have been repaired, and not be synced yet. What was rewritten may be shorter.
    """
    return one.durable_offset >= min(upto, one.end_offset)


async def made_durable(
    make_durable: Callable[[Iterable[Durable]], Awaitable[None]], wanted: Iterable[Durable]
) -> bool:
    """Returns once all that was written so far is durable, or its keeper has failed; whether it is
    durable. What has failed and was repaired meanwhile is waited for again.
    """
    goals = [(one, one.end_offset) for one in wanted]
    while left := [one for one, upto in goals if not (one.failure or is_durable(one, upto))]:
        await make_durable(left)
    return all(is_durable(one, upto) for one, upto in goals)


@dataclass(slots=True)
class _Waiting:
    """A callback, and the number of logs that it waits for."""

    left: int
    then: Callable[[], None]


class Flusher:
    """Makes partitions and journals durable. Use from the event loop's thread.

    Attributes:
        syncs: how many there were.
        busy_s: what they took, all threads together.
        failed: what couldn't be made durable.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-sync")
        self._waiting: dict[Durable, deque[tuple[int, _Waiting]]] = {}  # by the offset they want
        self._goals: dict[Durable, int] = {}  # the last of these; threads read it
        self._running: set[Durable] = set()  # a sync is under way, or about to be
        self._queue: deque[Durable] = deque()  # of these, those that wait for a thread
        self._busy_threads = 0
        self._is_due = False
        self._settled: asyncio.Future[None] | None = None
        self._timers: dict[Durable, asyncio.TimerHandle] = {}
        self.syncs = 0
        self.busy_s = 0.0
        self.failed: set[Durable] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a sync is under way, or about to be."""
        return bool(self._running)

    def when_durable(self, wanted: Iterable[Durable], then: Callable[[], None]) -> None:
        """Calls `then` once all that was written so far is durable, or its keeper has failed:
        immediately if it is already.

        Of the callbacks due together the newest is called first: a connection answers in order, so it
        then sends all of its answers when the oldest is ready.
        """
        goals = [(one, one.end_offset) for one in wanted if one.is_dirty and one.failure is None]
        if not goals:
            then()
            return
        waiting = _Waiting(len(goals), then)
        for log, goal in goals:
            self._waiting.setdefault(log, deque()).append((goal, waiting))
            self._goals[log] = goal
            if log not in self._running:
                self._running.add(log)
                self._queue.append(log)
        if self._queue and not self._is_due:  # not at once: what the loop has at hand may join
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_next)

    async def make_durable(self, wanted: Iterable[Durable]) -> None:
        """Returns once all that was written so far is durable, or its keeper has failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(wanted, partial(_set_done, done))
        await done

    async def make_durable_by_the_way(self, wanted: Sequence[Durable]) -> None:
        """The same for many logs that no request waits for: a few at a time, so that requests don't
        wait long.
        """
        for at in range(0, len(wanted), TOGETHER_MAX):
            await self.make_durable(wanted[at : at + TOGETHER_MAX])

    def begin(self, wanted: Iterable[Durable]) -> None:
        """Starts to make durable all that was written so far; doesn't wait."""
        self.when_durable(wanted, _nobody)

    def begin_within(self, ms: int, log: Durable) -> None:
        """Has what was written made durable after that time; a time that runs already counts."""
        if log not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[log] = loop.call_later(ms / 1000, self._begin_late, log)

    def _begin_late(self, log: Durable) -> None:
        del self._timers[log]
        self.begin([log])

    def _begin_next(self) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        while self._queue and self._busy_threads < THREADS:
            log = self._queue.popleft()
            if log.failure is not None:  # meanwhile: a sync that works now would say too much
                over = self._over(log)
                self._leave(log)
                _call_back(over)
                continue
            self._busy_threads += 1
            self._pool.submit(self._run, log, log.begin_sync(), loop)

    def _run(self, log: Durable, task: Any, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: runs a task, repeats it while requests wait, and reports how far it came."""
        for _ in range(RUNS_MAX):
            began_s = perf_counter()
            failure = _failure_of(task)
            took_s, upto = perf_counter() - began_s, task.end_offset
            is_done = failure is not None or upto >= self._goals.get(log, 0)
            if is_done or self._queue or not task.may_run_again:
                break
            loop.call_soon_threadsafe(self._went_on, log, upto, took_s)
        loop.call_soon_threadsafe(self._ended, log, task, failure, took_s)

    def _went_on(self, log: Durable, upto: int, took_s: float) -> None:
        log.note_durable(upto)
        self._count(took_s)
        _call_back(self._over(log))

    def _ended(self, log: Durable, task: Any, failure: OSError | None, took_s: float) -> None:
        log.end_sync(task, failure)
        if failure is not None:
            self.failed.add(log)
        self._count(took_s)
        over = self._over(log)
        if log in self._goals:
            self._queue.append(log)
        else:
            self._leave(log)
        self._busy_threads -= 1
        self._begin_next()  # the disk works on while the callbacks run
        _call_back(over)

    def _leave(self, log: Durable) -> None:
        self._running.discard(log)
        if self._settled is not None and not self._running:
            _set_done(self._settled)

    def _count(self, took_s: float) -> None:
        self.syncs += 1
        self.busy_s += took_s

    def _over(self, log: Durable) -> list[_Waiting]:
        """Who need wait no longer, now that the log has come further or has failed."""
        waiting = self._waiting.get(log, deque())
        is_all = log.failure is not None or not log.is_dirty
        over = []
        while waiting and (is_all or waiting[0][0] <= log.durable_offset):
            one = waiting.popleft()[1]
            one.left -= 1
            if not one.left:
                over.append(one)
        if not waiting:
            self._waiting.pop(log, None)
            self._goals.pop(log, None)
        return over

    def repair(self) -> int:
        """Lets those continue whose sync failed because the disk was full; returns how many can."""
        repaired = {one for one in self.failed if one.failure is None or one.repair()}
        self.failed -= repaired
        return len(repaired)

    async def settle(self) -> None:
        """Returns when no sync is under way."""
        if self._running:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def close(self) -> None:
        """Ends the threads."""
        for timer in self._timers.values():
            timer.cancel()
        self._pool.shutdown()


def _nobody() -> None:
    """The callback."""


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():  # the waiter has gone
        done.set_result(None)


def _call_back(over: list[_Waiting]) -> None:
    for one in reversed(over):
        try:
            one.then()
        except Exception:  # noqa: BLE001 - the other callbacks must run as well
            _log.exception("what waited for a sync failed unexpectedly")


def _failure_of(task: Task) -> OSError | None:
    """Runs a task; what went wrong."""
    try:
        task.run()
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever it was, nothing is known to be durable
        return OSError(errno.EIO, repr(error))
    return None
