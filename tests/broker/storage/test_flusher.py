"""Group commit: who waits is told once, when what it waits for is durable, and not before."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
import time
from collections.abc import Callable

import pytest
from tests.patience import PATIENCE_S, until

from penstock.broker.storage.flusher import RUNS_MAX, THREADS, Flusher

pytestmark = pytest.mark.interpreter


class SlowLog:
    """A log whose syncs last until they are let go, or a moment; what the disk has is `on_disk`."""

    def __init__(self, seed: int | None = None) -> None:
        self.failure: str | None = None
        self.end_offset = self.durable_offset = self.on_disk = 0
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.chance = None if seed is None else random.Random(seed)
        self.fails = False
        self.runs = self.tasks = self.open_tasks = 0

    @property
    def is_dirty(self) -> bool:
        return self.durable_offset < self.end_offset

    def begin_sync(self) -> SlowTask:
        self.tasks += 1
        self.open_tasks += 1
        assert self.open_tasks == 1
        return SlowTask(self)

    def note_durable(self, upto: int) -> None:
        assert upto <= self.on_disk
        self.durable_offset = max(self.durable_offset, upto)

    def end_sync(self, task: SlowTask, failure: OSError | None = None) -> None:
        self.open_tasks -= 1
        if failure is not None:
            self.failure = str(failure)
        else:
            self.note_durable(task.end_offset)

    def repair(self) -> bool:
        self.failure = None
        return True


class SlowTask:
    may_run_again = True

    def __init__(self, log: SlowLog) -> None:
        self.log = log
        self.end_offset = -1

    def run(self) -> None:
        self.log.runs += 1
        self.end_offset = self.log.end_offset
        if self.log.chance is None:
            self.log.begun.release()
            assert self.log.may_end.acquire(timeout=PATIENCE_S)
        else:
            time.sleep(self.log.chance.random() * 0.002)
        if self.log.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.log.on_disk = max(self.log.on_disk, self.end_offset)


def run(session: Callable[[Flusher], object]) -> None:
    """Runs a session with a flusher of its own."""

    async def whole() -> None:
        flusher = Flusher()
        await session(flusher)  # type: ignore[misc]
        await flusher.settle()
        assert not flusher.is_busy
        flusher.close()

    asyncio.run(whole())


async def begun(log: SlowLog) -> None:
    """Waits until a sync of the log is under way."""
    assert await asyncio.to_thread(log.begun.acquire, True, PATIENCE_S)


def test_a_log_is_synced_again_by_its_thread() -> None:
    """What comes during a sync waits for the next; one thread does both, and the newest is told first."""

    async def session(flusher: Flusher) -> None:
        log, called = SlowLog(), list[str]()
        log.end_offset = 1
        flusher.when_durable([log], lambda: called.append("first"))
        await begun(log)
        for name in ("second", "third"):
            log.end_offset += 1
            flusher.when_durable([log], lambda name=name: called.append(name))  # type: ignore[misc]
        log.may_end.release()
        await begun(log)
        await until(lambda: called == ["first"])
        assert log.durable_offset == 1
        log.may_end.release()
        await until(lambda: called == ["first", "third", "second"])
        assert (log.tasks, log.runs, flusher.syncs) == (1, 2, 2)
        assert not log.is_dirty

    run(session)


def test_nothing_to_wait_for() -> None:
    """Of what is durable, or has failed, one is told at once."""

    async def session(flusher: Flusher) -> None:
        clean, failed, called = SlowLog(), SlowLog(), list[int]()
        failed.end_offset, failed.failure = 1, "broken"
        flusher.when_durable([clean, failed], lambda: called.append(1))
        flusher.when_durable([], lambda: called.append(2))
        assert called == [1, 2]

    run(session)


def test_a_slow_log_holds_up_no_other() -> None:
    """While one log's sync lasts, those who wait for another are told; who waits for both, later."""

    async def session(flusher: Flusher) -> None:
        slow, quick, called = SlowLog(), SlowLog(), list[str]()
        slow.end_offset = quick.end_offset = 1
        flusher.when_durable([slow, quick], lambda: called.append("both"))
        flusher.when_durable([quick], lambda: called.append("quick"))
        await begun(slow)
        await begun(quick)
        quick.may_end.release()
        await until(lambda: called == ["quick"])
        slow.may_end.release()
        await until(lambda: called == ["quick", "both"])

    run(session)


