"""What compaction does to batches: notes the last offset of each key, then copies what is kept.

For a log of records r with key(r), cleaned up to offset U under grace time G:

    kept  =  { r : offset(r) >= U,  or  r is the last of its key below U and not aborted,
                                        and, if it is a tombstone, not cleaned before now - G }

Kept records keep their offsets, times, order, headers and compression. A batch of which nothing is
kept goes, except the last one of a producer (its sequence numbers are still needed) and the last one
of a segment (so a segment always reaches its end): those stay as batches without records. A marker
stays as long as records of its transaction are there, and then for the grace time.

Holes, segments that can't be read, may be restored one day. So nothing is concluded from them, and what
hides records in them stays: after the first one tombstones and markers have no end of their grace
time, and aborted transactions that reach into one stay in the index. Where a hole's part of that
index is lost, too, records in transactions before its end are kept as they are.

Memory: the key map, one chunk of the log, and one unpacked piece. A key map that is full ends the
pass early; the next one continues from there. Source: Kafka's LogCleaner, KIP-98, KIP-534.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.errors import CorruptError, LimitError
from penstock.log.compaction import kernels as loops
from penstock.log.compaction.kernels import Bytes, Int64s
from penstock.log.disk.files import LogFile, LogFiles
from penstock.log.errors import DamagedSegmentError
from penstock.log.markers import Aborted, AbortedIndex
from penstock.log.segments.segment import Segment
from penstock.log.segments.verification import add_prefix
from penstock.wire import batches, columns, kernels
from penstock.wire.batches import HEADER_BYTES, Header
from penstock.wire.checksum import crc32c
from penstock.wire.codecs import CODEC_BITS
from penstock.wire.compression import compress, decompress

__all__ = ["Cleaner", "Holes", "Pace", "Source"]

CHUNK_BYTES: Final = 4 << 20
"""Bytes of the log that are read at a time."""
PIECE_BYTES: Final = 16 << 20
"""Unpacked bytes from which on a piece is worked off."""
BATCH_BYTES_MAX: Final = 64 << 20
"""A batch that unpacks to more is kept as it is."""
WRITE_BYTES: Final = 1 << 20
"""Cleaned bytes that are written at a time."""
SLOT_BYTES: Final = 24
MAP_LOAD: Final = 0.75
"""Share of the key map's slots that are used."""
MAP_SLOTS_MIN: Final = 1 << 10
_HORIZON_BIT: Final = 0x40
_CRC_FROM: Final = 21
_BODY = struct.Struct(">hiqqqhii")

Pace = Callable[[int], None]
"""Is called with each stretch of bytes that was worked off; may sleep, or raise to stop the work."""


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be read."""

    base_offset: int
    next_offset: int
    size: int
    path: str
    prefix_sum: int
    aborted: AbortedIndex


@dataclass(frozen=True, slots=True)
class Holes:
    """Where the segments that can't be read lie.

    Attributes:
        begin: the base offset of the first one.
        end: the offset after the last one.
        unsure_upto: the offset after the last one whose aborted transactions aren't known.
    """

    begin: int = 1 << 62
    end: int = 0
    unsure_upto: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some batches, their records unpacked.

    Attributes:
        data: the batches as they stand in the log.
        table: their rows (see `penstock.wire.kernels`); bodies point into `source`.
        source: the records' bytes.
        opaque: uint8 per batch: it can't be unpacked, and is kept as it is.
    """

    data: Bytes
    table: Int64s
    source: Bytes
    opaque: Bytes

    def header(self, i: int) -> Header:
        """Batch i's header."""
        return batches.parse(self.data.data, int(self.table[i, kernels.START]))

    def bytes_of(self, i: int) -> memoryview:
        """Batch i."""
        return self.data.data[self.table[i, kernels.START] : self.table[i, kernels.END]]


