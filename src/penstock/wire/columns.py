"""Record batches (format v2) to columns and back, with no Python object per record.

    decode(b"".join(encode(keys, values, times))).to_arrow()  =  keys, values, offsets 0…n-1, times

`decode` copies no key or value: it says where in the buffer each one lies. `Records.to_arrow`
copies them once, into Arrow arrays. Both treat the bytes as hostile: every length is checked before
it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptError, LimitError, UserError
from penstock.wire import kernels, plain
from penstock.wire.checksum import crc32c
from penstock.wire.compression import (
    DECOMPRESSED_BYTES_MAX,
    codec_number,
    compress,
    decompress,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Buffer: TypeAlias = bytes | bytearray | memoryview | Bytes | pa.Buffer
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

# Below a broker's default of 1 MiB for a batch, with room for differences in counting.
BATCH_BYTES_MAX: Final = 900_000

SEQUENCE_MODULUS: Final = 1 << 31  # a producer's sequence numbers wrap to 0 after 2^31 - 1
ARROW_BYTES_MAX: Final = (1 << 31) - 1  # a binary array has 32-bit offsets
TIMESTAMP_MS: Final = pa.timestamp("ms", "UTC")

_OFFSET_MAX: Final = (1 << 63) - (
    1 << 32
)  # the last base offset whose batch can't overflow an int64
_PRODUCER_AT: Final = np.arange(43, 51)
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_HEAD: Final = struct.Struct(">qiibI")  # offset, length, leader epoch, magic, CRC
_BODY: Final = struct.Struct(">hiqqqhii")  # attributes … record count
_EMPTY: Final = np.empty(0, np.uint8)
_DAMAGED: Final = "The data is damaged: read past this batch, or restore the log from a copy"
_NO_OFFSETS: Final = np.zeros(1, np.int32)


@dataclass(frozen=True, eq=False, slots=True)
class Records:
    """Records as columns: where each key and value lies in `buffer`.

    Attributes:
        buffer: bytes that starts and lengths point into.
        offset: int64[n], increasing within a batch.
        timestamp_ms: int64[n].
        key_start: int64[n].
        key_length: int32[n], -1 for null.
        value_start: int64[n]; a record's headers begin at `value_start + max(value_length, 0)`.
        value_length: int32[n], -1 for null.
        next_offset: the first offset after the last whole batch; where to read on.
    """

    buffer: Bytes
    offset: Int64s
    timestamp_ms: Int64s
    key_start: Int64s
    key_length: Int32s
    value_start: Int64s
    value_length: Int32s
    next_offset: int

    def __len__(self) -> int:
        return len(self.offset)

    def slice(self, lo: int, hi: int) -> Records:
        """Records lo to hi - 1, sharing the buffer; `next_offset` is that of the first left out."""
        lo, hi, _ = slice(lo, hi).indices(len(self))
        part = slice(lo, max(lo, hi))
        return Records(
            self.buffer,
            self.offset[part],
            self.timestamp_ms[part],
            self.key_start[part],
            self.key_length[part],
            self.value_start[part],
            self.value_length[part],
            int(self.offset[hi]) if hi < len(self) else self.next_offset,
        )

    def take(self, rows: np.ndarray) -> Records:
        """Some of the records, sharing the buffer."""
        return Records(
            self.buffer,
            self.offset[rows],
            self.timestamp_ms[rows],
            self.key_start[rows],
            self.key_length[rows],
            self.value_start[rows],
            self.value_length[rows],
            self.next_offset,
        )

    def within(self, bytes_max: int) -> tuple[Records, int]:
        """Those up to the record with which keys and values reach a limit, and how much of it is left."""
        sizes = np.maximum(self.key_length, 0).astype(np.int64) + np.maximum(self.value_length, 0)
        total = int(sizes.sum())
        if total < bytes_max:
            return self, bytes_max - total
        last = int(np.searchsorted(np.cumsum(sizes), bytes_max))
        return self.slice(0, last + 1), 0

    def between(self, from_offset: int, to_offset: int) -> Records:
        """The records with `from_offset <= offset < to_offset`; offsets must be sorted."""
        lo, hi = np.searchsorted(self.offset, (from_offset, to_offset))
        return self if lo == 0 and hi == len(self) else self.slice(int(lo), int(hi))

    def keys(self) -> pa.BinaryArray:
        """A copy of the keys."""
        return gather_column(self.buffer, self.key_start, self.key_length)

    def values(self) -> pa.BinaryArray:
        """A copy of the values."""
        return gather_column(self.buffer, self.value_start, self.value_length)

    def to_arrow(self) -> pa.RecordBatch:
        """A copy as columns `key`, `value` (binary), `offset` (int64), `timestamp` (ms, UTC).

        Raises:
            LimitError: keys or values exceed what one Arrow array holds; slice first.
        """
        times = pa.array(self.timestamp_ms).cast(pa.timestamp("ms")).cast(TIMESTAMP_MS)
        return pa.RecordBatch.from_arrays(
            [self.keys(), self.values(), pa.array(self.offset), times],
            names=["key", "value", "offset", "timestamp"],
        )


@dataclass(frozen=True, eq=False, slots=True)
class Batches:
    """The whole batches in a buffer, by their headers alone.

    Attributes:
        data: the buffer.
        table: int64[batches, kernels.TABLE_COLUMNS].
        whole_bytes: where the last whole batch ends.
        next_offset: the first offset after it; 0 where there is none.
    """

    data: Bytes
    table: Int64s
    whole_bytes: int
    next_offset: int

    def check_order(self, from_offset: int) -> None:
        """Checks what a log promises: batches ascend, the first ends at `from_offset` or later.

        Base offsets are outside a batch's checksum, so this is what guards them.

        Raises:
            CorruptError: they don't.
        """
        if not len(self.table):
            return
        base = self.table[:, kernels.BASE_OFFSET]
        last = base + self.table[:, kernels.LAST_DELTA]
        wrong = np.flatnonzero(base[1:] <= last[:-1]) + 1
        if last[0] < from_offset:
            wrong = np.zeros(1, np.int64)
        if len(wrong):
            raise _corrupt(self.data, int(self.table[wrong[0], kernels.START]), kernels.BAD_OFFSET)

    def without_aborted(self, aborted: Sequence[tuple[int, int]]) -> Batches:
        """The batches less those of aborted transactions.

        A transactional batch is aborted if its producer has an aborted transaction that began at or
        before it, and no marker of that producer lies in between.

        Args:
            aborted: producer id and first offset of each aborted transaction that overlaps these
                batches, as a broker names them.
        """
        attributes = self.table[:, kernels.ATTRIBUTES]
        rows = np.flatnonzero(attributes & kernels.TRANSACTIONAL_BIT)
        if not aborted or not len(rows):
            return self
        where = self.table[rows, kernels.START][:, None] + _PRODUCER_AT
        producers = self.data[where].view(">i8")[:, 0]
        offsets = self.table[rows, kernels.BASE_OFFSET]
        is_marker = (attributes[rows] & kernels.CONTROL_BIT) != 0
        began = np.array(sorted(aborted), np.int64)
        gone = np.zeros(len(self.table), np.bool_)
        for producer in np.intersect1d(began[:, 0], producers):
            mine = rows[(producers == producer) & ~is_marker]
            at = self.table[mine, kernels.BASE_OFFSET]
            start = _last_upto(began[began[:, 0] == producer, 1], at)
            end = _last_upto(offsets[(producers == producer) & is_marker], at)
            gone[mine] = start > end
        return Batches(self.data, self.table[~gone], self.whole_bytes, self.next_offset)

    def halves(self) -> tuple[Batches, Batches]:
        """The first and the second half of two batches or more."""
        middle = len(self.table) // 2
        first, second = self.table[:middle], self.table[middle:]
        following = int(first[-1, kernels.BASE_OFFSET] + first[-1, kernels.LAST_DELTA]) + 1
        end = int(first[-1, kernels.END])
        return (
            Batches(self.data, first, end, following),
            Batches(self.data, second, self.whole_bytes, self.next_offset),
        )


def _last_upto(sorted_offsets: Int64s, at: Int64s) -> Int64s:
    """For each of `at` the last of the offsets that is not above it; -1 where there is none."""
    padded = np.concatenate((np.full(1, -1, np.int64), sorted_offsets))
    found: Int64s = padded[np.searchsorted(sorted_offsets, at, side="right")]
    return found


def scan(buffer: Buffer) -> Batches:
    """Finds the whole batches in a buffer; a torn one at the end is left out.

    Raises:
        CorruptError: a header makes no sense.
    """
    data = _as_bytes(buffer)
    loops = _loops(len(data))
    batches, end, why = loops.count_batches(data)
    if why != kernels.OK:
        raise _corrupt(data, end, why)
    table = np.empty((batches, kernels.TABLE_COLUMNS), np.int64)
    loops.scan(data, table)
    base, delta = table[:, kernels.BASE_OFFSET], table[:, kernels.LAST_DELTA]
    wrong = np.flatnonzero((base < 0) | (base > _OFFSET_MAX) | (delta < 0))
    if len(wrong):
        raise _corrupt(data, int(table[wrong[0], kernels.START]), kernels.BAD_OFFSET)
    following = int(base[-1]) + int(delta[-1]) + 1 if batches else 0
    return Batches(data, table, end, following)


def decode(buffer: Buffer | Batches, *, verify_crc: bool = True) -> Records:
    """Finds the records of all whole batches in a buffer.

    A torn batch at the end is left out. Control batches (transaction markers) are passed over;
    records of transactions are given whatever became of the transaction (see
    `Batches.without_aborted`).

    Args:
        buffer: record batches, one after another, or what `scan` found in them.
        verify_crc: whether to check each batch's checksum.

    Raises:
        CorruptError: a checksum, a length or a count is wrong; it names the batch's base offset.
        LimitError: compressed batches unpack to more than `DECOMPRESSED_BYTES_MAX`.
    """
    batches = buffer if isinstance(buffer, Batches) else scan(buffer)
    data, table = batches.data, batches.table.copy()
    if verify_crc:
        _check_crcs(data, table)
    source = _unpacked(data, table)
    n = _claimed_records(data, table)
    columns = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int32),
        np.empty(n, np.int64),
        np.empty(n, np.int32),
    )
    found, batch, why = _loops(len(source)).decode_records(source, table, *columns)
    if why != kernels.OK:
        raise _corrupt(data, int(table[batch, kernels.START]), why)
    assert found == n, (found, n)
    return Records(source, *columns, batches.next_offset)


def header(records: Records, i: int) -> list[tuple[str, bytes | None]]:
    """The headers of record i, in order (a key may be there more than once)."""
    at = int(records.value_start[i]) + max(int(records.value_length[i]), 0)
    return headers_at(records.buffer, at)


def headers_at(buffer: Bytes, at: int) -> list[tuple[str, bytes | None]]:
    """The headers of a record that begin at a position, in checked bytes."""
    count, at = _read_varint(buffer, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = _read_varint(buffer, at)
        name = bytes(buffer[at : at + length]).decode("utf-8", "replace")
        at += length
        length, at = _read_varint(buffer, at)
        headers.append((name, None if length < 0 else bytes(buffer[at : at + length])))
        at += max(length, 0)
    return headers


def encode(
    keys: pa.Array[Any] | pa.ChunkedArray[Any] | None,
    values: pa.Array[Any] | pa.ChunkedArray[Any],
    timestamps_ms: Int64s,
    *,
    base_offset: int = 0,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    headers: Sequence[Headers] | pa.Array[Any] | None = None,
    transactional: bool = False,
) -> list[memoryview]:
    """Encodes columns as record batches.

    The boundaries depend on the arguments alone: the same input gives the same batches.

    Args:
        keys: binary or string; None where every key is null.
        values: binary or string, null for a tombstone.
        timestamps_ms: int64[n].
        base_offset: the first record's offset (a broker assigns its own).
        batch_bytes_max: a batch's size before compression; a larger record has a batch to itself.
        compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        producer_id: of an idempotent producer, or -1.
        producer_epoch: its epoch.
        base_sequence: the first record's sequence number, or -1.
        headers: one sequence of (name, value) per record, which takes a slower path; or what
            `wire.headers.raw_headers` gave.
        transactional: whether the records belong to the producer's transaction.

    Raises:
        UserError: the columns differ in length or type.
        LimitError: one record or column exceeds what the format can hold.
    """
    codec = codec_number(compression)
    attributes = codec | (kernels.TRANSACTIONAL_BIT if transactional else 0)
    value_column, n = _column(values, "values")
    key_column, _ = _column(keys, "keys", n)
    header_column, _ = _column(_encode_headers(headers), "headers", n)
    times = np.ascontiguousarray(timestamps_ms, np.int64)
    if len(times) != n:
        raise UserError(f"expected a timestamp for each of {n} values; found {len(times)}")
    columns = (*key_column, *value_column, *header_column)
    room = n * (kernels.RECORD_OVERHEAD_BYTES_MAX + kernels.HEADER_BYTES)
    room += sum(_data_bytes(column) for column in (key_column, value_column, header_column))
    output = np.empty(room, np.uint8)
    batches: list[memoryview] = []
    start = first = 0
    loops = _loops(room)
    while first < n:
        body = start + kernels.HEADER_BYTES
        last, end, max_time = loops.encode_records(
            output, body, start + batch_bytes_max, first, times, *columns
        )
        if end - start > ARROW_BYTES_MAX:
            raise LimitError(
                f"expected a record of at most {ARROW_BYTES_MAX} bytes; found {end - start}"
            )
        sequence = (
            base_sequence if base_sequence < 0 else (base_sequence + first) % SEQUENCE_MODULUS
        )
        batch = _finish(output, start, end, codec)
        _BODY.pack_into(
            batch, _CRC_FROM, attributes, last - first - 1, int(times[first]), max_time,
            producer_id, producer_epoch, sequence, last - first,
        )  # fmt: skip
        checksum = crc32c(batch[_CRC_FROM:])
        _HEAD.pack_into(
            batch, 0, base_offset + first, len(batch) - kernels.LENGTH_PREFIX_BYTES, -1, 2, checksum
        )
        batches.append(batch)
        # What was compressed was copied: its place is written again, while it is in the processor's cache.
        start, first = 0 if codec else end, last
    return batches


def _loops(size: int) -> ModuleType:
    """The compiled loops; for a few bytes of a process that hasn't loaded them, those in Python."""
    return plain if plain.takes(size) else kernels


