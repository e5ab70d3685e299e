"""The header of Kafka's record batch (format v2), in pure Python: what a broker needs to know of a
batch.

    offset  bytes  field
         0      8  base offset                 the broker's to write; outside the checksum
         8      4  batch length                bytes after this field
        12      4  partition leader epoch      the broker's to write; outside the checksum
        16      1  magic                       2
        17      4  CRC-32C                     of everything from byte 21 on
        21      2  attributes                  0-2 codec, 3 append time, 4 transactional, 5 control, 6 horizon
        23      4  last offset delta
        27      8  base timestamp (ms)
        35      8  max timestamp (ms)
        43      8  producer id                 -1: not idempotent
        51      2  producer epoch
        53      4  base sequence
        57      4  record count
        61         records, compressed as one block

The records stay opaque here, save for `record_times`, which finds one record by its time, and
`records`, which takes a batch apart for those who need a few of them. Columns are decoded
elsewhere. Source: Kafka's DefaultRecordBatch, KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import CorruptError
from penstock.wire.checksum import crc32c
from penstock.wire.codecs import CODEC_BITS, CODECS

__all__ = [
    "DURABLE_LATER",
    "HEADER_BYTES",
    "NO_PRODUCER",
    "PREFIX_BYTES",
    "Buffer",
    "Header",
    "Record",
    "build",
    "checksum_matches",
    "correct_times",
    "decompressed",
    "iterate",
    "parse",
    "patch",
    "read_varint",
    "recompress",
    "record_times",
    "records",
    "stamp_append_time",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12
"""Base offset and length: what comes before the bytes that the length counts."""
NO_PRODUCER: Final = -1
DURABLE_LATER: Final = b"\1" + b"\x90\x4e" + b"\0"
"""The tagged fields of a Produce request whose records the commit of their transaction makes durable: one of
our own, 10,000, without content. Other brokers pass over it (KIP-482) and do what acks says."""
MAGIC: Final = 2
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""Most bytes that one batch may decompress to while a record is looked up in it: a bomb is
refused."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_LENGTH_AT: Final = 8
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21
_TIME_TYPE_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_HORIZON_BIT: Final = 0x40


class Header(NamedTuple):
    """A batch's header; names as in the table above."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + PREFIX_BYTES

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; sequences wrap at 2**31."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec_number(self) -> int:
        """The compression's number; 0: none."""
        return self.attributes & CODEC_BITS

    @property
    def codec(self) -> str:
        """The compression's name, or `codec 5` where there is none with that number."""
        number = self.codec_number
        return CODECS[number] if number < len(CODECS) else f"codec {number}"

    @property
    def is_known_codec(self) -> bool:
        """Whether the compression is one of Kafka's."""
        return self.codec_number < len(CODECS)

    @property
    def is_append_time(self) -> bool:
        """Whether the records' time is the broker's clock at the append."""
        return bool(self.attributes & _TIME_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction's marker, not data."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def horizon_ms(self) -> int | None:
        """Until when compaction keeps the batch's tombstones or marker, once it has decided that
        (KIP-534).
        """
        return self.base_timestamp if self.attributes & _HORIZON_BIT else None

    def fault(self) -> str | None:
        """What makes this header impossible; None if it may stand in a log."""
        if self.magic != MAGIC:
            return f"expected a record batch of format {MAGIC}; found {self.magic}"
        if self.length < HEADER_BYTES - PREFIX_BYTES:
            return f"expected a length of at least 49; found {self.length}"
        if self.record_count < 0 or self.last_offset_delta < 0 or self.base_offset < 0:
            return (
                f"expected offsets and counts of 0 or more; found base offset {self.base_offset}, "
                f"last offset delta {self.last_offset_delta}, {self.record_count} records"
            )
        return None


def parse(buffer: Buffer, at: int = 0) -> Header:
    """The header at `at`. At least `HEADER_BYTES` must follow; nothing is checked."""
    return Header._make(_HEADER.unpack_from(buffer, at))


def checksum_matches(buffer: Buffer, at: int, header: Header) -> bool:
    """Whether the whole batch at `at` has the checksum that its header states."""
    with memoryview(buffer)[at + _CHECKED_FROM : at + PREFIX_BYTES + header.length] as checked:
        return bool(crc32c(checked) == header.crc)


class Record(NamedTuple):
    """One record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def iterate(buffer: Buffer) -> Iterator[tuple[int, Header]]:
    """Position and header of each whole batch; ends before the first torn or impossible one."""
    at, end = 0, len(buffer)
    while at + HEADER_BYTES <= end:
        header = parse(buffer, at)
        if header.fault() is not None or at + header.size > end:
            return
        yield at, header
        at += header.size


def patch(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Writes the broker's two fields in place; the checksum doesn't cover them."""
    _OFFSET.pack_into(buffer, at, base_offset)
    _EPOCH.pack_into(buffer, at + PREFIX_BYTES, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, at: int, header: Header, now_ms: int) -> None:
    """Makes `now_ms` every record's time (Kafka's LogAppendTime) and renews the checksum."""
    struct.pack_into(">h", buffer, at + 21, header.attributes | _TIME_TYPE_BIT)
    struct.pack_into(">q", buffer, at + 35, now_ms)
    with memoryview(buffer)[at + _CHECKED_FROM : at + header.size] as checked:
        struct.pack_into(">I", buffer, at + _CRC_AT, crc32c(checked))


def correct_times(buffer: bytearray | memoryview, header: Header, max_timestamp: int) -> None:
    """Makes the records' own times count in a batch, the greatest of which is given, and renews the
    checksum.
    """
    struct.pack_into(">h", buffer, 21, header.attributes & ~_TIME_TYPE_BIT)
    struct.pack_into(">q", buffer, 35, max_timestamp)
    with memoryview(buffer)[_CHECKED_FROM : header.size] as checked:
        struct.pack_into(">I", buffer, _CRC_AT, crc32c(checked))


def record_times(buffer: Buffer, at: int, header: Header) -> Iterator[tuple[int, int]]:
    """Offset and timestamp (ms) of each record of the batch at `at`, in order.

    Raises:
        CorruptError: the records are not what the header says.
        LimitError: they would take more than `DECOMPRESSED_BYTES_MAX`.
    """
    for body in _bodies(buffer, at, header):
        time_delta, after_time = read_varint(body, 1)
        offset_delta, _ = read_varint(body, after_time)
        timestamp = header.base_timestamp + time_delta
        if header.is_append_time:
            timestamp = header.max_timestamp
        yield header.base_offset + offset_delta, timestamp


def records(buffer: Buffer, at: int, header: Header) -> Iterator[Record]:
    """The records of the batch at `at`, in order, copied out of it.

    Raises:
        CorruptError: they are not what the header says.
        LimitError: they would take more than `DECOMPRESSED_BYTES_MAX`.
    """
    for body in _bodies(buffer, at, header):
        try:
            yield _record(body, header)
        except UnicodeDecodeError:
            raise CorruptError(
                f"expected UTF-8 in the headers of the batch at offset {header.base_offset}; found other "
                "bytes"
            ) from None


def _bodies(buffer: Buffer, at: int, header: Header) -> Iterator[memoryview]:
    """The bytes of each record of a batch, without their length."""
    payload: Buffer = memoryview(buffer)[at + HEADER_BYTES : at + header.size]
    if header.codec != "none":
        payload = decompressed(header, memoryview(payload))
    payload = memoryview(payload)
    position = 0
    for _ in range(header.record_count):
        length, body = read_varint(payload, position)
        position = body + length
        if length <= 0 or position > len(payload):
            raise CorruptError(f"expected a record of 1 or more bytes; found length {length}")
        yield payload[body:position]


def _record(body: memoryview, header: Header) -> Record:
    time_delta, at = read_varint(body, 1)
    offset_delta, at = read_varint(body, at)
    key, at = _blob(body, at)
    value, at = _blob(body, at)
    count, at = read_varint(body, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _blob(body, at)
        data, at = _blob(body, at)
        headers.append(((name or b"").decode(), data))
    timestamp = header.base_timestamp + time_delta
    if header.is_append_time:
        timestamp = header.max_timestamp
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _blob(body: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(body, at)
    if size < 0:
        return None, at
    if at + size > len(body):
        raise CorruptError(f"expected {size} more bytes in a record; found {len(body) - at}")
    return bytes(body[at : at + size]), at + size


def read_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """The zigzag varint at `at`, and the position after it.

    Raises:
        CorruptError: the bytes end before it does, or it is too long.
    """
    result = shift = 0
    while True:
        if at >= len(buffer):
            raise CorruptError("expected a varint; found that the bytes end early")
        byte = buffer[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63:
                result &= (1 << 64) - 1
            return (result >> 1) ^ -(result & 1), at
        shift += 7
        if shift > 63:
            raise CorruptError("expected a varint of at most 10 bytes; found a longer one")


def decompressed(header: Header, payload: memoryview) -> Buffer:
    """What a batch's compressed records unpack to. NumPy comes with it, so it is loaded when it is needed.

    Raises:
        CorruptError: they are not what the codec makes.
        LimitError: they would take more than `DECOMPRESSED_BYTES_MAX`.
    """
    import numpy as np

    from penstock.wire import compression

    codec, data = header.codec_number, np.frombuffer(payload, np.uint8)
    return compression.decompress(codec, data, bytes_max=DECOMPRESSED_BYTES_MAX).data


def recompress(batch: Buffer, header: Header, codec: int, level: int | None = None) -> bytearray:
    """The batch with its records compressed by another codec (0: not at all).

    Raises:
        CorruptError: its records are not what its codec makes.
        LimitError: they are more than `DECOMPRESSED_BYTES_MAX`.

    >>> small = build([(None, bytes(1000))], codec="gzip")
    >>> plain = recompress(small, parse(small), 0)
    >>> plain == build([(None, bytes(1000))])
    True
    """
    from penstock.wire import compression

    payload: Buffer = memoryview(batch)[HEADER_BYTES : header.size]
    if header.codec_number:
        payload = decompressed(header, memoryview(payload))
    if codec:
        payload = compression.compress(codec, memoryview(payload), level)
    made = bytearray(memoryview(batch)[:HEADER_BYTES])
    made += payload
    struct.pack_into(">i", made, _LENGTH_AT, len(made) - PREFIX_BYTES)
    struct.pack_into(">h", made, _CHECKED_FROM, header.attributes & ~CODEC_BITS | codec)
    struct.pack_into(">I", made, _CRC_AT, crc32c(memoryview(made)[_CHECKED_FROM:]))
    return made


def build(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamps_ms: Sequence[int] | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: str = "none",
    attributes: int = 0,
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
) -> bytearray:
    """A batch of (key, value) pairs, a record at a time: for a few records, and for tests.

    >>> header = parse(build([(b"k", b"v"), (None, b"w")], timestamps_ms=[5, 7]))
    >>> header.record_count, header.max_timestamp, header.next_offset
    (2, 7, 2)
    """
    times = list(timestamps_ms or [0] * len(records))
    body = bytearray()
    for delta, ((key, value), time_ms) in enumerate(zip(records, times, strict=True)):
        one = bytearray(b"\0")
        for number in (time_ms - times[0], delta):
            _writeread_varint(one, number)
        for data in (key, value):
            _writeread_varint(one, -1 if data is None else len(data))
            one += data or b""
        pairs = headers[delta] if headers is not None else ()
        _writeread_varint(one, len(pairs))
        for name, data in pairs:
            for part in (name.encode(), data):
                _writeread_varint(one, -1 if part is None else len(part))
                one += part or b""
        _writeread_varint(body, len(one))
        body += one
    payload = bytes(body)
    if codec != "none":
        from penstock.wire import compression

        payload = compression.compress(CODECS.index(codec), payload)
    batch = bytearray(HEADER_BYTES) + payload
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - PREFIX_BYTES,
        -1,
        MAGIC,
        0,
        attributes | CODECS.index(codec),
        max(len(records) - 1, 0),
        times[0] if times else 0,
        max(times, default=-1),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    return batch


def _writeread_varint(out: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag >= 0x80:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
