"""Moments and spans of time as text."""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.serve.characters.words import Part, by_letter, ordinal, parts

__all__ = ["moment_text", "span_text"]

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
ROMAN: Final = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
NAME_CHARS: Final = 9  # to which names are filled: that of September and Wednesday
YEAR_ONE_JULIAN: Final = 1_721_425
"""The Julian day before 0001-01-01, which Python's days begin behind."""
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
"""After so many years the calendar is the same again: of years that Python has none of."""
_WORDS: Final = (
    "A.D. A.M. AD AM B.C. BC CC DAY DDD DD DY Day Dy D FF1 FF2 FF3 FF4 FF5 FF6 FX HH24 HH12 HH IDDD ID IW "
    "IYYY IYY IY I J MI MM MONTH MON MS Month Mon OF P.M. PM Q RM SSSSS SSSS SS TZH TZM TZ US WW W Y,YYY "
    "YYYY YYY YY Y a.d. a.m. ad am b.c. bc cc day ddd dd dy d ff1 ff2 ff3 ff4 ff5 ff6 fx hh24 hh12 hh iddd "
    "id iw iyyy iyy iy i j mi mm month mon ms of p.m. pm q rm sssss ssss ss tzh tzm tz us ww w y,yyy yyyy "
    "yyy yy y"
)
_KEYS: Final = by_letter(_WORDS)
_OF_CALENDARS: Final = "MON MONTH DAY DY D ID TZ TZH TZM OF BC B.C. AD A.D. IDDD IW I IY IYY IYYY J"
_SIGNS: Final = str.maketrans("", "", "-,")
_NO_SPAN: Final = frozenset(_OF_CALENDARS.split())
_MOMENT: Final = re.compile(
    r"(?P<year>-?\d+)-(?P<month>\d\d)-(?P<day>\d\d)(?P<era> \(BC\))?"
    r"(?:[ T](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<part>\d{1,9}))?)?"
    r"(?:\+00(?::00)?)?(?P<late_era> \(BC\))?"
)
_SPAN_PART: Final = re.compile(r"(-?\d+) (year|month|day)s?")
_CLOCK: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


@dataclass(frozen=True)
class _Time:
    """A moment, or a span of time.

    Attributes:
        year: 0 is the year before 1, -1 the one before; of a span a number of years.
        month: from 1; of a span the months beyond its years.
        day: of the month; of a span the days.
        hour: of a span perhaps more than a day has.
        minute: of the hour.
        second: of the minute.
        us: microseconds of the second.
        zone: the name of the time zone; "" where there is none.
        is_span: what it is.
    """

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    us: int
    zone: str = ""
    is_span: bool = False

    @functools.cached_property
    def written_year(self) -> int:
        """As people count: the year before 1 is 1 BC."""
        return 1 - self.year if self.year <= 0 and not self.is_span else self.year

    @functools.cached_property
    def date(self) -> dt.date:
        """That day, in a year that Python has."""
        return dt.date((self.year - 1) % CYCLE_YEARS + 1 + CYCLE_YEARS, self.month, self.day)

    @functools.cached_property
    def iso(self) -> tuple[int, int, int]:
        """Year, week and day as ISO 8601 has them."""
        year, week, day = self.date.isocalendar()
        year += self.year - self.date.year
        return (1 - year if year <= 0 else year), week, day

    @property
    def julian(self) -> int:
        """The Julian day."""
        cycles = (self.year - self.date.year) // CYCLE_YEARS
        return self.date.toordinal() + cycles * CYCLE_DAYS + YEAR_ONE_JULIAN

    @property
    def weekday(self) -> int:
        """From 0, Sunday."""
        return self.date.isoweekday() % 7

    @property
    def day_of_year(self) -> int:
        """From 1; of a span all its days, thirty in a month."""
        if self.is_span:
            return (self.year * 12 + self.month) * 30 + self.day
        return self.date.timetuple().tm_yday