def _finish(output: Bytes, start: int, end: int, codec: int) -> memoryview:
    """The bytes of a batch whose records are written: in place, or packed into a new buffer."""
    if codec == 0:
        return output[start:end].data
    records = compress(codec, output[start + kernels.HEADER_BYTES : end].data)
    return memoryview(bytearray(bytes(kernels.HEADER_BYTES) + records))


def _as_bytes(buffer: Buffer) -> Bytes:
    """A view of a buffer as contiguous uint8."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer, np.uint8)
    return np.frombuffer(memoryview(buffer), np.uint8)


def _corrupt(data: Bytes, at: int, why: int) -> CorruptError:
    """The error for the batch at a position."""
    offset = int.from_bytes(bytes(data[at : at + 8]), "big", signed=True)
    return CorruptError(
        f"expected a whole record batch at base offset {offset} (byte {at}); found that "
        f"{kernels.REASONS[why]}. {_DAMAGED}"
    )


def _check_crcs(data: Bytes, table: Int64s) -> None:
    """Compares each batch's checksum with its bytes."""
    view = data.data
    spans = table[:, (kernels.START, kernels.END)].tolist()
    for start, end in spans:
        stored = int.from_bytes(view[start + _CRC_AT : start + _CRC_FROM], "big")
        actual = crc32c(view[start + _CRC_FROM : end])
        if stored != actual:
            offset = int.from_bytes(view[start : start + 8], "big", signed=True)
            raise CorruptError(
                f"expected checksum {stored:#010x} for the record batch at base offset {offset} "
                f"(byte {start}, {end - start} bytes); found {actual:#010x}. {_DAMAGED}"
            )


