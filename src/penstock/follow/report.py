"""What a follower says about itself: text next to an offset that it commits, where everybody finds it.

A follower may run on any machine, under any service manager. What everybody can reach is the log, and a
committed offset has room for a text. It is written once a second, so silence means something, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.follow.breaker import Circuit

__all__ = [
    "ENDED",
    "PHASES",
    "SILENT_MS",
    "TROUBLE_CHARS_MAX",
    "Doing",
    "group_of",
    "phase_of",
    "report_text",
    "reported",
]

PHASES: Final = (
    "starting",
    "snapshot",
    "streaming",
    "following",
    "waiting",
    "paused",
    "failed",
    "stopped",
)
"""What a follower can be in. Sources that have read what there was are `streaming`, sinks are `following`."""
ENDED: Final = ("failed", "stopped", "silent", "unknown")
"""Phases without a process."""
TROUBLE_CHARS_MAX: Final = 600
"""Of an error's text: Kafka allows 4,096 bytes next to an offset (offset.metadata.max.bytes)."""
PLACE_CHARS_MAX: Final = 200
"""Of the texts of where records come from and where they go."""
SILENT_MS: Final = 15_000
"""A follower reports every second, and every 5 while it waits: one that didn't for so long is gone or
hangs."""
_KEPT_ELSEWHERE: Final = ("topic", "letters_topic", "lag")


@dataclass(kw_only=True)
class Doing:
    """What every follower says of itself.

    Attributes:
        phase: one of `PHASES`.
        trouble: why it waits, or has failed; empty otherwise.
        last_error: the last error, also after it has passed.
        retries: how often it tried again after an error that passes.
        breaker: the circuit breaker's state; nothing is attempted while it is `open`.
    """

    phase: str = "starting"
    trouble: str = ""
    last_error: str = ""
    retries: int = 0
    breaker: Circuit = "closed"


def group_of(kind: str, name: str) -> str:
    """The consumer group next to whose offsets a follower reports.

    >>> group_of("sink", "users.users")
    'penstock.sink.users.users'
    """
    return f"penstock.{kind}.{name}"


def report_text(figures: Mapping[str, Any]) -> str:
    """The text: a JSON object of less than 4,096 bytes.

    Args:
        figures: of `Follower.figures`. A sink's topics and its lag are left out: its name and its group's
            offsets give them.

    >>> report_text({"phase": "waiting", "topic": "users", "trouble": "it is away", "lag": 3})
    '{"phase":"waiting","trouble":"it is away","last_error":""}'
    """
    fields = {name: value for name, value in figures.items() if name not in _KEPT_ELSEWHERE}
    if fields.get("trouble"):
        fields["last_error"] = ""  # the same text
    for names, chars_max in (
        (("trouble", "last_error"), TROUBLE_CHARS_MAX),
        (("source", "target"), PLACE_CHARS_MAX),
    ):
        for name in names:
            if name in fields:
                fields[name] = fields[name][:chars_max]
    return orjson.dumps(fields).decode()


def reported(text: str | bytes) -> dict[str, Any] | None:
    """What a text says; None: it is no report, as an older release or another program wrote it."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def phase_of(figures: Mapping[str, Any], now_ms: int) -> str:
    """The phase; `silent`: it should have reported since; `unknown`: it never has.

    Args:
        figures: of `Follower.figures`, or a report.
        now_ms: the time, since 1970.

    >>> phase_of({"phase": "following", "at_ms": 0}, 20_000)
    'silent'
    """
    phase, at_ms = str(figures.get("phase") or "unknown"), figures.get("at_ms")
    is_old = isinstance(at_ms, int) and now_ms - at_ms > SILENT_MS
    return "silent" if is_old and phase not in ENDED else phase
