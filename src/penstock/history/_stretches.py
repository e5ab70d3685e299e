"""What is read of a partition, and from where."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Stretch"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of one partition: which offsets come from the table, which from the log."""

    partition: int
    table: range
    log: range
