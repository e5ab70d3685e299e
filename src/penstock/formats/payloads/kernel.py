"""Kernels over JSON texts: whether they are valid, and copies without the space between their tokens."""

from __future__ import annotations

from penstock.core.kernels import BLOCK, Array, Number, njit, types
from penstock.core.kernels.copying import called, copy_plain, inlined
from penstock.formats.json_scan import skip_space, skip_value
from penstock.formats.words import HIGH_BITS, ONES, U8_IN, U8_OUT, U64, trailing_zeros, word

PADDING = BLOCK  # bytes that the output has beyond the text: blocks are written whole

_I = types.int64
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_I32_IN = types.Array(types.int32, 1, "C", readonly=True)
_QUOTES = U64(0x2222222222222222)
_ABOVE_SPACE = U64(0x2121212121212121)
_QUOTE = 34
_BACKSLASH = 92


@called
def find_space(source: Array, p: Number, end: Number) -> Number:
    """The position of the first byte that may be space, in strings too; `end` where there is none."""
    while p < end:
        text = word(source, p)
        marks = (text - _ABOVE_SPACE) & ~text & HIGH_BITS
        if marks != U64(0):
            return min(p + (trailing_zeros(marks) >> 3), end)
        p += 8
    return end


@called
def past_string(source: Array, p: Number, end: Number) -> Number:
    """Past the string that begins after the quote before `p`. It is valid."""
    while p < end:
        text = word(source, p) ^ _QUOTES
        marks = (text - ONES) & ~text & HIGH_BITS
        if marks == U64(0):
            p += 8
            continue
        p += trailing_zeros(marks) >> 3
        slashes = p - 1
        while source[slashes] == _BACKSLASH:  # ends at the opening quote, at the latest
            slashes -= 1
        p += 1
        if (p - slashes) & 1 == 0:
            return p
    return end


@called
def copy_compact(source: Array, p: Number, end: Number, out: Array, q: Number) -> Number:
    """Copies a valid text without the space between its tokens: the position past it."""
    while p < end:
        byte = source[p]
        if byte == _QUOTE:
            past = past_string(source, p + 1, end)
            for k in range(p, past):
                out[q] = source[k]
                q += 1
            p = past
            continue
        p += 1
        if byte > 32:
            out[q] = byte
            q += 1
    return q


@inlined
def compact_all(
    buffer: Array, extra: Array, at: Array, length: Array, offsets: Array, out: Array
) -> None:
    """The body of `compact_texts`."""
    q = 0
    for row in range(len(at)):
        offsets[row] = q
        p, size = at[row], _I(length[row])
        if p < len(buffer):
            if find_space(buffer, p, p + size) == p + size:
                copy_plain(buffer, p, out, q, size)
                q += size
            else:
                q = copy_compact(buffer, p, p + size, out, q)
        else:
            copy_plain(extra, p - len(buffer), out, q, size)
            q += size
    offsets[len(at)] = q


@njit(types.void(U8_IN, U8_IN, _I64_IN, _I32_IN, types.int64[::1], U8_OUT), cache=True, nogil=True)
def compact_texts(
    buffer: Array, extra: Array, at: Array, length: Array, offsets: Array, out: Array
) -> None:
    """Copies valid JSON texts without the space between their tokens, and writes their offsets.

    Args:
        buffer: the bytes that texts lie in.
        extra: texts that have no such space.
        at: where each begins: in `buffer`, or past its end in `extra`.
        length: of each, in bytes.
        offsets: one more than texts.
        out: as long as all texts and `PADDING`.
    """
    compact_all(buffer, extra, at, length, offsets, out)


@inlined
def check_all(buffer: Array, at: Array, length: Array, good: Array) -> None:
    """The body of `check_texts`."""
    for row in range(len(at)):
        end = at[row] + _I(length[row])
        p = skip_value(buffer, skip_space(buffer, at[row], end), end)
        good[row] = p >= 0 and skip_space(buffer, p, end) == end


@njit(types.void(U8_IN, _I64_IN, _I32_IN, U8_OUT), cache=True, nogil=True)
def check_texts(buffer: Array, at: Array, length: Array, good: Array) -> None:
    """Finds which texts are one JSON value each, as `skip_value` accepts it, with space around it."""
    check_all(buffer, at, length, good)
