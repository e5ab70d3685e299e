"""Checks logs at the start against what other files know of them, and reports what is lost.

A log that lost its end exactly between two batches looks whole. But a group may have committed an
offset beyond it, a share group may have been given the records, a transaction's marker may have been
noted: then the end is damage, and its offsets are never given out again. Otherwise a reader that was
further would skip the new records without an error. `penstock.broker.known_ends` reads those files.

What a partition keeps itself (indexes, the producers' snapshot, the tier's manifest) is compared when
it is recovered.

Groups and transactions know partitions by their topic's name. So a deleted topic is forgotten there
before its name can be used again, also when the broker crashes in between (`FormerTopics`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.known_ends import KnownEnd
from penstock.broker.storage.topics import Topics
from penstock.broker.transactions.coordinator import Coordinator
from penstock.log.disk.journal import Journal
from penstock.log.errors import StorageError

__all__ = ["FormerTopics", "go_on_above", "report_damage"]

_log = logging.getLogger(__name__)


def go_on_above(topics: Topics, ends: Mapping[tuple[str, int], KnownEnd], now_ms: int) -> None:
    """Has logs that were longer continue at their former end; reports what is lost."""
    for (topic, index), known in ends.items():
        served = topics.get(topic)
        hosted = None if served is None else served.partition(index)
        if hosted is None or hosted.log.is_end_unknown:
            continue
        end = hosted.log.end_offset
        if end < known.offset:
            hosted.log.go_on_above(known.offset, now_ms)
            _log.error(
                "%s-%d: expected the log to reach offset %d, which %s; found its end at %d. Offsets %d to "
                "%d are lost, and are not assigned again",
                *(topic, index, known.offset, known.what, end, end, known.offset - 1),
            )


def report_damage(topics: Topics) -> None:
    """Logs what recovery found in each partition."""
    for hosted in topics.partitions():
        place = hosted.topic.name, hosted.index
        for what in hosted.log.notes:
            _log.warning("%s-%d: %s", *place, what)
        for what in hosted.log.damage():
            _log.error("%s-%d: %s", *place, what)
        if hosted.log.tier_fault:
            _log.error("%s-%d: %s", *place, hosted.log.tier_fault)


class FormerTopics:
    """Has groups and transactions forget topics that are gone.

    Args:
        ends: what the journals knew at the start.
        topics: those that there are.
        offsets: the groups' offsets.
        coordinator: of transactions.
    """

    def __init__(
        self,
        ends: Iterable[tuple[str, int]],
        topics: Topics,
        offsets: GroupOffsets,
        coordinator: Coordinator,
    ) -> None:
        self._offsets = offsets
        self._coordinator = coordinator
        self._left = {name for name, _ in ends if topics.get(name) is None}
        topics.before_create = self._before_create

    def forget(self, name: str) -> list[Journal]:
        """A topic is gone. Its name is free once these journals are durable."""
        try:
            self._offsets.forget_topic(name)
            self._coordinator.forget_topic(name)
        except StorageError as error:
            self._left.add(name)
            _log.warning("the deleted topic %s could not be forgotten yet: %s", name, error)
        else:
            self._left.discard(name)
        return [self._offsets.journal, self._coordinator.journal]

    def _before_create(self, name: str) -> None:
        """Forgets what a crash left of a former topic of that name.

        Raises:
            OSError: the disk is full or failed.
        """
        if name not in self._left:
            return
        for journal in self.forget(name):
            task = journal.begin_sync()
            task.run()
            journal.end_sync(task)
        if name in self._left:
            raise OSError(f"expected to forget the former topic {name}; found no room to say so")
