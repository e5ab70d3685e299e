"""What a sink says of itself: text next to its group's offsets, where the console finds it.

A sink may run on any machine, under any service manager. What everybody can reach is the log, and a
committed offset has room for a text. It is written once a second, so silence means something, too.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

__all__ = ["SILENT_MS", "TROUBLE_CHARS_MAX", "report"]

TROUBLE_CHARS_MAX: Final = 600
"""Of an error's text: Kafka allows 4,096 bytes next to an offset (offset.metadata.max.bytes)."""
SILENT_MS: Final = 15_000
"""A sink reports every second, and every 5 while it waits: one that didn't for so long is gone, or hangs."""


def report(
    phase: str, trouble: str, target: str, counts: dict[str, int], *, since_ms: int, now_ms: int
) -> str:
    """The text: a JSON object of less than 4,096 bytes.

    Args:
        phase: of `Followed`, or `stopped`.
        trouble: why it waits or has failed.
        target: the kind of target, such as `postgres`.
        counts: rows written and deleted, dead letters, retries, and how long the target lacks records.
        since_ms: when the phase began, since 1970.
        now_ms: when this is said, since 1970.

    >>> report("following", "", "sqlite", {"upserts": 2}, since_ms=1, now_ms=5)
    '{"phase":"following","since_ms":1,"at_ms":5,"target":"sqlite","trouble":"","upserts":2}'
    """
    told: dict[str, Any] = {"phase": phase, "since_ms": since_ms, "at_ms": now_ms}
    told |= {"target": target, "trouble": trouble[:TROUBLE_CHARS_MAX], **counts}
    return orjson.dumps(told).decode()
