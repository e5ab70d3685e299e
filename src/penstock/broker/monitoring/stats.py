"""What the broker knows of its topics at no cost: sizes, end offsets, rates. For pages and
prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.storage.topics import Topic, Topics

__all__ = ["Stats", "TopicStats"]

SAMPLES: Final = 5
"""Samples that a rate is measured over; at one a second, five seconds."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic at one moment."""

    name: str
    partitions: int
    start_offsets: tuple[int, ...]
    end_offsets: tuple[int, ...]
    bytes: int
    records_per_s: float
    bytes_per_s: float


class Stats:
    """Samples counters from time to time."""

    def __init__(self, topics: Topics, clock_s: Callable[[], float]) -> None:
        self._topics = topics
        self._clock_s = clock_s
        self._samples: deque[tuple[float, dict[str, tuple[int, int]]]] = deque(maxlen=SAMPLES)

    @staticmethod
    def _count(topic: Topic) -> tuple[int, int]:
        logs = [one.log for one in topic.partitions]
        return sum(log.end_offset for log in logs), sum(log.appended_bytes for log in logs)

    def sample(self) -> None:
        """Takes a sample."""
        counts = {topic.name: self._count(topic) for topic in self._topics}
        self._samples.append((self._clock_s(), counts))

    def topics(self) -> list[TopicStats]:
        """Every topic now; rates over the last seconds."""
        now_s = self._clock_s()
        then_s, then = self._samples[0] if self._samples else (now_s, {})
        elapsed_s = max(now_s - then_s, 1e-3)
        found = []
        for topic in self._topics:
            records, size = self._count(topic)
            records_then, size_then = then.get(topic.name, (records, size))
            logs = [one.log for one in topic.partitions]
            found.append(
                TopicStats(
                    topic.name,
                    len(logs),
                    tuple(log.start_offset for log in logs),
                    tuple(log.end_offset for log in logs),
                    sum(log.size for log in logs),
                    max(records - records_then, 0) / elapsed_s,
                    max(size - size_then, 0) / elapsed_s,
                )
            )
        return found
