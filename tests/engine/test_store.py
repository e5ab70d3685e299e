"""A pipeline's record: nothing in it is taken for true that isn't what was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engine.record.samples import plan, version

import penstock as ps
from penstock.app import App  # now: its default is a name that a test changes
from penstock.engine import store as module
from penstock.engine.driver import Driver
from penstock.engine.record.plan import Split
from penstock.engine.record.version import Counts
from penstock.engine.runtime import assemble
from penstock.engine.store import Store
from penstock.engine.upkeep.keeper import VACUUM_EVERY, Keeper
from penstock.errors import CorruptError, FencedError
from penstock.state import MemoryStateFiles
from penstock.testing import MemoryLog


def test_any_flipped_or_missing_byte_is_noticed() -> None:
    """In plans, versions and epochs: the error names the file and says what to do."""
    files = MemoryStateFiles()
    store = Store(files)
    epoch = store.claim("one")
    store.write_plan(plan(1, splits=(Split("t", 0, 0, 10, None, 0),)))
    store.commit(version(1, offsets={"t": {0: 10}}, counts=Counts(rows={"t": 10})))
    store.claim("two")
    looks = {
        "plans/00000000000000000001.json": lambda: Store(files).plan(1),
        "versions/00000000000000000001.json": lambda: Store(files).version(1),
        "epochs/00000000000000000002.json": lambda: Store(files).check_owner(epoch),
    }
    for path, look in looks.items():
        good = bytes(files.read(path))
        damaged = [
            good[:i] + bytes([good[i] ^ 1 << i % 8]) + good[i + 1 :] for i in range(len(good))
        ]
        damaged += [good[:i] for i in range(len(good))]
        for data in damaged:
            files.delete(path)
            files.create(path, data)
            with pytest.raises(CorruptError, match=path):
                look()
        files.delete(path)
        files.create(path, good)
    assert Store(files).version(1).number == 1


def test_the_newest_version_is_found_from_wherever_one_looked_before() -> None:
    """One further, many further, behind those that were vacuumed, and behind some that were taken back."""
    files = MemoryStateFiles()
    writer, reader = Store(files), Store(files)
    assert reader.newest_version() == 0
    for upto in (1, 2, 4, 20, 21, 100):
        for number in range(writer.newest_version() + 1, upto + 1):
            writer.commit(version(number))
        assert reader.newest_version() == upto
    for number in (100, 99):
        files.delete(f"versions/{number:020d}.json")
    assert reader.newest_version() == 98
    writer.commit(version(99))
    for number in range(1, 99):
        files.delete(f"versions/{number:020d}.json")
    assert reader.newest_version() == 99


def test_the_record_is_as_large_after_many_batches_and_starts_as_after_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs, plans, versions and the state's files: those of the last ones."""
    monkeypatch.setattr(module, "VERSIONS_KEPT", 4)
    monkeypatch.setattr(module, "EPOCHS_KEPT", 3)
    app = App("few")
    events = app.stream("events", "k BIGINT, n BIGINT")
    app.view("sums", events.group_by("k").agg(n=ps.sum("n")))
    run = ps.testing.run(app, shaken=False)
    largest: dict[str, int] = {}
    for number in range(8 * VACUUM_EVERY):
        run.send("events", k=number % 3, n=1)
        run.settle()
        if number % 8 == 7:
            run.restart()
        if number >= 4 * VACUUM_EVERY:
            for folder in ("epochs", "plans", "versions", "runs"):
                count = len(run.store.files.list(folder))
                largest[folder] = max(largest.get(folder, 0), count)
    assert run.view("sums").rows() == [{"k": k, "n": (128 - k + 2) // 3} for k in range(3)]
    few = VACUUM_EVERY + 8
    assert largest["epochs"] <= 3 + few // 8 + 1
    assert largest["versions"] <= 4 + few
    assert largest["plans"] <= few
    assert largest["runs"] <= 10 * few


def test_an_app_says_how_many_versions_are_kept() -> None:
    """It stands in the versions, so a vacuum, readers and savepoints agree; without it, it is the default."""
    graph = ps.App("few")
    graph.view("sums", graph.stream("events", "k BIGINT").group_by("k").agg(n=ps.count()))
    store, log = Store(MemoryStateFiles()), MemoryLog()

    def owner(**more: int) -> Driver:
        return assemble(
            graph.graph(),
            store,
            log,
            cores=1,
            open_store=lambda: store,
            open_log=lambda: log,
            **more,
        )[1]

    content = owner(versions_kept=8).version
    assert content.versions_kept == 8
    for number in range(1, 101):
        store.commit(replace(content, number=number))
    assert owner().version.versions_kept is None
    assert store.kept(100) == list(range(93, 101))
    store.vacuum(100, store.states_kept(100))
    assert store.version(93).number == 93
    assert len(store.files.list("versions")) == 8
    assert Store(MemoryStateFiles()).versions_kept(0) == module.VERSIONS_KEPT


def test_many_versions_that_are_kept_are_seldom_read() -> None:
    """A vacuum reads all that are kept; with every 16th version it would read 50 for each batch."""
    read: list[str] = []

    class Counting(Store):
        def _read(self, path: str) -> Any:
            read.append(path)
            return super()._read(path)

    store = Counting(MemoryStateFiles())
    keeper = Keeper(store)
    for number in range(1, 4_001):
        content = version(number, versions_kept=800)
        store.commit(content)
        keeper.committed(content, has_written=False)
    assert 800 <= len(store.files.list("versions")) <= 1_000
    assert len(read) <= 6 * 4_000


def test_an_owner_of_long_ago_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose successors' epochs have been vacuumed; and one that was slow to take its own."""
    monkeypatch.setattr(module, "EPOCHS_KEPT", 2)
    files = MemoryStateFiles()
    old, slow = Store(files), Store(files)
    epoch = old.claim("old")
    for number in range(9):
        Store(files).claim(f"process {number}")
    old.vacuum(0, [])
    assert len(files.list("epochs")) == 2
    with pytest.raises(FencedError, match="found epoch 10, taken by process 8"):
        old.check_owner(epoch)
    seen = iter([1])
    newest = slow.newest_epoch
    monkeypatch.setattr(slow, "newest_epoch", lambda: next(seen, None) or newest())
    assert slow.claim("slow") == 11
    slow.check_owner(11)
