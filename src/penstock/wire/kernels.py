"""The compiled loops over record batches, format v2.

Layout of a batch (big endian; KIP-98, and `DefaultRecordBatch` of Apache Kafka):

    0  base offset          int64     23 last offset delta   int32     51 producer epoch  int16
    8  batch length         int32     27 base timestamp      int64     53 base sequence   int32
    12 leader epoch         int32     35 maximum timestamp   int64     57 record count    int32
    16 magic = 2            int8      43 producer id         int64     61 the records
    17 CRC-32C of 21…       uint32    21 attributes          int16

Invariant: no kernel reads outside `[0, len(buffer))` or writes outside its outputs, whatever the
bytes say, and each loop consumes at least one byte per turn or stops. Lengths are compared as
`length <= end - at`, never as `at + length <= end`, so that none can overflow. Signatures are
explicit: a worker process loads the machine code from the cache and compiles nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.kernels import instruction, njit, types

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Int: TypeAlias = Any  # an int64: what Numba makes of it is in the signatures

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12  # what comes before the part that "batch length" counts
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key length, value length, header count."""
RECORD_OVERHEAD_BYTES_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""A record without key, value and headers."""
CONTROL_BIT: Final = 0x20
TRANSACTIONAL_BIT: Final = 0x10
LOG_APPEND_BIT: Final = 0x08
CODEC_MASK: Final = 0x07

# Columns of the batch table that `scan` fills and `decode_records` reads.
START, END, BODY, BODY_END, BASE_OFFSET, LAST_DELTA, ATTRIBUTES, BASE_TIME, MAX_TIME, COUNT = range(
    10
)
TABLE_COLUMNS: Final = 10

# Why a kernel stopped.
OK, BAD_LENGTH, BAD_MAGIC, BAD_RECORD, BAD_OFFSET, BAD_COUNT = range(6)
REASONS: Final = {
    BAD_LENGTH: "the batch length is less than a batch header's",
    BAD_MAGIC: "the batch's magic byte is not 2 (older message formats are not supported)",
    BAD_RECORD: "a record's lengths do not fit in its batch",
    BAD_OFFSET: "the batch's offsets are negative, out of order or past its last one",
    BAD_COUNT: "the batch's record count does not match its records",
}

_READ = types.Array(types.uint8, 1, "C", readonly=True)
_READ32 = types.Array(types.int32, 1, "C", readonly=True)
_READ64 = types.Array(types.int64, 1, "C", readonly=True)
_U8 = types.uint8[::1]
_I32 = types.int32[::1]
_I64 = types.int64[::1]
_TABLE = types.int64[:, ::1]
_INT = types.int64
_TUPLE: Any = types.UniTuple


copy_bytes: Any = instruction("copy_bytes")


@njit(cache=True, nogil=True, inline="always")
def _be32(b: Bytes, p: Int) -> Int:
    """A signed big-endian int32."""
    return np.int64(
        np.int32(
            (np.uint32(b[p]) << np.uint32(24))
            | (np.uint32(b[p + 1]) << np.uint32(16))
            | (np.uint32(b[p + 2]) << np.uint32(8))
            | np.uint32(b[p + 3])
        )
    )


@njit(cache=True, nogil=True, inline="always")
def _be64(b: Bytes, p: Int) -> Int:
    """A signed big-endian int64."""
    return (_be32(b, p) << 32) | (_be32(b, p + 4) & np.int64(0xFFFFFFFF))


@njit(cache=True, nogil=True, inline="always")
def varint(b: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """A zigzag varint within [p, end): its value and the position after it, or (0, -1)."""
    if p >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(b[p])
    p += 1
    if byte < np.uint64(128):
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), p
    value = byte & np.uint64(127)
    shift = np.uint64(7)
    while True:
        if p >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(b[p])
        p += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            break
        shift += np.uint64(7)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), p


@njit(_TUPLE(_INT, 3)(_READ), cache=True, nogil=True)
def count_batches(b: Bytes) -> tuple[Int, Int, Int]:
    """Walks the batch lengths.

    Returns:
        (whole batches, the position after the last of them, OK or why the batch there is none).
    """
    size = np.int64(len(b))
    p = np.int64(0)
    batches = np.int64(0)
    while size - p >= 17:
        length = _be32(b, p + 8)
        if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            return batches, p, BAD_LENGTH
        if b[p + 16] != 2:
            return batches, p, BAD_MAGIC
        if length + LENGTH_PREFIX_BYTES > size - p:
            break
        p += length + LENGTH_PREFIX_BYTES
        batches += 1
    return batches, p, OK


@njit(types.void(_READ, _TABLE), cache=True, nogil=True)
def scan(b: Bytes, table: Int64s) -> None:
    """Fills one row of the table for each of the `len(table)` batches that were counted."""
    p = np.int64(0)
    for i in range(len(table)):
        end = p + _be32(b, p + 8) + LENGTH_PREFIX_BYTES
        table[i, START] = p
        table[i, END] = end
        table[i, BODY] = p + HEADER_BYTES
        table[i, BODY_END] = end
        table[i, BASE_OFFSET] = _be64(b, p)
        table[i, LAST_DELTA] = _be32(b, p + 23)
        table[i, ATTRIBUTES] = (np.int64(b[p + 21]) << 8) | np.int64(b[p + 22])
        table[i, BASE_TIME] = _be64(b, p + 27)
        table[i, MAX_TIME] = _be64(b, p + 35)
        table[i, COUNT] = _be32(b, p + 57)
        p = end


@njit(cache=True, nogil=True)
def _skip_headers(b: Bytes, q: Int, end: Int, count: Int) -> Int:
    """The position after `count` record headers within [q, end), or -1."""
    for _ in range(count):
        length, q = varint(b, q, end)
        if q < 0 or length < 0 or length > end - q:
            return np.int64(-1)
        q += length
        length, q = varint(b, q, end)
        if q < 0 or length < -1 or length > end - q:
            return np.int64(-1)
        if length > 0:
            q += length
    return q


@njit(
    _TUPLE(_INT, 3)(_READ, _TABLE, _I64, _I64, _I64, _I32, _I64, _I32),
    cache=True,
    nogil=True,
)
def decode_records(
    b: Bytes,
    table: Int64s,
    offset: Int64s,
    time_ms: Int64s,
    key_start: Int64s,
    key_length: Int32s,
    value_start: Int64s,
    value_length: Int32s,
) -> tuple[Int, Int, Int]:
    """Finds every record of the table's batches; control batches are passed over.

    The outputs have one place for each record that the (not control) batches claim. A null value's
    start is where the value would be, so a record's headers always begin at start + max(length, 0).

    Returns:
        (records written, the batch at which it stopped or -1, OK or why).
    """
    i = np.int64(0)
    room = np.int64(len(offset))
    for batch in range(len(table)):
        attributes = table[batch, ATTRIBUTES]
        if attributes & CONTROL_BIT:
            continue
        q = table[batch, BODY]
        end = table[batch, BODY_END]
        base_offset = table[batch, BASE_OFFSET]
        last_delta = table[batch, LAST_DELTA]
        base_time = table[batch, BASE_TIME]
        append_time = (attributes & LOG_APPEND_BIT) != 0
        max_time = table[batch, MAX_TIME]
        count = table[batch, COUNT]
        previous = np.int64(-1)
        if count > room - i:
            return i, batch, BAD_COUNT
        for _ in range(count):
            length, q = varint(b, q, end)
            if q < 0:
                return i, batch, BAD_COUNT
            if length < RECORD_BYTES_MIN - 1 or length > end - q:
                return i, batch, BAD_RECORD
            e = q + length
            delta, q = varint(b, q + 1, e)
            if q < 0:
                return i, batch, BAD_RECORD
            time_ms[i] = max_time if append_time else base_time + delta
            delta, q = varint(b, q, e)
            if q < 0:
                return i, batch, BAD_RECORD
            if delta <= previous or delta > last_delta:
                return i, batch, BAD_OFFSET
            previous = delta
            offset[i] = base_offset + delta
            length, q = varint(b, q, e)
            if q < 0 or length < -1 or length > e - q:
                return i, batch, BAD_RECORD
            key_start[i] = q
            key_length[i] = length
            if length > 0:
                q += length
            length, q = varint(b, q, e)
            if q < 0 or length < -1 or length > e - q:
                return i, batch, BAD_RECORD
            value_start[i] = q
            value_length[i] = length
            if length > 0:
                q += length
            length, q = varint(b, q, e)
            if q < 0 or length < 0:
                return i, batch, BAD_RECORD
            if length > 0:
                q = _skip_headers(b, q, e, length)
            if q != e:
                return i, batch, BAD_RECORD
            i += 1
        if q != end:
            return i, batch, BAD_COUNT
    return i, np.int64(-1), OK


@njit(
    _TUPLE(_INT, 4)(_READ, _INT, _INT, types.boolean, _INT, _INT, types.boolean, _I64, _I64),
    cache=True,
    nogil=True,
)
def inspect_records(
    b: Bytes,
    count: Int,
    base_ms: Int,
    is_own_time: Any,
    earliest_ms: Int,
    latest_ms: Int,
    wants_keys: Any,
    index: Int64s,
    time_ms: Int64s,
) -> tuple[Int, Int, Int, Int]:
    """Finds the records that lack a key, or whose time (unless it is -1, none) is out of range.

    The first of them are written to `index` (`~i` where the key is missing) and `time_ms`, as many as
    there is room for. Times are `base_ms` and the record's delta, or `base_ms` for all.

    Returns:
        (OK, or BAD_RECORD where the bytes are not `count` records; the greatest time, at least -1; the
        records at fault; those of them whose time is).
    """
    q = np.int64(0)
    end = np.int64(len(b))
    room = np.int64(len(index))
    max_ms = np.int64(-1)
    faults = np.int64(0)
    late = np.int64(0)
    for i in range(count):
        length, q = varint(b, q, end)
        if q < 0 or length < RECORD_BYTES_MIN - 1 or length > end - q:
            return BAD_RECORD, max_ms, faults, late
        e = q + length
        delta, q = varint(b, q + 1, e)
        if q < 0:
            return BAD_RECORD, max_ms, faults, late
        time = base_ms + delta if is_own_time else base_ms
        _, q = varint(b, q, e)
        if q < 0:
            return BAD_RECORD, max_ms, faults, late
        key, q = varint(b, q, e)
        if q < 0 or key < -1 or key > e - q:
            return BAD_RECORD, max_ms, faults, late
        q = e
        max_ms = max(max_ms, time)
        lacks_key = wants_keys and key < 0
        is_late = not lacks_key and time != -1 and (time < earliest_ms or time > latest_ms)
        if lacks_key or is_late:
            if faults < room:
                index[faults] = ~i if lacks_key else i
                time_ms[faults] = time
            faults += 1
            if is_late:
                late += 1
    if q != end:
        return BAD_RECORD, max_ms, faults, late
    return OK, max_ms, faults, late


@njit(_TUPLE(_INT, 2)(_READ32, _I32, _U8, _INT), cache=True, nogil=True)
def layout(length: Int32s, offsets: Int32s, validity: Bytes, bytes_max: Int) -> tuple[Int, Int]:
    """Arrow offsets and validity bits for these lengths (-1 = null; validity comes zeroed).

    Returns:
        (total bytes, or -1 where they exceed `bytes_max`; nulls).
    """
    total = np.int64(0)
    nulls = np.int64(0)
    offsets[0] = 0
    for i in range(len(length)):
        n = np.int64(length[i])
        if n >= 0:
            total += n
            validity[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
        if total > bytes_max:
            return np.int64(-1), nulls
        offsets[i + 1] = total
    return total, nulls


@njit(_INT(_READ, _READ64, _READ32, _U8), cache=True, nogil=True)
def gather(b: Bytes, start: Int64s, length: Int32s, out: Bytes) -> Int:
    """Copies the values one after another into `out`.

    Returns:
        The bytes written, or -1 where a value lies outside the buffer or `out`.
    """
    at = np.int64(0)
    size = np.int64(len(b))
    room = np.int64(len(out))
    for i in range(len(start)):
        n = np.int64(length[i])
        if n > 0:
            s = start[i]
            if s < 0 or n > size - s or n > room - at:
                return np.int64(-1)
            copy_bytes(out, at, b, s, n)
            at += n
    return at


@njit(cache=True, nogil=True, inline="always")
def put_varint(o: Bytes, p: Int, value: Int) -> Int:
    """Writes a zigzag varint; the position after it."""
    u = np.uint64((value << 1) ^ (value >> 63))
    while u >= np.uint64(128):
        o[p] = np.uint8((u & np.uint64(127)) | np.uint64(128))
        p += 1
        u >>= np.uint64(7)
    o[p] = np.uint8(u)
    return p + 1


@njit(cache=True, nogil=True, inline="always")
def varint_bytes(value: Int) -> Int:
    """The size of a zigzag varint."""
    u = np.uint64((value << 1) ^ (value >> 63))
    n = np.int64(1)
    while u >= np.uint64(128):
        u >>= np.uint64(7)
        n += 1
    return n


@njit(cache=True, nogil=True, inline="always")
def _is_set(bits: Bytes, i: Int) -> Any:
    """Whether Arrow's validity bit i is set."""
    return (bits[i >> 3] >> np.uint8(i & 7)) & np.uint8(1) != 0


