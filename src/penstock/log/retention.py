"""What retention keeps of a log: a function of its segments' sizes and times and of its settings.

Segments go from the oldest on and as wholes: one that is kept keeps all later ones, whatever their
times are. A segment is too old where its newest record is; it is one too many where the log is
large enough without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.log.validation import LogConfig

__all__ = ["kept_from", "kept_locally_from"]

SAME_AS_WHOLE: Final = -2
"""Kafka's value of a local retention that is the whole log's."""


class Piece(Protocol):
    """A segment, here or in the tier."""

    @property
    def base_offset(self) -> int:
        """Where it begins."""

    @property
    def next_offset(self) -> int:
        """Where it ends."""

    @property
    def size(self) -> int:
        """Its bytes; 0 where it was lost."""

    @property
    def max_timestamp(self) -> int:
        """Its newest record's time (ms); -1 where that isn't known."""


def kept_from(pieces: Sequence[Piece], active: Piece, config: LogConfig, now_ms: int) -> int | None:
    """The first offset that is kept of the whole log; None where all of it is.

    Args:
        pieces: the segments, oldest first.
        active: the one of them that is written to, which size alone doesn't remove.
        config: the topic's settings.
        now_ms: the time.
    """
    if not config.deletes:
        return None
    kept = None
    size = sum(one.size for one in pieces)
    excess = size - config.retention_bytes if config.retention_bytes >= 0 else 0
    for one in pieces:
        too_old = config.retention_ms >= 0 and (
            one.max_timestamp >= 0 and now_ms - one.max_timestamp > config.retention_ms
        )
        too_large = 0 < one.size <= excess and one is not active
        if one is active and one.size == 0:
            break
        if one.size == 0:
            continue  # lost: nothing shows its age, so it goes with the one after it
        if not (too_old or too_large):
            break
        excess -= one.size
        kept = one.next_offset
    return kept


def kept_locally_from(
    pieces: Sequence[Piece], copied_upto: int, size: int, config: LogConfig, now_ms: int
) -> int | None:
    """The first offset that is kept on the local disk of what the tier has as well; None where all
    of it is.

    Args:
        pieces: the closed local segments, oldest first.
        copied_upto: up to where the tier has them.
        size: the bytes of all local segments.
        config: the topic's settings.
        now_ms: the time.
    """
    bytes_max, age_ms_max = config.local_retention_bytes, config.local_retention_ms
    bytes_max = config.retention_bytes if bytes_max == SAME_AS_WHOLE else bytes_max
    age_ms_max = config.retention_ms if age_ms_max == SAME_AS_WHOLE else age_ms_max
    kept = None
    excess = size - bytes_max if bytes_max >= 0 else 0
    for one in pieces:
        too_old = age_ms_max >= 0 and now_ms - one.max_timestamp > age_ms_max
        too_large = 0 < one.size <= excess
        if one.next_offset > copied_upto or not (too_old or too_large):
            break
        excess -= one.size
        kept = one.next_offset
    return kept
