"""Kernels that write numbers and times as pieces of JSON (see `_json_pieces`)."""

from __future__ import annotations

import numpy as np

from penstock.core.kernels import Array, Number, njit, types
from penstock.core.kernels.copying import copy_plain
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US
from penstock.formats.words import I64_OUT, U8_IN, U8_OUT, U64, inlined, load64, store64

INSTANT_BYTES = 29  # "YYYY-MM-DDTHH:MM:SS.ffffffZ" with its quotes
INTEGER_BYTES = 20  # of 64 bits, with a sign
DOUBLE_BYTES = 26  # as Arrow or this module writes it, with a point added
PLACES_MAX = 6  # decimals of a double that is tried as a decimal fraction; others are Arrow's
DECIMAL_MAX = 1e15  # above, and below DECIMAL_MIN unless zero, a double isn't tried
DECIMAL_MIN = 1e-3

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_F64_IN = types.Array(types.float64, 1, "C", readonly=True)
_NULL = U64(int.from_bytes(b"null", "little"))
_NULL_BYTES = 4
_TENS = np.array([10.0**k for k in range(PLACES_MAX + 1)])
_EXACT_MAX = 2.0**53
# "00", "01", … "99"
_PAIRS = np.frombuffer(b"".join(b"%02d" % k for k in range(100)), np.uint8)


@inlined
def put_null(out: Array, q: Number) -> Number:
    """Writes `null`: the position past it."""
    store64(out, q, _NULL)
    return q + _NULL_BYTES


@inlined
def put2(out: Array, q: Number, value: Number) -> None:
    """Writes two digits of an unsigned number below 100."""
    out[q] = _PAIRS[_I(value) * 2]
    out[q + 1] = _PAIRS[_I(value) * 2 + 1]


@inlined
def put_unsigned(out: Array, q: Number, value: Number) -> Number:
    """Writes an unsigned number: the position past it."""
    size = 1
    limit = U64(10)
    while size < 20 and value >= limit:
        size += 1
        limit *= U64(10)
    p = q + size
    while value >= U64(100):
        p -= 2
        put2(out, p, value % U64(100))
        value //= U64(100)
    if value >= U64(10):
        put2(out, p - 2, value)
    else:
        out[p - 1] = U64(48) + value
    return q + size


@inlined
def integers_all(values: Array, valid: Array, ends: Array, out: Array) -> None:
    """The body of `write_integers`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            value = values[row]
            size = U64(value)
            if value < 0:
                out[q] = 45
                q += 1
                size = U64(0) - size
            q = put_unsigned(out, q, size)
        else:
            q = put_null(out, q)
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_integers(values: Array, valid: Array, ends: Array, out: Array) -> None:
    """Integers as JSON."""
    integers_all(values, valid, ends, out)


@inlined
def places_of(value: Number) -> Number:
    """Decimals that a double needs where it is a short decimal fraction, else -1.

    `m / 10**k` of an exact m and an exact power is the double nearest to the decimal; the smallest
    k for which it is the value gives the shortest text that reads back the same.
    """
    size = abs(value)
    if not (DECIMAL_MIN <= size < DECIMAL_MAX or size == 0.0):
        return -1
    for k in range(PLACES_MAX + 1):
        whole = np.rint(size * _TENS[k])
        if whole >= _EXACT_MAX:
            return -1
        if whole / _TENS[k] == size:
            return k
    return -1


@inlined
def places_all(values: Array, places: Array) -> Number:
    """The body of `find_places`."""
    found = 0
    for row in range(len(values)):
        places[row] = places_of(values[row])
        found += places[row] >= 0
    return found


@njit(_I(_F64_IN, types.int8[::1]), cache=True, nogil=True)
def find_places(values: Array, places: Array) -> Number:
    """Sets each double's decimals, -1 where Arrow must write it: how many it need not."""
    return places_all(values, places)


@inlined
def put_decimal(out: Array, q: Number, value: Number, places: Number) -> Number:
    """Writes a double with so many decimals, at least one: the position past it."""
    if np.signbit(value):
        out[q] = 45
        q += 1
    scaled = U64(np.rint(abs(value) * _TENS[places]))
    power = U64(1)
    for _ in range(places):
        power *= U64(10)
    whole = scaled // power
    fraction = scaled - whole * power
    q = put_unsigned(out, q, whole)
    out[q] = 46
    for k in range(places):
        out[q + places - k] = U64(48) + fraction % U64(10)
        fraction //= U64(10)
    if places == 0:
        out[q + 1] = 48
        places = 1
    return q + places + 1


@inlined
def put_number(at: Array, data: Array, row: Number, point: Number, out: Array, q: Number) -> Number:
    """Copies a number's text, with `.0` if it is to have a `point` and is whole and not quoted."""
    begin, size = at[row], at[row + 1] - at[row]
    copy_plain(data, begin, out, q, size)
    if point and data[begin] != 34:
        for k in range(begin, begin + size):
            if data[k] == 46 or data[k] == 101:
                return q + size
        out[q + size] = 46
        out[q + size + 1] = 48
        return q + size + 2
    return q + size


