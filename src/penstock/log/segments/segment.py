"""A segment: one file of record batches, as they came, from one base offset on.

Invariant: bytes [0, size) of the file are whole batches with rising offsets, each from
`base_offset` on and below `next_offset`, each with a right checksum; what lies beyond `size` is a
torn write that recovery cuts off. Readers are only ever given bytes below `size`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from penstock.log.disk.files import LogFile, LogFiles
from penstock.log.errors import DamagedError, StorageError
from penstock.log.markers import AbortedIndex, Marker, read_marker
from penstock.log.segments.index import INTERVAL_BYTES, NO_TIME, Checkpoint, SparseIndex
from penstock.log.segments.scanning import find_gap
from penstock.log.segments.verification import LEADER_EPOCH, Damage, Verification, add_prefix
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, PREFIX_BYTES, Buffer, Header

__all__ = ["LEADER_EPOCH", "Segment", "segment_name"]

SCAN_BYTES: Final = 8 << 20
"""Bytes read at a time while a segment is scanned for recovery."""
VERIFY_BYTES_MAX: Final = 4 << 20
"""Most bytes that one read checks first: what follows is left to the next read."""
HINTS_MAX: Final = 64
"""Positions remembered of where reads ended: the next read of the same reader starts there."""
OFFSETS_MAX: Final = (1 << 31) - 1
"""Most offsets in a segment, as in Kafka."""

NAME_DIGITS: Final = 20
"""Of a segment's base offset in its file name: so names sort."""

Visit = Callable[["Segment", int, Header], None]
"""Is called with a batch in the segment: its position and header."""
PassOver = Callable[["Segment", Damage], None]
"""Is called with damage between batches."""


def segment_name(base_offset: int) -> str:
    """The file name of a segment without its suffix."""
    return f"{base_offset:0{NAME_DIGITS}d}"


