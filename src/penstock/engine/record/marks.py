"""What a version knows of how far topics have come: their producers, who holds a watermark, idleness."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress

from penstock.engine.record.values import Json, by_number

__all__ = ["Activity", "FoundProducers", "Held", "Producers"]


@dataclass(frozen=True, slots=True)
class FoundProducers:
    """The marks of the producers of which a batch had rows.

    Attributes:
        known: by name.
        others: of those that share one; None where there were none.
    """

    known: Mapping[str, int]
    others: int | None

    @staticmethod
    def from_json(content: Json) -> FoundProducers:
        """Reads it."""
        return FoundProducers(content["known"], content["others"])


@dataclass(frozen=True, slots=True)
class Producers:
    """What is known of a partition's producers. In columns, as there may be thousands.

    Attributes:
        names: of the producers that have marks of their own.
        marks_us: of each, the newest time up to which it has moved the watermark.
        seen_us: of each, when it was last seen, on the partition's clock.
        others: mark and when last seen of those that share one; None where there are none.
    """

    names: tuple[str, ...] = ()
    marks_us: tuple[int, ...] = ()
    seen_us: tuple[int, ...] = ()
    others: tuple[int, int] | None = None

    def taking(self, found: FoundProducers, clock_us: int) -> Producers:
        """Takes over the marks of those of which a batch had rows.

        Args:
            found: their marks.
            clock_us: the partition's, at the batch's plan.
        """
        names, marks, seen = list(self.names), list(self.marks_us), list(self.seen_us)
        places = {name: place for place, name in enumerate(names)}
        for name, mark in found.known.items():
            place = places.get(name)
            if place is None:
                names.append(name)
                marks.append(mark)
                seen.append(clock_us)
            else:
                marks[place], seen[place] = mark, clock_us
        others = self.others if found.others is None else (found.others, clock_us)
        return Producers(tuple(names), tuple(marks), tuple(seen), others)

    def without_silent(self, since_us: int, passed_us: int, expected: Collection[str]) -> Producers:
        """Without those whose marks say nothing any more: idle, and passed by the watermark.

        Args:
            since_us: who was last seen until then is idle.
            passed_us: marks up to here are passed.
            expected: producers that are never forgotten.
        """
        keep = [
            seen > since_us or mark > passed_us or name in expected
            for name, mark, seen in zip(self.names, self.marks_us, self.seen_us, strict=True)
        ]
        if all(keep):
            return self
        return Producers(
            tuple(compress(self.names, keep)),
            tuple(compress(self.marks_us, keep)),
            tuple(compress(self.seen_us, keep)),
            self.others,
        )

    @staticmethod
    def from_json(content: Json) -> Producers:
        """Reads it."""
        others = content["others"]
        return Producers(
            tuple(content["names"]),
            tuple(content["marks_us"]),
            tuple(content["seen_us"]),
            None if others is None else (others[0], others[1]),
        )


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds a topic's watermark back while others are further.

    Attributes:
        partition: that it is, or of the producer.
        producer: that it is; None: the partition, or producers that share a mark.
        newest_us: how far it has come; None: nothing is known.
        text: names it.
        since_us: since when it has come no further, on the wall clock.
    """

    partition: int | None
    producer: str | None
    newest_us: int | None
    text: str
    since_us: int

    def since(self, before: Held | None) -> Held:
        """The same, held since when it was seen first."""
        if before is None:
            return self
        is_same = (before.partition, before.producer, before.newest_us, before.text) == (
            self.partition, self.producer, self.newest_us, self.text
        )  # fmt: skip
        return before if is_same else self

    @staticmethod
    def from_json(content: Json) -> Held:
        """Reads it."""
        return Held(
            content["partition"],
            content["producer"],
            content["newest_us"],
            content["text"],
            content["since_us"],
        )


@dataclass(frozen=True, slots=True)
class Activity:
    """When data of a topic was last seen.

    Attributes:
        looked_us: the wall clock at the last look.
        lost_us: by partition, for how long its clock stood still.
        seen_us: by partition, when it last had records to read, on its clock.
        awaited_us: by name, since when an expected producer is awaited.
    """

    looked_us: int
    lost_us: Mapping[int, int] = field(default_factory=dict)
    seen_us: Mapping[int, int] = field(default_factory=dict)
    awaited_us: Mapping[str, int] = field(default_factory=dict)

    def clock_us(self, partition: int) -> int:
        """A partition's clock."""
        return self.looked_us - self.lost_us.get(partition, 0)

    @staticmethod
    def from_json(content: Json) -> Activity:
        """Reads it."""
        return Activity(
            content["looked_us"],
            by_number(content.get("lost_us", {})),
            by_number(content.get("seen_us", {})),
            content.get("awaited_us", {}),
        )
