"""Decimals, dates and times of MySQL's row format, and of its texts. Pure.

What becomes JSON is either *precise*, Debezium's defaults, or *readable*.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from datetime import date
from typing import Any, Final, TypeAlias

__all__ = [
    "Parts",
    "date_of",
    "datetime_of",
    "decimal_of",
    "decimal_size",
    "decimal_text",
    "hires_parts",
    "instant_of",
    "packed_text",
    "time_of",
]

Parts: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Year, month, day, hour, minute, second, microsecond."""
_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_U32: Final = struct.Struct(">I").unpack_from
_EPOCH: Final = date(1970, 1, 1).toordinal()


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


def decimal_number(data: bytes, at: int, precision: int, scale: int) -> int:
    """A DECIMAL without its point: nine digits are four bytes, those left over fewer; big-endian."""
    end = at + decimal_size(precision, scale)
    digits_ = bytearray(data[at:end])
    is_negative = not digits_[0] & 0x80
    digits_[0] ^= 0x80
    if is_negative:
        digits_ = bytearray(one ^ 0xFF for one in digits_)
    whole, number, at = precision - scale, 0, 0
    if left := whole % 9:
        size = _DIGIT_BYTES[left]
        number, at = int.from_bytes(digits_[:size], "big"), size
    for _ in range(whole // 9 + scale // 9):
        number = number * 1_000_000_000 + _U32(digits_, at)[0]
        at += 4
    if left := scale % 9:
        number = number * 10**left + int.from_bytes(digits_[at:], "big")
    return -number if is_negative else number


def decimal_text(data: bytes, at: int, precision: int, scale: int) -> str:
    """A DECIMAL as text.

    >>> decimal_text(bytes.fromhex("810DFB38D204D2"), 0, 14, 4)
    '1234567890.1234'
    """
    number = decimal_number(data, at, precision, scale)
    return _with_point(number, scale)


def _with_point(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def decimal_of(scale: int, *, precise: bool) -> Callable[[int], Any]:
    """What makes JSON of a DECIMAL without its point."""
    if not precise:
        return lambda number: _with_point(number, scale)

    def convert(number: int) -> str:
        # As Java's BigInteger: the fewest bytes of two's complement.
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()

    return convert


def decimal_parse(text: str, scale: int) -> int:
    """A DECIMAL's text without its point.

    >>> decimal_parse("-1.50", 2)
    -150
    """
    whole, _, part = text.partition(".")
    return int(whole + part.ljust(scale, "0"))


def _days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None for 0000-00-00, which is no day.

    Raises:
        ValueError: it is no day otherwise, as 2024-02-30 or 2024-00-00.
    """
    if not (year or month or day):
        return None
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        raise ValueError(
            f"expected a day of the calendar; found {year:04d}-{month:02d}-{day:02d}"
        ) from None


def date_of(year: int, month: int, day: int, *, precise: bool) -> Any:
    """A date; None for 0000-00-00.

    Raises:
        ValueError: there is no such day.
    """
    days = _days_of(year, month, day)
    if days is None:
        return None
    return days if precise else f"{year:04d}-{month:02d}-{day:02d}"


def datetime_of(parts: Parts, digits: int, *, precise: bool) -> Any:
    """A DATETIME: milliseconds since 1970, or microseconds where it has more digits; or text. None for that
    of 0000-00-00.

    Raises:
        ValueError: there is no such day.
    """
    year, month, day, hour, minute, second, us = parts
    days = _days_of(year, month, day)
    if days is None:
        return None
    if not precise:
        return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}{_part(us, digits)}Z"
    all_us = (days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000 + us
    return all_us // 1000 if digits <= 3 else all_us


def instant_of(seconds: int, us: int, digits: int) -> Any:
    """A TIMESTAMP as ISO 8601 in UTC; None for 0000-00-00, which is 0.

    >>> instant_of(1709214330, 123000, 3)
    '2024-02-29T13:45:30.123Z'
    """
    if not seconds and not us:
        return None
    days, rest = divmod(seconds, 86_400)
    day = date.fromordinal(days + _EPOCH)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{day}T{clock}{_part(us, digits)}Z"


def time_of(us: int, digits: int, *, precise: bool) -> Any:
    """A TIME: microseconds, negative ones as well; or text."""
    if precise:
        return us
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, part = divmod(us, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return sign + clock + _part(part, digits)


def _part(us: int, digits: int) -> str:
    return f".{us:06d}"[: digits + 1] if digits else ""


def packed_parts(packed: int) -> Parts:
    """A DATETIME of JSON, or of rows: bits of the year and month (17), day, hour, minute, second, µs (24)."""
    us, whole = packed & 0xFFFFFF, packed >> 24
    second, minute, hour = whole & 63, whole >> 6 & 63, whole >> 12 & 31
    day, months = whole >> 17 & 31, whole >> 22
    return months // 13, months % 13, day, hour, minute, second, us


def hires_parts(packed: int) -> Parts:
    """A DATETIME of MariaDB's format before MySQL 5.6's: its parts are digits of a number, in microseconds.

    >>> hires_parts((((((2024 * 13 + 2) * 32 + 29) * 24 + 13) * 60 + 45) * 60 + 30) * 10**6 + 5)
    (2024, 2, 29, 13, 45, 30, 5)
    """
    whole, us = divmod(packed, 1_000_000)
    whole, second = divmod(whole, 60)
    whole, minute = divmod(whole, 60)
    whole, hour = divmod(whole, 24)
    whole, day = divmod(whole, 32)
    return *divmod(whole, 13), day, hour, minute, second, us


def packed_text(field: int, packed: int) -> str:
    """A date or a time in JSON, as MySQL writes it."""
    if field == 11:
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole, us = packed >> 24, packed & 0xFFFFFF
        return f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{us:06d}"
    year, month, day, hour, minute, second, us = packed_parts(packed)
    text = f"{year:04d}-{month:02d}-{day:02d}"
    return text if field == 10 else f"{text} {hour:02d}:{minute:02d}:{second:02d}.{us:06d}"


def text_parts(text: str) -> Parts:
    """Those of a DATETIME's text.

    >>> text_parts("2024-02-29 13:45:30.5")
    (2024, 2, 29, 13, 45, 30, 500000)
    """
    day, _, clock = text.partition(" ")
    year, month, number = day.split("-")
    whole, _, part = clock.partition(".")
    hour, minute, second = whole.split(":") if whole else ("0", "0", "0")
    us = int(part.ljust(6, "0")) if part else 0
    return int(year), int(month), int(number), int(hour), int(minute), int(second), us


def text_us(text: str) -> int:
    """Microseconds of a TIME's text.

    >>> text_us("-838:59:59.000000")
    -3020399000000
    """
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    whole, _, part = text.partition(".")
    hours, minutes, seconds = (int(one) for one in whole.split(":"))
    us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return sign * (us + (int(part.ljust(6, "0")) if part else 0))