class Segment:
    """One segment of a partition. Not thread-safe, save for `file.sync`."""

    def __init__(
        self,
        files: LogFiles,
        directory: str,
        base_offset: int,
        created_ms: int,
        suffix: str = "log",
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.trusted_bytes = 0  # of the checkpoint that it was opened with
        self.max_timestamp = NO_TIME
        self.created_ms = created_ms
        self.index = SparseIndex()
        self.index_interval_bytes = INTERVAL_BYTES
        self.aborted = AbortedIndex()
        self.path = f"{directory}/{segment_name(base_offset)}.{suffix}"
        self.index_path = f"{directory}/{segment_name(base_offset)}.index"
        self.file: LogFile = files.open(self.path)
        self._files = files
        self._hints: dict[int, int] = {}
        self.prefix_sum = 0
        self.missing_bytes = 0  # that a checkpoint vouched for
        self.missing_upto = 0  # the offset up to which it did
        self.vouched_upto = 0  # the offset up to which the stored index knows aborted transactions
        self._lost: list[Damage] = []  # ends that recovery found missing
        self._has_holes = False  # that recovery found where no checkpoint vouched
        self._verification: Verification | None = None

    @property
    def damage(self) -> list[Damage]:
        """What was found not to be as it was written."""
        known = self._verification.damage if self._verification else []
        return [*known, *self._lost]

    @property
    def is_damaged(self) -> bool:
        """Whether there is any."""
        return bool(self._lost or (self._verification and self._verification.damage))

    def recover(
        self,
        visit: Visit,
        visit_from: int,
        gaps_upto: int = 0,
        *,
        offset_max: int | None = None,
        may_be_torn: Callable[[], bool] = lambda: True,
        pass_over: PassOver = lambda *_: None,
    ) -> int:
        """Finds the segment's end: trusts its checkpoint, scans and checks what follows.

        Args:
            visit: is called with each batch at or after offset `visit_from`, and with each that
                is scanned.
            visit_from: the first offset of interest.
            gaps_upto: up to this offset, compaction may have removed batches.
            offset_max: the greatest offset that it may hold.
            may_be_torn: whether the machine may have gone down before the segment was durable.
            pass_over: is called with damage in what is scanned, between the batches around it.

        Returns:
            How many bytes beyond it are not whole batches: to be cut or given up.
        """
        on_disk = self.file.size()
        self._load_checkpoint(on_disk, gaps_upto)
        if visit_from < self.next_offset:
            for position, header in self.headers(self.index.at_offset(visit_from)):
                if header.base_offset >= visit_from:
                    visit(self, position, header)
        if offset_max is None:
            offset_max = self.base_offset + OFFSETS_MAX
        while True:
            self._scan(on_disk, visit, gaps_upto)
            if self.size == on_disk:
                return 0
            gap = find_gap(
                self.file.read(self.size, on_disk - self.size),
                self.size,
                self.next_offset,
                offset_max,
                has_gaps=self.next_offset < gaps_upto,
                may_be_torn=may_be_torn(),
            )
            if gap is None:
                return on_disk - self.size
            end = self.size + gap.size
            damage = Damage(self.size, end, self.next_offset, gap.next_offset)
            self._leave_hole(damage)
            pass_over(self, damage)

    def _load_checkpoint(self, on_disk: int, gaps_upto: int) -> None:
        loaded = SparseIndex.load(self._files.load(self.index_path))
        self.vouched_upto = loaded[1].next_offset if loaded else 0
        if loaded is not None and loaded[1].valid_bytes <= on_disk:
            self.index, checkpoint, self.aborted = loaded
            self.size = self.trusted_bytes = checkpoint.valid_bytes
            self.next_offset = checkpoint.next_offset
            self.max_timestamp = checkpoint.max_timestamp
            self.created_ms = checkpoint.created_ms
            self.prefix_sum = checkpoint.prefix_sum
            self._verification = Verification(
                self.index,
                self.size,
                self.next_offset,
                self.prefix_sum,
                has_gaps=self.base_offset < gaps_upto,
            )
        elif loaded is not None:
            self.aborted = loaded[2]  # the markers in what is lost ended transactions before it
            self.missing_bytes = loaded[1].valid_bytes - on_disk
            self.missing_upto = loaded[1].next_offset

    def _leave_hole(self, damage: Damage) -> None:
        """Continues behind damage."""
        if self._verification is None:
            self._verification = Verification(SparseIndex(), 0, 0, 0, has_gaps=False)
        self._verification.note(damage)
        self.index.note(damage.first_offset, damage.begin, self.max_timestamp, self.prefix_sum)
        self._has_holes = True
        self.size, self.next_offset = damage.end, damage.next_offset

    def cut(self) -> None:
        """Removes what lies beyond the segment's end: the torn end of the log."""
        self.file.truncate(self.size)

    def give_up(self, next_offset: int) -> None:
        """What follows up to an offset was whole once and is lost; the file is left as it is."""
        end = max(self.file.size(), self.size)
        self._lost.append(Damage(self.size, end, self.next_offset, next_offset))
        self.next_offset = next_offset

    def lose(self) -> None:
        """The disk no longer gives the file."""
        self._lost.append(Damage(0, self.size, self.base_offset, self.next_offset))

    @property
    def is_incomplete(self) -> bool:
        """Whether recovery found some of it lost, so that no checkpoint can vouch for it."""
        return bool(self._lost) or self._has_holes

    @property
    def knows_aborted(self) -> bool:
        """Whether all its aborted transactions are known, also those whose markers are lost."""
        return not self.is_incomplete or self.vouched_upto >= self.next_offset

    def _scan(self, on_disk: int, visit: Visit, gaps_upto: int) -> None:
        """Takes in whole, checked batches after `size`, and stops at the first that is not."""
        while self.size + HEADER_BYTES <= on_disk:
            chunk = self.file.read(self.size, min(SCAN_BYTES, on_disk - self.size))
            first = batches.parse(chunk)
            if first.fault() is None and len(chunk) < first.size <= on_disk - self.size:
                chunk = self.file.read(self.size, first.size)
            taken = 0
            for position, header in batches.iterate(chunk):
                is_gap = self.next_offset < header.base_offset and header.next_offset <= gaps_upto
                if header.leader_epoch != LEADER_EPOCH or not (
                    header.base_offset == self.next_offset or is_gap
                ):
                    return
                if not batches.checksum_matches(chunk, position, header):
                    return
                at = self.size
                self._take_in(header)
                taken += 1
                visit(self, at, header)
            if not taken:
                return

    def _take_in(self, header: Header) -> None:
        where = header.base_offset, self.size, self.max_timestamp, self.prefix_sum
        self.index.note(*where, self.index_interval_bytes)
        self.prefix_sum = add_prefix(self.prefix_sum, header)
        self.size += header.length + PREFIX_BYTES
        self.next_offset = header.base_offset + header.last_offset_delta + 1
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def append(self, batch: Buffer, header: Header) -> None:
        """Writes a batch whose offsets are patched already; `header` has the patched offset.

        Raises:
            StorageError: the disk is full or failed; the segment is as it was.
        """
        assert header.base_offset >= self.next_offset
        assert header.size == len(batch)
        try:
            self.file.write(self.size, batch)
        except OSError as error:
            self._undo(error)
        self._take_in(header)

    def write_again(self, from_offset: int) -> None:
        """Reads what lies from an offset on, checks it, and writes it in its place again.

        Raises:
            StorageError: it is no longer what was written.
            OSError: the disk refuses.
        """
        for position, header in self.headers(self.locate(from_offset)):
            whole = bytes(self.file.read(position, header.size))
            if len(whole) != header.size or not batches.checksum_matches(whole, 0, header):
                raise self._damaged(position)
            self.file.write(position, whole)

    def extend(self, data: bytes) -> None:
        """Writes whole batches whose offsets are as they should be.

        Raises:
            OSError: the disk is full or failed.
        """
        self.file.write(self.size, data)
        for _, header in batches.iterate(data):
            assert header.base_offset >= self.next_offset
            self._take_in(header)

    def _undo(self, error: OSError) -> NoReturn:
        """Cuts what a failed write left behind; without that the next write simply covers it."""
        with contextlib.suppress(OSError):
            self.file.truncate(self.size)
        raise StorageError(
            f"expected to append to {self.path}; found: {error.strerror or error}; "
            "free space on the disk, then the producer's retry will succeed"
        ) from error

    def marker(self, position: int, header: Header) -> Marker:
        """What the control batch at `position` says."""
        return read_marker(self.file.read(position, header.size), header)

    def headers(self, position: int) -> Iterator[tuple[int, Header]]:
        """Position and header of each batch from a batch's `position` on; damage is passed over."""
        chunk: Buffer = b""
        chunk_at = position
        verified_upto = 0
        while position < self.size:
            if self._verification is not None and position >= verified_upto:
                verified_upto = self._verification.ensure(self.file, position)
            damage = self._verification and self._verification.damage_at(position)
            if damage:
                position = damage.end
                continue
            inside = position - chunk_at
            if inside + HEADER_BYTES > len(chunk):
                chunk = self.file.read(position, min(INTERVAL_BYTES, self.size - position))
                chunk_at, inside = position, 0
                if len(chunk) < HEADER_BYTES:
                    raise self._damaged(position)
            header = batches.parse(chunk, inside)
            if header.fault() is not None or position + header.size > self.size:
                raise self._damaged(position)
            yield position, header
            position += header.size

    def verify(self) -> list[Damage]:
        """Checks what was not checked yet; what is damaged."""
        position = 0
        while self._verification is not None and position < self.size:
            position = self._verification.ensure(self.file, position)
        return self.damage

    def _refuse_damage(self, offset: int, position: int) -> None:
        """Raises if records from an offset on, before what is at a position, are damaged."""
        for one in self.damage:
            is_between = one.first_offset <= offset or one.begin < position
            if is_between and offset < one.next_offset:
                raise DamagedError(
                    f"expected the records that were written at offsets {one.first_offset} to "
                    f"{one.next_offset - 1} of {self.path}; found {one.what}; read on from offset "
                    f"{one.next_offset}, and restore the file from a copy if there is one",
                    one.next_offset,
                )

    def _damaged(self, position: int) -> StorageError:
        return StorageError(
            f"expected a record batch at byte {position} of {self.path}; found something else; "
            "the file was changed or the disk is failing: restore it, or delete its .index file "
            "and restart to keep what is whole"
        )

    def locate(self, offset: int) -> int:
        """Where the batch that holds `offset` starts (or the first one after it); `size` if
        none.

        Raises:
            DamagedError: what would be there is not what was written.
        """
        position = self._find(offset)
        self._refuse_damage(offset, position)
        return position

    def _find(self, offset: int) -> int:
        """The same, damage passed over."""
        hint = self._hints.get(offset)
        if hint is None and offset >= self.next_offset:
            return self.size
        start = self.index.at_offset(offset) if hint is None else hint
        if self._verification is not None and start < self.size:
            self._verification.ensure(self.file, start)
        if hint is not None:
            return hint
        for position, header in self.headers(start):
            if header.next_offset > offset:
                return position
        return self.size

    def read(self, offset: int, bytes_max: int, *, at_least_one: bool, upto: int) -> Buffer:
        """Whole batches from the one that holds `offset` on, at most `bytes_max`.

        Args:
            offset: where to start.
            bytes_max: most bytes to return.
            at_least_one: return the first batch even where it alone is larger.
            upto: only batches whose base offset is below this one.
        """
        start = self.locate(offset)
        limit, limit_offset = self.size, self.next_offset
        if upto < self.next_offset:
            limit, limit_offset = self._end_before(upto)
        if start >= limit:
            return b""
        if start + bytes_max >= limit:
            end, end_offset = limit, limit_offset
        else:
            end, end_offset = self._cut(start, start + bytes_max, at_least_one=at_least_one)
        end, end_offset = self._verified(start, end, end_offset)
        if end == start:
            return b""
        if end_offset >= 0:
            self._note_hint(end_offset, end)
        return self.file.read(start, end - start)

    def _verified(self, start: int, end: int, end_offset: int) -> tuple[int, int]:
        """Up to where the bytes from `start` on are as they were written, and the offset there."""
        verification = self._verification
        if verification is None or (verification.is_done and not verification.damage):
            return end, end_offset
        position = start
        while position < end and position - start < VERIFY_BYTES_MAX:
            position = verification.ensure(self.file, position)
        whole = verification.first_damage(start, min(position, end))
        return (end, end_offset) if whole == end else (whole, -1)

    def _note_hint(self, offset: int, position: int) -> None:
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()
        self._hints[offset] = position

    def _end_before(self, upto: int) -> tuple[int, int]:
        """Where the batches end whose base offset is below `upto`, and the offset there."""
        first = self._find(upto)
        for position, header in self.headers(first):
            if header.base_offset >= upto:
                if position == first:
                    self._note_hint(upto, position)
                return position, header.base_offset
        return self.size, self.next_offset

    def _cut(self, start: int, limit: int, *, at_least_one: bool) -> tuple[int, int]:
        """The last batch boundary at or below `limit` that is cheaply known, and its offset."""
        if limit >= self.size:
            return self.size, self.next_offset
        position, offset = self.index.last_position_upto(limit)
        if position > start:
            return position, offset
        end, end_offset = start, -1
        for position, header in self.headers(start):
            if position + header.size > limit and not (position == start and at_least_one):
                break
            end, end_offset = position + header.size, header.next_offset
            if end >= limit:
                break
        return end, end_offset

    def find_time(self, timestamp_ms: int, from_offset: int) -> tuple[int, int] | None:
        """Offset and time of the first record at or after the time, and at or after the offset."""
        if self.max_timestamp < timestamp_ms or self.next_offset <= from_offset:
            return None
        start = max(self.index.at_time(timestamp_ms), self.index.at_offset(from_offset))
        for position, header in self.headers(start):
            if header.max_timestamp < timestamp_ms or header.next_offset <= from_offset:
                continue
            batch = self.file.read(position, header.size)
            for offset, time_ms in batches.record_times(batch, 0, header):
                if time_ms >= timestamp_ms and offset >= from_offset:
                    return offset, time_ms
        return None

    def checkpoint(self) -> bytes:
        """The index file's bytes as of now; to be stored once the bytes below `size` are
        durable.
        """
        return self.index.dump(
            Checkpoint(
                self.size, self.next_offset, self.max_timestamp, self.created_ms, self.prefix_sum
            ),
            self.aborted,
        )

    def check(self) -> None:
        """Asserts the invariant, reading the whole segment."""
        self.index.check(max(self.size, 1))
        self.aborted.check(self.base_offset, self.next_offset)
        offset, newest, end = self.base_offset, NO_TIME, 0
        for position, header in self.headers(0):
            whole = self.file.read(position, header.size)
            assert batches.checksum_matches(whole, 0, header)
            assert header.base_offset >= offset
            offset, end = header.next_offset, position + header.size
            newest = max(newest, header.max_timestamp)
        assert self.damage or (offset, end, newest) == (
            self.next_offset,
            self.size,
            self.max_timestamp,
        )
