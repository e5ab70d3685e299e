"""Names of sinks in the log, and how they are looked at: without what a sink itself needs."""

from __future__ import annotations

from typing import Final

from penstock.follow.control import own_topic
from penstock.follow.report import SILENT_MS
from penstock.follow.report import phase_of as sink_phase

__all__ = ["KIND", "SILENT_MS", "letters_topic", "sink_phase"]

KIND: Final = "sink"
"""What a sink is called among followers."""


def letters_topic(name: str) -> str:
    """The topic of a sink's dead letters."""
    return own_topic(name, ".dead-letters")
