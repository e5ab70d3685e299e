"""Texts to decimals, times of day, UUIDs and intervals, one at a time; UUIDs and intervals to text."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.time import DAY_US, SECOND_US

__all__ = [
    "decimal_of",
    "interval_of",
    "interval_text",
    "time_of",
    "time_of_text",
    "unscaled",
    "uuid_of",
    "uuid_texts",
]

TEXT_MAX: Final = 100
"""Characters of a number: more than any DECIMAL has, with its exponent."""

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,4})?")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?Z?")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-?)(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}")
_INTERVAL: Final = re.compile(
    r"(-?)P(?=[0-9T])(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,12})(?:\.([0-9]{1,9}))?S)?)?"
)
_EXACT: Final = {
    digits: Context(prec=digits, traps=[Inexact, InvalidOperation]) for digits in range(1, 39)
}


def decimal_of(text: str, precision: int, scale: int) -> Decimal:
    """A number, exactly, with so many digits after the point.

    Raises:
        ValueError: it is none, or has more digits than it may have.

    >>> decimal_of("1.5e2", 5, 2)
    Decimal('150.00')
    """
    if len(text) > TEXT_MAX or _NUMBER.fullmatch(text) is None:
        raise ValueError
    try:
        return Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT[precision])
    except DecimalException:
        raise ValueError from None


def unscaled(value: Decimal) -> int:
    """A decimal's digits as a number, without the point."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def time_of(micros: int) -> dt.time:
    """The time of day so many microseconds after midnight.

    Raises:
        ValueError: the day is over.
    """
    if not 0 <= micros < DAY_US:
        raise ValueError
    seconds, rest = divmod(micros, SECOND_US)
    return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)


def time_of_text(text: str) -> dt.time:
    """`HH:MM:SS.ffffff`; seconds may be missing, and digits past the microsecond are cut off.

    Raises:
        ValueError: it is none.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    hour, minute, second, fraction = match.groups("0")
    return dt.time(int(hour), int(minute), int(second), int(fraction.ljust(6, "0")[:6]))


def uuid_of(text: str) -> bytes:
    """A UUID's 16 bytes.

    Raises:
        ValueError: it is none.
    """
    if _UUID.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text.replace("-", ""))


def uuid_texts(array: Any) -> Any:
    """UUIDs as text: 32 digits, and hyphens; NULL stays NULL."""
    data = array.cast(pa.binary()).fill_null(bytes(16))
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    body = np.frombuffer(b"".join(data.to_pylist()), np.uint8).reshape(len(array), 16)
    hexes = digits[np.stack([body >> 4, body & 15], axis=2)].reshape(len(array), 32)
    text = np.full((len(array), 36), ord("-"), np.uint8)
    for at, begin, end in ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32)):
        text[:, at : at + end - begin] = hexes[:, begin:end]
    kind: Any = pa.binary(36)
    buffers: Any = [None, pa.py_buffer(text.tobytes())]
    made = pa.Array.from_buffers(kind, len(array), buffers).cast(pa.binary())
    return pc.if_else(array.is_valid(), made, None).cast(pa.large_string())


def interval_of(text: str) -> int:
    """ISO 8601's weeks, days, hours, minutes and seconds, as microseconds; digits past those are cut off.

    Raises:
        ValueError: it is none, it is beyond 64 bits, or has months or years, whose length isn't known.

    >>> interval_of("P1DT2H30M")
    95400000000
    """
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError
    weeks, days, hours, minutes, seconds, fraction = match.groups("0")[1:]
    micros = int(fraction.ljust(6, "0")[:6])
    micros += ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * SECOND_US
    micros += (int(weeks) * 7 + int(days)) * DAY_US
    signed = -micros if match[1] else micros
    if not -(2**63) <= signed < 2**63:
        raise ValueError
    return signed


def interval_text(micros: int) -> str:
    """Microseconds as ISO 8601, in days, hours, minutes and seconds.

    >>> interval_text(-95_400_500_000)
    '-P1DT2H30M0.5S'
    """
    days, rest = divmod(abs(micros), DAY_US)
    seconds, fraction = divmod(rest, SECOND_US)
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    digits = f".{fraction:06}".rstrip("0") if fraction else ""
    clock = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M")) if n)
    if seconds or digits:
        clock += f"{seconds}{digits}S"
    text = "P" + (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
    return ("-" if micros < 0 else "") + (text if len(text) > 1 else "PT0S")
