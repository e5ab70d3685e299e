"""Watermarks of topics: how far every partition, and every producer, has come, and who holds them.

    watermark(topic) = max(its own before, least mark of those that aren't idle - lateness)

A *mark* is the newest time up to which a partition, or one of its producers, has moved the watermark.
Idle is who has brought nothing for `idle` on the clock of its partition, which stands still while nobody
looks (a suspended machine, a broker that was away) and, for producers, while the partition is far behind.
Everything that is known of this is in the version, so a pipeline that restarts continues counting.

Pure: version, ends of the log and the wall clock come in, what a plan says goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.engine.record.marks import Activity, Held, Producers
from penstock.engine.record.version import Version
from penstock.flow.graph import Source
from penstock.ops.windows import NOTHING_YET_US

__all__ = ["LOOK_EVERY_US", "Look", "look"]

LOOK_EVERY_US: Final = 10_000_000  # a longer pause between two looks at the log was not the log's
IDLE_STEPS: Final = 8  # into which idleness is cut where it alone is kept in a version


@dataclass(frozen=True)
class Look:
    """What one look at the log says.

    Attributes:
        watermark_us: by topic; absent: nothing is known.
        held: by topic, who holds its watermark while others are further, and since when it has moved
            nothing; absent: nobody does.
        activity: by topic, when data was last seen: what the next look continues from.
        keep_us: how old the last version may be before idleness that is under way should be kept in a new
            one; None where nothing waits for it.
    """

    watermark_us: dict[str, int]
    held: dict[str, Held]
    activity: dict[str, Activity]
    keep_us: int | None


@dataclass(frozen=True)
class _Mark:
    """How far a partition, or one of its producers, has come; `us` None: nothing is known of it."""

    us: int | None
    idle: bool
    partition: int | None
    producer: str | None = None
    who: str = ""

    @property
    def order(self) -> float:
        return float("-inf") if self.us is None else self.us

    def holder(self, now_us: int) -> Held:
        """What a version says about it, where it holds a watermark since now."""
        return Held(self.partition, self.producer, self.us, self.who, now_us)


@dataclass(frozen=True)
class _Reached:
    """How far a topic has come: the newest event time that it has passed, if that is known."""

    newest_us: int | None
    idle: bool
    held: _Mark | None = None


def look(
    sources: Sequence[Source],
    peers: Callable[[Source], Collection[str]],
    version: Version,
    activity: Mapping[str, Activity],
    ends: Mapping[str, Mapping[int, int]],
    now_us: int,
    rows_max: int,
) -> Look:
    """Watermarks as a batch may assume them.

    A watermark never goes back. An idle one doesn't hold the others back: a producer, or a partition, those
    of its topic; a topic, all of whose partitions are, those that it is waited for together with. It follows
    them up to the newest time that they have reached, so that no row waits for a topic that brings nothing.

    Args:
        sources: the topics that are read.
        peers: the topics that a source is waited for together with.
        version: the last committed one.
        activity: of the last look.
        ends: by topic and partition, the offset after the last record.
        now_us: the wall clock.
        rows_max: that a batch reads of one partition: with more left, the partition is far behind.
    """
    reached: dict[str, _Reached] = {}
    after: dict[str, Activity] = {}
    for source in sources:
        topic = _Topic(source, version, activity.get(source.topic), ends[source.topic], now_us)
        reached[source.topic] = topic.reached(rows_max)
        after[source.topic] = topic.activity
    found: dict[str, int] = {}
    for source in sources:
        mine, others = reached[source.topic], [reached[peer] for peer in peers(source)]
        marks = [version.watermark_us.get(source.topic)]
        if mine.newest_us is not None:
            marks.append(mine.newest_us - source.time.lateness_us)
        if mine.idle and (least := _least(others)) is not None:
            marks.append(least + 1 - source.time.lateness_us)
        known = [us for us in marks if us is not None]
        if known:
            found[source.topic] = max(known)
    waiting = [
        max(LOOK_EVERY_US, source.time.idle_us // IDLE_STEPS)
        for source in sources
        if not source.time.processing
        and (reached[source.topic].held or (peers(source) and not reached[source.topic].idle))
    ]
    held = {
        topic: one.held.holder(now_us).since(version.held.get(topic))
        for topic, one in reached.items()
        if one.held is not None
    }
    return Look(found, held, after, min(waiting, default=None))


class _Topic:
    """One topic at one look."""

    def __init__(
        self,
        source: Source,
        version: Version,
        before: Activity | None,
        ends: Mapping[int, int],
        now_us: int,
    ) -> None:
        self.source, self.version, self.ends, self.now_us = source, version, ends, now_us
        before = before or Activity(now_us)
        self._gap_us = max(0, now_us - before.looked_us)
        self._lost_us, self._seen_us = dict(before.lost_us), dict(before.seen_us)
        self._awaited_us = dict(before.awaited_us)

    @property
    def activity(self) -> Activity:
        """When data was last seen, with this look."""
        return Activity(self.now_us, self._lost_us, self._seen_us, self._awaited_us)

    def reached(self, rows_max: int) -> _Reached:
        """How far the topic has come. Moves `activity` on."""
        before = self.version.watermark_us.get(self.source.topic)
        if self.source.time.processing:
            return _Reached(self.now_us if before is None else max(self.now_us, before), idle=False)
        marks = [self._partition(p, end, rows_max) for p, end in self.ends.items()]
        newest = max((us for us in map(self._newest, self.ends) if us is not None), default=None)
        marks += self._awaited()
        active = [mark for mark in marks if not mark.idle]
        if not active:
            return _Reached(newest, idle=True)
        # A partition of which nothing is known may still bring anything.
        least = min(active, key=lambda mark: mark.order)
        others_are_further = newest is not None and least.order < newest
        return _Reached(least.us, idle=False, held=least if others_are_further else None)

    def _partition(self, partition: int, end: int, rows_max: int) -> _Mark:
        topic, idle_us = self.source.topic, self.source.time.idle_us
        offset = self.version.offsets[topic].get(partition, 0)
        lost, seen = self._lost_us, self._seen_us
        unseen_us = max(0, self._gap_us - LOOK_EVERY_US)
        was_cut = (topic, partition) in self.version.cut
        behind = end - offset > rows_max or (was_cut and end > offset)
        lost[partition] = lost.get(partition, 0) + (self._gap_us if behind else unseen_us)
        clock_us = self.now_us - lost[partition]
        busy = end > offset
        if busy or partition not in seen:
            seen[partition] = clock_us
        idle = not busy and clock_us - seen[partition] >= idle_us
        if self.source.time.producer is None:
            return _Mark(self._newest(partition), idle, partition, None, f"partition {partition}")
        mark_us, producer, is_active = _least_producer(
            self._producers(partition), clock_us - idle_us
        )
        who = f"partition {partition}" if mark_us is None else _who(producer, partition)
        known = None if mark_us is None or mark_us <= NOTHING_YET_US else mark_us
        return _Mark(known, idle and not is_active, partition, producer, who)

    def _producers(self, partition: int) -> Producers | None:
        return self.version.producers.get(self.source.topic, {}).get(partition)

    def _newest(self, partition: int) -> int | None:
        return self.version.newest_us.get(self.source.topic, {}).get(partition)

    def _awaited(self) -> Iterator[_Mark]:
        """The expected producers of which nothing was read."""
        awaited = self._awaited_us
        entries = self.version.producers.get(self.source.topic, {}).values()
        clock_us = self.now_us - max(self._lost_us.values(), default=0)
        for name in self.source.time.expected:
            if any(name in entry.names for entry in entries):
                awaited.pop(name, None)
                continue
            since_us = awaited.setdefault(name, clock_us)
            idle = clock_us - since_us >= self.source.time.idle_us
            yield _Mark(None, idle, None, name, f"producer {name!r}, of which nothing was read")


def _least_producer(
    entry: Producers | None, idle_since_us: int
) -> tuple[int | None, str | None, bool]:
    """The least mark of a partition's active producers, whose it is, and whether there are any.

    Where all are idle, the least of all: rows that come of these hold as long as it takes to read them.
    The name None stands for the others.
    """
    if entry is None:
        return None, None, False
    others = [entry.others] if entry.others is not None else []
    marks = np.array([*entry.marks_us, *(mark for mark, _ in others)], np.int64)
    seen = np.array([*entry.seen_us, *(us for _, us in others)], np.int64)
    if not len(marks):
        return None, None, False
    active = np.flatnonzero(seen > idle_since_us)
    chosen = active if len(active) else np.arange(len(marks))
    least = int(chosen[np.argmin(marks[chosen])])
    names = entry.names
    return int(marks[least]), names[least] if least < len(names) else None, len(active) > 0


def _who(producer: str | None, partition: int) -> str:
    name = "other producers" if producer is None else f"producer {producer!r}"
    return f"{name} in partition {partition}"


def _least(topics: list[_Reached]) -> int | None:
    """How far some topics have come: the least of those that aren't idle; where all are, the greatest."""
    active = [one.newest_us for one in topics if not one.idle]
    known = [one.newest_us for one in topics if one.newest_us is not None]
    if None in active or not known:
        return None
    return min((us for us in active if us is not None), default=max(known))
