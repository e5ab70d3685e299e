"""The kernel that copies string values out of their rows into one Arrow buffer, escapes undone."""

from __future__ import annotations

from penstock.core.kernels import BLOCK, Array, Number, njit, types
from penstock.core.kernels.copying import called, copy_plain, inlined
from penstock.formats.json_scan import ESCAPES, hex4
from penstock.formats.words import U8_IN, U8_OUT

PADDING = BLOCK  # bytes that the output has beyond the text: blocks are written whole

_I = types.int64


@called
def put_character(out: Array, q: Number, code: Number) -> Number:
    """Writes a code point in UTF-8: the position past it."""
    if code < 0x80:
        out[q] = code
        return q + 1
    if code < 0x800:
        out[q] = 0xC0 | code >> 6
        out[q + 1] = 0x80 | code & 63
        return q + 2
    if code < 0x10000:
        out[q] = 0xE0 | code >> 12
        out[q + 1] = 0x80 | code >> 6 & 63
        out[q + 2] = 0x80 | code & 63
        return q + 3
    out[q] = 0xF0 | code >> 18
    out[q + 1] = 0x80 | code >> 12 & 63
    out[q + 2] = 0x80 | code >> 6 & 63
    out[q + 3] = 0x80 | code & 63
    return q + 4


@called
def copy_escaped(source: Array, p: Number, out: Array, q: Number, length: Number) -> None:
    """Copies a string that `scan_string` accepted, `length` bytes long without its escapes."""
    end = q + length
    while q < end:
        byte = source[p]
        if byte != 92:
            out[q] = byte
            p += 1
            q += 1
        elif source[p + 1] != 117:
            out[q] = ESCAPES[source[p + 1]]
            p += 2
            q += 1
        else:
            code = hex4(source, p + 2)
            p += 6
            if 0xD800 <= code <= 0xDBFF:
                code = 0x10000 + ((code - 0xD800) << 10) + hex4(source, p + 2) - 0xDC00
                p += 6
            q = put_character(out, q, code)


@inlined
def copy_all(
    buffer: Array, extra: Array, at: Array, length: Array, offsets: Array, out: Array
) -> None:
    """Copies texts to where their offsets say, those with escapes as what they stand for."""
    q = 0
    for row in range(len(at)):
        offsets[row] = q
        size = _I(length[row])
        p = at[row]
        if p < 0:
            copy_escaped(buffer, ~p, out, q, size)
        elif p < len(buffer):
            copy_plain(buffer, p, out, q, size)
        else:
            copy_plain(extra, p - len(buffer), out, q, size)
        q += size
    offsets[len(at)] = q


@njit(
    types.void(
        U8_IN,
        U8_IN,
        types.Array(types.int64, 1, "C", readonly=True),
        types.Array(types.int32, 1, "C", readonly=True),
        types.int32[::1],
        U8_OUT,
    ),
    cache=True,
    nogil=True,
)
def copy_text(
    buffer: Array, extra: Array, at: Array, length: Array, offsets: Array, out: Array
) -> None:
    """Copies a column of strings and writes its Arrow offsets.

    Args:
        buffer: the bytes of the rows.
        extra: the bytes of strings from the slow path.
        at: where each string begins: in `buffer`, or past its end in `extra`; the complement where
            it has escapes.
        length: bytes of each string, escapes undone.
        offsets: one more than rows.
        out: as long as all strings and `PADDING`.
    """
    copy_all(buffer, extra, at, length, offsets, out)
