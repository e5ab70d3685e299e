"""Reads a segment as a whole: its batches, what lies damaged between them, and where it ends."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.markers import read_marker
from penstock.log.recovery import Interrupted
from penstock.log.segments.scanning import find_gap
from penstock.log.segments.segment import OFFSETS_MAX
from penstock.log.segments.verification import Damage, add_prefix
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Header

__all__ = ["SegmentScan"]


@dataclass(slots=True)
class SegmentScan:
    """One segment, read from its beginning on.

    Attributes:
        base: its base offset.
        vouched: bytes that its checkpoint vouches for.
        gaps_upto: up to this offset compaction may have removed batches.
        offset_max: the greatest offset that it may hold; None: as many as fit into a segment.
        may_be_torn: whether the machine may have gone down before all of it was durable.
        open: the open transactions by producer, as of where the scan is.
        ended: by producer and first offset: whether a transaction was committed.
        size: bytes of the file.
        end: where whole batches end.
        next_offset: the offset there.
        fault: why they end there; empty at the end of the file.
        prefix_sum: of the batches' first bytes that the checkpoint vouches for.
        holes: what is damaged between them, and how.
        interrupted: the transactions that were open there.
        batches: how many there are; likewise the records.
    """

    base: int
    vouched: int
    gaps_upto: int
    offset_max: int | None
    may_be_torn: bool
    open: dict[int, int]
    ended: dict[tuple[int, int], bool]
    size: int = 0
    end: int = 0
    next_offset: int = 0
    fault: str = ""
    prefix_sum: int = 0
    holes: list[tuple[Damage, str]] = field(default_factory=list)
    interrupted: list[Interrupted] = field(default_factory=list)
    batches: int = 0
    records: int = 0

    def read(self, file: Path) -> None:
        """Reads all of it."""
        self.size, self.next_offset = file.stat().st_size, self.base
        if not self.size:
            return
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        view = memoryview(mapped)
        try:
            while self.end < self.size:
                self.fault = self._fault(view)
                if self.fault:
                    if not self._pass_over(view):
                        break
                else:
                    self._take_in(view, batches.parse(view, self.end))
        finally:
            view.release()
            mapped.close()

    def _take_in(self, view: memoryview, header: Header) -> None:
        at = self.end
        self.batches += 1
        self.records += 0 if header.is_control else header.record_count
        self.next_offset = header.next_offset
        if self.end < self.vouched:
            self.prefix_sum = add_prefix(self.prefix_sum, header)
        self.end += header.size
        if header.is_control:
            began = self.open.pop(header.producer_id, None)
            if began is not None:
                commit = read_marker(bytes(view[at : self.end]), header).commit
                self.ended[header.producer_id, began] = commit
        elif header.is_transactional:
            self.open.setdefault(header.producer_id, header.base_offset)

    def _pass_over(self, view: memoryview) -> bool:
        offset_max = self.base + OFFSETS_MAX if self.offset_max is None else self.offset_max
        with view[self.end :] as rest:
            gap = find_gap(
                rest,
                self.end,
                self.next_offset,
                offset_max,
                has_gaps=self.next_offset < self.gaps_upto,
                may_be_torn=self.may_be_torn and self.end >= self.vouched,
            )
        if gap is None:
            return False
        after = self.end + gap.size
        self.holes.append((Damage(self.end, after, self.next_offset, gap.next_offset), self.fault))
        self.interrupt(self.next_offset, gap.next_offset)
        self.end, self.next_offset, self.fault = after, gap.next_offset, ""
        return True

    def interrupt(self, first: int, next_offset: int) -> None:
        """Takes note of the transactions that are open where offsets are lost."""
        self.interrupted += [
            Interrupted(producer_id, began, first, next_offset)
            for producer_id, began in self.open.items()
        ]

    def _fault(self, view: memoryview) -> str:
        """The fault of the batch at the end; empty: none."""
        at, left = self.end, self.size - self.end
        if left < HEADER_BYTES:
            return f"{left} bytes, less than a batch's header"
        header = batches.parse(view, at)
        fault = header.fault()
        if fault is not None:
            return fault
        if header.size > left:
            return f"a batch of {header.size:,} bytes, of which {left:,} are there"
        is_gap = header.base_offset > self.next_offset and header.next_offset > self.gaps_upto
        if header.base_offset < self.next_offset or is_gap:
            return f"offset {header.base_offset} after {self.next_offset - 1}"
        if not batches.checksum_matches(view, at, header):
            return "a checksum that doesn't match"
        return ""
