"""Bloom filters: bits that a value's hashes set, so that "seen before?" is never wrongly answered no.

    filter(a ++ b) = filter(a) | filter(b)

A filter of m bits and k hashes has set k bits for each value of its set; a value that finds all of its bits
set may be in the set, and otherwise isn't. So it is a function of the set: no chance, no dependence on how
rows were batched. With n values, a value that isn't among them is taken for one with a probability of about
(1 - e**(-k * n / m))**k.

Sources: Burton Bloom, *Space/time trade-offs in hash coding with allowable errors*, 1970; two hashes instead
of k: Kirsch and Mitzenmacher, *Less hashing, same performance*, 2006. Hashes and bytes are those of Spark's
`org.apache.spark.util.sketch.BloomFilter`, version 1, big-endian:

    i32 1 | i32 hashes | i32 words | i64 each word; bit n of the filter is bit n % 64 of the word n / 64
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.kernels import njit, types
from penstock.core.vectors import Vector, codes, is_float, is_text, raw, text

__all__ = [
    "BITS_MAX",
    "HASHES_MAX",
    "HEAD_BYTES",
    "Shape",
    "bits_of",
    "filters",
    "read_head",
    "shape_of",
]

BITS_MAX: Final = 1 << 26
"""Bits of a filter: 8 MiB, as Spark limits the filters that it makes of its own."""
HASHES_MAX: Final = 64
"""Hashes of a value: more than an error of 1e-18 needs."""
HEAD_BYTES: Final = 12
"""Bytes before the bits."""
COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Bytes of a column of filters: its offsets have 32 bits."""

_VERSION: Final = 1
_WORD: Final = 64

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT = types.Array(types.int64, 1, "C")
_LOW = 0xFFFF_FFFF


@dataclass(frozen=True)
class Shape:
    """How large filters are that can be put together.

    Attributes:
        words: of 64 bits.
        hashes: bits that a value sets, at most.
    """

    words: int
    hashes: int

    @property
    def bits(self) -> int:
        """How many there are."""
        return self.words * _WORD

    @property
    def bytes(self) -> int:
        """Of a filter as a value."""
        return HEAD_BYTES + 8 * self.words


