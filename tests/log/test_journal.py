from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.faults import FailingFiles, PowerLossError

from penstock.errors import SetupError
from penstock.log.disk.journal import Journal
from penstock.log.disk.memory import MemoryFiles
from penstock.log.errors import StorageError


@given(
    steps=st.lists(
        st.binary(min_size=1, max_size=30) | st.sampled_from(["sync", "crash"]), max_size=30
    ),
    seed=st.integers(0, 1000),
)
def test_journal_keeps_what_is_durable(steps: list[bytes | str], seed: int) -> None:
    """After crashes a journal holds a prefix of its records, and all that were synced."""
    files = MemoryFiles()
    files.store("j", b"")
    journal = Journal(files, "j")
    model: list[bytes] = []
    durable = 0
    for step in steps:
        if isinstance(step, bytes):
            journal.append(step)
            model.append(step)
        elif step == "sync":
            task = journal.begin_sync()
            task.run()
            journal.end_sync(task)
            durable = len(model)
        else:
            files.crash(random.Random(seed))
            journal = Journal(files, "j")
            found = list(journal)
            assert found == model[: len(found)]
            assert len(found) >= durable
            model, durable = found, len(found)
    assert list(journal) == model


def test_what_is_read_at_the_start_is_durable() -> None:
    """A process that was killed leaves records in the page cache: nobody hears of them before a sync."""
    files = MemoryFiles()
    files.store("j", b"")
    Journal(files, "j").append(b"x")
    files.fails_to_sync = True
    with pytest.raises(SetupError, match="check the disk"):
        Journal(files, "j")
    files.fails_to_sync = False
    assert list(Journal(files, "j")) == [b"x"]

    class TakesAll(random.Random):
        def randint(self, a: int, b: int) -> int:
            return a

    files.crash(TakesAll(0))
    assert list(Journal(files, "j")) == [b"x"]


def test_rewrite_replaces_all() -> None:
    """A rewritten journal holds the new records and goes on from there."""
    files = MemoryFiles()
    journal = Journal(files, "j")
    journal.append(b"old")
    journal.rewrite([b"a", b"b"])
    journal.append(b"c")
    assert list(Journal(files, "j")) == [b"a", b"b", b"c"]


def test_full_disk_refuses_and_recovers() -> None:
    """A record that doesn't fit is not there; the next one that fits is."""
    files = MemoryFiles()
    journal = Journal(files, "j")
    files.room_bytes = 10
    with pytest.raises(StorageError):
        journal.append(b"x" * 20)
    files.room_bytes = None
    journal.append(b"y")
    assert list(Journal(files, "j")) == [b"y"]


def test_an_end_that_is_lost_between_two_records_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was durable when the journal was closed, or synced after some growth, must be there."""
    monkeypatch.setattr("penstock.log.disk.journal.LENGTH_STEP_BYTES", 10)
    for closes in (True, False):
        files = MemoryFiles()
        journal = Journal(files, "j")
        journal.append(b"first record")
        first = journal.size
        journal.append(b"second record")
        task = journal.begin_sync()
        task.run()
        journal.end_sync(task)
        if closes:
            journal.close()
        files.open("j").truncate(first)
        again = Journal(files, "j")
        assert again.lost_bytes == task.end_offset - first
        assert "records that were durable are lost" in caplog.messages[-1]
        again.append(b"third record")
        again.close()
        assert Journal(files, "j").lost_bytes == 0


@pytest.mark.parametrize("step", [1, 40, 1 << 20])
def test_a_length_never_says_too_much(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever operation is the last one before the power fails, a journal whose disk keeps what it
    synced is never said to have lost something.
    """
    monkeypatch.setattr("penstock.log.disk.journal.LENGTH_STEP_BYTES", step)
    done, left = False, 0
    while not done:
        files = FailingFiles()
        journal = Journal(files, "j")
        files.left = left
        try:
            for n in range(12):
                journal.append(bytes(10 + n))
                task = journal.begin_sync()
                task.run()
                journal.end_sync(task)
                if n % 5 == 4:
                    journal.rewrite([b"kept"])
                if n % 4 == 3:
                    journal.close()
                    journal = Journal(files, "j")
            done = True
        except PowerLossError:
            files.left = -1
            files.crash(random.Random(left))
        files.left = -1
        assert Journal(files, "j").lost_bytes == 0
        left += 1
    assert left > 20
