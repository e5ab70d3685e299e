"""A sync covers what was written until its task began to run, and claims nothing that came later."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock.log.disk import memory
from penstock.log.disk.journal import Journal
from penstock.log.disk.memory import MemoryFiles
from penstock.log.partition import Partition
from penstock.log.validation import LogConfig
from penstock.wire import batches

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1000)


def batch() -> bytearray:
    """A record of 100 bytes."""
    return batches.build([(None, b"x" * 100)], timestamps_ms=[NOW])


def during_syncs(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Lets something happen while the disk is at work: what it has is settled by then."""
    real = memory._MemoryFile.sync

    def sync(file: memory._MemoryFile) -> None:
        real(file)
        happens()

    monkeypatch.setattr(memory._MemoryFile, "sync", sync)


@pytest.mark.parametrize("seed", range(40))
def test_a_partition_s_sync(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches come before, between and during the runs of a task, segments end meanwhile; then the
    power goes: what was said to be durable is there.
    """
    chance = random.Random(seed)
    files = MemoryFiles()
    log = Partition(files, "p", SMALL, NOW)

    def write() -> None:
        for _ in range(chance.choice((0, 0, 1, 3))):
            log.append(batch(), NOW)

    during_syncs(monkeypatch, write)
    for _ in range(chance.randint(1, 6)):
        write()
        task = log.begin_sync(checkpoint=chance.random() < 0.2)
        write()
        before = log.active.base_offset if log.active is not task.active else log.end_offset
        task.run()
        while task.may_run_again and chance.random() < 0.5:
            log.note_durable(task.end_offset)
            task.run()
        log.end_sync(task)
        assert log.durable_offset >= min(before, task.active.next_offset)
    durable = log.durable_offset
    monkeypatch.undo()
    files.crash(chance)
    again = Partition(files, "p", SMALL, NOW, was_there=True)
    again.check()
    assert not again.damaged
    assert again.end_offset >= durable


@pytest.mark.parametrize("seed", range(20))
def test_a_journal_s_sync(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise of a journal."""
    chance = random.Random(seed)
    files = MemoryFiles()
    journal = Journal(files, "j")
    model: list[bytes] = []

    def write() -> None:
        for _ in range(chance.choice((0, 1, 3))):
            model.append(b"record %d" % len(model))
            journal.append(model[-1])

    during_syncs(monkeypatch, write)
    for _ in range(chance.randint(1, 6)):
        write()
        task = journal.begin_sync()
        write()
        journal_end = journal.end_offset
        task.run()
        journal.end_sync(task)
        assert journal.durable_offset >= journal_end
    durable = journal.durable_offset
    monkeypatch.undo()
    files.crash(chance)
    again = Journal(files, "j")
    found = list(again)
    assert again.end_offset >= durable
    assert found == model[: len(found)]
