"""Kernels that read COPY's text and write JSON: each byte is looked at once, and copied once.

A value is a place and a size in the text, or in further bytes behind it: a place past the text's end.
"""

# mypy: ignore-errors
# (these functions have Numba's types, which mypy can't see)

from __future__ import annotations

from typing import Final

from penstock.core.kernels import BLOCK, njit, types
from penstock.core.kernels.copying import copy_plain, inlined

__all__ = ["BOOL", "PADDING", "PLAIN", "TEXT", "find_values", "wrap_all", "write_objects"]

PADDING: Final = BLOCK
"""Bytes that outputs have beyond what is written, and short inputs beyond what is read: blocks are copied
whole."""
PLAIN, TEXT, BOOL = 0, 1, 2
"""How a value is written: as it is, between quotes, as `true` or `false`."""

_TAB, _NEWLINE, _QUOTE, _BACKSLASH, _N, _T, _SPACE, _CLOSE = 9, 10, 34, 92, 78, 116, 32, 125
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT, _I64_OUT, _I32_OUT = types.uint8[::1], types.int64[::1], types.int32[::1]


@njit(types.int64(_U8, types.int64, _I64_OUT, _I64_OUT, _OUT), cache=True, nogil=True)
def find_values(data, columns, at, size, escaped):
    """Where the values of whole lines are, row by row.

    Args:
        data: lines of COPY.
        columns: how many values a line has.
        at: filled with the values' places.
        size: filled with their sizes; -1 for NULL.
        escaped: filled with whether a value has a byte that JSON or COPY escapes.

    Returns: how many values there are; -1 where a line has another number of them, or there are more than
        `at` has room for.
    """
    found = column = begin = 0
    has_escape = False
    for p in range(len(data)):
        byte = data[p]
        if byte in (_TAB, _NEWLINE):
            if found == len(at) or (column == columns - 1) != (byte == _NEWLINE):
                return -1
            at[found] = begin
            is_null = p - begin == 2 and data[begin] == _BACKSLASH and data[begin + 1] == _N
            size[found] = -1 if is_null else p - begin
            escaped[found] = has_escape and not is_null
            found += 1
            column = 0 if byte == _NEWLINE else column + 1
            begin = p + 1
            has_escape = False
        elif byte < _SPACE or byte in (_QUOTE, _BACKSLASH):
            has_escape = True
    return found if begin == len(data) else -1


@inlined
def put(source, p, out, q, length):
    """Copies bytes: the position past them."""
    copy_plain(source, p, out, q, length)
    return q + length


@inlined
def put_all(data, extra, columns, places, kinds, at, size, names, name_ends, ends, out):
    q = 0
    rows = len(ends) - 1
    for row in range(rows):
        ends[row] = q
        for i in range(len(places)):
            begin = name_ends[i]
            q = put(names, begin, out, q, name_ends[i + 1] - begin)
            value = row * columns + places[i]
            length = size[value]
            p = at[value]
            if length < 0:
                out[q], out[q + 1], out[q + 2], out[q + 3] = 110, 117, 108, 108  # null
                q += 4
            elif p >= len(data):
                q = put(extra, p - len(data), out, q, length)
            elif kinds[i] == TEXT:
                out[q] = _QUOTE
                q = put(data, p, out, q + 1, length)
                out[q] = _QUOTE
                q += 1
            elif kinds[i] == BOOL and data[p] == _T:
                out[q], out[q + 1], out[q + 2], out[q + 3] = 116, 114, 117, 101  # true
                q += 4
            elif kinds[i] == BOOL:
                out[q], out[q + 1], out[q + 2] = 102, 97, 108  # false
                out[q + 3], out[q + 4] = 115, 101
                q += 5
            else:
                q = put(data, p, out, q, length)
        out[q] = _CLOSE
        q += 1
    ends[rows] = q


@njit(
    types.void(
        *(_U8, _U8, types.int64, _I64, _I64, _I64, _I64, _U8, _I64),
        *(_I64_OUT, _OUT),
    ),
    cache=True,
    nogil=True,
)
def write_objects(data, extra, columns, places, kinds, at, size, names, name_ends, ends, out):
    """Objects of some columns, as JSON.

    Args:
        data: lines of COPY.
        extra: JSON of values whose places are past the end of `data`.
        columns: how many values a line has.
        places: which of them an object has.
        kinds: how these are written.
        at: places of all values, row by row.
        size: their sizes; -1 for NULL.
        names: what precedes the object's values, one after another, and `PADDING` bytes.
        name_ends: where these begin, and the end of the last one.
        ends: filled with where objects begin, and the end of the last one.
        out: filled with the objects; as long as they are, and `PADDING`.
    """
    put_all(data, extra, columns, places, kinds, at, size, names, name_ends, ends, out)


@inlined
def put_between(data, at, head, tail, ends, out):
    q = 0
    rows = len(at) - 1
    for row in range(rows):
        ends[row] = q
        q = put(head, 0, out, q, len(head) - BLOCK)
        begin = at[row]
        q = put(data, begin, out, q, at[row + 1] - begin)
        q = put(tail, 0, out, q, len(tail) - BLOCK)
    ends[rows] = q


@njit(
    types.void(
        *(_U8, types.Array(types.int32, 1, "C", readonly=True), _U8, _U8),
        *(_I32_OUT, _OUT),
    ),
    cache=True,
    nogil=True,
)
def wrap_all(data, at, head, tail, ends, out):
    """Values between a head and a tail.

    Args:
        data: the values, one after another.
        at: where they begin, and the end of the last one.
        head: what precedes each, and `PADDING` bytes.
        tail: what follows, and `PADDING` bytes.
        ends: filled with where the results begin, and the end of the last one.
        out: filled with them; as long as they are, and `PADDING`.
    """
    put_between(data, at, head, tail, ends, out)
