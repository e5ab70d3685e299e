"""Kernels that read what the values of Kafka Connect's records are in JSON."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import Array, njit, types
from penstock.formats.words import U8_IN, U8_OUT

_NO_SIX: Final = 0xFF
_SIXES = np.full(256, _NO_SIX, np.uint8)
_SIXES[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"]] = np.arange(64)
_I32_IN = types.Array(types.int32, 1, "C", readonly=True)


@njit(types.void(U8_IN, _I32_IN, U8_OUT, types.int32[::1], U8_OUT), cache=True, nogil=True)
def decode_base64(data: Array, at: Array, good: Array, ends: Array, out: Array) -> None:
    """The bytes that texts between the positions `at` are base64 of; others aren't good any more.

    Args:
        data: the texts, one after another.
        at: where each begins, and the end of the last one.
        good: by text, 1; it becomes 0 where the text isn't what an encoder writes.
        ends: where the bytes of each begin in `out`, and the end of the last one.
        out: at least three quarters of the texts' bytes.
    """
    q = 0
    ends[0] = 0
    for row in range(len(good)):
        begin, stop = at[row], at[row + 1]
        size = stop - begin
        pads = 0
        if size and data[stop - 1] == 61:
            pads = 2 if data[stop - 2] == 61 else 1
        wrong = size % 4 != 0
        if not wrong:
            for p in range(begin, stop, 4):
                bits = 0
                for k in range(4):
                    six = _SIXES[data[p + k]]
                    if p + k >= stop - pads:
                        six = 0
                    elif six == _NO_SIX:
                        wrong = True
                    bits = bits << 6 | six
                count = 3 - pads if p + 4 == stop else 3
                for k in range(count):
                    out[q + k] = bits >> (16 - 8 * k) & 0xFF
                q += count
        if wrong:
            good[row] = 0
            q = ends[row]
        ends[row + 1] = q