def _claimed_records(data: Bytes, table: Int64s) -> int:
    """How many records the batches say they hold; never more than their bytes could.

    This bounds what is allocated for them.
    """
    counts = table[:, kernels.COUNT]
    room = (table[:, kernels.BODY_END] - table[:, kernels.BODY]) // kernels.RECORD_BYTES_MIN
    is_data = (table[:, kernels.ATTRIBUTES] & kernels.CONTROL_BIT) == 0
    wrong = np.flatnonzero(is_data & ((counts < 0) | (counts > room)))
    if len(wrong):
        raise _corrupt(data, int(table[wrong[0], kernels.START]), kernels.BAD_COUNT)
    return int(counts[is_data].sum())


def _unpacked(data: Bytes, table: Int64s) -> Bytes:
    """The buffer that holds all records uncompressed; the table's bodies then point into it."""
    codecs = table[:, kernels.ATTRIBUTES] & kernels.CODEC_MASK
    if not codecs.any():
        return data
    parts: list[Bytes] = []
    at = 0
    for i, codec in enumerate(codecs.tolist()):
        part = data[table[i, kernels.BODY] : table[i, kernels.BODY_END]]
        if codec and not table[i, kernels.ATTRIBUTES] & kernels.CONTROL_BIT:
            part = _unpack_batch(data, table, i, codec, DECOMPRESSED_BYTES_MAX - at)
        table[i, kernels.BODY] = at
        at += len(part)
        table[i, kernels.BODY_END] = at
        parts.append(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _unpack_batch(data: Bytes, table: Int64s, i: int, codec: int, bytes_max: int) -> Bytes:
    """One batch's records; an error names its base offset."""
    part = data[table[i, kernels.BODY] : table[i, kernels.BODY_END]]
    if not len(part):
        return part
    try:
        return decompress(codec, part, bytes_max=max(bytes_max, 0))
    except CorruptError as e:
        offset = int(table[i, kernels.BASE_OFFSET])
        raise CorruptError(
            f"the record batch at base offset {offset} can't be unpacked: {e}"
        ) from e


def gather_column(buffer: Bytes, start: Int64s, length: Int32s) -> pa.BinaryArray:
    """An Arrow array with a copy of these values."""
    n = len(start)
    start, length = np.ascontiguousarray(start), np.ascontiguousarray(length)
    offsets = np.empty(n + 1, np.int32)
    validity = np.zeros((n + 7) // 8, np.uint8)
    loops = _loops(n + len(buffer))
    total, nulls = loops.layout(length, offsets, validity, ARROW_BYTES_MAX)
    if total < 0:
        raise LimitError(
            f"expected at most {ARROW_BYTES_MAX} bytes of keys or values in one array; found more "
            f"in {n} records. Slice the records and convert the parts"
        )
    data = np.empty(total, np.uint8)
    if loops.gather(buffer, start, length, data) != total:
        raise CorruptError(
            f"expected keys and values within {len(buffer)} bytes; found one outside"
        )
    bits = pa.py_buffer(validity.data) if nulls else None
    buffers = [bits, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    array: Any = pa.Array.from_buffers(pa.binary(), n, buffers, nulls)
    return cast("pa.BinaryArray", array)


_Column: TypeAlias = tuple[Int32s, Bytes, Bytes, int]


def _column(
    array: pa.Array[Any] | pa.ChunkedArray[Any] | None, what: str, n: int = -1
) -> tuple[_Column, int]:
    """A column as the kernel takes it (offsets, data, validity bits, first bit), and its length."""
    if array is None:
        return (_NO_OFFSETS, _EMPTY, _EMPTY, kernels.ABSENT), n
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if n >= 0 and len(array) != n:
        raise UserError(f"expected {what} for each of {n} values; found {len(array)}")
    if array.type not in (pa.binary(), pa.string()):
        try:
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise UserError(f"expected {what} as binary or string; found {array.type}: {e}") from e
    bits, offsets, data = array.buffers()
    first = int(array.offset)
    at = np.require(_view(offsets, np.int32)[first : first + len(array) + 1], requirements="A")
    if len(array) == 0:
        at = _NO_OFFSETS
    if bits is None or array.null_count == 0:
        return (at, _view(data, np.uint8), _EMPTY, kernels.DENSE), len(array)
    return (at, _view(data, np.uint8), _view(bits, np.uint8), first), len(array)


def _view(buffer: pa.Buffer | None, dtype: Any) -> Any:
    """A buffer as an array; Arrow leaves out empty ones."""
    if buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(memoryview(buffer), dtype, count=buffer.size // np.dtype(dtype).itemsize)


def _data_bytes(column: _Column) -> int:
    """The bytes of a column's values."""
    return int(column[0][-1]) - int(column[0][0])


def _encode_headers(headers: Sequence[Headers] | pa.Array[Any] | None) -> pa.Array[Any] | None:
    """Each record's headers as they stand in a record."""
    if headers is None or isinstance(headers, pa.Array):
        return headers
    return pa.array([header_bytes(pairs) for pairs in headers], pa.binary())


def header_bytes(pairs: Headers) -> bytes:
    """One record's headers: their count, then name and value of each with its length."""
    parts = [_varint(len(pairs))]
    for name, value in pairs:
        encoded = name.encode()
        parts += [_varint(len(encoded)), encoded]
        parts += [_varint(-1)] if value is None else [_varint(len(value)), value]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """A zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_varint(buffer: Bytes, at: int) -> tuple[int, int]:
    """A zigzag varint in checked bytes: its value and the position after it."""
    value = shift = 0
    while True:
        byte = int(buffer[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
