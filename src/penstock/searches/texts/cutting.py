"""Texts to words, a whole column at a time: where each begins and ends, and its position.

A word is a run of letters and digits as Unicode has them (`characters`). Chinese, Japanese and Korean, whose
words have no blanks between them, are cut into overlapping pairs of characters (Lucene: CJKBigramFilter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector
from penstock.searches.texts.characters import (
    CJK,
    DIGIT,
    EMOJI,
    EXTEND,
    JOINER,
    LETTER,
    MID_LETTER,
    MID_NUMBER,
    MID_WORD,
    classes,
)

__all__ = ["GAP", "WORD_CHARS_MAX", "Words", "cut", "whole"]

WORD_CHARS_MAX: Final = 255
"""Characters of a word, as in Lucene. A longer one is cut: no term is a megabyte long."""
GAP: Final = 100
"""Positions between the values of a list: no phrase reaches from one to the next."""

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)


@dataclass(frozen=True)
class Words:
    """The words of a column's values.

    Attributes:
        value: int32[n], the number of the value that a word is in, ascending.
        position: int32[n], the words before it in its value.
        start: int32[n], its first byte, counted from the value's.
        end: int32[n], the byte behind it.
        texts: of n words, in lower case where they are ASCII.
    """

    value: Vector
    position: Vector
    start: Vector
    end: Vector
    texts: pa.Array

    def __len__(self) -> int:
        return len(self.value)


def cut(column: pa.Array) -> Words:
    """The words of texts; NULL has none.

    Args:
        column: of strings.
    """
    offsets, data = vectors.text(column)
    room = int(offsets[-1]) - int(offsets[0]) if len(offsets) else 0
    value, position, start, end = (np.empty(room, np.int32) for _ in range(4))
    count = _cut(offsets, data, classes(), value, position, start, end)
    value, position, start, end = (one[:count].copy() for one in (value, position, start, end))
    if column.null_count:
        known = vectors.given(vectors.validity(column), np.bool_)[value]
        value, position, start, end = (one[known] for one in (value, position, start, end))
    ends = np.zeros(len(value) + 1, np.int32)
    np.cumsum(end - start, out=ends[1:])
    packed = np.empty(int(ends[-1]), np.uint8)
    _pack(offsets, data, value, start, ends, packed)
    buffers: Any = [None, pa.py_buffer(ends.data), pa.py_buffer(packed.data)]
    texts = pa.Array.from_buffers(pa.string(), len(value), buffers)
    return Words(value, position, start, end, texts)


def whole(column: pa.Array) -> Words:
    """Each text as one word; NULL is none."""
    texts = column.cast(pa.string())
    offsets, _ = vectors.text(texts)
    value = np.arange(len(texts), dtype=np.int32)
    sizes = np.diff(offsets).astype(np.int32)
    if texts.null_count:
        value = value[vectors.given(vectors.validity(texts), np.bool_)]
        texts = texts.drop_null()
        sizes = sizes[value]
    nothing = np.zeros(len(value), np.int32)
    return Words(value, nothing, nothing, sizes, texts)


@njit(types.UniTuple(types.int64, 2)(_BYTES, types.int64), cache=True, nogil=True)
def _decoded(data: Any, at: Any) -> Any:
    """A code point, and its bytes, of valid UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, np.int64(1)
    if first < 0xE0:
        return (first & 0x1F) << 6 | data[at + 1] & 0x3F, np.int64(2)
    if first < 0xF0:
        return (
            (first & 0x0F) << 12 | (data[at + 1] & 0x3F) << 6 | data[at + 2] & 0x3F,
            np.int64(3),
        )
    code = (first & 0x07) << 18 | (data[at + 1] & 0x3F) << 12
    return code | (data[at + 2] & 0x3F) << 6 | data[at + 3] & 0x3F, np.int64(4)


@njit(types.int64(_BYTES, types.int64, types.int64, _BYTES), cache=True, nogil=True)
def _extended(data: Any, at: Any, end: Any, table: Any) -> Any:
    """Behind the marks that belong to the character before."""
    while at < end:
        code, size = _decoded(data, at)
        if table[code] != EXTEND:
            break
        at += size
    return at


@njit(types.int64(_BYTES, types.int64, types.int64, _BYTES), cache=True, nogil=True)
def _word_end(data: Any, at: Any, end: Any, table: Any) -> Any:
    """The end of a word that begins here, negative if it has neither letters nor digits."""
    before = JOINER
    is_word = False
    chars = 0
    while at < end and chars < WORD_CHARS_MAX:
        code, size = _decoded(data, at)
        kind = table[code]
        if kind in (LETTER, DIGIT, JOINER):
            is_word = is_word or kind != JOINER
            before = kind
        elif kind in (MID_WORD, MID_LETTER, MID_NUMBER):
            behind = _extended(data, at + size, end, table)
            if behind == end:
                break
            code, _ = _decoded(data, behind)
            after = table[code]
            joins = before == after and (
                (before == LETTER and kind != MID_NUMBER)
                or (before == DIGIT and kind != MID_LETTER)
            )
            if not joins:
                break
        elif kind != EXTEND:
            break
        at += size
        chars += 1
    return at if is_word else -at


@njit(types.int64(_I32, _BYTES, _BYTES, types.int32[::1], types.int32[::1], types.int32[::1],
      types.int32[::1]), cache=True, nogil=True)  # fmt: skip
def _cut(
    offsets: Any, data: Any, table: Any, value: Any, position: Any, start: Any, end: Any
) -> Any:
    """Finds all words; gives their number."""
    n = np.int64(0)
    for row in range(len(offsets) - 1):
        first = np.int64(offsets[row])
        last = np.int64(offsets[row + 1])
        at = first
        place = 0
        while at < last:
            code, size = _decoded(data, at)
            kind = table[code]
            begin = at
            if kind in (LETTER, DIGIT, JOINER):
                at = _word_end(data, at, last, table)
                if at < 0:
                    at = -at
                    continue
            elif kind == CJK:
                at = _extended(data, at + size, last, table)
                pair = begin
                single = True
                while at < last:
                    code, size = _decoded(data, at)
                    if table[code] != CJK:
                        break
                    following = at
                    at = _extended(data, at + size, last, table)
                    value[n], position[n] = row, place
                    start[n], end[n] = pair - first, at - first
                    n += 1
                    place += 1
                    pair = following
                    single = False
                if not single:
                    continue
            elif kind == EMOJI:
                at = _extended(data, at + size, last, table)
            else:
                at += size
                continue
            value[n], position[n] = row, place
            start[n], end[n] = begin - first, at - first
            n += 1
            place += 1
    return n


@njit(types.void(_I32, _BYTES, types.int32[::1], types.int32[::1], types.int32[::1], types.uint8[::1]),
      cache=True, nogil=True)  # fmt: skip
def _pack(offsets: Any, data: Any, value: Any, start: Any, ends: Any, out: Any) -> None:
    """Copies words one behind another, ASCII in lower case."""
    for i in range(len(value)):
        source = offsets[value[i]] + start[i]
        for j in range(ends[i], ends[i + 1]):
            byte = data[source + j - ends[i]]
            out[j] = byte + 32 if 65 <= byte <= 90 else byte
