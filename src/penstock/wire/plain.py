"""The loops of `kernels` in Python, for a command that reads or writes a few records.

Each function takes and gives what the kernel of its name does, whatever the bytes are; a test compares them.
Loading the compiled loops costs almost a second of processor time and 140 MiB of memory: as much time as a
hundred thousand records take here. So the first bytes of a process are processed here (`takes`), unless
it has loaded the kernels already.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import Kernel
from penstock.wire import kernels
from penstock.wire.kernels import (
    ABSENT,
    BAD_COUNT,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_RECORD,
    CONTROL_BIT,
    DENSE,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_BIT,
    OK,
    RECORD_BYTES_MIN,
    Bytes,
    Int32s,
    Int64s,
)

__all__ = [
    "count_batches",
    "decode_records",
    "encode_records",
    "gather",
    "layout",
    "scan",
    "takes",
    "walk_headers",
]

BYTES_MAX: Final = 256 << 10
"""Of a process, before the compiled loops are loaded: at most 0.2 seconds, with the smallest records."""
_INT64: Final = 1 << 63
_MASK: Final = (1 << 64) - 1


class _Done:
    """What this process has done here."""

    bytes = 0


def takes(size: int) -> bool:
    """Whether so many bytes are done here; they count as done."""
    if not isinstance(kernels.decode_records, Kernel) or _Done.bytes + size > BYTES_MAX:
        return False
    _Done.bytes += size
    return True


def _varint(b: memoryview, p: int, end: int) -> tuple[int, int]:
    """A zigzag varint within [p, end): its value and the position after it, or (0, -1)."""
    value = shift = 0
    while p < end and shift <= 63:
        byte = b[p]
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value &= _MASK
            return (value >> 1) ^ -(value & 1), p
        shift += 7
    return 0, -1


def _wrapped(value: int) -> int:
    """As 64 bits have it."""
    return (value + _INT64 & _MASK) - _INT64


def count_batches(b: Bytes) -> tuple[int, int, int]:
    """As the kernel of this name."""
    data, size = b.data, len(b)
    p = batches = 0
    while size - p >= 17:
        length = int.from_bytes(data[p + 8 : p + 12], "big", signed=True)
        if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            return batches, p, BAD_LENGTH
        if data[p + 16] != 2:
            return batches, p, BAD_MAGIC
        if length + LENGTH_PREFIX_BYTES > size - p:
            break
        p += length + LENGTH_PREFIX_BYTES
        batches += 1
    return batches, p, OK


def scan(b: Bytes, table: Int64s) -> None:
    """As the kernel of this name."""
    data, p = b.data, 0

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "big", signed=True)

    for i in range(len(table)):
        end = p + number(p + 8, 4) + LENGTH_PREFIX_BYTES
        attributes = int.from_bytes(data[p + 21 : p + 23], "big")
        table[i] = (
            *(p, end, p + HEADER_BYTES, end, number(p, 8), number(p + 23, 4), attributes),
            *(number(p + 27, 8), number(p + 35, 8), number(p + 57, 4)),
        )
        p = end


def decode_records(
    b: Bytes,
    table: Int64s,
    offset: Int64s,
    time_ms: Int64s,
    key_start: Int64s,
    key_length: Int32s,
    value_start: Int64s,
    value_length: Int32s,
) -> tuple[int, int, int]:
    """As the kernel of this name."""
    data, i = b.data, 0
    for batch, row in enumerate(table.tolist()):
        _, _, q, end, base_offset, last_delta, attributes, base_time, max_time, count = row
        if attributes & CONTROL_BIT:
            continue
        if count > len(offset) - i:
            return i, batch, BAD_COUNT
        previous = -1
        for _ in range(count):
            length, q = _varint(data, q, end)
            if q < 0:
                return i, batch, BAD_COUNT
            if length < RECORD_BYTES_MIN - 1 or length > end - q:
                return i, batch, BAD_RECORD
            end_of_record = q + length
            since, q = _varint(data, q + 1, end_of_record)
            delta, q = _varint(data, q, end_of_record) if q >= 0 else (0, -1)
            if q < 0:
                return i, batch, BAD_RECORD
            if delta <= previous or delta > last_delta:
                return i, batch, BAD_OFFSET
            previous = delta
            places = _places(data, q, end_of_record)
            if places is None:
                return i, batch, BAD_RECORD
            offset[i] = base_offset + delta
            time_ms[i] = max_time if attributes & LOG_APPEND_BIT else _wrapped(base_time + since)
            key_start[i], key_length[i], value_start[i], value_length[i] = places
            q = end_of_record
            i += 1
        if q != end:
            return i, batch, BAD_COUNT
    return i, -1, OK


def _places(data: memoryview, q: int, end: int) -> tuple[int, int, int, int] | None:
    """Where a record's key and value are, and how long; None: the rest is no record."""
    found: list[int] = []
    for _ in range(2):
        length, q = _varint(data, q, end)
        if q < 0 or length < -1 or length > end - q:
            return None
        found += (q, length)
        q += max(length, 0)
    count, q = _varint(data, q, end)
    if q < 0 or count < 0:
        return None
    for _ in range(count):
        for least in (0, -1):  # a name, which is never null, and a value
            length, q = _varint(data, q, end)
            if q < 0 or length < least or length > end - q:
                return None
            q += max(length, 0)
    if q != end:
        return None
    key_start, key_length, value_start, value_length = found
    return key_start, key_length, value_start, value_length


