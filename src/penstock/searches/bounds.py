"""Bounds of ranges over numbers and times, as integers of the same order as a column's values."""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.time import DAY_US
from penstock.core.vectors import Vector

__all__ = ["HIGHEST", "LOWEST", "codes_of", "is_ordered", "span"]

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
CHARS_MAX: Final = 100
"""Characters of a bound: more than any number or instant has."""
_EXPONENT_MAX: Final = 400  # beyond any float; a Decimal of 10^999999 would be written out

_TIME: Final = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?)?)?)?"
    r"\s*(Z|[+-]\d\d(?::?\d\d)?)?"
)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - instants are counted without a zone


def is_ordered(type_: pa.DataType) -> bool:
    """Whether a column of the type has ranges: numbers, booleans, dates and timestamps."""
    return bool(
        (pa.types.is_integer(type_) and type_ != pa.uint64())
        or pa.types.is_boolean(type_)
        or vectors.is_float(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
        or vectors.is_short_decimal(type_)
    )


def codes_of(values: pa.Array) -> Vector:
    """int64[n] of the order of values that aren't NULL; instants are microseconds.

    Args:
        values: of a type that has ranges.
    """
    found: Any = values
    if pa.types.is_date64(found.type):
        found = found.cast(pa.date32())
    elif pa.types.is_timestamp(found.type):
        found = found.cast(pa.timestamp("us", found.type.tz), safe=False)
    return vectors.codes(found)


def span(text: str, type_: pa.DataType) -> tuple[int, int]:
    """The codes of the least and the greatest value that a bound's text stands for.

    `2024-03` stands for a month: as the lower bound its first instant counts, as the upper one its last.
    If no value is equal to it, such as 1.5 among integers, the first is greater than the second.

    Raises:
        ValueError: it is no bound of this type; what was expected.
    """
    if len(text) > CHARS_MAX:
        raise ValueError("a shorter number or time")
    if pa.types.is_boolean(type_):
        value = {"true": 1, "false": 0}.get(text.lower())
        if value is None:
            raise ValueError("true or false")
        return value, value
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        begin, end = _period(text)
        if pa.types.is_date(type_):
            return -(-begin // DAY_US), (end - 1) // DAY_US
        return begin, end - 1
    return _number_span(text, type_)


def _number_span(text: str, type_: pa.DataType) -> tuple[int, int]:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError("a number") from None
    if not number.is_finite() or abs(number.adjusted()) > _EXPONENT_MAX:
        raise ValueError("a finite number")
    if vectors.is_float(type_):
        value = float(number)
        if pa.types.is_float32(type_):
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
        code = int(vectors.float_codes(np.array([value]))[0])
        return code, code
    scale = type_.scale if pa.types.is_decimal(type_) else 0
    scaled = number.scaleb(scale)
    low = int(scaled.to_integral_value(ROUND_CEILING))
    high = int(scaled.to_integral_value(ROUND_FLOOR))
    return max(low, LOWEST), min(high, HIGHEST)


def _period(text: str) -> tuple[int, int]:
    """Microseconds at the begin and at the end of a year, a month, a day, …, a microsecond; in UTC."""
    wanted = "a time such as 2024-03, 2024-03-05 or 2024-03-05T10:00:00Z"
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(wanted)
    *parts, fraction, zone = found.groups()
    numbers = [int(one) for one in parts if one is not None]
    year, month, day, *clock = [*numbers, 1, 1][: max(3, len(numbers))]
    try:
        hour, minute, second = [*clock, 0, 0, 0][:3]
        # The zone is subtracted below.
        begin = dt.datetime(year, month, day, hour, minute, second)  # noqa: DTZ001
        at = (begin - _EPOCH) // dt.timedelta(microseconds=1)
        if len(numbers) < 3:
            following = (
                (year + 1, 1)
                if len(numbers) == 1
                else (
                    year + month // 12,
                    month % 12 + 1,
                )
            )
            end = (dt.datetime(*following, 1) - _EPOCH) // dt.timedelta(microseconds=1)  # noqa: DTZ001
        else:
            end = at + (DAY_US, 3_600_000_000, 60_000_000, 1_000_000)[len(numbers) - 3]
    except ValueError:
        raise ValueError(wanted) from None
    if fraction is not None:
        at += int(fraction[:6].ljust(6, "0"))
        end = at + 10 ** max(0, 6 - len(fraction))
    if zone not in (None, "Z"):
        digits = zone[1:].replace(":", "").ljust(4, "0")
        shift = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000_000
        shift = -shift if zone[0] == "-" else shift
        at, end = at - shift, end - shift
    return at, end
