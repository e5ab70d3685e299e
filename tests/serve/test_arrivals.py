"""Readers are woken when a version is committed, and look for themselves where nobody tells."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import pytest
from tests.engine.record import samples
from tests.patience import PATIENCE_S

from penstock.engine.record.version import Version
from penstock.engine.store import Store
from penstock.errors import LimitError
from penstock.serve import arrivals as module
from penstock.serve.arrivals import Arrivals, wait_for
from penstock.state import LocalStateFiles, MemoryStateFiles

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others don't tell")


def version(number: int, read: int) -> Version:
    return samples.version(number, offsets={"clicks": {0: read}})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(LocalStateFiles(tmp_path / "state", fsync=False))
    store.commit(version(1, 0))
    return store


@pytest.fixture
def watched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever isn't told waits for longer than the test."""
    for name in ("LOOK_S_MIN", "LOOK_S_MAX"):
        monkeypatch.setattr(module, name, 10 * PATIENCE_S)


@linux
@pytest.mark.usefixtures("watched_alone")
def test_a_commit_wakes_who_waits_for_a_write(store: Store) -> None:
    """Readers in this process hear of files that any process moves there; temporary ones don't count."""
    found: list[int] = []
    other = Store(LocalStateFiles(store.files.directory))  # type: ignore[attr-defined]
    asked = threading.Event()

    def gone() -> bool:
        asked.set()
        return False

    reader = threading.Thread(
        target=lambda: found.append(wait_for(store, "clicks-0:1", 10 * PATIENCE_S, gone))
    )
    reader.start()
    assert asked.wait(PATIENCE_S)
    other.commit(version(2, 1))
    other.commit(version(3, 2))
    reader.join(PATIENCE_S)
    assert found == [3]
    watcher = module._watcher()
    assert watcher is not None
    assert not any(store.files.directory.name in one for one in watcher._numbers)  # type: ignore[attr-defined]


@linux
@pytest.mark.usefixtures("watched_alone")
def test_readers_are_distinguished_and_of_what_is_taken_back(store: Store, tmp_path: Path) -> None:
    """Each hears of its own pipeline, as long as it listens, also that versions go."""
    elsewhere = Store(LocalStateFiles(tmp_path / "other", fsync=False))
    elsewhere.commit(version(1, 0))
    calls: list[str] = []
    with Arrivals(store) as one, Arrivals(elsewhere, lambda: calls.append("other")) as other:
        with Arrivals(store) as third:
            assert one.is_watched
            assert other.is_watched
        store.files.delete(f"versions/{1:020d}.json")
        assert one.wait(PATIENCE_S)
        assert not third.wait(0.0)
        assert not other.wait(0.0)
        assert not calls
        elsewhere.commit(version(2, 1))
        assert other.wait(PATIENCE_S)
        assert calls


@linux
def test_a_folder_that_goes_and_comes_is_looked_for(store: Store) -> None:
    """A reader looks for itself meanwhile, and is told again once the directory is there."""
    folder = store.files.directory  # type: ignore[attr-defined]
    with Arrivals(store) as reader:
        shutil.rmtree(folder)
        while reader.is_watched:
            assert reader.wait(PATIENCE_S)
        assert reader.pause_s() < module.LOOK_S_MAX
        store.commit(version(1, 0))
        while not reader.is_watched:
            assert reader.wait(PATIENCE_S)


def test_who_is_not_notified_looks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is a share of the time that has passed, between its bounds; a version begins it anew."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    store = Store(MemoryStateFiles())
    with Arrivals(store) as reader:
        pauses = []
        for seconds in (0.0, 1.0, 60.0):
            now[0] = 100.0 + seconds
            pauses.append(reader.pause_s())
        assert pauses == [module.LOOK_S_MIN, pytest.approx(0.1), module.LOOK_S_MAX]
        reader.notify()
        assert reader.pause_s() == module.LOOK_S_MIN


def test_a_wait_ends_with_its_time_or_its_reader(store: Store) -> None:
    """The error says which version there is."""
    for timeout, is_gone in ((0.0, False), (PATIENCE_S, True)):
        with pytest.raises(LimitError, match="found version 1, which has not"):
            wait_for(store, "clicks-0:1", timeout, lambda gone=is_gone: gone)  # type: ignore[misc]
