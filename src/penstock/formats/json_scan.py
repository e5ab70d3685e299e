"""JSON's grammar over bytes: white space, strings, numbers' shape, values that nobody asked for.

Invariant: what these functions accept is valid JSON (RFC 8259) in valid UTF-8; what they don't
accept (a position of -1) may still be, and is looked at again by the slow path. Every position
handed in satisfies `0 <= p <= end <= len(buffer)`; one handed back never exceeds `end`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import BLOCK, Array, Number, types
from penstock.formats.words import (
    HIGH_BITS,
    ONES,
    U8_IN,
    U64,
    called,
    digit_count,
    inlined,
    marks_text,
    trailing_zeros,
    word,
)

# Objects and arrays within each other, the row's own included: bounds every stack.
DEPTH_MAX: Final = 64

_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_QUOTES = U64(0x2222222222222222)
_BACKSLASHES = U64(0x5C5C5C5C5C5C5C5C)
_SPACES = U64(0x2020202020202020)
_I = types.int64
_POSITION = _I(U8_IN, _I, _I)

_TRUE = U64(int.from_bytes(b"true", "little"))
_ALSE = U64(int.from_bytes(b"alse", "little"))
_NULL = U64(int.from_bytes(b"null", "little"))
_WORD4 = U64(0xFFFFFFFF)

# What a single-character escape stands for; 0 where there is no such escape.
ESCAPES: Final = np.zeros(256, np.uint8)
for _mark, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    ESCAPES[_mark] = _byte


@inlined
def skip_space(buffer: Array, p: Number, end: Number) -> Number:
    """The position of the first byte that isn't white space, or `end`."""
    while p < end and buffer[p] <= 32:
        if buffer[p] != 32 and buffer[p] != 10 and buffer[p] != 13 and buffer[p] != 9:
            break
        p += 1
    return p


@called
def scan_character(buffer: Array, p: Number, end: Number) -> Number:
    """Past one character of two or more UTF-8 bytes (RFC 3629); -1 where it isn't one."""
    lead = buffer[p]
    if lead < 0xC2 or lead > 0xF4:
        return -1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if p + size > end:
        return -1
    second = buffer[p + 1]
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0  # shorter spellings exist
    elif lead == 0xED:
        high = 0x9F  # surrogates
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F  # past U+10FFFF
    if second < low or second > high:
        return -1
    for k in range(2, size):
        if buffer[p + k] & 0xC0 != 0x80:
            return -1
    return p + size


@called
def hex4(buffer: Array, p: Number) -> Number:
    """The value of four hexadecimal digits, -1 where they aren't."""
    value = 0
    for k in range(4):
        byte = _I(buffer[p + k])
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 97 <= byte | 32 <= 102:
            value = value * 16 + (byte | 32) - 87
        else:
            return -1
    return value


