"""The functions of a program: event time, windows and aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from penstock.core.time import duration_us
from penstock.errors import FlowError
from penstock.flow._collections import AggregateCall
from penstock.ops import Window

__all__ = ["EventTime", "avg", "count", "event_time", "hopping", "max", "min", "sum", "tumbling"]

IDLE_DEFAULT: Final = (
    "1 minute"  # long against network hiccups, short against a dashboard's patience
)


@dataclass(frozen=True)
class EventTime:
    """Which column says when a row happened, and how late it may come. See `event_time`."""

    column: str | None
    lateness_us: int
    idle_us: int


def event_time(
    column: str | None = None,
    *,
    lateness: str | timedelta = "0 seconds",
    idle: str | timedelta = IDLE_DEFAULT,
) -> EventTime:
    """Says when a stream's rows happened.

    Args:
        column: a TIMESTAMP column; None takes the timestamp that each record has in the log.
        lateness: how far a row may lie behind the newest one of its partition. A row whose windows have
            all ended that long ago is late: it is counted and kept in the dead-letter topic.
        idle: a partition without new rows for so long no longer holds back the watermark.
    """
    return EventTime(column, duration_us(lateness), duration_us(idle))


def tumbling(size: str | timedelta, *, offset: str | timedelta = "0 seconds") -> Window:
    """Windows of a fixed size, one after the other: every row belongs to one."""
    return _window("tumbling", size, size, offset)


def hopping(
    size: str | timedelta, *, every: str | timedelta, offset: str | timedelta = "0 seconds"
) -> Window:
    """Windows of a fixed size that begin every so often and overlap: a row belongs to several."""
    return _window("hopping", size, every, offset)


def _window(
    kind: Literal["tumbling", "hopping"],
    size: str | timedelta,
    every: str | timedelta,
    offset: str | timedelta,
) -> Window:
    size_us, every_us = duration_us(size), duration_us(every)
    if size_us <= 0 or every_us <= 0:
        raise FlowError(f"expected a window longer than nothing; found {size!r} every {every!r}")
    if every_us > size_us:
        raise FlowError(
            f"expected windows that leave no gap (every <= size); found {size!r} every {every!r}"
        )
    return Window(kind, size_us=size_us, every_us=every_us, offset_us=duration_us(offset))


def count(column: str | None = None) -> AggregateCall:
    """The number of rows; of a column, the number of its values that aren't NULL."""
    return AggregateCall("count", column)


def sum(column: str) -> AggregateCall:  # noqa: A001 - the field's name, used as ps.sum
    """The sum of a column's values; NULL where there are none."""
    return AggregateCall("sum", column)


def min(column: str) -> AggregateCall:  # noqa: A001
    """The smallest of a column's values; NULL where there are none."""
    return AggregateCall("min", column)


def max(column: str) -> AggregateCall:  # noqa: A001
    """The largest of a column's values; NULL where there are none."""
    return AggregateCall("max", column)


def avg(column: str) -> AggregateCall:
    """The mean of a column's values; NULL where there are none."""
    return AggregateCall("avg", column)
