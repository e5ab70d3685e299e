"""Kernels that write JSON: one column's values as pieces of text, pieces joined into rows.

Pieces are text one after another with the positions between them (one more than pieces). The
caller sizes every output for the worst case and `PADDING`; kernels write whole blocks, past the end.
"""

from __future__ import annotations

import numpy as np

from penstock.core.kernels import BLOCK, Array, Number, njit, types
from penstock.core.kernels.copying import copy_plain
from penstock.formats.words import (
    I64_OUT,
    U8_IN,
    U8_OUT,
    U64,
    called,
    copy_block,
    inlined,
    load64,
    marks_escapes,
    store64,
    trailing_zeros,
)

NULL_BYTES = 4

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_NULL = U64(int.from_bytes(b"null", "little"))
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

# The letter of a byte's short escape; 0 where it has none, 1 where it needs the long one.
_LETTERS = np.zeros(256, np.uint8)
_LETTERS[:32] = 1
for _byte, _letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
    _LETTERS[_byte] = _letter


@inlined
def count_all(data: Array) -> Number:
    """How many bytes need an escape."""
    total = 0
    p = 0
    while p < len(data):
        if p + BLOCK <= len(data) and marks_escapes(data, p) == U64(0):
            p += BLOCK
            continue
        for k in range(p, min(p + BLOCK, len(data))):
            total += _LETTERS[data[k]] != 0
        p += BLOCK
    return total


@njit(_I(U8_IN), cache=True, nogil=True)
def count_escapes(data: Array) -> Number:
    """How many bytes of text need an escape."""
    return count_all(data)


@called
def put_escape(out: Array, q: Number, byte: Number) -> Number:
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
def put_text(data: Array, p: Number, end: Number, out: Array, q: Number) -> Number:
    """Writes text with its escapes: the position past it."""
    while p < end:
        if p + BLOCK <= len(data):
            # What lies behind the text may need an escape, too.
            plain = min(trailing_zeros(marks_escapes(data, p)), end - p)
            if plain >= min(BLOCK, end - p):
                copy_block(data, p, out, q)
                plain = min(BLOCK, plain)
                p += plain
                q += plain
                continue
        for k in range(p, min(p + BLOCK, end)):
            byte = data[k]
            if _LETTERS[byte]:
                q = put_escape(out, q, byte)
            else:
                out[q] = byte
                q += 1
        p += BLOCK
    return q


@inlined
def text_all(at: Array, data: Array, valid: Array, ends: Array, out: Array) -> None:
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
def write_text(at: Array, data: Array, valid: Array, ends: Array, out: Array) -> None:
    """Strings as JSON: text between the positions `at`, quoted and escaped."""
    text_all(at, data, valid, ends, out)


@inlined
def list_all(
    at: Array, valid: Array, item_ends: Array, items: Array, ends: Array, out: Array
) -> None:
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
def write_lists(
    at: Array, valid: Array, item_ends: Array, items: Array, ends: Array, out: Array
) -> None:
    """Lists as JSON, of the items' pieces between the positions `at`."""
    list_all(at, valid, item_ends, items, ends, out)


@inlined
def copy_exact(source: Array, p: Number, out: Array, q: Number, size: Number) -> None:
    """Copies `size` bytes and writes none beyond them."""
    if size >= BLOCK:
        for k in range(0, size - BLOCK, BLOCK):
            copy_block(source, p + k, out, q + k)
        copy_block(source, p + size - BLOCK, out, q + size - BLOCK)
    elif size >= 8:
        for k in range(0, size - 8, 8):
            store64(out, q + k, load64(source, p + k))
        store64(out, q + size - 8, load64(source, p + size - 8))
    else:
        for k in range(size):
            out[q + k] = source[p + k]


@inlined
def place_all(name: Array, ends: Array, pieces: Array, cursor: Array, out: Array) -> None:
    """The body of `place_column`."""
    for row in range(len(cursor)):
        q = cursor[row]
        copy_exact(name, 0, out, q, len(name))
        q += len(name)
        size = ends[row + 1] - ends[row]
        copy_exact(pieces, ends[row], out, q, size)
        cursor[row] = q + size


@njit(types.void(U8_IN, _I64_IN, U8_IN, I64_OUT, U8_OUT), cache=True, nogil=True)
def place_column(name: Array, ends: Array, pieces: Array, cursor: Array, out: Array) -> None:
    """Writes `name` and a piece into each row, at its cursor, and moves the cursors on."""
    place_all(name, ends, pieces, cursor, out)
