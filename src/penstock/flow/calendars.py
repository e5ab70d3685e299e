"""Windows of days, weeks, months and years, as programs write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo, available_timezones

from penstock.core.calendar import Calendar
from penstock.core.names import hint
from penstock.core.time import DAY_US, WINDOW_MAX_US, WINDOW_MONTHS_MAX
from penstock.errors import FlowError
from penstock.flow.checks import check_duration, check_text
from penstock.ops import Window

__all__ = ["calendar_window", "months_of"]

_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_CALENDAR = re.compile(r"\s*(\d+)\s*(month|quarter|year)s?\s*", re.IGNORECASE)
STEPS_MAX: Final = 10_000
"""Steps of a window, and days or months of a step: an event is counted in so many windows."""


def calendar_window(
    kind: Literal["tumbling", "hopping"],
    size: str | timedelta,
    every: str | timedelta,
    offset: str | timedelta,
    zone: str | None,
) -> Window | None:
    """A window of a calendar, if that is what is asked for; see `tumbling`.

    Raises:
        FlowError: there is no such zone, or the sizes are none of its calendar.
    """
    months, step_months, late_months = (months_of(one) for one in (size, every, offset))
    if zone is None and months is None and step_months is None and late_months is None:
        return None
    where = "UTC" if zone is None else _zone(zone)
    if months is not None and step_months is not None:
        late_us = 0 if late_months is not None else check_duration(offset, "offset", "'3 months'")
        calendar = Calendar(
            where, step_months, 0, (late_months or 0) % max(step_months, 1), late_us
        )
        return _made(kind, months, step_months, calendar, f"{size!r} every {every!r}")
    if months is not None or step_months is not None:
        raise FlowError(f"expected size and every both in months; found {size!r} every {every!r}")
    if late_months is not None:
        raise FlowError(
            f"expected an offset of days or less for windows of {size!r}; found {offset!r}"
        )
    days, step = (_days(one) for one in (size, every))
    late_us = check_duration(offset, "offset", "'6 hours'") % (max(step, 1) * DAY_US)
    calendar = Calendar(where, 0, step, 0, late_us)
    return _made(kind, days, step, calendar, f"{size!r} every {every!r}")


def _made(
    kind: Literal["tumbling", "hopping"], size: int, step: int, calendar: Calendar, found: str
) -> Window:
    if size <= 0 or step <= 0:
        raise FlowError(f"expected a window longer than nothing; found {found}")
    if size > (WINDOW_MONTHS_MAX if calendar.months else WINDOW_MAX_US // DAY_US):
        raise FlowError(f"expected windows of at most 100 years; found {found}")
    if size % step:
        raise FlowError(f"expected windows whose size is a multiple of every=…; found {found}")
    if max(size // step, step) > STEPS_MAX:
        raise FlowError(
            f"expected windows of at most {STEPS_MAX} steps of as many days; found {found}"
        )
    return Window(kind, calendar=calendar, steps=size // step)


def months_of(text: str | timedelta) -> int | None:
    """The months that a text names; None where it is a duration of another kind."""
    found = _CALENDAR.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else int(found[1]) * _MONTHS[found[2].lower()]


def _days(size: str | timedelta) -> int:
    size_us = check_duration(size, "a window's size", "'1 day'")
    if size_us % DAY_US:
        raise FlowError(
            f"expected days, weeks, months or years in a zone; found {size!r}. Omit zone=…: "
            "shorter windows are the same everywhere. For clocks off by half hours: offset='30 minutes'"
        )
    return size_us // DAY_US


def _zone(name: object) -> str:
    text = check_text(name, "a time zone", "zone='Europe/Berlin'")
    try:
        ZoneInfo(text)
    except (ValueError, OSError, LookupError):
        raise FlowError(
            f"expected a zone of the tz database, such as 'Europe/Berlin'; found {text!r}"
            f"{hint(text, available_timezones())}"
        ) from None
    return text
