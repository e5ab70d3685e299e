"""Kernels that write JSON: one column's values as pieces of text, pieces joined into rows.

Pieces are text one after another with the positions between them (one more than pieces). The caller
sizes every output for the worst case and `PADDING`; a kernel writes words whole, past a piece's end.
"""

# mypy: ignore-errors
# (these functions have Numba's types, which mypy can't see)

from __future__ import annotations

import numpy as np
from numba import njit, types

from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND_US
from penstock.formats._json_text import copy_plain
from penstock.formats._words import (
    HIGH_BITS,
    I64_OUT,
    ONES,
    U8_IN,
    U8_OUT,
    U64,
    called,
    inlined,
    load64,
    store64,
)

NULL_BYTES = 4
INSTANT_BYTES = 29  # "YYYY-MM-DDTHH:MM:SS.ffffffZ" with its quotes
DATE_BYTES = 12

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_NULL = U64(int.from_bytes(b"null", "little"))
_QUOTES = U64(0x2222222222222222)
_BACKSLASHES = U64(0x5C5C5C5C5C5C5C5C)
_SPACES = U64(0x2020202020202020)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

# The letter of a byte's short escape; 0 where it has none, 1 where it needs the long one.
_LETTERS = np.zeros(256, np.uint8)
_LETTERS[:32] = 1
for _byte, _letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
    _LETTERS[_byte] = _letter


@inlined
def escapes_in(text):
    """The high bits of a word's bytes from the first one on that JSON needs an escape for; 0: none."""
    quote = text ^ _QUOTES
    slash = text ^ _BACKSLASHES
    hits = ((quote - ONES) & ~quote) | ((slash - ONES) & ~slash) | ((text - _SPACES) & ~text)
    return hits & HIGH_BITS


@inlined
def count_all(data):
    """How many bytes need an escape."""
    total = 0
    p = 0
    while p < len(data):
        if p + 8 <= len(data) and escapes_in(load64(data, p)) == U64(0):
            p += 8
            continue
        for k in range(p, min(p + 8, len(data))):
            total += _LETTERS[data[k]] != 0
        p += 8
    return total


@njit(_I(U8_IN), cache=True, nogil=True)
def count_escapes(data):
    """How many bytes of text need an escape."""
    return count_all(data)


@called
def put_escape(out, q, byte):
    """Writes a byte's escape: the position past it."""
    out[q] = 92
    letter = _LETTERS[byte]
    if letter > 1:
        out[q + 1] = letter
        return q + 2
    out[q + 1] = 117
    out[q + 2] = 48
    out[q + 3] = 48
    out[q + 4] = _HEX[byte >> 4]
    out[q + 5] = _HEX[byte & 15]
    return q + 6


@inlined
def put_text(data, p, end, out, q):
    """Writes text with its escapes: the position past it."""
    while p < end:
        if p + 8 <= len(data):
            text = load64(data, p)
            if escapes_in(text) == U64(0):
                store64(out, q, text)
                step = min(8, end - p)
                p += step
                q += step
                continue
        for k in range(p, min(p + 8, end)):
            byte = data[k]
            if _LETTERS[byte]:
                q = put_escape(out, q, byte)
            else:
                out[q] = byte
                q += 1
        p += 8
    return q


@inlined
def text_all(at, data, valid, ends, out):
    """The body of `write_text`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            out[q] = 34
            q = put_text(data, at[row], at[row + 1], out, q + 1)
            out[q] = 34
            q += 1
        else:
            store64(out, q, _NULL)
            q += NULL_BYTES
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_text(at, data, valid, ends, out):
    """Strings as JSON: text between the positions `at`, quoted and escaped."""
    text_all(at, data, valid, ends, out)


@inlined
def number_all(at, data, valid, point, ends, out):
    """The body of `write_numbers`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            begin, size = at[row], at[row + 1] - at[row]
            copy_plain(data, begin, out, q, size)
            q += size
            if point:
                plain = True
                for k in range(begin, begin + size):
                    plain = plain and (data[k] == 45 or data[k] >= 48) and data[k] != 101
                if plain:
                    out[q] = 46
                    out[q + 1] = 48
                    q += 2
        else:
            store64(out, q, _NULL)
            q += NULL_BYTES
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, U8_IN, types.boolean, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_numbers(at, data, valid, point, ends, out):
    """Numbers and booleans as JSON; with `point`, `7` becomes `7.0`."""
    number_all(at, data, valid, point, ends, out)


