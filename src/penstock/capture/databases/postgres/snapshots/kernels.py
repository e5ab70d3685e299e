"""Kernels that read COPY's text: each byte is looked at once."""

from __future__ import annotations

from penstock.core.kernels import Array, Number, njit, types

__all__ = ["find_values"]

_TAB, _NEWLINE, _QUOTE, _BACKSLASH, _N, _SPACE = 9, 10, 34, 92, 78, 32
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT, _I64_OUT = types.uint8[::1], types.int64[::1]


@njit(types.int64(_U8, types.int64, _I64_OUT, _I64_OUT, _OUT), cache=True, nogil=True)
def find_values(data: Array, columns: Number, at: Array, size: Array, escaped: Array) -> Number:
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
