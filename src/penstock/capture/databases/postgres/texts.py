"""PostgreSQL's texts of single values: dates, times, intervals, arrays, hstore. Pure.

The session's settings make them one form: ISO dates, intervals of style `postgres`, UTC, `bytea` in hex.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from penstock.capture.unread import UNREADABLE, PartlyError

__all__ = [
    "DAY_US",
    "array",
    "date_days",
    "hstore",
    "interval_parts",
    "plain_timestamp_us",
    "time_us",
    "timestamp_parts",
]

DAY_US: Final = 86_400_000_000
_DASH, _SPACE, _POINT = b"- ."
_DATE: Final = re.compile(r"(\d+)-(\d\d)-(\d\d)( BC)?")
_TIMESTAMP: Final = re.compile(r"(\d+-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)([+-][\d:]+)?( BC)?")
_INTERVAL: Final = re.compile(
    r"(?:(-?\+?\d+) years? ?)?(?:([-+]?\d+) mons? ?)?(?:([-+]?\d+) days? ?)?"
    r"(?:([-+]?)(\d+):(\d\d):(\d\d(?:\.\d+)?))?"
)
_PAIR: Final = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")(?:, )?')
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


def date_days(text: str) -> int:
    """Days since 1970, in the Gregorian calendar of all times.

    >>> date_days("2024-02-29"), date_days("0001-01-01"), date_days("5874897-12-31")
    (19782, -719162, 2145042905)
    """
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a date; found {text!r}")
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if found[4]:
        year = 1 - year
    year -= month <= 2  # Howard Hinnant, "chrono-compatible low-level date algorithms"
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def time_us(text: str) -> int:
    """Microseconds since midnight.

    >>> time_us("13:45:30.5")
    49530500000
    """
    hours, minutes, seconds = text.split(":")
    whole, _, part = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(
        part.ljust(6, "0") or 0
    )


def plain_timestamp_us(text: bytes) -> int | None:
    """Microseconds since 1970 of a timestamp of the years 1000 to 9999, without a zone but UTC; else None.

    >>> plain_timestamp_us(b"2024-02-29 13:45:30.5"), plain_timestamp_us(b"0044-03-15 12:00:00 BC")
    (1709214330500000, None)
    """
    size = len(text)
    if text[-3:] == b"+00":
        size -= 3
    if size < 19 or text[4] != _DASH or text[10] != _SPACE or size > 26:
        return None
    days = _days_of(text[:10])
    # A number of six digits is quicker than three of two.
    clock = int(text[11:13] + text[14:16] + text[17:19])
    hours, rest = divmod(clock, 10_000)
    minutes, seconds = divmod(rest, 100)
    us = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if size == 19:
        return us * 1_000_000
    if text[19] != _POINT:
        return None
    part: int = int(text[20:size]) * 10 ** (26 - size)
    return us * 1_000_000 + part


@functools.lru_cache(4096)
def _days_of(text: bytes) -> int:
    return date_days(text.decode())


def timestamp_parts(text: str) -> tuple[int, str, str]:
    """Microseconds since 1970, the day's text (with ` BC`), the time of day's.

    >>> timestamp_parts("2024-02-29 13:45:30.123456+00")
    (1709214330123456, '2024-02-29', '13:45:30.123456')
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a timestamp; found {text!r}")
    day = found[1] + (found[4] or "")
    return date_days(day) * DAY_US + time_us(found[2]), day, found[2]


def interval_parts(text: str) -> tuple[int, int, int]:
    """Months, days, microseconds.

    >>> interval_parts("1 year 2 mons -3 days +04:05:06.789")
    (14, -3, 14706789000)
    """
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError(f"expected an interval; found {text!r}")
    years, months, days = (int(one or 0) for one in found.group(1, 2, 3))
    clock = time_us(f"{found[5]}:{found[6]}:{found[7]}") if found[5] else 0
    return 12 * years + months, days, -clock if found[4] == "-" else clock


def array(text: str, convert: Any, delimiter: str = ",") -> list[Any]:
    r"""An array's elements, those of several dimensions as arrays in arrays.

    >>> array(r'{1,NULL,"a \"b"}', str)
    ['1', None, 'a "b']
    >>> array("{(1,1),(0,0);(2,2),(1,1)}", str, ";")  # of boxes
    ['(1,1),(0,0)', '(2,2),(1,1)']

    Raises:
        PartlyError: an element can't be written; the others are made.
    """
    begin = text.index("{")  # before it are bounds, where they aren't 1
    failed: list[Exception] = []

    def element(item: str) -> Any:
        try:
            return convert(item)
        except UNREADABLE as error:
            failed.append(error)
            return None

    made, end = _array(text, begin + 1, element, delimiter)
    if end != len(text):
        raise ValueError(f"expected an array; found {text!r}")
    if failed:
        raise PartlyError(str(failed[0]), made) from failed[0]
    return made


def _array(text: str, at: int, convert: Any, delimiter: str) -> tuple[list[Any], int]:
    items: list[Any] = []
    ends = delimiter + "}"
    while True:
        first = text[at]
        if first == "}":
            return items, at + 1
        if first == delimiter:
            at += 1
        elif first == "{":
            inner, at = _array(text, at + 1, convert, delimiter)
            items.append(inner)
        elif first == '"':
            end = at + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            items.append(convert(_ESCAPE.sub(r"\1", text[at + 1 : end])))
            at = end + 1
        else:
            end = at
            while text[end] not in ends:
                end += 1
            word = text[at:end]
            items.append(None if word == "NULL" else convert(word))
            at = end


def hstore(text: str) -> dict[str, str | None]:
    """The pairs of an hstore.

    >>> hstore('"a"=>"1", "b"=>NULL')
    {'a': '1', 'b': None}
    """
    return {
        _ESCAPE.sub(r"\1", key): None if value is None else _ESCAPE.sub(r"\1", value)
        for key, value in ((one[1], one[2]) for one in _PAIR.finditer(text))
    }