@inlined
def put2(out, q, value):
    """Writes two digits."""
    out[q] = 48 + value // 10
    out[q + 1] = 48 + value % 10


@inlined
def put_date(out, q, days):
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
def put_clock(out, q, micros):
    """Writes `THH:MM:SS[.fff[fff]]Z` of the microseconds of a day: the position past it."""
    seconds = micros // SECOND_US
    micros -= seconds * SECOND_US
    out[q] = 84
    put2(out, q + 1, seconds // 3600)
    out[q + 3] = 58
    put2(out, q + 4, seconds // 60 % 60)
    out[q + 6] = 58
    put2(out, q + 7, seconds % 60)
    q += 9
    if micros:
        places = 3 if micros % 1000 == 0 else 6
        value = micros // 1000 if places == 3 else micros
        out[q] = 46
        for k in range(places):
            out[q + places - k] = 48 + value % 10
            value //= 10
        q += places + 1
    out[q] = 90
    return q + 1


@inlined
def time_all(values, valid, dates, ends, out):
    """The body of `write_times`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            micros = values[row] * DAY_US if dates else values[row]
            if (dates and abs(values[row]) > INSTANT_MAX_US // DAY_US) or not (
                INSTANT_MIN_US <= micros <= INSTANT_MAX_US
            ):
                return row
            days = micros // DAY_US
            out[q] = 34
            q = put_date(out, q + 1, days)
            if not dates:
                q = put_clock(out, q, micros - days * DAY_US)
            out[q] = 34
            q += 1
        else:
            store64(out, q, _NULL)
            q += NULL_BYTES
        ends[row + 1] = q
    return -1


@njit(_I(_I64_IN, U8_IN, types.boolean, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_times(values, valid, dates, ends, out):
    """Instants (microseconds) or `dates` (days) as JSON.

    Returns:
        -1, or the first row that is outside the years 1 to 9999.
    """
    return time_all(values, valid, dates, ends, out)


@inlined
def list_all(at, valid, item_ends, items, ends, out):
    """The body of `write_lists`."""
    q = 0
    ends[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            out[q] = 91
            q += 1
            for k in range(at[row], at[row + 1]):
                if k > at[row]:
                    out[q] = 44
                    q += 1
                size = item_ends[k + 1] - item_ends[k]
                copy_plain(items, item_ends[k], out, q, size)
                q += size
            out[q] = 93
            q += 1
        else:
            store64(out, q, _NULL)
            q += NULL_BYTES
        ends[row + 1] = q


@njit(types.void(_I64_IN, U8_IN, _I64_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def write_lists(at, valid, item_ends, items, ends, out):
    """Lists as JSON, of the items' pieces between the positions `at`."""
    list_all(at, valid, item_ends, items, ends, out)


@inlined
def copy_exact(source, p, out, q, size):
    """Copies `size` bytes and writes none beyond them."""
    if size >= 8:
        for k in range(0, size - 8, 8):
            store64(out, q + k, load64(source, p + k))
        store64(out, q + size - 8, load64(source, p + size - 8))
    else:
        for k in range(size):
            out[q + k] = source[p + k]


@inlined
def place_all(name, ends, pieces, cursor, out):
    """The body of `place_column`."""
    for row in range(len(cursor)):
        q = cursor[row]
        copy_exact(name, 0, out, q, len(name))
        q += len(name)
        size = ends[row + 1] - ends[row]
        copy_exact(pieces, ends[row], out, q, size)
        cursor[row] = q + size


@njit(types.void(U8_IN, _I64_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def place_column(name, ends, pieces, cursor, out):
    """Writes `name` and a piece into each row, at its cursor, and moves the cursors on."""
    place_all(name, ends, pieces, cursor, out)
