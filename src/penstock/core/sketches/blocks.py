"""Filters of hashes: whether one may be among some, of a cache line for each question.

    may_have(filter(hashes), h) = True for every h of the hashes

A blocked Bloom filter: a hash chooses a block of 512 bits, and six bits there. With `BITS` for each hash,
some 0.5 % of the others are taken for one of them. It is made of what a process has at hand, and is written
nowhere.

Source: Putze, Sanders and Singler, *Cache-, hash- and space-efficient Bloom filters*, 2007.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector

__all__ = ["filter_of", "may_have"]

BITS: Final = 12
"""For each hash: 1.5 bytes."""
_BLOCK: Final = 512  # bits
_WORDS: Final = _BLOCK // 64
_PROBES: Final = 6

_U64 = np.uint64
_MIX = np.uint64(0x9E3779B97F4A7C15)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_BITS = types.Array(types.uint64, 1, "C", readonly=True)
_W_BITS = types.Array(types.uint64, 1, "C")
_W_BOOL = types.Array(types.boolean, 1, "C")


@njit(types.uint64(types.uint64, types.uint64), inline="always", cache=True)
def _block(h: Any, blocks: Any) -> Any:
    """The first word of a hash's block: of its lower half, as pieces have a range of the upper one."""
    return ((h & _U64(0xFFFF_FFFF)) * blocks >> _U64(32)) * _U64(_WORDS)


@njit(types.void(_I64, _W_BITS), cache=True, nogil=True)
def _fill(hashes: Any, bits: Any) -> None:
    blocks = _U64(len(bits) // _WORDS)
    for i in range(len(hashes)):
        h = _U64(hashes[i])
        at = _block(h, blocks)
        x = (h >> _U64(32)) * _MIX
        for j in range(_PROBES):
            bit = (x >> _U64(10 + 9 * j)) & _U64(_BLOCK - 1)
            bits[at + (bit >> _U64(6))] |= _U64(1) << (bit & _U64(63))


@njit(types.void(_I64, _BITS, _W_BOOL), cache=True, nogil=True)
def _ask(hashes: Any, bits: Any, out: Any) -> None:
    blocks = _U64(len(bits) // _WORDS)
    for i in range(len(hashes)):
        h = _U64(hashes[i])
        at = _block(h, blocks)
        x = (h >> _U64(32)) * _MIX
        out[i] = True
        for j in range(_PROBES):
            bit = (x >> _U64(10 + 9 * j)) & _U64(_BLOCK - 1)
            if not (bits[at + (bit >> _U64(6))] >> (bit & _U64(63))) & _U64(1):
                out[i] = False
                break


def filter_of(hashes: Vector) -> Vector:
    """The filter of some hashes, int64[n], well mixed: uint64[...]."""
    blocks = len(hashes) * BITS // _BLOCK + 1
    bits = np.zeros(blocks * _WORDS, np.uint64)
    _fill(hashes, bits)
    return bits


def may_have(made: Vector, hashes: Vector) -> Vector:
    """bool[n]: which of some hashes, int64[n], a filter may have; those of the others it hasn't."""
    out = np.empty(len(hashes), np.bool_)
    _ask(hashes, made, out)
    return out
