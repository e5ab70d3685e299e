"""What a sink says about itself: text next to its group's offsets, where the console finds it.

A sink may run on any machine, under any service manager. What everybody can reach is the log, and a
committed offset has room for a text. It is written once a second, so silence means something, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = [
    "GROUP_PREFIX",
    "SILENT_MS",
    "TROUBLE_CHARS_MAX",
    "control_topic",
    "report",
    "sink_phase",
]

GROUP_PREFIX: Final = "penstock.sink."
"""Of the groups whose offsets show sinks' lags."""
TROUBLE_CHARS_MAX: Final = 600
"""Of an error's text: Kafka allows 4,096 bytes next to an offset (offset.metadata.max.bytes)."""
SILENT_MS: Final = 15_000
"""A sink reports every second, and every 5 while it waits: one that didn't for so long is gone, or hangs."""


def control_topic(name: str) -> str:
    """The topic of requests to a sink: `pause`, `resume`."""
    return f"{name}.sink.control"


def report(figures: Mapping[str, Any]) -> str:
    """The text: a JSON object of less than 4,096 bytes.

    Args:
        figures: of `Sink.figures`. The topic and the lag are left out, as the group's offsets show them.

    >>> report({"phase": "following", "at_ms": 5, "topic": "users", "last_error": "it was away", "lag": 3})
    '{"phase":"following","at_ms":5,"last_error":"it was away"}'
    """
    told = {name: value for name, value in figures.items() if name not in ("topic", "lag")}
    if told.get("trouble"):
        told["last_error"] = ""  # the same text
    for name in ("trouble", "last_error"):
        if name in told:
            told[name] = told[name][:TROUBLE_CHARS_MAX]
    return orjson.dumps(told).decode()


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