def moment_text(value: str, form: str, zone: str) -> str | None:
    """An instant or a local time; NULL of infinity.

    Args:
        value: as DuckDB writes it, in UTC.
        form: the format.
        zone: the name of its time zone; "" of a local time.

    >>> moment_text("2026-03-01 09:05:00.25+00", 'FMMonth FMDDth, HH24"h"MI MS TZ', "UTC")
    'March 1st, 09h05 250 UTC'
    """
    found = _MOMENT.fullmatch(value)
    if found is None:  # infinity
        return None
    year = int(found["year"])
    if found["era"] or found["late_era"]:
        year = 1 - year
    clock = [int(found[one] or 0) for one in ("hour", "minute", "second")]
    us = int((found["part"] or "0")[:6].ljust(6, "0"))
    return _text(
        _Time(year, int(found["month"]), int(found["day"]), clock[0], clock[1], clock[2], us, zone),
        form,
    )


def span_text(value: str, form: str) -> str | None:
    """An interval, or a time of day.

    Raises:
        ValueError: the format names a day of a calendar.

    >>> span_text("1 day 26:03:04", "DD HH24:MI:SS")
    '01 26:03:04'
    """
    counts = {unit: int(number) for number, unit in _SPAN_PART.findall(value)}
    clock = _CLOCK.search(value)
    hour = minute = second = us = 0
    if clock is not None:
        sign = -1 if clock[1] else 1
        hour, minute, second = (sign * int(clock[i]) for i in (2, 3, 4))
        us = sign * int((clock[5] or "0")[:6].ljust(6, "0"))
    months = 12 * counts.get("year", 0) + counts.get("month", 0)
    years = int(months / 12)
    months -= 12 * years
    time = _Time(years, months, counts.get("day", 0), hour, minute, second, us, is_span=True)
    for one in _parts(form):
        if one.key.upper() in _NO_SPAN:
            raise ValueError(f"expected a format of an interval; found {one.key!r}, of a calendar")
    return _text(time, form)


@functools.lru_cache(maxsize=256)
def _parts(form: str) -> tuple[Part, ...]:
    return tuple(parts(form, _KEYS, ("FM", "fm", "TM", "tm"), ("TH", "th", "SP")))


def _text(time: _Time, form: str) -> str:
    found = []
    for one in _parts(form):
        if not one.key:
            found.append(one.text)
            continue
        key = one.key.upper()
        text = _PIECES[key](time, one)
        is_number = key != "TZM" and text.translate(_SIGNS).isdecimal()
        if one.after in ("TH", "th") and is_number:
            text += ordinal(text, one.after)
        found.append(text)
    return "".join(found)


def _padded(number: int, width: int, part: Part) -> str:
    """A number with zeros before it, unless the part is of fill mode."""
    return str(number) if part.before == "FM" else f"{number:0{width}}"


def _number(width: int, of: Callable[[_Time], int]) -> Callable[[_Time, Part], str]:
    return lambda time, part: _padded(of(time), width, part)


def _signed(width: int, of: Callable[[_Time], int]) -> Callable[[_Time, Part], str]:
    """As `_number`; a sign has a place of its own."""

    def text(time: _Time, part: Part) -> str:
        number = of(time)
        return _padded(number, width + (number < 0), part)

    return text


def _fraction(digits: int) -> Callable[[_Time, Part], str]:
    """The first digits of the second's fraction."""
    return lambda time, _: f"{int(time.us / 10 ** (6 - digits)):0{digits}}"


def _last(digits: int, of: Callable[[_Time], int]) -> Callable[[_Time, Part], str]:
    """The last digits of a year."""

    def text(time: _Time, part: Part) -> str:
        year = of(time)
        rest = abs(year) % 10**digits
        return _padded(-rest if year < 0 else rest, digits + (year < 0), part)

    return text


def _like(word: str, text: str) -> str:
    """A text in the letters of a word: capital, small, or its own."""
    if word.isupper() or word[:2].isupper():
        return text.upper()
    return text.lower() if word[0].islower() else text


def _name(names: tuple[str, ...], at: Callable[[_Time], int], chars: int = 0) -> Callable[..., str]:
    def text(time: _Time, part: Part) -> str:
        name = _like(part.key, names[at(time)])
        return name[:chars] if chars else name if part.before else name.ljust(NAME_CHARS)

    return text


