"""Where the members of JSON objects lie, so that an object within another is decoded in place.

The kernel accepts a subset of what the slow path accepts, with equal results; of a member that occurs
twice the last one counts.
"""

from __future__ import annotations

from typing import Final

from penstock.core.kernels import Array, Number, njit, types
from penstock.formats.json_kernel import OK, SLOW, read_key
from penstock.formats.json_scan import is_null, skip_space, skip_value
from penstock.formats.words import U8_IN, U8_OUT, inlined

__all__ = ["find_members"]

_I = types.int64
_FAILED: Final = -2
_ROWS_IN = types.Array(types.int64, 1, "C", readonly=True)
_LENGTHS_IN = types.Array(types.int32, 1, "C", readonly=True)


@inlined
def _find_in_row(
    buffer: Array,
    p: Number,
    end: Number,
    row: Number,
    fields: Array,
    keys: Array,
    table: Array,
    at: Array,
    size: Array,
    others: Array,
) -> Number:
    """Finds the members of one row: `OK` or `SLOW`."""
    p = skip_space(buffer, p, end)
    if p >= end or buffer[p] != 123:
        return SLOW
    p = skip_space(buffer, p + 1, end)
    if p < end and buffer[p] == 125:
        p += 1
    else:
        while True:
            field, p = read_key(buffer, p, end, fields, keys, table)
            if field == _FAILED:
                return SLOW
            begin = skip_space(buffer, p, end)
            p = skip_value(buffer, begin, end)
            if p < 0:
                return SLOW
            if field >= 0:
                at[field, row] = begin
                size[field, row] = -1 if is_null(buffer, begin, end) else p - begin
            else:
                others[row] = 1
            p = skip_space(buffer, p, end)
            if p >= end:
                return SLOW
            mark = buffer[p]
            p += 1
            if mark == 125:
                break
            if mark != 44:
                return SLOW
            p = skip_space(buffer, p, end)
    return OK if skip_space(buffer, p, end) == end else SLOW


@njit(
    _I(
        U8_IN,
        _ROWS_IN,
        _LENGTHS_IN,
        types.int64[:, ::1],
        U8_IN,
        types.int64[::1],
        types.int64[:, ::1],
        types.int32[:, ::1],
        U8_OUT,
        U8_OUT,
    ),
    cache=True,
    nogil=True,
)
def find_members(
    buffer: Array,
    start: Array,
    length: Array,
    fields: Array,
    keys: Array,
    table: Array,
    at: Array,
    size: Array,
    others: Array,
    status: Array,
) -> Number:
    """Finds the members of every row, and sets its status.

    Args:
        buffer: that rows lie in.
        start: of each row.
        length: of each row.
        fields: the members, as a schema is compiled.
        keys: the bytes of their names, likewise.
        table: from a name to its member, likewise.
        at: by member and row, where its value begins.
        size: likewise, its bytes; -1 where there is none, or null.
        others: by row, 1 where the object has another member.
        status: `OK` or `SLOW`.

    Returns:
        How many rows are `SLOW`; or the complement of the first row that lies outside the buffer.
    """
    slow = 0
    for row in range(len(start)):
        begin, n = start[row], _I(length[row])
        for field in range(len(fields)):
            at[field, row] = 0
            size[field, row] = -1
        others[row] = 0
        state = SLOW
        if n > 0:
            if begin < 0 or begin > len(buffer) - n:
                return ~row
            state = _find_in_row(
                buffer, begin, begin + n, row, fields, keys, table, at, size, others
            )
            if state == SLOW:
                for field in range(len(fields)):
                    size[field, row] = -1
        status[row] = state
        slow += state
    return slow