def shape_of(capacity: int, error: float) -> Shape:
    """The smallest filter that takes a number of values.

    Args:
        capacity: how many different values.
        error: how often a value that isn't among so many is taken for one of them: above 0, below 1.

    Raises:
        ValueError: that is more than `BITS_MAX`.
    """
    bits = math.ceil(-capacity * math.log(error) / math.log(2) ** 2)
    if bits > BITS_MAX:
        most = int(BITS_MAX * math.log(2) ** 2 / -math.log(error))
        raise ValueError(
            f"expected a filter of at most {BITS_MAX // 8 >> 20} MiB, which takes {most} values at this "
            f"error; found a capacity of {capacity}"
        )
    hashes = min(max(round(bits / capacity * math.log(2)), 1), HASHES_MAX)
    return Shape(-(-bits // _WORD), hashes)


def read_head(head: bytes, length: int) -> Shape:
    """The shape of a filter, of its first bytes and its length.

    Raises:
        ValueError: it isn't a filter.
    """
    if len(head) == HEAD_BYTES:
        version, hashes, words = struct.unpack(">iii", head)
        shape = Shape(words, hashes)
        if (
            version == _VERSION
            and 1 <= hashes <= HASHES_MAX
            and words > 0
            and length == shape.bytes
        ):
            return shape
    raise ValueError(
        "expected a Bloom filter: version 1 of Spark's, as bloom_filter_agg makes it; found "
        f"{length} bytes: {head!r}"
    )


@njit(types.uint64(types.uint64, types.uint64), inline="always", cache=True)
def _mixed(h: Any, k: Any) -> Any:
    k = (k * np.uint64(0xCC9E2D51)) & np.uint64(_LOW)
    k = ((k << np.uint64(15)) | (k >> np.uint64(17))) & np.uint64(_LOW)
    h ^= (k * np.uint64(0x1B873593)) & np.uint64(_LOW)
    h = ((h << np.uint64(13)) | (h >> np.uint64(19))) & np.uint64(_LOW)
    return (h * np.uint64(5) + np.uint64(0xE6546B64)) & np.uint64(_LOW)


@njit(types.uint64(_U8, types.int64, types.int64, types.uint64), cache=True, nogil=True)
def _murmur(data: Any, at: Any, end: Any, h: Any) -> Any:
    """MurmurHash3_x86_32, but that each byte of the rest is mixed in as a whole number, as Spark has it."""
    length = np.uint64(end - at)
    while at + 4 <= end:
        k = np.uint64(0)
        for b in range(4):
            k |= np.uint64(data[at + b]) << np.uint64(8 * b)
        h = _mixed(h, k)
        at += 4
    while at < end:
        k = np.uint64(data[at])
        if k > np.uint64(127):  # a byte of Java's has a sign
            k |= np.uint64(0xFFFF_FF00)
        h = _mixed(h, k)
        at += 1
    h ^= length
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & np.uint64(_LOW)
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & np.uint64(_LOW)
    return h ^ (h >> np.uint64(16))


@njit(types.void(_I32, _U8, _I64, _I64, types.int64, _OUT), cache=True, nogil=True)
def _set_bits(offsets: Any, data: Any, bits: Any, hashes: Any, width: Any, out: Any) -> None:
    for i in range(len(offsets) - 1):
        at, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        h1 = _murmur(data, at, end, np.uint64(0))
        h2 = _murmur(data, at, end, h1)
        for j in range(width):
            if j >= hashes[i]:
                out[i * width + j] = -1
                continue
            h1 = (h1 + h2) & np.uint64(_LOW)
            h = h1
            if h > np.uint64(0x7FFF_FFFF):  # below 0
                h = ~h & np.uint64(_LOW)
            out[i * width + j] = np.int64(h % np.uint64(bits[i]))


def bits_of(column: pa.Array, bits: Vector, hashes: Vector) -> Vector:
    """The bits that each value sets in a filter; of a NULL, anything.

    A number is hashed by its value, whatever its type, so that 5 and 5.0 are one. Whole numbers, dates, times
    and booleans are numbers of 64 bits, as Spark has them; other numbers are doubles' bits, with one NaN.

    Args:
        column: the values.
        bits: int64[n], of each one's filter.
        hashes: int64[n], of each one's filter.

    Returns:
        int64[n, the most hashes], -1 beyond a filter's own.
    """
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if is_text(column.type):
        offsets, data = text(column)
    else:
        words = _numbers(raw(column)) if is_float(column.type) else codes(column)
        words = np.ascontiguousarray(words)
        offsets = np.arange(len(words) + 1, dtype=np.int32) * np.int32(8)
        data = words.view(np.uint8)
    width = int(hashes.max(initial=0))
    out = np.empty(len(column) * width, np.int64)
    _set_bits(offsets, data, bits, hashes, width, out)
    return out.reshape(len(column), width)


def _numbers(values: Vector) -> Vector:
    """Doubles as 64 bits: whole numbers as such."""
    values = values.astype(np.float64) + 0.0
    values[np.isnan(values)] = np.nan
    whole = (np.floor(values) == values) & (np.abs(values) < 2.0**63)
    numbers = np.where(whole, values, 0).astype(np.int64)
    return np.where(whole, numbers, values.view(np.int64))


def filters(shape: Shape, rows: Vector, words: Vector, values: Vector, groups: int) -> pa.Array:
    """Filters as a column of bytes.

    Args:
        shape: of all of them.
        rows: int64[n], the filter that a word is of.
        words: int64[n], the number of the word there.
        values: int64[n], the bits of the word.
        groups: how many filters there are; those without words are of the empty set.

    Raises:
        ValueError: together they are larger than a column may be.
    """
    if groups * shape.bytes > COLUMN_BYTES_MAX:
        raise ValueError(
            f"expected Bloom filters of {COLUMN_BYTES_MAX} bytes at most in one batch; found {groups} of "
            f"{shape.bytes} bytes each. Give a capacity that a group needs, not one for all groups"
        )
    made = np.zeros((groups, 3 + 2 * shape.words), ">u4")
    made[:, :3] = _VERSION, shape.hashes, shape.words
    bits = values.view(np.uint64)
    made[rows, 3 + 2 * words] = bits >> np.uint64(32)
    made[rows, 4 + 2 * words] = bits & np.uint64(_LOW)
    offsets = np.arange(groups + 1, dtype=np.int64) * shape.bytes
    parts: list[Any] = [offsets.astype(np.int32), made]
    buffers: list[Any] = [None, *map(pa.py_buffer, parts)]
    return pa.Array.from_buffers(pa.binary(), groups, buffers)
