"""Examines a partition's files."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.broker.doctor.report import Level, Report, TopicSummary, delete
from penstock.log.errors import StorageError
from penstock.log.index import SparseIndex
from penstock.log.producers import Producers
from penstock.log.tier import RESTORED, Manifest
from penstock.log.verification import add_prefix
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES
from penstock.wire.checksum import crc32c

__all__ = ["PartitionExam"]


class PartitionExam:
    """One partition's files, each read as a whole."""

    def __init__(
        self,
        report: Report,
        directory: Path,
        path: str,
        summary: TopicSummary,
        is_compacted: bool,  # noqa: FBT001
    ) -> None:
        self._report = report
        self._directory = directory
        self._path = path
        self._summary = summary
        self._is_compacted = is_compacted
        self._next_offset: int | None = None
        self._manifest = Manifest()
        self._gone_upto = 0  # what lies before is deleted, or in the tier

    def _add(
        self, level: Level, name: str, text: str, mend: Callable[[Path], None] | None = None
    ) -> None:
        self._report.add(level, f"{self._path}/{name}", text, mend)

    def _add_lost(self, name: str, text: str, first: int, end: int) -> None:
        """Records that can't be read here; the store may have them."""
        if self._manifest.missing_from(first) >= end:
            text += (
                f" The store has offsets {first} to {end - 1}, as its list here says: the broker serves "
                "them from there, and puts the segment back, if it is started with the same --tier"
            )
            self._add(Level.WARNING, name, text)
        else:
            self._add(Level.DAMAGE, name, text)

    def run(self) -> None:
        """Reads all of them; what is found goes into the report."""
        names = sorted(one.name for one in self._directory.iterdir())
        bases = sorted(int(name[:-4]) for name in names if _is_segment(name))
        start, self._manifest = self._examine_start(), self._examine_manifest()
        begins = min(bases, default=0) if start is None else start
        self._gone_upto = max(begins, self._manifest.local_start_offset)
        for name in names:
            self._examine_name(name, bases)
        if not bases:
            text = "expected segments, found none; the records in them are lost if there were any"
            self._report.add(Level.DAMAGE, self._path, text + ": restore the files from a copy")
        if start is not None and bases and bases[0] > start and "tier" not in names:
            text = f"expected records from offset {start} on, found none before {bases[0]}"
            self._add(Level.DAMAGE, f"{bases[0]:020d}.log", text)
        for base in bases:
            name = f"{base:020d}"
            is_last = base == bases[-1]
            self._report.guard(
                f"{self._path}/{name}.log",
                partial(self._examine_segment, name, base, is_last=is_last),
            )
        self._examine_producers()
        self._examine_cleaner()

    def _examine_name(self, name: str, bases: list[int]) -> None:
        if name.endswith(".tmp"):
            self._add(Level.NOTE, name, "a file that was being replaced; it is of no use", delete)
        elif name.endswith(".lost"):
            size = (self._directory / name).stat().st_size
            text = f"{size:,} bytes that an earlier start set aside: they didn't follow on the log"
            self._add(Level.WARNING, name, text)
        elif name.endswith(".index") and name[:-6].isdigit():
            if int(name[:-6]) not in bases:
                self._examine_lonely_index(name)
        elif name.endswith(RESTORED):
            self._add(
                Level.NOTE, name, "a copy that was being brought back; the next start ends it"
            )
        elif name.endswith((".cleaned", ".swap")):
            self._add(
                Level.NOTE, name, "of a compaction that was cut short; the next start ends it"
            )
        elif not _is_segment(name) and name not in {"cleaner", "producers", "start", "tier"}:
            self._add(Level.NOTE, name, "not of the log; nothing reads it")

    def _examine_lonely_index(self, name: str) -> None:
        """An index is stored after its segment and deleted before it, unless a sync under way stores
        that of one that was deleted meanwhile.
        """
        loaded = SparseIndex.load((self._directory / name).read_bytes())
        if loaded is None and int(name[:-6]) >= self._gone_upto:
            text = (
                "expected a segment beside it, found none, and the index itself damaged; if there was "
                "a segment, its records are lost"
            )
            self._add(Level.WARNING, name, text, delete)
            return
        if loaded is None or not loaded[1].valid_bytes or loaded[1].next_offset <= self._gone_upto:
            self._add(Level.NOTE, name, "the index of a segment that is gone", delete)
            return
        text = (
            f"expected the segment of {loaded[1].valid_bytes:,} bytes whose index this is, found none: "
            f"offsets {int(name[:-6])} to {loaded[1].next_offset - 1} are lost; restore its .log file "
            "from a copy."
        )
        self._add_lost(name, text, int(name[:-6]), loaded[1].next_offset)

    def _examine_manifest(self) -> Manifest:
        try:
            file = self._directory / "tier"
            return Manifest.restore(file.read_bytes() if file.exists() else None) or Manifest()
        except StorageError as error:
            self._add(Level.DAMAGE, "tier", f"{error}; a broker with the same --tier does so")
            return Manifest()

    def _examine_start(self) -> int | None:
        file = self._directory / "start"
        if not file.exists():
            return 0
        content = file.read_bytes()
        if content[:9] != b"%08x " % crc32c(content[9:]):
            text = "expected the log's start with its checksum, found another; deleted records may"
            self._add(Level.WARNING, "start", text + " come back")
            return None
        return int(json.loads(content[9:])["start_offset"])

    def _examine_segment(self, name: str, base: int, *, is_last: bool) -> None:
        self._summary.segments += 1
        if self._next_offset is not None and base != self._next_offset:
            text = f"expected a segment from offset {self._next_offset} on, found one from {base}: "
            if base < self._next_offset:
                self._add(Level.DAMAGE, f"{name}.log", text + "it overlaps the one before")
            elif not self._is_compacted:
                text += "records are missing."
                self._add_lost(f"{name}.log", text, self._next_offset, base)
        file = self._directory / f"{name}.log"
        size = file.stat().st_size
        self._summary.bytes += size
        loaded = self._load_index(name, size)
        vouched = 0 if loaded is None else loaded[1].valid_bytes
        end, next_offset, fault, prefix_sum = self._scan(file, base, vouched)
        if loaded is not None and end >= vouched and prefix_sum != loaded[1].prefix_sum:
            text = (
                f"expected the offsets and lengths that were written up to byte {vouched}, found others: "
                "restore the file from a copy."
            )
            self._add_lost(f"{name}.log", text, base, loaded[1].next_offset)
        if loaded is not None:
            if end >= vouched:
                next_offset = max(next_offset, loaded[1].next_offset)
            self._report.guard(f"{self._path}/{name}.index", lambda: loaded[0].check(max(size, 1)))
        self._next_offset = next_offset
        if end == size:
            return
        if is_last and end >= vouched:
            text = (
                f"expected whole batches, found {size - end:,} torn bytes after byte {end} ({fault}); "
                "they were never said to be durable, and the next start cuts them off"
            )
            self._add(Level.WARNING, f"{name}.log", text, lambda path: os.truncate(path, end))
            return
        text = f"expected whole batches up to byte {max(vouched, size)}, found at byte {end}: {fault}; "
        text += f"offsets from {next_offset} on can't be read here: restore the file from a copy."
        upto = max(loaded[1].next_offset if loaded is not None else 0, next_offset + 1)
        self._add_lost(f"{name}.log", text, next_offset, upto)

    def _load_index(self, name: str, size: int) -> tuple[SparseIndex, Any] | None:
        file = self._directory / f"{name}.index"
        if not file.exists():
            return None
        try:
            loaded = SparseIndex.load(file.read_bytes())
        except Exception:  # noqa: BLE001 - any content at all
            loaded = None
        if loaded is None:
            text = (
                "expected an index with its checksum, found another; the next start makes it anew"
            )
            self._add(Level.WARNING, f"{name}.index", text, delete)
            return None
        if loaded[1].valid_bytes > size:
            text = f"expected {loaded[1].valid_bytes:,} bytes or more, found {size:,}: it was cut."
            self._add_lost(f"{name}.log", text, int(name), loaded[1].next_offset)
        return loaded[0], loaded[1]

    def _scan(self, file: Path, base: int, vouched: int) -> tuple[int, int, str, int]:
        """Where whole batches end, the next offset, why they end there, and the sum of the first bytes
        of those that a checkpoint vouches for.
        """
        size = file.stat().st_size
        if not size:
            return 0, base, "", 0
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        view = memoryview(mapped)
        at, next_offset, fault, prefix_sum = 0, base, "", 0
        try:
            while at < size:
                fault = _batch_fault(view, at, size, next_offset)
                if fault:
                    break
                header = batches.parse(view, at)
                self._summary.batches += 1
                self._summary.records += 0 if header.is_control else header.record_count
                next_offset = header.next_offset
                if at < vouched:
                    prefix_sum = add_prefix(prefix_sum, header)
                at += header.size
        finally:
            view.release()
            mapped.close()
        return at, next_offset, fault, prefix_sum

    def _examine_cleaner(self) -> None:
        file = self._directory / "cleaner"
        content = file.read_bytes() if file.exists() else b""
        if content[:9] == b"%08x " % crc32c(content[9:]) and content:
            hole_from = json.loads(content[9:]).get("hole_from")
            if hole_from is not None:
                text = (
                    f"compaction passed over a damaged or lost segment at offset {hole_from}, and keeps all "
                    "tombstones behind it: restore its .log file from a copy"
                )
                self._add(Level.WARNING, "cleaner", text)

    def _examine_producers(self) -> None:
        file = self._directory / "producers"
        if not file.exists():
            return
        try:
            restored = Producers.restore(file.read_bytes())
        except Exception:  # noqa: BLE001 - any content at all
            restored = None
        if restored is None:
            text = "expected producers with a checksum, found another; the next start reads the log"
            self._add(Level.WARNING, "producers", text + " for them", delete)
        elif self._next_offset is not None and restored[1] > self._next_offset:
            text = f"it knows of offsets up to {restored[1]}, the log ends at {self._next_offset}: the "
            self._add(Level.DAMAGE, "producers", text + "log lost its end")


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and len(name) == 24 and name[:-4].isdigit()


def _batch_fault(view: memoryview, at: int, size: int, next_offset: int) -> str:
    """What is wrong with the batch at a position; empty: nothing."""
    if at + HEADER_BYTES > size:
        return f"{size - at} bytes, less than a batch's header"
    header = batches.parse(view, at)
    fault = header.fault()
    if fault is not None:
        return fault
    if at + header.size > size:
        return f"a batch of {header.size:,} bytes, of which {size - at:,} are there"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} after {next_offset - 1}"
    if not batches.checksum_matches(view, at, header):
        return "a checksum that doesn't match"
    return ""
