"""Windows over rows in their order, as programs write them: sliding ones, and ones of so many rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar

from penstock.core.time import DAY_US, duration_text
from penstock.errors import FlowError
from penstock.flow.aggregates import AggregateCall, check_calls, check_groups
from penstock.flow.algebra import groups
from penstock.flow.checks import check_duration, check_number
from penstock.flow.graph import Node, Stateful, retracts

__all__ = ["Rolling", "RollingGroups", "RowWindow", "count_window", "sliding"]

SLIDING_US_MAX: Final = 366 * DAY_US
"""Every row of so much time is kept: what reaches further back is a table's."""
COUNT_MAX: Final = 100_000
"""Rows of a window: each group keeps as many, and reads them whenever it gets some."""


@dataclass(frozen=True)
class RowWindow:
    """Windows that a group's rows make in their order.

    Attributes:
        size_us: of a sliding window; 0 of one of so many rows.
        rows: of a window; 0 of a sliding one.
        every: rows from one window's first to the next one's.
    """

    size_us: int = 0
    rows: int = 0
    every: int = 0


def sliding(size: str | timedelta) -> RowWindow:
    """A window for each row: the rows of its group that happened less than `size` before it, and it itself.

    As SQL's `RANGE BETWEEN size PRECEDING AND CURRENT ROW`, without the bound itself: any two rows less than
    `size` apart are in one window. The aggregates are added to the row. The result is a stream; a row
    is emitted when the watermark has passed its time.

    Args:
        size: how far the window reaches back: `"5 minutes"`.
    """
    size_us = check_duration(size, "a window's size", "'5 minutes'")
    if not 0 < size_us <= SLIDING_US_MAX:
        raise FlowError(
            f"expected a sliding window longer than nothing, of at most {duration_text(SLIDING_US_MAX)}; "
            f"found {size!r}"
        )
    return RowWindow(size_us=size_us)


def count_window(rows: int, *, every: int | None = None) -> RowWindow:
    """Windows of a number of rows of a group, in event-time order.

    A window is emitted once, when it is full and the watermark has passed its last row.

    Args:
        rows: how many a window has.
        every: the number of rows between the beginnings of two windows; by default, windows don't overlap.
    """
    check_number(rows, "rows of a window", 1, COUNT_MAX)
    if every is not None:
        check_number(every, "rows from one window to the next (every=)", 1, rows)
    return RowWindow(rows=rows, every=every or rows)


S_co = TypeVar("S_co", covariant=True)


class _Made(Protocol[S_co]):
    def __call__(self, node: Stateful, /) -> S_co: ...


@dataclass(frozen=True)
class Rolling(Generic[S_co]):
    """Rows in sliding windows, or in windows of so many; say next by what to group them."""

    rows: Node
    window: RowWindow
    made: _Made[S_co]

    def group_by(self, *keys: str) -> RollingGroups[S_co]:
        """Groups by the given columns, NULL being a value like others; none puts all rows into one group."""
        check_groups(keys, self.rows.schema)
        return RollingGroups(self, tuple(self.rows.schema[key].name for key in keys))

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> S_co:
        """The same as `group_by().agg(…)`."""
        return self.group_by().agg(*unnamed, **aggregates)


@dataclass(frozen=True)
class RollingGroups(Generic[S_co]):
    """Rows in windows and groups; say next what to compute."""

    rolling: Rolling[S_co]
    keys: tuple[str, ...]

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> S_co:
        """Computes aggregates: `agg(n=ps.count(), mean=ps.avg("v"))`.

        Args:
            unnamed: there must be none: each is a column, and needs a name.
            aggregates: by the names of their columns.

        Returns:
            A stream. Of sliding windows, each row's columns and the aggregates; of others
            `window_start` and `window_end`, the times of the first and the last row, the
            grouping columns and the aggregates.
        """
        check_calls(unnamed, aggregates)
        rows, window = self.rolling.rows, self.rolling.window
        if retracts(rows):
            raise FlowError(
                "expected a stream whose rows stay, for windows over rows in their order; found one that "
                'late rows correct. Use late="drop"'
            )
        self._check_names(aggregates)
        if window.rows:
            node = groups.counted(rows, self.keys, aggregates, window.rows, window.every)
        else:
            node = groups.sliding(rows, self.keys, aggregates, window.size_us)
        return self.rolling.made(node)

    def _check_names(self, aggregates: Mapping[str, AggregateCall]) -> None:
        schema = self.rolling.rows.schema
        taken = ("window_start", "window_end", *self.keys)
        for name in aggregates:
            is_taken = name in taken if self.rolling.window.rows else name in schema
            if is_taken or name.startswith("$"):
                raise FlowError(
                    f"expected a name for the aggregate that no other column has; found {name!r}. Choose "
                    "another, or rename the column before: select(…)"
                )
