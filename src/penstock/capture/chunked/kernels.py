"""Kernels that write JSON of values that are somewhere in some bytes: each is copied once.

A value is a place and a size in the bytes, or in further ones behind them: a place past their end.
"""

from __future__ import annotations

from typing import Final

from penstock.core.kernels import BLOCK, Array, Number, njit, types
from penstock.core.kernels.copying import copy_plain, inlined

__all__ = ["BOOL", "PADDING", "PLAIN", "TEXT", "wrap_all", "write_objects"]

PADDING: Final = BLOCK
"""Bytes that outputs have beyond what is written, and short inputs beyond what is read: blocks are copied
whole."""
PLAIN, TEXT, BOOL = 0, 1, 2
"""How a value is written: as it is, between quotes, as `true` or `false`."""

_QUOTE, _T, _CLOSE = 34, 116, 125
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT, _I64_OUT, _I32_OUT = types.uint8[::1], types.int64[::1], types.int32[::1]


@inlined
def put(source: Array, p: Number, out: Array, q: Number, length: Number) -> Number:
    """Copies bytes: the position past them."""
    copy_plain(source, p, out, q, length)
    return q + length


@inlined
def put_all(
    data: Array,
    extra: Array,
    columns: Number,
    places: Array,
    kinds: Array,
    at: Array,
    size: Array,
    names: Array,
    name_ends: Array,
    ends: Array,
    out: Array,
) -> None:
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
def write_objects(
    data: Array,
    extra: Array,
    columns: Number,
    places: Array,
    kinds: Array,
    at: Array,
    size: Array,
    names: Array,
    name_ends: Array,
    ends: Array,
    out: Array,
) -> None:
    """Objects of some columns, as JSON.

    Args:
        data: what has values of rows.
        extra: JSON of values whose places are past the end of `data`.
        columns: how many values a row has.
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
def put_between(data: Array, at: Array, head: Array, tail: Array, ends: Array, out: Array) -> None:
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
def wrap_all(data: Array, at: Array, head: Array, tail: Array, ends: Array, out: Array) -> None:
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