def _month_roman(time: _Time, part: Part) -> str:
    if time.is_span and not time.month:
        if not time.year:
            return ""
        name = ROMAN[11] if time.year >= 0 else ROMAN[0]
    else:
        name = ROMAN[time.month - 1 if time.month >= 0 else 12 + time.month]
    name = _like(part.key, name)
    return name if part.before == "FM" else name.ljust(4)


def _century(time: _Time) -> int:
    if time.is_span:
        return int(time.year / 100)
    return (time.year - 1) // 100 + 1 if time.year > 0 else int(time.year / 100) - 1


def _half(before: str, after: str) -> Callable[[_Time, Part], str]:
    return lambda time, part: _like(part.key, after if math.fmod(time.hour, 24) >= 12 else before)


def _era(before: str, after: str) -> Callable[[_Time, Part], str]:
    return lambda time, part: _like(part.key, before if time.year <= 0 else after)


def _thousands(time: _Time, part: Part) -> str:  # noqa: ARG001 - all pieces have two arguments
    year = time.written_year
    thousands = int(year / 1000)
    return f"{thousands},{year - 1000 * thousands:03}"


_HOUR: Final = _signed(2, lambda t: int(t.hour - 12 * int(t.hour / 12)) or 12)
_SECONDS: Final = _number(0, lambda t: (t.hour * 60 + t.minute) * 60 + t.second)
_PIECES: Final[dict[str, Callable[[_Time, Part], str]]] = {
    "HH": _HOUR,
    "HH12": _HOUR,
    "HH24": _signed(2, lambda t: t.hour),
    "MI": _signed(2, lambda t: t.minute),
    "SS": _signed(2, lambda t: t.second),
    "MS": lambda t, _: f"{int(t.us / 1000):03}",
    "US": lambda t, _: f"{t.us:06}",
    **{f"FF{digits}": _fraction(digits) for digits in range(1, 7)},
    "SSSS": _SECONDS,
    "SSSSS": _SECONDS,
    "AM": _half("AM", "PM"),
    "PM": _half("AM", "PM"),
    "A.M.": _half("A.M.", "P.M."),
    "P.M.": _half("A.M.", "P.M."),
    "AD": _era("BC", "AD"),
    "BC": _era("BC", "AD"),
    "A.D.": _era("B.C.", "A.D."),
    "B.C.": _era("B.C.", "A.D."),
    "TZ": lambda t, part: _like(part.key, t.zone),
    "TZH": lambda *_: "+00",
    "TZM": lambda *_: "00",
    "OF": lambda _, part: "+0" if part.before == "FM" else "+00",
    "MONTH": _name(MONTHS, lambda t: t.month - 1),
    "MON": _name(MONTHS, lambda t: t.month - 1, 3),
    "DAY": _name(DAYS, lambda t: t.weekday),
    "DY": _name(DAYS, lambda t: t.weekday, 3),
    "MM": _signed(2, lambda t: t.month),
    "DDD": _number(3, lambda t: t.day_of_year),
    "IDDD": _number(3, lambda t: (t.iso[1] - 1) * 7 + t.iso[2]),
    "DD": _number(2, lambda t: t.day),
    "D": _number(0, lambda t: t.weekday + 1),
    "ID": _number(0, lambda t: t.weekday or 7),
    "WW": _number(2, lambda t: int((t.day_of_year - 1) / 7) + 1),
    "IW": _number(2, lambda t: t.iso[1]),
    "W": _number(0, lambda t: int((t.day - 1) / 7) + 1),
    "Q": lambda t, _: str(int((t.month - 1) / 3) + 1) if t.month else "",
    "CC": _signed(2, _century),
    "J": _number(0, lambda t: t.julian),
    "RM": _month_roman,
    "Y,YYY": _thousands,
    "YYYY": _signed(4, lambda t: t.written_year),
    "IYYY": _signed(4, lambda t: t.iso[0]),
    "YYY": _last(3, lambda t: t.written_year),
    "IYY": _last(3, lambda t: t.iso[0]),
    "YY": _last(2, lambda t: t.written_year),
    "IY": _last(2, lambda t: t.iso[0]),
    "Y": _last(1, lambda t: t.written_year),
    "I": _last(1, lambda t: t.iso[0]),
    "FX": lambda *_: "",
}
"""By key in capital letters: the text of a piece."""