@inlined
def doubles_all(
    values: Array, valid: Array, places: Array, at: Array, data: Array, ends: Array, out: Array
) -> None:
    """The body of `write_doubles`."""
    q = 0
    other = 0
    ends[0] = 0
    for row in range(len(valid)):
        if not valid[row]:
            q = put_null(out, q)
        elif places[row] >= 0:
            q = put_decimal(out, q, values[row], places[row])
        else:
            q = put_number(at, data, other, True, out, q)  # noqa: FBT003
            other += 1
        ends[row + 1] = q


@njit(
    types.void(
        _F64_IN,
        U8_IN,
        types.Array(types.int8, 1, "C", readonly=True),
        _I64_IN,
        U8_IN,
        I64_OUT,
        U8_OUT,
    ),
    cache=True,
    nogil=True,
)
def write_doubles(
    values: Array, valid: Array, places: Array, at: Array, data: Array, ends: Array, out: Array
) -> None:
    """Doubles as JSON: those without `places` have their text between positions `at`, in order."""
    doubles_all(values, valid, places, at, data, ends, out)


@inlined
def numbers_all(
    at: Array, data: Array, valid: Array, point: Number, ends: Array, out: Array
) -> None:
    """The body of `write_numbers`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        q = put_number(at, data, row, point, out, q) if valid[row] else put_null(out, q)
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, U8_IN, types.boolean, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_numbers(
    at: Array, data: Array, valid: Array, point: Number, ends: Array, out: Array
) -> None:
    """Numbers and booleans, of which there is text, as JSON; with `point`, `7` becomes `7.0`."""
    numbers_all(at, data, valid, point, ends, out)


@inlined
def put_date(out: Array, q: Number, days: Number) -> Number:
    """Writes `YYYY-MM-DD` of days since 1970-01-01 (H. Hinnant, 2014): the position past it."""
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    slot = (5 * of_year + 2) // 153
    month = slot + 3 if slot < 10 else slot - 9
    year += era * 400 + (month <= 2)
    put2(out, q, year // 100)
    put2(out, q + 2, year % 100)
    out[q + 4] = 45
    put2(out, q + 5, month)
    out[q + 7] = 45
    put2(out, q + 8, of_year - (153 * slot + 2) // 5 + 1)
    return q + 10


@inlined
def put_clock(out: Array, q: Number, micros: Number) -> Number:
    """Writes `THH:MM:SS[.fff[fff]]Z` of a day's microseconds, unsigned: the position past it."""
    seconds = micros // U64(1_000_000)
    micros -= seconds * U64(1_000_000)
    minutes = seconds // U64(60)
    hours = minutes // U64(60)
    out[q] = 84
    put2(out, q + 1, hours)
    out[q + 3] = 58
    put2(out, q + 4, minutes - hours * U64(60))
    out[q + 6] = 58
    put2(out, q + 7, seconds - minutes * U64(60))
    q += 9
    if micros:
        millis = micros // U64(1000)
        out[q] = 46
        out[q + 1] = U64(48) + millis // U64(100)
        put2(out, q + 2, millis % U64(100))
        q += 4
        micros -= millis * U64(1000)
        if micros:
            out[q] = U64(48) + micros // U64(100)
            put2(out, q + 1, micros % U64(100))
            q += 3
    out[q] = 90
    return q + 1


@inlined
def times_all(values: Array, valid: Array, dates: Number, ends: Array, out: Array) -> Number:
    """The body of `write_times`."""
    q = 0
    ends[0] = 0
    last_days, last_q = 0, -1  # most are of the same day: its text is copied
    for row in range(len(valid)):
        if valid[row]:
            low, high = INSTANT_MIN_US, INSTANT_MAX_US
            if dates:
                low, high = INSTANT_MIN_US // DAY_US, INSTANT_MAX_US // DAY_US
            value = values[row]
            if value < low or value > high:
                return row
            days = value if dates else value // DAY_US
            out[q] = 34
            q += 1
            if last_q >= 0 and days == last_days:
                store64(out, q + 2, load64(out, last_q + 2))
                store64(out, q, load64(out, last_q))
            else:
                put_date(out, q, days)
            last_days, last_q = days, q
            q += 10
            if not dates:
                q = put_clock(out, q, U64(value - days * DAY_US))
            out[q] = 34
            q += 1
        else:
            q = put_null(out, q)
        ends[row + 1] = q
    return -1


@njit(_I(_I64_IN, U8_IN, types.boolean, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_times(values: Array, valid: Array, dates: Number, ends: Array, out: Array) -> Number:
    """Instants (microseconds) or `dates` (days) as JSON.

    Returns:
        -1, or the first row that is outside the years 1 to 9999.
    """
    return times_all(values, valid, dates, ends, out)