class Cleaner:
    """One pass over a partition's segments. Not thread-safe; belongs to one thread."""

    def __init__(
        self,
        files: LogFiles,
        *,
        aborted: Sequence[Aborted],
        holes: Holes,
        last_of_producers: dict[int, tuple[int, int]],
        now_ms: int,
        grace_ms: int,
        hash_key: tuple[int, int],
        map_bytes_max: int,
        pace: Pace,
    ) -> None:
        """Prepares a pass.

        Args:
            files: where the segments are.
            aborted: the aborted transactions in what is to be cleaned.
            holes: what lies between the segments, but can't be read.
            last_of_producers: base offset of each producer's last batch (-1: none) and its epoch.
            now_ms: the time.
            grace_ms: how long tombstones and markers are kept once they were cleaned.
            hash_key: two random 64-bit numbers.
            map_bytes_max: most memory for the key map.
            pace: see `Pace`.
        """
        self._files = files
        self._holes = holes
        self._last_of_producers = last_of_producers
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._key = np.uint64(hash_key[0]), np.uint64(hash_key[1])
        self._map_bytes_max = map_bytes_max
        self._pace = pace
        self._transactions: dict[int, tuple[list[int], list[int]]] = {}
        for one in aborted:
            firsts, lasts = self._transactions.setdefault(one.producer_id, ([], []))
            firsts.append(one.first_offset)
            lasts.append(one.last_offset)
        self._begun: set[int] = set()  # producers with records since their last marker
        self.mapped_upto = 0
        self.used = 0

    # -- the key map -------------------------------------------------------------------------------

    def map_keys(self, sources: Sequence[Source], from_offset: int) -> int:
        """Notes the last offset of each key from an offset on. Returns up to where: it may be
        less than there is, if the map is full.
        """
        left = sum(one.next_offset - max(one.base_offset, from_offset) for one in sources)
        self._make_map(left)
        for source in sources:
            for piece in self._pieces(source):
                skip = self._aborted_batches(piece) | _is_control(piece) | piece.opaque
                at = 0
                while at < len(piece.table):
                    done = self._put(piece, at, skip, from_offset)
                    if done == 0 and self.used:
                        self.mapped_upto = int(piece.table[at, kernels.BASE_OFFSET])
                        return self.mapped_upto
                    if done == 0:
                        self._make_map(int(piece.table[at, kernels.COUNT]), bounded=False)
                    at += done
        self.mapped_upto = sources[-1].next_offset
        return self.mapped_upto

    def _make_map(self, keys: int, *, bounded: bool = True) -> None:
        slots = MAP_SLOTS_MIN
        while slots * MAP_LOAD < keys and (
            not bounded or 2 * slots * SLOT_BYTES <= self._map_bytes_max
        ):
            slots *= 2
        self._h1, self._h2 = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        self._last = np.full(slots, -1, np.int64)
        self._used_max, self.used = int(slots * MAP_LOAD), 0

    def _put(self, piece: Piece, at: int, skip: Bytes, from_offset: int) -> int:
        done, used = loops.put(
            piece.source,
            piece.table[at:],
            skip[at:],
            from_offset,
            *self._key,
            self._h1,
            self._h2,
            self._last,
            self.used,
            self._used_max,
        )
        self.used = int(used)
        return int(done)

    # -- copying -----------------------------------------------------------------------------------

    def clean(self, sources: Sequence[Source], target: Segment) -> bool:
        """Copies what is kept of neighbouring segments into a new one. Whether anything changed."""
        out = _Output(target)
        changed = len(sources) > 1
        for source in sources:
            end = sources[-1].next_offset if source is sources[-1] else -1
            for piece in self._pieces(source):
                last = piece.header(len(piece.table) - 1)
                changed |= self._clean_piece(piece, out, is_end=last.next_offset == end)
            if source.base_offset > self._holes.begin:
                target.aborted.extend(source.aborted.begun_before(self._holes.end))
        out.flush()
        target.next_offset = sources[-1].next_offset
        return changed

    def _clean_piece(self, piece: Piece, out: _Output, *, is_end: bool) -> bool:
        table = piece.table
        horizon = np.where(
            table[:, kernels.ATTRIBUTES] & _HORIZON_BIT, table[:, kernels.BASE_TIME], 1 << 62
        )
        is_after_hole = table[:, kernels.BASE_OFFSET] > self._holes.begin
        within_grace = ((horizon > self._now_ms) | is_after_hole).astype(np.uint8)
        is_control, is_aborted = _is_control(piece), self._aborted_batches(piece)
        records, found = self._judge(piece, is_control | is_aborted | piece.opaque, within_grace)
        kept, count = found[:, loops.KEPT], table[:, kernels.COUNT]
        is_whole = (
            (kept == count)
            & ((found[:, loops.TOMBSTONES] == 0) | (horizon != 1 << 62))
            & (count > 0)
        )
        as_is = (is_whole | (found[:, loops.BAD] != 0) | (piece.opaque != 0)) & (is_control == 0)
        as_is &= is_aborted == 0
        touched = np.flatnonzero(~as_is | ((table[:, kernels.ATTRIBUTES] & 0x10) != 0))
        changed, begin = False, 0
        for i in touched.tolist():
            if as_is[i]:
                self._note_transaction(piece.header(i))
                continue
            out.copy(piece, begin, i)
            begin = i + 1
            must_stay = is_end and i == len(table) - 1
            changed |= self._clean_batch(piece, i, records, found, out, must_stay=must_stay)
        out.copy(piece, begin, len(table))
        return changed

    def _judge(self, piece: Piece, skip: Bytes, within_grace: Bytes) -> tuple[Int64s, Int64s]:
        claimed = int(piece.table[skip == 0, kernels.COUNT].sum())
        records = np.empty((claimed, loops.RECORD_COLUMNS), np.int64)
        found = np.empty((len(piece.table), loops.BATCH_COLUMNS), np.int64)
        loops.judge(
            piece.source,
            piece.table,
            skip,
            within_grace,
            *self._key,
            self._h1,
            self._h2,
            self._last,
            self.mapped_upto,
            records,
            found,
        )
        return records, found

    def _clean_batch(
        self, piece: Piece, i: int, records: Int64s, found: Int64s, out: _Output, *, must_stay: bool
    ) -> bool:
        """Writes what is left of a batch that may change. Whether it did."""
        header = piece.header(i)
        if header.is_control:
            return self._clean_marker(piece, i, header, out, must_stay=must_stay)
        self._note_transaction(header)
        kept = int(found[i, loops.KEPT])
        if kept == 0:
            last, _ = self._last_of_producers.get(header.producer_id, (-1, -1))
            if last == header.base_offset or must_stay:
                out.write(_without_records(header))
                return header.record_count > 0
            return True
        first = int(found[i, loops.FIRST])
        rows = records[first : first + header.record_count]
        horizon = header.horizon_ms
        if horizon is None and found[i, loops.TOMBSTONES]:
            horizon = self._now_ms + self._grace_ms
        out.write(
            _rewritten(piece.source, header, rows, kept, int(found[i, loops.NEWEST]), horizon)
        )
        return True

    def _clean_marker(
        self, piece: Piece, i: int, header: Header, out: _Output, *, must_stay: bool
    ) -> bool:
        is_needed = header.producer_id in self._begun
        self._begun.discard(header.producer_id)
        last, epoch = self._last_of_producers.get(header.producer_id, (0, -1))
        is_needed |= last < 0 and epoch == header.producer_epoch
        is_needed |= header.base_offset > self._holes.begin
        if header.horizon_ms is None and not is_needed:
            one = Piece(piece.data, piece.table[i : i + 1], piece.source, piece.opaque[i : i + 1])
            nothing = np.zeros(1, np.uint8)
            mapped_upto, self.mapped_upto = self.mapped_upto, 0  # a marker has no key to look up
            rows, _ = self._judge(one, nothing, nothing)
            self.mapped_upto = mapped_upto
            horizon = self._now_ms + self._grace_ms
            out.write(_rewritten(piece.source, header, rows, 1, header.max_timestamp, horizon))
            return True
        if is_needed or must_stay or (header.horizon_ms or 0) > self._now_ms:
            out.write(piece.bytes_of(i))
            return False
        return True

    def _note_transaction(self, header: Header) -> None:
        if header.is_transactional:
            self._begun.add(header.producer_id)

    def _aborted_batches(self, piece: Piece) -> Bytes:
        """Per batch, whether its transaction was aborted."""
        found = np.zeros(len(piece.table), np.uint8)
        attributes = piece.table[:, kernels.ATTRIBUTES]
        for i in np.flatnonzero((attributes & 0x30) == 0x10).tolist():
            header = piece.header(i)
            if header.base_offset < self._holes.unsure_upto:
                piece.opaque[i] = 1
                continue
            firsts, lasts = self._transactions.get(header.producer_id, ([], []))
            at = bisect_right(firsts, header.base_offset) - 1
            found[i] = at >= 0 and header.base_offset <= lasts[at]
        return found

    # -- reading -----------------------------------------------------------------------------------

    def _pieces(self, source: Source) -> Iterator[Piece]:
        """A segment's batches, unpacked, a limited number of bytes at a time.

        Raises:
            DamagedSegmentError: a batch is damaged.
        """
        file = self._files.open(source.path)
        try:
            at, offset, total = 0, source.base_offset, 0
            while at < source.size:
                chunk = _read_chunk(file, at, source.size)
                total = _check(chunk, offset, total)
                yield from _unpack(chunk)
                at += chunk.whole_bytes
                offset = chunk.next_offset
                self._pace(chunk.whole_bytes)
            if total != source.prefix_sum:
                raise CorruptError(f"expected the offsets in {source.path} as they were written")
        except CorruptError as error:
            raise DamagedSegmentError(
                f"expected {source.path} as it was written; found damage: {error}",
                source.base_offset,
            ) from error
        finally:
            file.close()


