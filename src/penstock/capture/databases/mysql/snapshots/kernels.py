"""Kernels that read the packets of rows: where they end, and where their values are.

Source: MySQL's documentation, "Text Resultset Row", "Protocol::LengthEncodedString".
"""

from __future__ import annotations

from typing import Final

from penstock.core.kernels import Array, Number, njit, types
from penstock.formats.json_scan import scan_character

__all__ = ["CUT", "END", "HEAD", "LONG", "MORE", "find_rows", "find_values"]

HEAD: Final = 4
"""Bytes before a packet: of its size, the lowest first, and its number."""
MORE, END, LONG, CUT = range(4)
"""Why rows end: what follows isn't there yet, isn't a row, is longer than a packet, is beyond the limit."""

_LONG_BYTES, _END_BYTES_MAX = 0xFFFFFF, 9
_NULL, _TWO, _THREE, _EIGHT, _ERROR = 0xFB, 0xFC, 0xFD, 0xFE, 0xFF
_SPACE, _QUOTE, _BACKSLASH = 32, 34, 92
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT, _I64_OUT = types.uint8[::1], types.int64[::1]
_NUMBER = types.int64


@njit(types.int64(_U8, types.int64, types.int64, types.int64, _I64_OUT), cache=True, nogil=True)
def find_rows(data: Array, begin: Number, rows_max: Number, limit: Number, state: Array) -> Number:
    """How far whole rows are there.

    Args:
        data: packets.
        begin: where the first one is.
        rows_max: how many rows are looked for.
        limit: the place beyond which no row begins.
        state: filled with the position behind them, and why they end there.

    Returns: how many there are.
    """
    p, rows = begin, 0
    state[1] = MORE
    while p + HEAD < len(data):
        size = _NUMBER(data[p]) | _NUMBER(data[p + 1]) << 8 | _NUMBER(data[p + 2]) << 16
        first = data[p + HEAD]
        if first == _ERROR or (first == _EIGHT and size < _END_BYTES_MAX):
            state[1] = END
            break
        if size == _LONG_BYTES:
            state[1] = LONG
            break
        if rows == rows_max or p > limit:
            state[1] = CUT
            break
        if p + HEAD + size > len(data):
            break
        p += HEAD + size
        rows += 1
    state[0] = p
    return rows


@njit(
    types.boolean(_U8, types.int64, types.int64, types.int64, _OUT, _I64_OUT, _I64_OUT, _OUT),
    cache=True,
    nogil=True,
)
def find_values(
    data: Array,
    begin: Number,
    length: Number,
    columns: Number,
    texts: Array,
    at: Array,
    size: Array,
    special: Array,
) -> Number:
    """Where the values of rows are, row by row.

    Args:
        data: packets.
        begin: where the first row's is.
        length: of the only row, which has `HEAD` bytes before it; 0: their packets say that.
        columns: how many values a row has.
        texts: which of them are texts.
        at: filled with the values' places; it has room for those of all rows, and no more.
        size: filled with their sizes; -1 for NULL.
        special: filled with whether a text has a byte that JSON escapes, or isn't UTF-8.

    Returns: whether each packet has that many values, and no more.
    """
    p, found = begin, 0
    while found < len(at):
        end = _NUMBER(data[p]) | _NUMBER(data[p + 1]) << 8 | _NUMBER(data[p + 2]) << 16
        p += HEAD
        end = p + (length or end)
        if end > len(data):
            return False
        for column in range(columns):
            if p >= end:
                return False
            count = _NUMBER(data[p])
            p += 1
            bytes_ = 2 if count == _TWO else 3 if count == _THREE else 8 if count == _EIGHT else 0
            if p + bytes_ > end or count == _ERROR:
                return False
            special[found] = 0
            if count == _NULL:
                at[found], size[found] = p, -1
                found += 1
                continue
            if bytes_:
                count = _NUMBER(0)
                for k in range(bytes_):
                    count |= _NUMBER(data[p + k]) << (8 * k)
                p += bytes_
            if count < 0 or count > end - p:
                return False
            # An empty value at the very end is where its length is: places behind the data mean others.
            at[found], size[found] = p if count else p - 1, count
            if texts[column]:
                q, past = p, p + count
                while q < past:
                    byte = data[q]
                    if byte < 0x80:
                        if byte < _SPACE or byte in (_QUOTE, _BACKSLASH):
                            special[found] = 1
                            break
                        q += 1
                    else:
                        q = scan_character(data, q, past)
                        if q < 0:
                            special[found] = 1
                            break
            p += count
            found += 1
        if p != end:
            return False
    return True
