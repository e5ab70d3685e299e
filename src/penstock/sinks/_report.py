"""What a sink says about itself: text next to its group's offsets, where the console finds it.

A sink may run on any machine, under any service manager. What everybody can reach is the log, and a
committed offset has room for a text. It is written once a second, so silence means something, too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = [
    "GROUP_PREFIX",
    "SILENT_MS",
    "TROUBLE_CHARS_MAX",
    "control_topic",
    "letters_topic",
    "own_topic",
    "report",
    "sink_phase",
]

GROUP_PREFIX: Final = "penstock.sink."
"""Of the groups whose offsets show sinks' lags."""
TROUBLE_CHARS_MAX: Final = 600
"""Of an error's text: Kafka allows 4,096 bytes next to an offset (offset.metadata.max.bytes)."""
SILENT_MS: Final = 15_000
"""A sink reports every second, and every 5 while it waits: one that didn't for so long is gone, or hangs."""


TOPIC_CHARS_MAX: Final = 249
"""Of the name of a topic of Kafka."""


def own_topic(name: str, end: str = "") -> str:
    """A topic of a sink, whose name may have what Kafka's topics may not.

    >>> own_topic("users.users", ".dead-letters"), own_topic("users.Größen", ".dead-letters")
    ('users.users.dead-letters', 'users.Gr__en_89d8d5e5.dead-letters')
    """
    own = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if own == name and len(own) + len(end) <= TOPIC_CHARS_MAX:
        return own + end
    return f"{own[: TOPIC_CHARS_MAX - 9 - len(end)]}_{zlib.crc32(name.encode()):08x}{end}"


def control_topic(name: str) -> str:
    """The topic of requests to a sink: `pause`, `resume`."""
    return own_topic(name, ".sink.control")


def letters_topic(name: str) -> str:
    """The topic of a sink's dead letters."""
    return own_topic(name, ".dead-letters")


def report(figures: Mapping[str, Any]) -> str:
    """The text: a JSON object of less than 4,096 bytes.

    Args:
        figures: of `Sink.figures`. The topics and the lag are left out: the sink's name and its group's
            offsets give them.

    >>> report({"phase": "following", "at_ms": 5, "topic": "users", "last_error": "it was away", "lag": 3})
    '{"phase":"following","at_ms":5,"last_error":"it was away"}'
    """
    fields = {
        name: value
        for name, value in figures.items()
        if name not in ("topic", "letters_topic", "lag")
    }
    if fields.get("trouble"):
        fields["last_error"] = ""  # the same text
    for name in ("trouble", "last_error"):
        if name in fields:
            fields[name] = fields[name][:TROUBLE_CHARS_MAX]
    return orjson.dumps(fields).decode()


def sink_phase(figures: Mapping[str, Any], now_ms: int) -> str:
    """The phase of `Followed`; `silent`: it should have reported since; `unknown`: it never has.

    Args:
        figures: of `Sink.figures`, or a report.
        now_ms: the time, since 1970.

    >>> sink_phase({"phase": "following", "at_ms": 0}, 20_000)
    'silent'
    """
    phase, at_ms = str(figures.get("phase") or "unknown"), figures.get("at_ms")
    ends = phase in ("failed", "stopped", "unknown")
    is_old = isinstance(at_ms, int) and now_ms - at_ms > SILENT_MS
    return "silent" if is_old and not ends else phase
