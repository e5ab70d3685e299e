"""Group commit: many requests wait for one fdatasync.

While one round of syncs runs in a thread, whoever wants durability joins the next round. So under
load one fdatasync serves all the requests that arrived during the one before it, and an idle broker
answers after one.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

__all__ = ["Durable", "Flusher"]

THREADS: Final = 4
"""Syncs that run at once: the file system merges the journal commits of concurrent ones."""


class Task(Protocol):
    """What makes something durable."""

    def run(self) -> None:
        """Does it; may block, in another thread. Raises OSError."""
        ...


class Durable(Protocol):
    """What can be made durable: a partition, a journal."""

    failure: str | None

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to do."""
        ...

    def begin_sync(self) -> Any:
        """What is to be done (a `Task`) so that everything written so far is durable."""
        ...

    def end_sync(self, task: Any, failure: OSError | None = None) -> None:
        """Takes note of how it went."""
        ...

    def mend(self) -> bool:
        """Goes on after a sync that failed for want of room; False where that can't be."""
        ...


class Flusher:
    """Makes partitions and journals durable, in rounds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-sync")
        self._wanted: set[Durable] = set()
        self._round_done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[Durable, asyncio.TimerHandle] = {}
        self.rounds = 0
        self.busy_s = 0.0
        self.failed: set[Durable] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a sync is under way."""
        return self._task is not None

    async def make_durable(self, wanted: Iterable[Durable]) -> None:
        """Returns once all that was written so far is durable, or its keeper has failed."""
        done = self.begin(wanted)
        if done is not None:
            await asyncio.shield(done)

    def begin(self, wanted: Iterable[Durable]) -> asyncio.Future[None] | None:
        """Has all that was written so far made durable; what to wait for, if anything."""
        logs = [one for one in wanted if one.is_dirty and one.failure is None]
        if not logs:
            return None
        self._wanted.update(logs)
        loop = asyncio.get_running_loop()
        if self._round_done is None:
            self._round_done = loop.create_future()
        done = self._round_done
        if self._task is None:
            self._task = loop.create_task(self._run())
        return done

    def begin_within(self, ms: int, log: Durable) -> None:
        """Has what was written made durable after that time; a time that runs already counts."""
        if log not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[log] = loop.call_later(ms / 1000, self._begin_late, log)

    def _begin_late(self, log: Durable) -> None:
        del self._timers[log]
        self.begin([log])

    async def _run(self) -> None:
        try:
            while self._wanted:
                logs, self._wanted = self._wanted, set()
                done, self._round_done = self._round_done, None
                await self._round([log for log in logs if log.failure is None])
                self.rounds += 1
                if done is not None and not done.done():
                    done.set_result(None)
        finally:
            self._task = None

    async def _round(self, logs: Sequence[Durable]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        tasks = [log.begin_sync() for log in logs]
        if not tasks:
            return
        groups = [list(range(n, len(tasks), THREADS)) for n in range(min(THREADS, len(tasks)))]
        outcomes = await asyncio.gather(
            *(
                loop.run_in_executor(self._pool, _run_all, [tasks[one] for one in group])
                for group in groups
            )
        )
        for group, failures in zip(groups, outcomes, strict=True):
            for one, failure in zip(group, failures, strict=True):
                logs[one].end_sync(tasks[one], failure)
                if failure is not None:
                    self.failed.add(logs[one])
        self.busy_s += loop.time() - began_s

    def mend(self) -> int:
        """Lets those go on whose sync failed for want of room; returns how many can."""
        mended = {one for one in self.failed if one.failure is None or one.mend()}
        self.failed -= mended
        return len(mended)

    async def settle(self) -> None:
        """Returns when no sync is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Ends the threads."""
        for timer in self._timers.values():
            timer.cancel()
        self._pool.shutdown()


def _run_all(tasks: list[Task]) -> list[OSError | None]:
    failures: list[OSError | None] = []
    for task in tasks:
        try:
            task.run()
        except OSError as error:
            failures.append(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is known to be durable
            failures.append(OSError(errno.EIO, repr(error)))
        else:
            failures.append(None)
    return failures
