"""Hashes of keys: which shard a row belongs to, and where in a run a group lies.

`hash_columns` is stable forever: state on disk is sorted by it. Integers, booleans, timestamps and
dates hash by their number (so an INT that becomes a BIGINT keeps its place), floats by their value as
a double (-0.0 as 0.0, all NaNs alike), text by its bytes, lists, structs and maps by those
that they are packed into. Two keys may share a hash; code that groups by
it compares the keys as well.

Text uses the XXH64 rounds on 8-byte words (Yann Collet, xxHash specification, section XXH64), numbers the
finalizer of MurmurHash3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.kernels import njit, types
from penstock.core.vectors import (
    Vector,
    codes,
    contiguous,
    from_int64,
    given,
    is_float,
    is_text,
    packed,
    text,
    validity,
)

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_OUT = types.Array(types.uint64, 1, "C")

_SEED: Final = 0x9E3779B97F4A7C15
_SALT_INTEGER: Final = 0x2545F4914F6CDD1D
_SALT_FLOAT: Final = 0x6A09E667F3BCC909
_NULL = np.uint64(0xD6E8FEB86659FD93)  # what a NULL hashes to
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_M1 = np.uint64(0xFF51AFD7ED558CCD)
_M2 = np.uint64(0xC4CEB9FE1A85EC53)
_U64 = np.uint64


@njit(types.uint64(types.uint64), inline="always", cache=True)
def mix(x: Any) -> Any:
    """The last step of MurmurHash3's hashes of 64 bits and more."""
    x ^= x >> _U64(33)
    x *= _M1
    x ^= x >> _U64(33)
    x *= _M2
    return x ^ (x >> _U64(33))


@njit(types.uint64(types.uint64, types.uint64), inline="always", cache=True)
def _rotl(x: Any, bits: Any) -> Any:
    return (x << bits) | (x >> (_U64(64) - bits))


@njit(types.void(_I64, _BOOL, types.uint64, _OUT), cache=True, nogil=True)
def _fold_codes(values: Any, valid: Any, salt: Any, out: Any) -> None:
    nulls = len(valid) > 0
    for i in range(len(values)):
        v = _NULL
        if not nulls or valid[i]:
            v = mix(_U64(values[i]) ^ salt)
        out[i] = mix(out[i] * _P1 + v)


@njit(types.void(_I32, _U8, _BOOL, _OUT), cache=True, nogil=True)
def _fold_text(offsets: Any, data: Any, valid: Any, out: Any) -> None:
    nulls = len(valid) > 0
    for i in range(len(offsets) - 1):
        v = _NULL
        if not nulls or valid[i]:
            at = np.int64(offsets[i])
            end = np.int64(offsets[i + 1])
            v = _P5 + _U64(end - at)
            while at + 8 <= end:
                word = _U64(0)
                for b in range(8):
                    word |= _U64(data[at + b]) << _U64(8 * b)
                v ^= _rotl(word * _P2, _U64(31)) * _P1
                v = _rotl(v, _U64(27)) * _P1 + _P4
                at += 8
            while at < end:
                v ^= _U64(data[at]) * _P5
                v = _rotl(v, _U64(11)) * _P1
                at += 1
            v ^= v >> _U64(33)
            v *= _P2
            v ^= v >> _U64(29)
            v *= _P3
            v ^= v >> _U64(32)
        out[i] = mix(out[i] * _P1 + v)


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int | None = None) -> Vector:
    """Hashes each row's key.

    Args:
        columns: the key's columns, in order, all of the same length. The order matters.
        rows: the number of rows; needed only where there are no columns.

    Returns:
        int64[rows], well mixed in all 64 bits; 0 where there are no columns.

    Raises:
        SchemaError: a column's type can't be a key.

    >>> hash_columns([pa.array([7]), pa.array(["a"])]).tolist()
    [8063714104520867917]
    """
    if not columns:
        return np.zeros(rows or 0, np.int64)
    out = np.full(len(columns[0]), _SEED, np.uint64)
    for column in columns:
        array = contiguous(column)
        if pa.types.is_nested(array.type):
            array = packed(array)
        if is_text(array.type):
            offsets, data = text(array)
            _fold_text(offsets, data, given(validity(array), np.bool_), out)
        else:
            salt = _SALT_FLOAT if is_float(array.type) else _SALT_INTEGER
            _fold_codes(codes(array), given(validity(array), np.bool_), _U64(salt), out)
    return out.view(np.int64)


def shards_of(hashes: Vector, shards: int) -> Vector:
    """The shard of each hash: int64[n] from 0 to `shards` - 1."""
    return (hashes.view(np.uint64) % np.uint64(shards)).astype(np.int64)


def cut(rows: pa.RecordBatch, hashes: Vector, shards: int) -> list[pa.RecordBatch]:
    """The rows of each shard, in the order that they have here, by their hashes: int64[n]."""
    if shards == 1:
        return [rows]
    shard = shards_of(hashes, shards)
    # Numbers of up to 16 bits are sorted by counting.
    order = np.argsort(shard.astype(np.min_scalar_type(shards - 1)), kind="stable")
    ends = np.cumsum(np.bincount(shard, minlength=shards)).tolist()
    moved = rows.take(from_int64(order))
    return [moved.slice(lo, hi - lo) for lo, hi in zip([0, *ends], ends, strict=False)]