@called
def scan_escape(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """Past the escape at the backslash `p`: (position or -1, UTF-8 bytes that it stands for).

    Half of a surrogate pair is left to the slow path: it is JSON, but no text.
    """
    if p + 2 > end:
        return -1, 0
    if ESCAPES[buffer[p + 1]] != 0:
        return p + 2, 1
    if buffer[p + 1] != 117 or p + 6 > end:
        return -1, 0
    code = hex4(buffer, p + 2)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return -1, 0
    if 0xD800 <= code <= 0xDBFF:
        if p + 12 > end or buffer[p + 6] != _BACKSLASH or buffer[p + 7] != 117:
            return -1, 0
        low = hex4(buffer, p + 8)
        return (p + 12, 4) if 0xDC00 <= low <= 0xDFFF else (-1, 0)
    return p + 6, (1 if code < 0x80 else 2 if code < 0x800 else 3)


@inlined
def scan_string(buffer: Array, p: Number, end: Number) -> tuple[Number, Number]:
    """Past the string that begins after the quote before `p`: (position or -1, bytes of its text).

    The text takes fewer bytes than its spelling exactly where there are escapes.
    """
    saved = 0
    begin = p
    while p < end:
        if p + BLOCK <= len(buffer):
            marks = marks_text(buffer, p)
            if marks == U64(0):
                p += BLOCK
                continue
            p += trailing_zeros(marks)
            if p >= end:
                break
            if buffer[p] == _QUOTE:
                return p + 1, p - begin - saved
        text = word(buffer, p)
        quote = text ^ _QUOTES
        slash = text ^ _BACKSLASHES
        hits = (
            ((quote - ONES) & ~quote)
            | ((slash - ONES) & ~slash)
            | ((text - _SPACES) & ~text)
            | text
        )
        hits &= HIGH_BITS
        if hits == U64(0):
            p += 8
            continue
        p += trailing_zeros(hits) >> 3
        if p >= end:
            break
        byte = buffer[p]
        if byte == _QUOTE:
            return p + 1, p - begin - saved
        if byte == _BACKSLASH:
            past, size = scan_escape(buffer, p, end)
            if past < 0:
                break
            saved += past - p - size
            p = past
        elif byte >= 0x80:
            while p >= 0 and p < end and buffer[p] >= 0x80:
                p = scan_character(buffer, p, end)
            if p < 0:
                break
        else:
            break  # a control character
    return -1, 0


@called
def skip_digits(buffer: Array, p: Number, end: Number) -> Number:
    """The position of the first byte that isn't a digit, or `end`."""
    while p < end:
        count = digit_count(word(buffer, p))
        p += count
        if count < 8:
            break
    return min(p, end)


@called
def scan_number(buffer: Array, p: Number, end: Number) -> Number:
    """Past a number of any size, or -1."""
    if p < end and buffer[p] == 45:
        p += 1
    past = skip_digits(buffer, p, end)
    if past == p or (buffer[p] == 48 and past > p + 1):
        return -1
    p = past
    if p < end and buffer[p] == 46:
        past = skip_digits(buffer, p + 1, end)
        if past == p + 1:
            return -1
        p = past
    if p < end and buffer[p] | 32 == 101:
        p += 1
        if p < end and (buffer[p] == 43 or buffer[p] == 45):
            p += 1
        past = skip_digits(buffer, p, end)
        if past == p:
            return -1
        p = past
    return p


@inlined
def is_null(buffer: Array, p: Number, end: Number) -> Number:
    """Whether `null` stands at `p`."""
    return p + 4 <= end and (word(buffer, p) & _WORD4) == _NULL


@inlined
def scan_boolean(buffer: Array, p: Number, end: Number) -> Number:
    """1 where `true` stands at `p`, 0 for `false`, -1 for neither."""
    if p + 4 <= end and (word(buffer, p) & _WORD4) == _TRUE:
        return 1
    if p + 5 <= end and buffer[p] == 102 and (word(buffer, p + 1) & _WORD4) == _ALSE:
        return 0
    return -1


@called
def skip_scalar(buffer: Array, p: Number, end: Number) -> Number:
    """Past a string, a number, a boolean or null, or -1."""
    if p >= end:
        return -1
    byte = buffer[p]
    if byte == _QUOTE:
        return scan_string(buffer, p + 1, end)[0]
    if byte == 45 or 48 <= byte <= 57:
        return scan_number(buffer, p, end)
    if is_null(buffer, p, end):
        return p + 4
    truth = scan_boolean(buffer, p, end)
    return -1 if truth < 0 else p + 5 - truth


@called
def skip_key(buffer: Array, p: Number, end: Number) -> Number:
    """Past a key, its colon and the space around them, or -1."""
    if p >= end or buffer[p] != _QUOTE:
        return -1
    p = scan_string(buffer, p + 1, end)[0]
    if p < 0:
        return -1
    p = skip_space(buffer, p, end)
    if p >= end or buffer[p] != 58:
        return -1
    return skip_space(buffer, p + 1, end)


@called
def skip_value(buffer: Array, p: Number, end: Number) -> Number:
    """Past any value, or -1: not valid, or deeper than `DEPTH_MAX` within a row's object.

    The stack is a word: bit 0 says whether the innermost container is an object.
    """
    if p >= end or (buffer[p] != 91 and buffer[p] != 123):
        return skip_scalar(buffer, p, end)
    stack, depth = U64(0), 1  # the row's own object
    while True:
        # At a value.
        if p >= end:
            return -1
        if buffer[p] == 91 or buffer[p] == 123:
            in_object = buffer[p] == 123
            depth += 1
            if depth > DEPTH_MAX:
                return -1
            stack = (stack << U64(1)) | U64(in_object)
            p = skip_space(buffer, p + 1, end)
            if p >= end:
                return -1
            if buffer[p] != (125 if in_object else 93):
                if in_object:
                    p = skip_key(buffer, p, end)
                    if p < 0:
                        return -1
                continue
        else:
            p = skip_scalar(buffer, p, end)
            if p < 0:
                return -1
            p = skip_space(buffer, p, end)
        # Past a value, or at the end of an empty container.
        while p < end and buffer[p] == (125 if stack & U64(1) else 93):
            stack >>= U64(1)
            depth -= 1
            p += 1
            if depth == 1:
                return p
            p = skip_space(buffer, p, end)
        if p >= end or buffer[p] != 44:
            return -1
        p = skip_space(buffer, p + 1, end)
        if stack & U64(1):
            p = skip_key(buffer, p, end)
            if p < 0:
                return -1
