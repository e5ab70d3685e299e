"""JSON's scalars to 8-byte values: integers, doubles, instants, dates.

Invariant: a value that is given is exact: integers as written, doubles the nearest to what is
written, instants and dates of the real calendar. Whatever isn't certain is refused (position -1)
and left to the slow path. Doubles: W. D. Clinger, *How to read floating point numbers accurately*
(1990) where the mantissa and the power of ten are exact; else D. Lemire, *Number parsing at a
gigabyte per second* (2021).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import Array, Number, types
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND_US
from penstock.formats.words import (
    U8_IN,
    U64,
    bits_of_double,
    called,
    digit_count,
    digits_value,
    double_of_bits,
    inlined,
    leading_zeros,
    multiply_high,
    word,
)

DIGITS_MAX: Final = 19  # of a mantissa: as many as 64 bits hold for certain
_EXPONENT_DIGITS_MAX: Final = 4
_POWER_MIN, _POWER_MAX = -342, 308  # of ten: below, 19 digits are zero; above, infinite

_I = types.int64
_PAIR = types.UniTuple(_I, 2)
_READ = _PAIR(U8_IN, _I, _I)

_INT64_MAX = U64(2**63 - 1)
_EXACT_MAX = U64(2**53)
POWERS_INT = np.array([10**k for k in range(DIGITS_MAX + 1)], np.uint64)
POWERS_EXACT = np.array([10.0**k for k in range(23)], np.float64)
INSTANT_MIN_MS, INSTANT_MAX_MS = INSTANT_MIN_US // 1000, INSTANT_MAX_US // 1000


def _power(exponent: int) -> int:
    """10**exponent, scaled by a power of two to 128 bits with the highest one set, rounded down."""
    if exponent >= 0:
        value: int = 10**exponent
        excess = value.bit_length() - 128
        return value >> excess if excess > 0 else value << -excess
    divisor: int = 10**-exponent
    return (1 << (divisor.bit_length() + 127)) // divisor


_POWERS = np.array(
    [[p >> 64, p & (2**64 - 1)] for p in map(_power, range(_POWER_MIN, _POWER_MAX + 1))], np.uint64
)


@inlined
def read_digits(buffer: Array, p: Number) -> tuple[Number, Number]:
    """The digits from `p` on: (value, how many); more than `DIGITS_MAX`: (0, DIGITS_MAX + 1)."""
    text = word(buffer, p)
    count = digit_count(text)
    if count == 0:
        return U64(0), 0
    value = digits_value(text, count)
    if count < 8:
        return value, count
    while True:
        text = word(buffer, p + count)
        more = digit_count(text)
        if more == 0:
            return value, count
        if count + more > DIGITS_MAX:
            return U64(0), DIGITS_MAX + 1
        value = value * POWERS_INT[more] + digits_value(text, more)
        count += more
        if more < 8:
            return value, count


@inlined
def read_integer(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """An integer of 64 bits: (value, position past it or -1)."""
    negative = p < end and buffer[p] == 45
    if negative:
        p += 1
    value, count = read_digits(buffer, min(p, end))
    past = p + count
    if count == 0 or count > DIGITS_MAX or past >= end or (buffer[p] == 48 and count > 1):
        return 0, -1
    if value > _INT64_MAX:
        return 0, -1
    return (-_I(value) if negative else _I(value)), past


@called
def nearest_double(mantissa: Number, exponent: Number) -> tuple[Number, Number]:
    """Mantissa * 10**exponent, mantissa > 0: (the nearest double, whether that is certain).

    The algorithm of Eisel and Lemire, in the form of Go's strconv: normal numbers only.
    """
    if exponent < _POWER_MIN or exponent > _POWER_MAX:
        return 0.0, False
    shift = leading_zeros(mantissa)
    mantissa <<= shift
    power_high = _POWERS[exponent - _POWER_MIN, 0]
    power_low = _POWERS[exponent - _POWER_MIN, 1]
    binary = U64(((217706 * exponent) >> 16) + 64 + 1023) - shift
    high, low = multiply_high(mantissa, power_high), mantissa * power_high
    if (high & U64(0x1FF)) == U64(0x1FF) and low + mantissa < mantissa:
        next_high, next_low = multiply_high(mantissa, power_low), mantissa * power_low
        merged = low + next_high
        if merged < low:
            high += U64(1)
        low = merged
        if (
            (high & U64(0x1FF)) == U64(0x1FF)
            and low + U64(1) == U64(0)
            and next_low + mantissa < mantissa
        ):
            return 0.0, False
    top = high >> U64(63)
    result = high >> (top + U64(9))
    binary -= U64(1) ^ top
    if low == U64(0) and (high & U64(0x1FF)) == U64(0) and (result & U64(3)) == U64(1):
        return 0.0, False  # exactly half-way, as far as can be seen
    result += result & U64(1)
    result >>= U64(1)
    if result >> U64(53):
        result >>= U64(1)
        binary += U64(1)
    if binary - U64(1) >= U64(0x7FE):
        return 0.0, False  # subnormal or infinite
    return double_of_bits((binary << U64(52)) | (result & U64(0xFFFFFFFFFFFFF))), True


@inlined
def read_double(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """A number as the nearest double: (value, position past it or -1)."""
    negative = p < end and buffer[p] == 45
    if negative:
        p += 1
    mantissa, count = read_digits(buffer, min(p, end))
    if count == 0 or count > DIGITS_MAX or p >= end or (buffer[p] == 48 and count > 1):
        return 0.0, -1
    p += count
    exponent = 0
    if p < end and buffer[p] == 46:
        fraction, places = read_digits(buffer, p + 1)
        if places == 0 or count + places > DIGITS_MAX:
            return 0.0, -1
        mantissa = mantissa * POWERS_INT[places] + fraction
        exponent = -places
        p += places + 1
    if p < end and buffer[p] | 32 == 101:
        minus = p + 1 < end and buffer[p + 1] == 45
        p += 2 if minus or (p + 1 < end and buffer[p + 1] == 43) else 1
        size, places = read_digits(buffer, min(p, end))
        if places == 0 or places > _EXPONENT_DIGITS_MAX:
            return 0.0, -1
        exponent += -_I(size) if minus else _I(size)
        p += places
    if p >= end:
        return 0.0, -1
    value, certain = 0.0, True
    if mantissa:
        if mantissa <= _EXACT_MAX and -22 <= exponent <= 22:
            value = np.float64(mantissa)
            value = (
                value / POWERS_EXACT[-exponent] if exponent < 0 else value * POWERS_EXACT[exponent]
            )
        else:
            value, certain = nearest_double(mantissa, exponent)
    return (-value if negative else value), (p if certain else -1)


@inlined
def read_decimal(
    buffer: Array, p: Number, end: Number, scale: Number, precision: Number
) -> tuple[Number, Number]:
    """A number, or a text that is one, in units of 10**-scale: (value, position past it or -1).

    Args:
        buffer: the bytes.
        p: where it begins, before `end`.
        end: the row's end.
        scale: digits after the point; none that are written are lost.
        precision: of all digits that it may have, at most 18.
    """
    quoted = buffer[p] == 34
    if quoted:
        p += 1
    negative = p < end and buffer[p] == 45
    if negative:
        p += 1
    mantissa, count = read_digits(buffer, min(p, end))
    if count == 0 or count > DIGITS_MAX or p >= end or (buffer[p] == 48 and count > 1):
        return 0, -1
    p += count
    places = 0
    if p < end and buffer[p] == 46:
        fraction, places = read_digits(buffer, p + 1)
        if places == 0 or places > scale or count + places > DIGITS_MAX:
            return 0, -1
        mantissa = mantissa * POWERS_INT[places] + fraction
        p += places + 1
    if p >= end or (quoted and buffer[p] != 34):
        return 0, -1
    if quoted:
        p += 1
    more = scale - places
    if mantissa and (more > precision or mantissa >= POWERS_INT[precision - more]):
        return 0, -1
    value = _I(mantissa * POWERS_INT[more])
    return (-value if negative else value), p


@inlined
def days_from_civil(year: Number, month: Number, day: Number) -> Number:
    """Days since 1970-01-01 of a date of the Gregorian calendar (H. Hinnant, 2014); year >= 1."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined
