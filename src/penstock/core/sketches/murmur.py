"""MurmurHash3 of 128 bits, of which Apache DataSketches' theta sketches take 63.

Source: Austin Appleby, MurmurHash3_x64_128. The seed is DataSketches' default, as sketches
of different seeds can't be put together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.kernels import njit, types
from penstock.core.keys import mix
from penstock.core.vectors import Vector, codes, is_float, is_text, raw, text

__all__ = ["SEED_HASH", "theta_hashes"]

SEED: Final = 9001
SEED_HASH: Final = 0x93CC
"""What a sketch says about its seed: the first 16 bits of the seed's own hash, with 0 as seed."""

_U64 = np.uint64
_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_N1 = np.uint64(0x52DCE729)
_N2 = np.uint64(0x38495AB5)
_FIVE = np.uint64(5)
_SEED = np.uint64(SEED)

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT = types.Array(types.int64, 1, "C")


@njit(types.uint64(types.uint64, types.uint64), inline="always", cache=True)
def _turn(x: Any, bits: Any) -> Any:
    return (x << bits) | (x >> (_U64(64) - bits))


@njit(types.void(_I32, _U8, _OUT), cache=True, nogil=True)
def _hash(offsets: Any, data: Any, out: Any) -> None:
    for i in range(len(offsets) - 1):
        at, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        length = _U64(end - at)
        h1 = h2 = _SEED
        while True:
            k1 = k2 = _U64(0)
            rest: Any = min(end - at, 16)
            for b in range(min(rest, 8)):
                k1 |= _U64(data[at + b]) << _U64(8 * b)
            for b in range(8, rest):
                k2 |= _U64(data[at + b]) << _U64(8 * (b - 8))
            h1 ^= _turn(k1 * _C1, _U64(31)) * _C2
            if rest < 16:  # the tail, in which 0 says nothing
                h2 ^= _turn(k2 * _C2, _U64(33)) * _C1
                break
            h1 = (_turn(h1, _U64(27)) + h2) * _FIVE + _N1
            h2 ^= _turn(k2 * _C2, _U64(33)) * _C1
            h2 = (_turn(h2, _U64(31)) + h1) * _FIVE + _N2
            at += 16
        h1 ^= length
        h2 ^= length
        h1 += h2
        h2 += h1
        h1 = mix(h1)
        h2 = mix(h2)
        out[i] = np.int64((h1 + h2) >> _U64(1))


def theta_hashes(column: pa.Array) -> Vector:
    """The hash of each value as DataSketches has it: int64[n], 0 to 2**63 - 1; of a NULL, anything.

    Numbers without a fraction, times and dates are numbers of 64 bits; other numbers doubles, with one zero
    and one NaN; texts their bytes.
    """
    out = np.empty(len(column), np.int64)
    if is_text(column.type):
        _hash(*text(column), out)
        return out
    if is_float(column.type):
        values = raw(column).astype(np.float64) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        words = values.view(np.int64)
    else:
        words = codes(column)
    step = 1 << 24  # so that offsets fit in 32 bits
    for first in range(0, len(words), step):
        some = np.ascontiguousarray(words[first : first + step])
        offsets = np.arange(len(some) + 1, dtype=np.int32) * np.int32(8)
        _hash(offsets, some.view(np.uint8), out[first : first + step])
    return out
