"""Time: durations and instants as integers of microseconds.

Event time, watermarks and window bounds are `int` microseconds since 1970-01-01 UTC everywhere below
the user's API; names end in `_us`. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors import UserError

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US

# Years 0001 to 9999, what Python, Arrow, DuckDB and JSON can all name; event times outside are bad input.
INSTANT_MIN_US: Final = -62_135_596_800 * SECOND_US
INSTANT_MAX_US: Final = 253_402_300_800 * SECOND_US - 1
# Event times are of the years 0102 to 9898, so that the bounds of windows of 100 years can be named as well.
EVENT_MIN_US: Final = INSTANT_MIN_US + 36_889 * DAY_US
EVENT_MAX_US: Final = INSTANT_MAX_US - 36_889 * DAY_US
WINDOW_MAX_US: Final = 36_525 * DAY_US
WINDOW_MONTHS_MAX: Final = 1_200
DURATION_MAX_US: Final = (
    10_000 * 366 * DAY_US
)  # what is longer is beyond 64 bits when added to an instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_US: Final = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": SECOND_US,
    "sec": SECOND_US,
    "second": SECOND_US,
    "m": MINUTE_US,
    "min": MINUTE_US,
    "minute": MINUTE_US,
    "h": HOUR_US,
    "hour": HOUR_US,
    "d": DAY_US,
    "day": DAY_US,
    "week": 7 * DAY_US,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*,?")


def duration_us(value: str | timedelta) -> int:
    """Reads a duration.

    Args:
        value: a `timedelta`, or text such as `"30 seconds"`, `"1 hour 30 minutes"`, `"500ms"`.

    Returns:
        Microseconds, zero or more.

    Raises:
        UserError: the text is not a duration, or it is negative.

    >>> duration_us("1 hour 30 minutes")
    5400000000
    """
    if isinstance(value, timedelta):
        total = round(value / timedelta(microseconds=1))
        if total < 0:
            raise UserError(f"expected a duration of zero or more; found {value!r}")
        return total
    position, total_f = 0, 0.0
    while position < len(value):
        part = _PART.match(value, position)
        if part is None:
            break
        unit = part[2] if part[2] in _UNITS_US else part[2].lower()
        if unit not in _UNITS_US:
            unit = unit.removesuffix("s")
        if unit not in _UNITS_US:
            break
        total_f += float(part[1]) * _UNITS_US[unit]
        position = part.end()
    if not value.strip() or value[position:].strip():
        raise UserError(
            f"expected a duration such as '30 seconds' or '1 hour 30 minutes'; found {value!r}"
        )
    return round(total_f)


def duration_text(us: int) -> str:
    """Writes a duration as people would: `90 seconds` is `1 minute 30 seconds`.

    >>> duration_text(90_000_000)
    '1 minute 30 seconds'
    """
    if us == 0:
        return "0 seconds"
    words = []
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, us = divmod(us, _UNITS_US[name])
        if count:
            words.append(f"{count} {name}{'' if count == 1 else 's'}")
    return " ".join(words)


def instant_us(value: str | datetime) -> int:
    """Reads an instant: an aware or naive (then UTC) `datetime`, or ISO 8601 text.

    >>> instant_us("1970-01-01T00:00:01Z")
    1000000
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise UserError(
                f"expected an ISO 8601 instant such as '2026-11-21T09:00:00Z'; found {value!r}"
            ) from None
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - _EPOCH) // timedelta(microseconds=1)


def moment_us(text: str, now_us: int) -> int:
    """Reads an instant as people write it: ISO 8601, `now`, or a duration before now.

    >>> moment_us("2 hours ago", 10_000_000_000)
    2800000000
    """
    words = text.strip()
    try:
        if words == "now":
            return now_us
        if words.endswith(" ago"):
            return now_us - duration_us(words.removesuffix(" ago"))
        return instant_us(words)
    except UserError:
        raise UserError(
            "expected an instant such as '2026-11-21T09:00:00Z', '2 hours ago' or 'now'; "
            f"found {text!r}"
        ) from None


def instant_text(us: int) -> str:
    """Writes an instant as ISO 8601 in UTC.

    >>> instant_text(1_000_000)
    '1970-01-01T00:00:01Z'
    """
    if not INSTANT_MIN_US <= us <= INSTANT_MAX_US:
        return f"{us} us"
    return (_EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