def read_days(year_month: Number, month_day: Number) -> Number:
    """Days since 1970 of a date's first and last 8 bytes (`YYYY-MM-`, `YY-MM-DD`); or -1 << 62."""
    nothing = -1 << 62
    first = year_month ^ U64(0x2D30302D30303030)  # "0000-00-"
    last = month_day ^ U64(0x30302D30302D3030)  # "00-00-00"
    wrong = (first | (first + U64(0x7F76767F76767676))) | (last | (last + U64(0x76767F76767F7676)))
    if wrong & U64(0x8080808080808080):
        return nothing
    b = U64(255)
    year = _I(
        (first & b) * U64(1000)
        + ((first >> U64(8)) & b) * U64(100)
        + ((first >> U64(16)) & b) * U64(10)
        + ((first >> U64(24)) & b)
    )
    month = _I(((first >> U64(40)) & b) * U64(10) + ((first >> U64(48)) & b))
    day = _I(((last >> U64(48)) & b) * U64(10) + (last >> U64(56)))
    if year < 1 or month < 1 or month > 12 or day < 1:
        return nothing
    if day > 28:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        days = 29 if month == 2 and leap else 28 if month == 2 else 30 + ((month + month // 8) & 1)
        if day > days:
            return nothing
    return days_from_civil(year, month, day)


@inlined
def read_clock(text: Number) -> Number:
    """Seconds of the day of `HH:MM:SS`, or -1."""
    clock = text ^ U64(0x30303A30303A3030)
    if (clock | (clock + U64(0x76767F76767F7676))) & U64(0x8080808080808080):
        return -1
    b = U64(255)
    hour = _I((clock & b) * U64(10) + ((clock >> U64(8)) & b))
    minute = _I(((clock >> U64(24)) & b) * U64(10) + ((clock >> U64(32)) & b))
    second = _I(((clock >> U64(48)) & b) * U64(10) + (clock >> U64(56)))
    if hour > 23 or minute > 59 or second > 59:
        return -1
    return hour * 3600 + minute * 60 + second


@inlined
def read_instant(buffer: Array, p: Number, end: Number, memo: Array) -> tuple[Number, Number]:
    """`YYYY-MM-DD(T| )HH:MM:SS[.f{1,8}][Z|±HH:MM]"` from `p`: (microseconds, past it or -1).

    Args:
        buffer: the bytes.
        p: the first byte after the opening quote.
        end: the row's end.
        memo: the last date's two words and its days: most rows are of the same day.
    """
    if p + 20 > end:
        return 0, -1
    year_month, month_day = word(buffer, p), word(buffer, p + 2)
    if _I(year_month) == memo[0] and _I(month_day) == memo[1]:
        days = memo[2]
    else:
        days = read_days(year_month, month_day)
        if days == -1 << 62:
            return 0, -1
        memo[0], memo[1], memo[2] = _I(year_month), _I(month_day), days
    seconds = read_clock(word(buffer, p + 11))
    if seconds < 0 or (buffer[p + 10] != 84 and buffer[p + 10] != 32):
        return 0, -1
    micros = days * DAY_US + seconds * SECOND_US
    p += 19
    if buffer[p] == 46:
        text = word(buffer, p + 1)
        count = digit_count(text)
        if count == 0:
            return 0, -1
        value = digits_value(text, count)
        if count <= 6:
            micros += _I(value * POWERS_INT[6 - count])
        else:
            micros += _I(value // POWERS_INT[count - 6])
        p += count + 1
    if p + 1 < end and buffer[p] == 90:
        p += 1
    elif p + 6 < end and (buffer[p] == 43 or buffer[p] == 45):
        zone = word(buffer, p + 1) & U64(0xFFFFFFFFFF)
        zone_seconds = read_clock(zone | U64(0x30303A0000000000))
        if zone_seconds < 0:
            return 0, -1
        micros += (-zone_seconds if buffer[p] == 43 else zone_seconds) * SECOND_US
        p += 6
    if p >= end or buffer[p] != 34 or micros < INSTANT_MIN_US or micros > INSTANT_MAX_US:
        return 0, -1
    return micros, p + 1


@inlined
def read_timestamp(buffer: Array, p: Number, end: Number, memo: Array) -> Number:
    """ISO 8601 text or epoch milliseconds, as microseconds: (value, position past it or -1)."""
    if buffer[p] == 34:
        return read_instant(buffer, p + 1, end, memo)
    value, past = read_integer(buffer, p, end)
    if value < INSTANT_MIN_MS or value > INSTANT_MAX_MS:
        return 0, -1
    return value * 1000, past


@inlined
def read_date(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """The text `"YYYY-MM-DD"` as days since 1970-01-01: (value, position past it or -1)."""
    if p + 12 > end or buffer[p] != 34 or buffer[p + 11] != 34:
        return 0, -1
    days = read_days(word(buffer, p + 1), word(buffer, p + 3))
    return (0, -1) if days == -1 << 62 else (days, p + 12)


@inlined
def read_double_bits(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """A number as the bits of the nearest double: (bits, position past it or -1)."""
    value, past = read_double(buffer, p, end)
    return bits_of_double(value), past


@inlined
def read_float_bits(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """A number as the bits of the nearest single: (the same as a double's bits, past it or -1)."""
    value, past = read_double(buffer, p, end)
    single = np.float64(np.float32(value))
    return bits_of_double(single), (-1 if np.isinf(single) else past)