class _Output:
    """Gathers batches, and appends them to a segment in large writes."""

    def __init__(self, target: Segment) -> None:
        self._target = target
        self._parts: list[bytes | memoryview] = []
        self._size = 0

    def copy(self, piece: Piece, lo: int, hi: int) -> None:
        """Takes batches lo to hi - 1 as they are."""
        if lo < hi:
            begin, end = piece.table[lo, kernels.START], piece.table[hi - 1, kernels.END]
            self.write(piece.data.data[begin:end])

    def write(self, data: bytes | memoryview) -> None:
        """Takes whole batches."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what was gathered."""
        self._target.extend(b"".join(self._parts))
        self._parts, self._size = [], 0


def _is_control(piece: Piece) -> Bytes:
    is_control = (piece.table[:, kernels.ATTRIBUTES] & kernels.CONTROL_BIT) != 0
    return np.asarray(is_control, np.uint8)


def _read_chunk(file: LogFile, at: int, end: int) -> columns.Batches:
    data = file.read(at, min(CHUNK_BYTES, end - at))
    chunk = columns.scan(data)
    if not chunk.whole_bytes and len(data) >= HEADER_BYTES:
        chunk = columns.scan(file.read(at, min(batches.parse(data).size, end - at)))
    if not chunk.whole_bytes:
        raise CorruptError(f"expected a whole record batch at byte {at}; found a part of one")
    return chunk