def test_a_busy_log_makes_way() -> None:
    """Where more logs wait than there are threads, and from time to time, a thread comes back."""

    async def session(flusher: Flusher) -> None:
        logs = [SlowLog() for _ in range(THREADS + 1)]
        called = list[int]()
        for n, log in enumerate(logs):
            log.end_offset = 1
            flusher.when_durable([log], lambda n=n: called.append(n))  # type: ignore[misc]
        busy = logs[0]
        await begun(busy)
        busy.end_offset = 2
        flusher.when_durable([busy], lambda: called.append(-1))
        busy.may_end.release()
        await begun(logs[-1])
        for log in logs[1:]:
            log.may_end.release()
        await begun(busy)
        busy.may_end.release()
        await until(lambda: len(called) == len(logs) + 1)
        assert busy.tasks == 2
        for _ in range(RUNS_MAX + 1):  # alone it may go on, but not for ever
            busy.end_offset += 1
            flusher.when_durable([busy], lambda: called.append(-2))
            await begun(busy)
            busy.end_offset += 1
            flusher.when_durable([busy], lambda: called.append(-2))
            busy.may_end.release()
        await begun(busy)
        busy.may_end.release()
        await until(lambda: not busy.is_dirty)
        assert busy.tasks >= 4

    run(session)


def test_a_failure_says_all() -> None:
    """After a failed sync nobody waits on; once it is repaired the log can be synced again."""

    async def session(flusher: Flusher) -> None:
        log, called = SlowLog(), list[str]()
        log.end_offset, log.fails = 1, True
        flusher.when_durable([log], lambda: called.append("first"))
        await begun(log)
        log.end_offset = 2
        flusher.when_durable([log], lambda: called.append("second"))
        log.may_end.release()
        await until(lambda: sorted(called) == ["first", "second"])
        assert flusher.failed == {log}
        assert log.durable_offset == 0
        log.fails = False
        assert flusher.repair() == 1
        log.may_end.release()
        await flusher.make_durable([log])
        assert log.durable_offset == 2

    run(session)


def test_what_fails_while_it_waits_is_not_synced() -> None:
    """A sync that works after one that failed says nothing of what was lost."""

    async def session(flusher: Flusher) -> None:
        log, called = SlowLog(seed=1), list[str]()
        log.end_offset = 1
        flusher.when_durable([log], lambda: called.append("it"))
        log.failure = "broken"  # by a sync that somebody else has made
        await until(lambda: called == ["it"])
        assert (log.tasks, log.durable_offset, flusher.is_busy) == (0, 0, False)

    run(session)


def test_one_who_fails_doesn_t_keep_it_from_the_others() -> None:
    """An error of who is told is logged; the others are told."""

    async def session(flusher: Flusher) -> None:
        log, called = SlowLog(seed=1), list[str]()
        log.end_offset = 1

        def fail() -> None:
            raise ValueError("no")

        flusher.when_durable([log], lambda: called.append("first"))
        flusher.when_durable([log], fail)
        await until(lambda: called == ["first"])

    run(session)


@pytest.mark.parametrize("seed", range(6))
def test_who_is_answered_has_it_on_the_disk(seed: int) -> None:
    """Many writers of several logs at random: each is told once, and then all is on the disk."""
    chance = random.Random(seed)

    async def session(flusher: Flusher) -> None:
        logs = [SlowLog(chance.randrange(1000)) for _ in range(chance.randint(1, 2 * THREADS))]
        answered = 0

        async def writer() -> None:
            nonlocal answered
            for _ in range(20):
                wanted = chance.sample(logs, chance.randint(1, min(3, len(logs))))
                goals = []
                for log in wanted:
                    log.end_offset += 1
                    goals.append((log, log.end_offset))
                await flusher.make_durable(wanted)
                assert all(log.on_disk >= goal <= log.durable_offset for log, goal in goals)
                answered += 1
                await asyncio.sleep(chance.random() * 0.002)

        await asyncio.gather(*(writer() for _ in range(12)))
        assert answered == 12 * 20
        assert flusher.syncs < 12 * 20 * 3

    run(session)
