"""Committed offsets of consumer groups: a table in memory, a journal on disk.

DATA/groups/offsets.journal     one JSON record per commit,
    [group, time, [[topic, partition, offset, epoch, metadata], ...]], or what is forgotten,
    [group, null, [[topic, partition], ...]], or what a transaction is about to commit,
    [null, serial, producer id, epoch, group, time, [[topic, partition, offset, ...], ...]], or how it
    ended, [null, serial, committed?]

A client may commit any offset. One beyond the log's end is followed by that end, so that the journal
shows how long the log once was.

A group exists from its first commit on, a transaction's included, until it is dropped. As in Kafka it
outlives its last offset for a while, but not a restart.

Offsets of a transaction are *staged* until its outcome is known. Only requests for stable offsets see
them. An ordinary commit that comes after them supersedes them, as it would have if the transaction had
ended before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.log.disk.files import LogFiles
from penstock.log.disk.journal import Journal

__all__ = ["METADATA_CHARACTERS_MAX", "Committed", "GroupOffsets", "Staged", "reached_in"]

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
    """A committed offset; where it lies beyond the log's end, also that (-1: it doesn't)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    log_end: int = -1


@dataclass(slots=True)
class Staged:
    """What a transaction is about to commit, by group.

    Attributes:
        producer_id: of the transaction's producer.
        epoch: its epoch.
        groups: offsets by group, topic and partition.
    """

    producer_id: int
    epoch: int
    groups: dict[str, dict[Key, Committed]] = field(default_factory=dict)


