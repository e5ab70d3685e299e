"""How long a group has before retention removes the records that it has not read yet.

Retention by time removes a record once it is older than `retention.ms`; retention by size once what
follows on it takes more than `retention.bytes`. How long that takes depends on how fast the log grows,
so that is looked at for a moment. Both are the least that a record has: retention removes whole
segments, and nothing reports where those end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.client.client import Client, Partition

__all__ = ["Growth", "Limits", "growth_of", "size_left_ms", "time_left_ms"]

LOOK_S: Final = 1.0
"""How long a log is looked at for its growth; the broker's metric looks at the last five seconds."""


class Limits(NamedTuple):
    """What a topic's retention says; -1: no limit."""

    age_ms: int
    size_bytes: int

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Limits:
        """As a topic's settings say: one that is only compacted has no limits."""
        if "delete" not in settings.get("cleanup.policy", "delete"):
            return cls(-1, -1)
        return cls(
            int(settings.get("retention.ms", "-1")), int(settings.get("retention.bytes", "-1"))
        )


class Growth(NamedTuple):
    """What is known of a partition's bytes."""

    bytes_per_record: float
    records_per_s: float


def time_left_ms(record_ms: int, retention_ms: int, now_ms: int) -> int | None:
    """How long until retention by time reaches a record; None where it never does.

    >>> time_left_ms(1_000, 5_000, 2_000), time_left_ms(1_000, -1, 2_000)
    (4000, None)
    """
    return None if retention_ms < 0 else max(record_ms + retention_ms - now_ms, 0)


def size_left_ms(records: int, retention_bytes: int, growth: Growth) -> int | None:
    """How long until retention by size reaches a record on which so many follow; None where it never
    does, or the log doesn't grow.

    >>> size_left_ms(30, 5_000, Growth(100, 10)), size_left_ms(30, 5_000, Growth(100, 0))
    (2000, None)
    """
    if retention_bytes < 0 or growth.records_per_s <= 0:
        return None
    room = retention_bytes - records * growth.bytes_per_record
    return int(1000 * max(room, 0) / (growth.bytes_per_record * growth.records_per_s))


def growth_of(client: Client, sizes: Mapping[Partition, int]) -> dict[Partition, Growth]:
    """How partitions grow of which the bytes are known."""
    topics = sorted({topic for topic, _ in sizes})
    starts = {topic: client.offsets(topic, "earliest") for topic in topics}
    before, began_s = client.end_offsets_many(topics), time.monotonic()
    time.sleep(LOOK_S if topics else 0)
    after, elapsed_s = client.end_offsets_many(topics), time.monotonic() - began_s
    found = {}
    for (topic, p), size in sizes.items():
        records = after[topic][p] - starts[topic][p]
        if records > 0:
            more = (after[topic][p] - before[topic][p]) / elapsed_s
            found[topic, p] = Growth(size / records, more)
    return found
