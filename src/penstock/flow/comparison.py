"""Closed windows next to those of an earlier time: a join of closed rows with themselves.

Windows of one group begin at distances that are known, so the former window is the one row of the group
that lies so far before. With calendars the distance is known but for some hours, or days of months; that
is less than what lies between two windows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from penstock.core.time import DAY_US, HOUR_US, duration_text
from penstock.errors import FlowError
from penstock.flow.algebra.joins import near
from penstock.flow.algebra.rows import project
from penstock.flow.calendars import months_of
from penstock.flow.checks import check_duration, check_text
from penstock.flow.graph import Closed, Node, RowStep, Stateful, origins, row_key
from penstock.flow.interval_join import WITHIN_MAX_US
from penstock.flow.joins import check_names_differ
from penstock.ops import Window, WindowedAggregate
from penstock.ops.spec import WINDOW_END, WINDOW_START

__all__ = ["compared"]

MONTH_US: Final = 30_436_875 * DAY_US // 1_000_000
"""On average."""
MONTHS_OFF_US: Final = 9 * DAY_US
"""Some months are shorter or longer than as many average ones by a few days; the next one is 28 days off."""
DAYS_OFF_US: Final = 11 * HOUR_US
"""Clocks are set by some hours; the next day is 23 hours off."""


def compared(closed: Node, to: str | timedelta, prefix: str) -> Stateful:
    """The node of closed rows next to earlier ones; see `Table.compared`.

    Raises:
        FlowError: there is no window at that distance, or columns that identify rows are gone.
    """
    check_text(prefix, "a prefix", "prefix='last_week_'")
    least_us, most_us = _distance(_window_of(closed), to)
    key = row_key(closed)
    if not key:
        raise FlowError(
            "expected columns that identify a table's rows, to compare them with earlier ones; found none "
            f"among {', '.join(closed.schema.names)}. Keep {WINDOW_START} and the key in select(…)"
        )
    former = _former(closed, key, prefix)
    pairs = tuple((name, name) for name in _groups(closed, key))
    check_names_differ(closed.schema, former.schema, pairs)
    return near(closed, former, pairs, most_us, -least_us, "left")


def _former(closed: Node, key: tuple[str, ...], prefix: str) -> RowStep:
    """The same rows with other names."""
    groups, schema = _groups(closed, key), closed.schema
    values = [name for name in schema.names if name not in (*key, WINDOW_START, WINDOW_END)]
    names = {**{name: name for name in groups}, **{prefix + name: name for name in values}}
    return project(closed, names)


def _groups(closed: Node, key: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a window's rows are distinguished by: the first of the key is the window."""
    return tuple(name for name in key[1:] if name in closed.schema)


def _window_of(closed: Node) -> Window:
    [origin] = origins(closed)
    assert isinstance(origin, Closed), "closed rows are those of one table"
    operator = origin.table.operator
    if not isinstance(operator, WindowedAggregate):
        raise FlowError(
            "expected windows of ps.tumbling(…) or ps.hopping(…) to compare; found sessions, which begin "
            "whenever they begin"
        )
    return operator.spec.window


def _distance(window: Window, to: str | timedelta) -> tuple[int, int]:
    """The least and the greatest distance of two windows that are so far apart: us."""
    calendar, months = window.calendar, months_of(to)
    if months is not None:
        if calendar is None or not calendar.months or not months or months % calendar.months:
            raise FlowError(_beside(to, window))
        middle_us = months * MONTH_US
        return _limited(middle_us - MONTHS_OFF_US, middle_us + MONTHS_OFF_US, to)
    to_us = check_duration(to, "the distance of windows", "'1 week'")
    every_us = calendar.days * DAY_US if calendar is not None else window.every_us
    if not every_us or to_us <= 0 or to_us % every_us:
        raise FlowError(_beside(to, window))
    off_us = 0 if calendar is None else DAYS_OFF_US
    return _limited(to_us - off_us, to_us + off_us, to)


def _limited(least_us: int, most_us: int, to: str | timedelta) -> tuple[int, int]:
    if most_us > WITHIN_MAX_US:
        raise FlowError(
            f"expected a distance of less than {duration_text(WITHIN_MAX_US)}; found {to!r}. Windows are "
            "kept for as long"
        )
    return least_us, most_us


def _beside(to: str | timedelta, window: Window) -> str:
    calendar = window.calendar
    step = duration_text(window.every_us)
    if calendar is not None:
        step = f"{calendar.months} months" if calendar.months else f"{calendar.days} days"
    return (
        f"expected a multiple of the step between windows ({step}), as there are no others to compare with; "
        f"found {to!r}"
    )