class GroupOffsets:
    """All groups' committed offsets."""

    def __init__(self, files: LogFiles) -> None:
        self._groups: dict[str, dict[Key, Committed]] = {}
        self.staged: dict[int, Staged] = {}
        self._staged_of: dict[str, set[int]] = {}
        self.journal = Journal(files, "groups/offsets.journal")
        for body in self.journal:
            self._apply(body)
        for group in [one for one, table in self._groups.items() if not table]:
            self.drop(group)
        self.compact()

    def _apply(self, body: bytes) -> None:
        group, *rest = json.loads(body)
        if group is None:
            self._apply_staged(*rest)
            return
        commit_ms, entries = rest
        table = self._groups.setdefault(group, {})
        for topic, partition, *one in entries:
            if commit_ms is None:
                table.pop((topic, partition), None)
            else:
                offset, epoch, metadata, *end = one
                table[topic, partition] = Committed(offset, epoch, metadata, commit_ms, *end)
        for serial in self._staged_of.get(group, ()):
            staged = self.staged[serial].groups[group]
            for topic, partition, *_ in entries:
                staged.pop((topic, partition), None)

    def _apply_staged(self, serial: int, *rest: Any) -> None:
        if len(rest) == 1:
            ended = self.staged.pop(serial)
            for group, offsets in ended.groups.items():
                self._staged_of[group].discard(serial)
                if not self._staged_of[group]:
                    del self._staged_of[group]
                if rest[0] and offsets:
                    self._groups.setdefault(group, {}).update(offsets)
            return
        producer_id, producer_epoch, group, commit_ms, entries = rest
        staged = self.staged.setdefault(serial, Staged(producer_id, producer_epoch))
        self._groups.setdefault(group, {})
        self._staged_of.setdefault(group, set()).add(serial)
        table = staged.groups.setdefault(group, {})
        for topic, partition, offset, epoch, metadata, *end in entries:
            table[topic, partition] = Committed(offset, epoch, metadata, commit_ms, *end)

    def _write(self, group: str, commit_ms: int | None, entries: list[list[object]]) -> None:
        self._append(group, commit_ms, entries)

    def _append(self, *record: object) -> None:
        body = _body(*record)
        self.journal.append(body)
        self._apply(body)

    def compact(self) -> None:
        """Rewrites the journal if most of it is obsolete. No sync may be under way."""
        tables = [*self._groups.values()]
        tables += [table for one in self.staged.values() for table in one.groups.values()]
        live = sum(map(len, tables)) * ENTRY_BYTES
        if self.journal.size > max(REWRITE_BYTES_MIN, 2 * live):
            self.journal.rewrite(self._bodies())

    def _bodies(self) -> Iterator[bytes]:
        for group, table in self._groups.items():
            for key, one in table.items():
                yield _body(group, one.commit_ms, [_entry(key, one)])
        for serial, staged in self.staged.items():
            for group, table in staged.groups.items():
                yield _body(None, serial, staged.producer_id, staged.epoch, group, 0, [])
                for key, one in table.items():
                    who = staged.producer_id, staged.epoch
                    yield _body(None, serial, *who, group, one.commit_ms, [_entry(key, one)])

    def commit(self, group: str, offsets: dict[Key, Committed], now_ms: int) -> None:
        """Stores offsets; durable after the journal's next sync.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        if offsets:
            self._write(group, now_ms, [_entry(key, one) for key, one in offsets.items()])

    def stage(
        self,
        serial: int,
        producer: tuple[int, int],
        group: str,
        offsets: dict[Key, Committed],
        now_ms: int,
    ) -> None:
        """Stores offsets that a transaction is about to commit; durable after the journal's next
        sync.

        Args:
            serial: the transaction's number.
            producer: its producer's id and epoch.
            group: whose offsets they are.
            offsets: by topic and partition.
            now_ms: the time.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        if offsets:
            entries = [_entry(key, one) for key, one in offsets.items()]
            self._append(None, serial, *producer, group, now_ms, entries)

    def finish(self, serial: int, *, commit: bool) -> None:
        """Commits what a transaction has staged, or drops it; nothing happens where it is done.

        Raises:
            StorageError: the disk is full or failed; nothing is changed.
        """
        if serial in self.staged:
            self._append(None, serial, commit)

    def is_stable(self, group: str, key: Key) -> bool:
        """Whether no open transaction is about to commit that offset."""
        return not any(
            key in self.staged[serial].groups[group] for serial in self._staged_of.get(group, ())
        )

    def of(self, group: str) -> dict[Key, Committed]:
        """A group's offsets by topic and partition; don't change it."""
        return self._groups.get(group, {})

    def groups(self) -> Collection[str]:
        """Groups that have committed offsets, or did a while ago."""
        return self._groups.keys()

    def drop(self, group: str) -> None:
        """Forgets that a group was there, unless it has offsets, or a transaction has for it."""
        if not self._groups.get(group) and group not in self._staged_of:
            self._groups.pop(group, None)

    def forget(self, group: str, keys: Collection[Key]) -> None:
        """Removes some of a group's offsets."""
        known = [key for key in keys if key in self.of(group) or not self.is_stable(group, key)]
        if known:
            self._write(group, None, [list(one) for one in known])

    def forget_topic(self, topic: str) -> None:
        """Removes a deleted topic's offsets from all groups."""
        for group in sorted({*self._groups, *self._staged_of}):
            self.forget(group, [key for key in self._keys(group) if key[0] == topic])

    def forget_group(self, group: str) -> None:
        """Removes all of a group's offsets, staged ones too, and the group."""
        self.forget(group, self._keys(group))
        if not self._groups.get(group):
            self._groups.pop(group, None)

    def _keys(self, group: str) -> list[Key]:
        keys = set(self.of(group))
        for serial in self._staged_of.get(group, ()):
            keys.update(self.staged[serial].groups[group])
        return sorted(keys)

    def expire(self, active: Collection[str], now_ms: int) -> None:
        """Removes offsets that are too old, of groups that have no members."""
        for group in [one for one in self._groups if one not in active]:
            old = [
                key for key, one in self.of(group).items() if now_ms - one.commit_ms > RETENTION_MS
            ]
            self.forget(group, old)


def reached_in(bodies: Iterable[bytes]) -> dict[Key, tuple[int, str]]:
    """Up to where partitions once were, according to a journal, and the group that read up to there."""
    groups: dict[Key, dict[str, int]] = {}

    def note(group: str, entries: list[list[Any]]) -> None:
        for topic, partition, offset, _, _, *end in entries:
            groups.setdefault((topic, partition), {})[group] = min([offset, *end])

    for group, *rest in map(json.loads, bodies):
        if group is None and len(rest) > 2:
            note(rest[3], rest[-1])  # staged: whether it is committed or not, it was read
        elif group is not None and rest[0] is not None:
            note(group, rest[1])
        elif group is not None:
            for topic, partition in rest[1]:
                groups.get((topic, partition), {}).pop(group, None)
    return {
        key: max((offset, group) for group, offset in found.items())
        for key, found in groups.items()
        if found
    }


def _entry(key: Key, one: Committed) -> list[object]:
    end = [] if one.log_end < 0 else [one.log_end]
    return [*key, one.offset, one.leader_epoch, one.metadata, *end]


def _body(*record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
