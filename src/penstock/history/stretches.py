"""Where a read of a topic's history changes from the table to the log, by partition."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Stretch"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of one partition: those that the Iceberg table has, and those behind them, of the log."""

    partition: int
    table: range
    log: range
