from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.errors import StorageError
from penstock.log.journal import Journal
from penstock.log.memory import MemoryFiles


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
