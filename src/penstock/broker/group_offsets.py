"""Committed offsets of consumer groups: a table in memory, a journal on disk.

DATA/groups/offsets.journal     one JSON record per commit,
    [group, time, [[topic, partition, offset, epoch, metadata], ...]], or what is forgotten,
    [group, null, [[topic, partition], ...]]
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from penstock.log.files import LogFiles
from penstock.log.journal import Journal

__all__ = ["METADATA_CHARACTERS_MAX", "Committed", "GroupOffsets"]

METADATA_CHARACTERS_MAX: Final = 4096
"""Longest metadata of a commit, Kafka's offset.metadata.max.bytes."""
RETENTION_MS: Final = 7 * 24 * 3600 * 1000
"""Offsets of a group without members are kept this long, Kafka's offsets.retention.minutes."""
REWRITE_BYTES_MIN: Final = 16 << 20
"""A journal is rewritten when it is larger than this and mostly obsolete."""
ENTRY_BYTES: Final = 200
"""What a commit takes in the journal at most, as a rule; for the decision to rewrite."""

Key = tuple[str, int]


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


class GroupOffsets:
    """All groups' committed offsets."""

    def __init__(self, files: LogFiles) -> None:
        self._groups: dict[str, dict[Key, Committed]] = {}
        self.journal = Journal(files, "groups/offsets.journal")
        for body in self.journal:
            self._apply(body)
        self.compact()

    def _apply(self, body: bytes) -> None:
        group, commit_ms, entries = json.loads(body)
        table = self._groups.setdefault(group, {})
        for topic, partition, *rest in entries:
            if commit_ms is None:
                table.pop((topic, partition), None)
            else:
                offset, epoch, metadata = rest
                table[topic, partition] = Committed(offset, epoch, metadata, commit_ms)
        if not table:
            del self._groups[group]

    def _write(self, group: str, commit_ms: int | None, entries: list[list[object]]) -> None:
        body = json.dumps([group, commit_ms, entries], separators=(",", ":")).encode()
        self.journal.append(body)
        self._apply(body)

    def compact(self) -> None:
        """Rewrites the journal if most of it is obsolete. No sync may be under way."""
        live = sum(len(table) for table in self._groups.values()) * ENTRY_BYTES
        if self.journal.size > max(REWRITE_BYTES_MIN, 2 * live):
            self.journal.rewrite(self._bodies())

    def _bodies(self) -> Iterator[bytes]:
        for group, table in self._groups.items():
            for (topic, partition), one in table.items():
                entry = [topic, partition, one.offset, one.leader_epoch, one.metadata]
                yield json.dumps([group, one.commit_ms, [entry]], separators=(",", ":")).encode()

    def commit(self, group: str, offsets: dict[Key, Committed], now_ms: int) -> None:
        """Stores offsets; durable after the journal's next sync.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        entries: list[list[object]] = [
            [topic, partition, one.offset, one.leader_epoch, one.metadata]
            for (topic, partition), one in offsets.items()
        ]
        if entries:
            self._write(group, now_ms, entries)

    def of(self, group: str) -> dict[Key, Committed]:
        """A group's offsets by topic and partition; don't change it."""
        return self._groups.get(group, {})

    def groups(self) -> Collection[str]:
        """Groups with committed offsets."""
        return self._groups.keys()

    def forget(self, group: str, keys: Collection[Key]) -> None:
        """Removes some of a group's offsets."""
        known = [
            [topic, partition] for topic, partition in keys if (topic, partition) in self.of(group)
        ]
        if known:
            self._write(group, None, [list(one) for one in known])

    def forget_topic(self, topic: str) -> None:
        """Removes a deleted topic's offsets from all groups."""
        for group in list(self._groups):
            self.forget(group, [key for key in self.of(group) if key[0] == topic])

    def expire(self, active: Collection[str], now_ms: int) -> None:
        """Removes offsets that are too old, of groups that have no members."""
        for group in [one for one in self._groups if one not in active]:
            old = [
                key for key, one in self.of(group).items() if now_ms - one.commit_ms > RETENTION_MS
            ]
            self.forget(group, old)