_COLUMN = (_READ32, _READ, _READ, _INT)  # offsets, data, validity bits, first bit or ABSENT/DENSE
ABSENT: Final = -2  # the column is not there: null keys, no headers
DENSE: Final = -1  # no value is null, so there are no validity bits


@njit(
    _TUPLE(_INT, 3)(_U8, _INT, _INT, _INT, _READ64, *_COLUMN, *_COLUMN, *_COLUMN),
    cache=True,
    nogil=True,
)
def encode_records(
    o: Bytes,
    p: Int,
    stop: Int,
    first: Int,
    time_ms: Int64s,
    key_at: Int32s,
    key_data: Bytes,
    key_bits: Bytes,
    key_bit: Int,
    value_at: Int32s,
    value_data: Bytes,
    value_bits: Bytes,
    value_bit: Int,
    header_at: Int32s,
    header_data: Bytes,
    header_bits: Bytes,  # noqa: ARG001 - headers are never null, but the three columns are alike
    header_bit: Int,
) -> tuple[Int, Int, Int]:
    """Writes records from `first` on into `o` from `p` on: all that end before `stop`, or one.

    A record's headers come encoded (count and pairs). The caller has made room for all records with
    `RECORD_OVERHEAD_BYTES_MAX` for each.

    Returns:
        (the first record not written, the position after the last byte, the greatest timestamp).
    """
    base_time = time_ms[first]
    max_time = base_time
    i = first
    while i < len(time_ms):
        delta = i - first
        since = time_ms[i] - base_time
        key = np.int64(-1)
        if key_bit != ABSENT and (key_bit == DENSE or _is_set(key_bits, key_bit + i)):
            key = np.int64(key_at[i + 1]) - np.int64(key_at[i])
        value = np.int64(-1)
        if value_bit == DENSE or _is_set(value_bits, value_bit + i):
            value = np.int64(value_at[i + 1]) - np.int64(value_at[i])
        headers = np.int64(1)
        if header_bit != ABSENT:
            headers = np.int64(header_at[i + 1]) - np.int64(header_at[i])
        length = 1 + varint_bytes(since) + varint_bytes(delta) + headers
        length += varint_bytes(key) + max(key, 0) + varint_bytes(value) + max(value, 0)
        if i > first and varint_bytes(length) + length > stop - p:
            break
        p = put_varint(o, p, length)
        o[p] = 0
        p = put_varint(o, p + 1, since)
        p = put_varint(o, p, delta)
        p = put_varint(o, p, key)
        if key > 0:
            copy_bytes(o, p, key_data, key_at[i], key)
            p += key
        p = put_varint(o, p, value)
        if value > 0:
            copy_bytes(o, p, value_data, value_at[i], value)
            p += value
        if header_bit != ABSENT:
            copy_bytes(o, p, header_data, header_at[i], headers)
        else:
            o[p] = 0
        p += headers
        max_time = max(max_time, time_ms[i])
        i += 1
    return i, p, max_time