def layout(length: Int32s, offsets: Int32s, validity: Bytes, bytes_max: int) -> tuple[int, int]:
    """As the kernel of this name."""
    is_there = length >= 0
    ends = np.cumsum(np.maximum(length, 0), dtype=np.int64)
    nulls = len(length) - int(is_there.sum())
    if len(ends) and ends[-1] > bytes_max:
        return -1, nulls
    offsets[0] = 0
    offsets[1:] = ends
    validity[:] = np.packbits(is_there, bitorder="little")
    return int(offsets[-1]), nulls


def gather(b: Bytes, start: Int64s, length: Int32s, out: Bytes) -> int:
    """As the kernel of this name."""
    at = 0
    for s, n in zip(start.tolist(), length.tolist(), strict=True):
        if n > 0:
            if s < 0 or n > len(b) - s or n > len(out) - at:
                return -1
            out[at : at + n] = b[s : s + n]
            at += n
    return at


def walk_headers(
    b: Bytes,
    value_start: Int64s,
    value_length: Int32s,
    name: Bytes,
    start: Int64s,
    length: Int32s,
) -> int:
    """As the kernel of `headers`."""
    data, end, wanted = b.data, len(b), name.tobytes()
    values = zip(value_start.tolist(), value_length.tolist(), strict=True)
    for i, (value_at, value_size) in enumerate(values):
        begin = value_at + max(value_size, 0)
        start[i], length[i] = begin, -1
        count, p = _varint(data, begin, end)
        if p < 0 or count < 0:
            return i
        for _ in range(count):
            size, p = _varint(data, p, end)
            if p < 0 or size < 0 or size > end - p:
                return i
            is_wanted = bool(wanted) and data[p : p + size] == wanted
            size, p = _varint(data, p + size, end)
            if p < 0 or size > end - p:
                return i
            if is_wanted:
                start[i], length[i] = p, max(size, -1)
            p += max(size, 0)
        if not wanted:
            length[i] = p - begin
    return -1


def encode_records(
    o: Bytes,
    p: int,
    stop: int,
    first: int,
    time_ms: Int64s,
    key_at: Int32s,
    key_data: Bytes,
    key_bits: Bytes,
    key_bit: int,
    value_at: Int32s,
    value_data: Bytes,
    value_bits: Bytes,
    value_bit: int,
    header_at: Int32s,
    header_data: Bytes,
    header_bits: Bytes,
    header_bit: int,
) -> tuple[int, int, int]:
    """As the kernel of this name."""
    columns = (
        (key_at, key_data.data, key_bits, key_bit),
        (value_at, value_data.data, value_bits, value_bit),
        (header_at, header_data.data, header_bits, header_bit),
    )
    out, base_time = o.data, int(time_ms[first])
    max_time = base_time
    for i in range(first, len(time_ms)):
        key, value, headers = (_value(*column, i) for column in columns)
        time = int(time_ms[i])
        parts = [b"\0", _varint_bytes(_wrapped(time - base_time)), _varint_bytes(i - first)]
        for one in (key, value):
            parts += [_varint_bytes(-1)] if one is None else [_varint_bytes(len(one)), one]
        record = b"".join([*parts, b"\0" if headers is None else headers])
        record = _varint_bytes(len(record)) + record
        if i > first and len(record) > stop - p:
            return i, p, max_time
        out[p : p + len(record)] = record
        p += len(record)
        max_time = max(max_time, time)
    return len(time_ms), p, max_time


def _value(at: Int32s, data: memoryview, bits: Bytes, bit: int, i: int) -> bytes | None:
    """A value of a column; None: it is null."""
    if bit == ABSENT or (bit != DENSE and not bits[(bit + i) >> 3] >> ((bit + i) & 7) & 1):
        return None
    return bytes(data[at[i] : at[i + 1]])


def _varint_bytes(value: int) -> bytes:
    """A zigzag varint."""
    rest = ((value << 1) ^ (value >> 63)) & _MASK
    found = bytearray()
    while rest >= 128:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