def _check(chunk: columns.Batches, from_offset: int, total: int) -> int:
    """Checks order and checksums: what is copied gets a new life. The sum of prefixes so far."""
    chunk.check_order(from_offset)
    view = chunk.data.data
    for at in chunk.table[:, kernels.START].tolist():
        header = batches.parse(view, at)
        if not batches.checksum_matches(view, at, header):
            raise CorruptError(
                f"expected the batch at offset {header.base_offset} to match its checksum"
            )
        total = add_prefix(total, header)
    return total


def _unpack(chunk: columns.Batches) -> Iterator[Piece]:
    table, data = chunk.table, chunk.data
    attributes, counts = table[:, kernels.ATTRIBUTES], table[:, kernels.COUNT]
    is_packed = (attributes & CODEC_BITS != 0) & (attributes & kernels.CONTROL_BIT == 0)
    if not is_packed.any():
        room = (table[:, kernels.BODY_END] - table[:, kernels.BODY]) // kernels.RECORD_BYTES_MIN
        yield Piece(data, table, data, ((counts < 0) | (counts > room)).astype(np.uint8))
        return
    first, parts, size = 0, [], 0
    opaque = np.zeros(len(table), np.uint8)
    for i, packed in enumerate(is_packed.tolist()):
        part = data[table[i, kernels.BODY] : table[i, kernels.BODY_END]]
        if packed and len(part):
            part, opaque[i] = _unpack_batch(int(attributes[i]) & CODEC_BITS, part)
        opaque[i] |= not 0 <= counts[i] <= len(part) // kernels.RECORD_BYTES_MIN
        table[i, kernels.BODY], table[i, kernels.BODY_END] = size, size + len(part)
        parts.append(part)
        size += len(part)
        if size >= PIECE_BYTES or i == len(table) - 1:
            rows = slice(first, i + 1)
            yield Piece(data, table[rows], np.concatenate(parts), opaque[rows])
            first, parts, size = i + 1, [], 0


def _unpack_batch(codec: int, part: Bytes) -> tuple[Bytes, bool]:
    try:
        return decompress(codec, part, bytes_max=BATCH_BYTES_MAX), False
    except (CorruptError, LimitError):
        return part[:0], True


def _without_records(header: Header) -> bytes:
    """The batch with its offsets and its producer's numbers alone."""
    attributes = header.attributes & ~(CODEC_BITS | _HORIZON_BIT)
    return _assemble(header, attributes, -1, -1, 0, b"")


def _rewritten(
    source: Bytes, header: Header, rows: Int64s, kept: int, newest: int, horizon: int | None
) -> bytes:
    """The batch with its kept records alone; with a horizon, that is what times are relative to."""
    base_time = header.base_timestamp if horizon is None else horizon
    keeps = rows[:, loops.KEEP] != 0
    sizes = rows[keeps, loops.END] - rows[keeps, loops.ATTRIBUTES] + 20
    out = np.empty(int(sizes.sum()), np.uint8)
    size = loops.rewrite(source, rows, header.base_timestamp - base_time, out)
    body: Any = out[:size].data
    codec = header.attributes & CODEC_BITS
    if codec:
        body = compress(codec, body)
    attributes = header.attributes | (0 if horizon is None else _HORIZON_BIT)
    max_time = header.max_timestamp if header.is_append_time else newest
    return _assemble(header, attributes, base_time, max_time, kept, body)


def _assemble(
    header: Header, attributes: int, base_time: int, max_time: int, count: int, body: Any
) -> bytes:
    checked: bytes = (
        _BODY.pack(
            attributes,
            header.last_offset_delta,
            base_time,
            max_time,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
        + body
    )
    length = len(checked) + _CRC_FROM - batches.PREFIX_BYTES
    head = struct.pack(
        ">qiibI", header.base_offset, length, header.leader_epoch, 2, crc32c(checked)
    )
    return head + checked
