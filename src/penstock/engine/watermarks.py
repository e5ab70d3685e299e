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

from penstock.engine.store import Json
from penstock.flow.graph import Source
from penstock.ops.windows import NOTHING_YET_US

__all__ = ["LOOK_EVERY_US", "Look", "keep_producers", "look", "no_producers", "take_producers"]

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
    held: Json
    activity: Json
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


@dataclass(frozen=True)
class _Reached:
    """How far a topic has come: the newest event time that it has passed, if that is known."""

    newest_us: int | None
    idle: bool
    held: _Mark | None = None


def look(
    sources: Sequence[Source],
    peers: Callable[[Source], Collection[str]],
    version: Json,
    activity: Json,
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
    after: Json = {}
    for source in sources:
        topic = _Topic(source, version, activity.get(source.topic), ends[source.topic], now_us)
        reached[source.topic] = topic.reached(rows_max)
        after[source.topic] = topic.activity
    found: dict[str, int] = {}
    for source in sources:
        mine, others = reached[source.topic], [reached[peer] for peer in peers(source)]
        marks = [version["watermark_us"].get(source.topic)]
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
    before = version.get("held", {})
    held = {
        topic: _holder(one.held, before.get(topic, {}), now_us)
        for topic, one in reached.items()
        if one.held is not None
    }
    return Look(found, held, after, min(waiting, default=None))


class _Topic:
    """One topic at one look."""

    def __init__(
        self,
        source: Source,
        version: Json,
        before: Json | None,
        ends: Mapping[int, int],
        now_us: int,
    ) -> None:
        self.source, self.version, self.ends, self.now_us = source, version, ends, now_us
        before = before or {}
        self._gap_us = max(0, now_us - before.get("looked_us", now_us))
        self.activity: Json = {
            "looked_us": now_us,
            "lost_us": dict(before.get("lost_us", {})),  # for how long a partition's clock stood
            "seen_us": dict(before.get("seen_us", {})),  # on the partition's clock
            "awaited_us": dict(before.get("awaited_us", {})),  # since when an expected producer is
        }

    def reached(self, rows_max: int) -> _Reached:
        """How far the topic has come. Moves `activity` on."""
        before = self.version["watermark_us"].get(self.source.topic)
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
        name, idle_us = str(partition), self.source.time.idle_us
        offset = self.version["offsets"][self.source.topic].get(name, 0)
        lost, seen = self.activity["lost_us"], self.activity["seen_us"]
        unseen_us = max(0, self._gap_us - LOOK_EVERY_US)
        was_cut = [self.source.topic, partition] in self.version.get("cut", [])
        behind = end - offset > rows_max or (was_cut and end > offset)
        lost[name] = lost.get(name, 0) + (self._gap_us if behind else unseen_us)
        clock_us = self.now_us - lost[name]
        busy = end > offset
        if busy or name not in seen:
            seen[name] = clock_us
        idle = not busy and clock_us - seen[name] >= idle_us
        if self.source.time.producer is None:
            return _Mark(self._newest(partition), idle, partition, None, f"partition {partition}")
        mark_us, producer, is_active = _least_producer(
            self._producers(partition), clock_us - idle_us
        )
        who = f"partition {partition}" if mark_us is None else _who(producer, partition)
        known = None if mark_us is None or mark_us <= NOTHING_YET_US else mark_us
        return _Mark(known, idle and not is_active, partition, producer, who)

    def _producers(self, partition: int) -> Json | None:
        topics = self.version.get("producers", {})
        found: Json | None = topics.get(self.source.topic, {}).get(str(partition))
        return found

    def _newest(self, partition: int) -> int | None:
        found: int | None = self.version["newest_us"].get(self.source.topic, {}).get(str(partition))
        return found

    def _awaited(self) -> Iterator[_Mark]:
        """The expected producers of which nothing was read."""
        awaited = self.activity["awaited_us"]
        entries = self.version.get("producers", {}).get(self.source.topic, {}).values()
        clock_us = self.now_us - max(self.activity["lost_us"].values(), default=0)
        for name in self.source.time.expected:
            if any(name in entry["names"] for entry in entries):
                awaited.pop(name, None)
                continue
            since_us = awaited.setdefault(name, clock_us)
            idle = clock_us - since_us >= self.source.time.idle_us
            yield _Mark(None, idle, None, name, f"producer {name!r}, of which nothing was read")


def keep_producers(source: Source, entries: Json, activity: Json, watermark_us: int | None) -> None:
    """Forgets the producers of a topic whose marks say nothing any more: idle, and passed by the watermark.

    Args:
        source: the topic.
        entries: of its partitions, changed in place.
        activity: the topic's, of the plan.
        watermark_us: the topic's.
    """
    if watermark_us is None:
        return
    passed = watermark_us + source.time.lateness_us
    for partition, entry in entries.items():
        clock_us = activity["looked_us"] - activity["lost_us"].get(partition, 0)
        marks, seen = np.array(entry["marks_us"], np.int64), np.array(entry["seen_us"], np.int64)
        keep = (seen > clock_us - source.time.idle_us) | (marks > passed)
        if keep.all():
            continue
        names = entry["names"]
        index = [i for i, one in enumerate(names) if keep[i] or one in source.time.expected]
        for what in ("names", "marks_us", "seen_us"):
            entry[what] = [entry[what][i] for i in index]


def take_producers(entry: Json, found: Json, clock_us: int) -> None:
    """Takes over the marks of those producers of which a batch had rows.

    Args:
        entry: of their partition, changed in place.
        found: marks by name as `known`, and that of the others.
        clock_us: the partition's, at the batch's plan.
    """
    places = {name: place for place, name in enumerate(entry["names"])}
    for name, mark in found["known"].items():
        place = places.get(name)
        if place is None:
            entry["names"].append(name)
            entry["marks_us"].append(mark)
            entry["seen_us"].append(clock_us)
        else:
            entry["marks_us"][place], entry["seen_us"][place] = mark, clock_us
    if found["others"] is not None:
        entry["others"] = [found["others"], clock_us]


def no_producers() -> Json:
    """What is known of a partition's producers before its first row.

    In columns, as there may be thousands: `names`, `marks_us`, `seen_us` on the partition's clock; and
    `others`, mark and when last seen of those that share one, or None.
    """
    return {"names": [], "marks_us": [], "seen_us": [], "others": None}


def _least_producer(entry: Json | None, idle_since_us: int) -> tuple[int | None, str | None, bool]:
    """The least mark of a partition's active producers, whose it is, and whether there are any.

    Where all are idle, the least of all: rows that come of these hold as long as it takes to read them.
    The name None stands for the others.
    """
    if entry is None:
        return None, None, False
    others = [entry["others"]] if entry["others"] is not None else []
    marks = np.array([*entry["marks_us"], *(mark for mark, _ in others)], np.int64)
    seen = np.array([*entry["seen_us"], *(us for _, us in others)], np.int64)
    if not len(marks):
        return None, None, False
    active = np.flatnonzero(seen > idle_since_us)
    chosen = active if len(active) else np.arange(len(marks))
    least = int(chosen[np.argmin(marks[chosen])])
    names = entry["names"]
    return int(marks[least]), names[least] if least < len(names) else None, len(active) > 0


def _who(producer: str | None, partition: int) -> str:
    name = "other producers" if producer is None else f"producer {producer!r}"
    return f"{name} in partition {partition}"


def _holder(mark: _Mark, before: Json, now_us: int) -> Json:
    """Who holds a watermark, and since when: it was seen then, and has come no further."""
    holder = {
        "partition": mark.partition,
        "producer": mark.producer,
        "newest_us": mark.us,
        "text": mark.who,
    }
    is_same = all(name in before and before[name] == value for name, value in holder.items())
    return {**holder, "since_us": before.get("since_us", now_us) if is_same else now_us}


def _least(topics: list[_Reached]) -> int | None:
    """How far some topics have come: the least of those that aren't idle; where all are, the greatest."""
    active = [one.newest_us for one in topics if not one.idle]
    known = [one.newest_us for one in topics if one.newest_us is not None]
    if None in active or not known:
        return None
    return min((us for us in active if us is not None), default=max(known))
