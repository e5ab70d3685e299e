from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.groups.store import GroupStore
from penstock.log.disk.memory import MemoryFiles


class Kept:
    """A coordinator whose groups are plain values."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.changed: set[str] = set()

    def set(self, group_id: str, **value: Any) -> None:
        self.groups[group_id] = value
        self.changed.add(group_id)

    def take_changes(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        changed, self.changed = self.changed, set()
        for group_id in changed:
            yield group_id, self.groups.get(group_id)

    def snapshot(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self.groups.items()

    def restore(self, now_ms: int, group_id: str, change: dict[str, Any] | None) -> None:
        assert now_ms == 7
        if change is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = change

    def restored(self) -> None:
        pass


def reopened(files: MemoryFiles) -> dict[str, dict[str, Any]]:
    """What a restart would find."""
    kept = Kept()
    GroupStore(files, {"a": kept}, 7)
    return kept.groups


def test_changes_are_kept() -> None:
    """What was saved is there after a restart, the last change of a group; the rest isn't."""
    files, kept = MemoryFiles(), Kept()
    store = GroupStore(files, {"a": kept, "b": Kept()}, 7)
    kept.set("g", epoch=1)
    kept.set("h", epoch=1)
    store.save()
    kept.set("g", epoch=2)
    del kept.groups["h"]
    kept.changed.add("h")
    store.save()
    kept.set("i", epoch=1)
    assert reopened(files) == {"g": {"epoch": 2}}


def test_journal_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that changes for ever doesn't fill the disk."""
    monkeypatch.setattr("penstock.broker.groups.store.REWRITE_BYTES_MIN", 1000)
    files, kept = MemoryFiles(), Kept()
    store = GroupStore(files, {"a": kept}, 7)
    for epoch in range(500):
        kept.set("g", epoch=epoch)
        store.save()
        store.compact()
    assert store.journal.size <= 1100
    assert reopened(files) == {"g": {"epoch": 499}}


def test_full_disk_does_not_stop_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk refused is made up for as soon as there is room."""
    files, kept = MemoryFiles(), Kept()
    store = GroupStore(files, {"a": kept}, 7)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(store.journal._file), "write", refuse)
        kept.set("g", epoch=1)
        store.save()
        kept.set("h", epoch=1)
        store.save()
    store.compact()
    assert reopened(files) == {"g": {"epoch": 1}, "h": {"epoch": 1}}
