"""The compiled loops of compaction: where each key was written last, and what is kept of a batch.

A key is known by its SipHash-1-3 of 128 bits under a random key, so that nobody can choose keys that
collide, and a billion keys collide by chance once in 10^20 passes. The map is open addressing with
linear probing: per slot two words of hash and the key's last offset, -1 where the slot is free.

Invariant: as in `penstock.wire.kernels`, no kernel reads or writes outside its arrays, whatever the
bytes say. A batch that makes no sense is reported as such, and then kept as it is.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.kernels import njit, types
from penstock.wire.kernels import ATTRIBUTES as ATTRIBUTES_AT
from penstock.wire.kernels import (
    BASE_OFFSET,
    BASE_TIME,
    BODY,
    BODY_END,
    COUNT,
    LAST_DELTA,
    LOG_APPEND_BIT,
    MAX_TIME,
    copy_bytes,
    put_varint,
    varint,
    varint_bytes,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Int: TypeAlias = Any
Word: TypeAlias = Any

ATTRIBUTES, REST, END, TIME_DELTA, KEEP = range(5)
"""Columns of the table of records: where the record's attributes stand, where what follows its time
delta begins, where it ends, its time delta, and whether it is kept."""
RECORD_COLUMNS: Final = 5
KEPT, TOMBSTONES, NEWEST, BAD, FIRST = range(5)
"""Columns of the table of batches: records kept, tombstones among them, their greatest time, whether
the batch makes no sense, its first row in the table of records."""
BATCH_COLUMNS: Final = 5

_READ = types.Array(types.uint8, 1, "C", readonly=True)
_U8 = types.uint8[::1]
_I64 = types.int64[::1]
_U64 = types.uint64[::1]
_TABLE = types.int64[:, ::1]
_INT = types.int64
_WORD = types.uint64
_PAIR: Any = types.UniTuple


@njit(cache=True, nogil=True, inline="always")
def _rotate(x: Word, n: Word) -> Word:
    return (x << n) | (x >> (np.uint64(64) - n))


@njit(cache=True, nogil=True, inline="always")
def _round(v0: Word, v1: Word, v2: Word, v3: Word) -> tuple[Word, Word, Word, Word]:
    """One round of SipHash."""
    v0 += v1
    v1 = _rotate(v1, np.uint64(13)) ^ v0
    v0 = _rotate(v0, np.uint64(32))
    v2 += v3
    v3 = _rotate(v3, np.uint64(16)) ^ v2
    v0 += v3
    v3 = _rotate(v3, np.uint64(21)) ^ v0
    v2 += v1
    v1 = _rotate(v1, np.uint64(17)) ^ v2
    v2 = _rotate(v2, np.uint64(32))
    return v0, v1, v2, v3


@njit(_PAIR(_WORD, 2)(_READ, _INT, _INT, _WORD, _WORD), cache=True, nogil=True)
def siphash(b: Bytes, at: Int, n: Int, k0: Word, k1: Word) -> tuple[Word, Word]:
    """SipHash-1-3 with 128 bits of the `n` bytes at `at`, which the caller has checked."""
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    i = np.int64(0)
    while i + 8 <= n:
        m = np.uint64(0)
        for j in range(8):
            m |= np.uint64(b[at + i + j]) << np.uint64(8 * j)
        v3 ^= m
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= m
        i += 8
    m = np.uint64(n & 0xFF) << np.uint64(56)
    for j in range(n - i):
        m |= np.uint64(b[at + i + j]) << np.uint64(8 * j)
    v3 ^= m
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= m
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    high = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return high, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True, nogil=True, inline="always")
def _slot(h1: UInt64s, h2: UInt64s, last: Int64s, a: Word, b: Word) -> Int:
    """Where a key stands in the map, or the free slot where it would."""
    mask = np.uint64(len(last) - 1)
    i = a & mask
    while last[i] >= 0 and (h1[i] != a or h2[i] != b):
        i = (i + np.uint64(1)) & mask
    return np.int64(i)


@njit(cache=True, nogil=True, inline="always")
def _record(b: Bytes, q: Int, end: Int) -> tuple[Int, Int, Int, Int, Int, Int, Int, Int, Int]:
    """The record at `q`.

    Returns:
        Its end (-1 where it makes no sense), attributes' position, time delta, the position after
        that, offset delta, key position and length, value length, and where the value begins.
    """
    z = np.int64(0)
    bad = (np.int64(-1), z, z, z, z, z, z, z, z)
    length, q = varint(b, q, end)
    if q < 0 or length < 6 or length > end - q:
        return bad
    e = q + length
    attributes = q
    time_delta, q = varint(b, q + 1, e)
    if q < 0:
        return bad
    rest = q
    offset_delta, q = varint(b, q, e)
    if q < 0:
        return bad
    key_length, q = varint(b, q, e)
    if q < 0 or key_length < -1 or key_length > e - q:
        return bad
    key = q
    q += max(key_length, 0)
    value_length, q = varint(b, q, e)
    if q < 0 or value_length < -1 or value_length > e - q:
        return bad
    return e, attributes, time_delta, rest, offset_delta, key, key_length, value_length, q


@njit(
    _PAIR(_INT, 2)(_READ, _TABLE, _U8, _INT, _WORD, _WORD, _U64, _U64, _I64, _INT, _INT),
    cache=True,
    nogil=True,
)
def put(
    b: Bytes,
    table: Int64s,
    skip: Bytes,
    from_offset: Int,
    k0: Word,
    k1: Word,
    h1: UInt64s,
    h2: UInt64s,
    last: Int64s,
    used: Int,
    used_max: Int,
) -> tuple[Int, Int]:
    """Notes the last offset of each key in the batches, as long as the map has room.

    Batches whose `skip` isn't 0 are not looked at.

    Returns:
        (batches taken in: fewer than there are if the map is full; slots used).
    """
    for batch in range(len(table)):
        if skip[batch] or table[batch, BASE_OFFSET] + table[batch, LAST_DELTA] < from_offset:
            continue
        if used + table[batch, COUNT] > used_max:
            return batch, used
        q = table[batch, BODY]
        end = table[batch, BODY_END]
        base = table[batch, BASE_OFFSET]
        for _ in range(table[batch, COUNT]):
            e, _a, _t, _r, delta, key, key_length, _v, _p = _record(b, q, end)
            if e < 0:
                break
            q = e
            offset = base + delta
            if key_length < 0 or offset < from_offset or delta < 0:
                continue
            one, two = siphash(b, key, key_length, k0, k1)
            slot = _slot(h1, h2, last, one, two)
            if last[slot] < 0:
                h1[slot] = one
                h2[slot] = two
                used += 1
            last[slot] = max(last[slot], offset)
    return np.int64(len(table)), used


@njit(
    types.void(_READ, _TABLE, _U8, _U8, _WORD, _WORD, _U64, _U64, _I64, _INT, _TABLE, _TABLE),
    cache=True,
    nogil=True,
)
def judge(
    b: Bytes,
    table: Int64s,
    skip: Bytes,
    keeps_tombstones: Bytes,
    k0: Word,
    k1: Word,
    h1: UInt64s,
    h2: UInt64s,
    last: Int64s,
    mapped_upto: Int,
    records: Int64s,
    found: Int64s,
) -> None:
    """Decides which records of the batches are kept: the last one of each key.

    Batches whose `skip` isn't 0 are not looked at.
    `keeps_tombstones` says for each batch whether its null values are still within their grace time.
    Records from `mapped_upto` on are not in the map, and kept. `records` receives a row for each
    record that the looked-at batches claim, `found` one for each batch.
    """
    row = np.int64(0)
    for batch in range(len(table)):
        found[batch, KEPT] = 0
        found[batch, TOMBSTONES] = 0
        found[batch, NEWEST] = -1
        found[batch, BAD] = 0
        found[batch, FIRST] = row
        if skip[batch]:
            continue
        q = table[batch, BODY]
        end = table[batch, BODY_END]
        base = table[batch, BASE_OFFSET]
        previous = np.int64(-1)
        if table[batch, COUNT] > len(records) - row:
            found[batch, BAD] = 1
            return
        for i in range(table[batch, COUNT]):
            e, attributes, time_delta, rest, delta, key, key_length, value_length, _p = _record(
                b, q, end
            )
            if e < 0 or delta <= previous or delta > table[batch, LAST_DELTA]:
                found[batch, BAD] = 1
                break
            q = e
            previous = delta
            records[row + i, ATTRIBUTES] = attributes
            records[row + i, REST] = rest
            records[row + i, END] = e
            records[row + i, TIME_DELTA] = time_delta
            offset = base + delta
            keep = key_length >= 0 and (value_length >= 0 or keeps_tombstones[batch] != 0)
            if offset >= mapped_upto:
                keep = True
            elif keep:
                one, two = siphash(b, key, key_length, k0, k1)
                slot = _slot(h1, h2, last, one, two)
                keep = last[slot] <= offset
            records[row + i, KEEP] = 1 if keep else 0
            if keep:
                found[batch, KEPT] += 1
                if value_length < 0:
                    found[batch, TOMBSTONES] += 1
                time_ms = table[batch, BASE_TIME] + time_delta
                if table[batch, ATTRIBUTES_AT] & LOG_APPEND_BIT:
                    time_ms = table[batch, MAX_TIME]
                found[batch, NEWEST] = max(found[batch, NEWEST], time_ms)
        if q != end:
            found[batch, BAD] = 1
        row += table[batch, COUNT]


@njit(_INT(_READ, _TABLE, _INT, _U8), cache=True, nogil=True)
def rewrite(b: Bytes, records: Int64s, shift: Int, out: Bytes) -> Int:
    """Writes the kept ones of a batch's records, their time deltas moved by `shift`.

    `out` has room for what the records take now, and 20 bytes more for each.

    Returns:
        The bytes written.
    """
    p = np.int64(0)
    for i in range(len(records)):
        if records[i, KEEP] == 0:
            continue
        delta = records[i, TIME_DELTA] + shift
        rest = records[i, END] - records[i, REST]
        p = put_varint(out, p, 1 + varint_bytes(delta) + rest)
        out[p] = b[records[i, ATTRIBUTES]]
        p = put_varint(out, p + 1, delta)
        copy_bytes(out, p, b, records[i, REST], rest)
        p += rest
    return p
