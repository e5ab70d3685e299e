"""How far groups are behind, and how long they have before retention removes what they haven't read.

A segment goes by time when its newest record is older than retention.ms, and by size when the log is
larger than retention.bytes without it. So the record at an offset has until its segment goes: the
sooner of the two, the second at the pace at which the log grows.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.log.partition import Partition

if TYPE_CHECKING:
    from penstock.broker.groups.offsets import GroupOffsets
    from penstock.broker.storage.topics import Topics

__all__ = ["Lag", "LagWatch", "lags", "time_left_ms"]

LOW_SHARE: Final = 0.1
"""Of its retention that a group has left when it is warned of."""
WARNED_MAX: Final = 10_000
"""Partitions that were warned of and are remembered, so that each warning comes once."""

_log = logging.getLogger(__name__)


class Lag(NamedTuple):
    """How far a group is in a partition."""

    group: str
    topic: str
    partition: int
    committed: int
    records: int
    lost: int
    time_left_ms: int | None


def time_left_ms(log: Partition, offset: int, now_ms: int, bytes_per_s: float = 0.0) -> int | None:
    """How long until retention removes the record at an offset; None: never, or there is none."""
    if offset >= log.end_offset or not log.segments or not log.config.deletes:
        return None
    found = bisect_right(log.segments, offset, key=lambda one: one.base_offset)
    at = max(found - 1, 0)
    config = log.config
    # The oldest goes first, so a segment with late records holds back those after it.
    newest = max(one.max_timestamp for one in log.segments[: at + 1])
    left: float | None = None
    if config.retention_ms >= 0 and newest >= 0:
        left = newest + config.retention_ms - now_ms
    if config.retention_bytes >= 0 and bytes_per_s > 0:
        kept_after = sum(one.size for one in log.segments[at + 1 :])
        room = config.retention_bytes - kept_after
        by_size = 1000 * max(room, 0) / bytes_per_s
        left = by_size if left is None else min(left, by_size)
    return None if left is None else max(int(left), 0)


def lags(
    topics: Topics, offsets: GroupOffsets, now_ms: int, rates: dict[str, float] | None = None
) -> Iterator[Lag]:
    """Every group's position in every partition that it has committed.

    Args:
        topics: the topics.
        offsets: what was committed.
        now_ms: what time it is.
        rates: bytes a second that each topic grows by.
    """
    for group in list(offsets.groups()):
        for (name, index), one in list(offsets.of(group).items()):
            topic = topics.get(name)
            hosted = topic.partition(index) if topic is not None else None
            if hosted is None or topic is None:
                continue
            log = hosted.log
            at = max(one.offset, log.start_offset)
            rate = (rates or {}).get(name, 0.0) / len(topic.partitions)
            yield Lag(
                group,
                name,
                index,
                one.offset,
                max(log.end_offset - at, 0),
                max(log.start_offset - one.offset, 0),
                time_left_ms(log, at, now_ms, rate),
            )


class LagWatch:
    """Warns, once each, of groups that retention is about to overtake, or has."""

    def __init__(self, topics: Topics, offsets: GroupOffsets) -> None:
        self._topics = topics
        self._offsets = offsets
        self._warned: dict[tuple[str, str, int], str] = {}

    def look(self, now_ms: int, rates: dict[str, float]) -> list[tuple[Lag, str]]:
        """Looks at all groups; gives what was warned of now."""
        warned = []
        for one in lags(self._topics, self._offsets, now_ms, rates):
            place = one.group, one.topic, one.partition
            state = self._state(one)
            if state == self._warned.get(place, ""):
                continue
            self._warned.pop(place, None)
            if not state or len(self._warned) >= WARNED_MAX:
                continue
            self._warned[place] = state
            warned.append((one, state))
            self._say(one, state)
        return warned

    def _state(self, one: Lag) -> str:
        if one.lost:
            return "lost"
        topic = self._topics.get(one.topic)
        if one.time_left_ms is None or topic is None:
            return ""
        retention_ms = topic.config.retention_ms
        return "low" if one.time_left_ms < LOW_SHARE * max(retention_ms, 0) else ""

    @staticmethod
    def _say(one: Lag, state: str) -> None:
        if state == "lost":
            _log.warning(
                "group %s lost %d records of %s/%d to retention before it read them",
                *(one.group, one.lost, one.topic, one.partition),
            )
        else:
            _log.warning(
                "group %s is %d records behind in %s/%d, which retention reaches in %d s",
                *(one.group, one.records, one.topic, one.partition),
                (one.time_left_ms or 0) // 1000,
            )
