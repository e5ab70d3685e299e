"""Examines a partition's files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.broker.doctor.knowledge import Knowledge
from penstock.broker.doctor.report import Level, Report, TopicSummary, delete
from penstock.broker.doctor.segments import SegmentScan
from penstock.broker.known_ends import KnownEnd
from penstock.broker.transactions.mending import lost_marker, split_reports
from penstock.log.aside import CUT, LOST, keep_cut
from penstock.log.disk.files import LocalFiles
from penstock.log.errors import StorageError
from penstock.log.producers import Producers
from penstock.log.recovery import Interrupted
from penstock.log.segments.index import Checkpoint, SparseIndex
from penstock.log.tier import RESTORED, Manifest
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
        knowledge: Knowledge,
    ) -> None:
        self._report = report
        self._directory = directory
        self._path = path
        self._summary = summary
        self._knowledge = knowledge
        self._place = summary.name, int(directory.name)
        self._gaps_upto = 0  # compaction may have removed batches before
        self._vouched_from = -1  # the last segment that has a checkpoint
        self._open: dict[int, int] = {}  # transactions, by producer
        self._ended: dict[tuple[int, int], bool] = {}
        self._interrupted: list[Interrupted] = []
        self._holes: list[tuple[int, int]] = []
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
            self._holes.append((first, end))
            self._add(Level.DAMAGE, name, text)

    def run(self) -> None:
        """Reads all of them; findings go into the report."""
        names = sorted(one.name for one in self._directory.iterdir())
        bases = sorted(int(name[:-4]) for name in names if _is_segment(name))
        start, self._manifest = self._examine_start(), self._examine_manifest()
        begins = min(bases, default=0) if start is None else start
        self._gone_upto = max(begins, self._manifest.local_start_offset)
        for name in names:
            self._examine_name(name, bases)
        if not bases:
            text = "expected segments; found none; the records in them are lost if there were any"
            self._report.add(Level.DAMAGE, self._path, text + ": restore the files from a copy")
        if start is not None and bases and bases[0] > start and "tier" not in names:
            text = f"expected records from offset {start} on; found none before {bases[0]}"
            self._add(Level.DAMAGE, f"{bases[0]:020d}.log", text)
        self._examine_cleaner()
        self._vouched_from = max((one for one in bases if self._has_checkpoint(one)), default=-1)
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            name = f"{base:020d}"
            self._report.guard(
                f"{self._path}/{name}.log", partial(self._examine_segment, name, base, following)
            )
        self._summary.next_offsets[int(self._directory.name)] = self._next_offset or 0
        self._examine_producers()
        self._compare_end(start or 0)
        self._examine_transactions()

    def _has_checkpoint(self, base: int) -> bool:
        file = self._directory / f"{base:020d}.index"
        try:
            return SparseIndex.load(file.read_bytes() if file.exists() else None) is not None
        except Exception:  # noqa: BLE001 - any content at all
            return False

    def _examine_name(self, name: str, bases: list[int]) -> None:
        if name.endswith(".tmp"):
            self._add(Level.NOTE, name, "a file that was being replaced; it is of no use", delete)
        elif name.endswith(CUT):
            size = (self._directory / name).stat().st_size
            text = (
                f"{size:,} bytes that an earlier start cut off before offset {int(name[:20])}: a write that "
                "a crash cut short, or records that were acknowledged. Delete it once you know"
            )
            self._add(Level.WARNING, name, text)
        elif name.endswith(LOST):
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
                "expected a segment next to it; found none, and the index itself is damaged. If there was "
                "a segment, its records are lost"
            )
            self._add(Level.WARNING, name, text, delete)
            return
        if loaded is None or not loaded[1].valid_bytes or loaded[1].next_offset <= self._gone_upto:
            self._add(Level.NOTE, name, "the index of a lost segment", delete)
            return
        text = (
            f"expected the segment of {loaded[1].valid_bytes:,} bytes whose index this is; found none: "
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
            text = "expected the log's start with its checksum; found another; deleted records may"
            self._add(Level.WARNING, "start", text + " come back")
            return None
        return int(json.loads(content[9:])["start_offset"])

    def _examine_segment(self, name: str, base: int, following: int | None) -> None:
        self._summary.segments += 1
        if self._next_offset is not None and base != self._next_offset:
            text = f"expected a segment from offset {self._next_offset} on; found one from {base}: "
            if base < self._next_offset:
                self._add(Level.DAMAGE, f"{name}.log", text + "it overlaps the previous one")
            elif base > self._gaps_upto:
                text += "records are missing."
                self._add_lost(f"{name}.log", text, self._next_offset, base)
        loaded = self._load_index(name)
        vouched = 0 if loaded is None else loaded[1].valid_bytes
        scan = SegmentScan(
            base,
            vouched,
            self._gaps_upto,
            None if following is None else following - 1,
            self._knowledge.lost_power and base >= self._vouched_from,
            self._open,
            self._ended,
        )
        scan.read(self._directory / f"{name}.log")
        self._summary.bytes += scan.size
        self._summary.batches += scan.batches
        self._summary.records += scan.records
        for damage, fault in scan.holes:
            text = (
                f"expected the batches of offsets {damage.first_offset} to {damage.next_offset - 1} at byte "
                f"{damage.begin}; found {damage.end - damage.begin:,} damaged bytes ({fault}): restore the "
                "file from a copy."
            )
            self._add_lost(f"{name}.log", text, damage.first_offset, damage.next_offset)
        if loaded is not None:
            self._compare_checkpoint(name, scan, loaded[1])
            self._report.guard(
                f"{self._path}/{name}.index", lambda: loaded[0].check(max(scan.size, 1))
            )
        self._next_offset = scan.next_offset
        if scan.end < scan.size:
            self._examine_rest(name, scan, following)
        self._interrupted += scan.interrupted

    def _compare_checkpoint(self, name: str, scan: SegmentScan, vouched: Checkpoint) -> None:
        """Whether all is there that a segment's checkpoint vouches for."""
        is_whole = scan.end >= vouched.valid_bytes
        if vouched.valid_bytes > scan.size:
            text = (
                f"expected {vouched.valid_bytes:,} bytes or more; found {scan.size:,}: it was cut."
            )
            if scan.next_offset < vouched.next_offset:
                text += f" Offsets {scan.next_offset} to {vouched.next_offset - 1} are lost."
            first = min(scan.next_offset, vouched.next_offset - 1)
            self._add_lost(f"{name}.log", text, first, vouched.next_offset)
            scan.interrupt(first, vouched.next_offset)
        elif is_whole and not scan.holes and scan.prefix_sum != vouched.prefix_sum:
            text = (
                "expected the offsets and lengths that were written up to byte "
                f"{vouched.valid_bytes}; found others: restore the file from a copy."
            )
            self._add_lost(f"{name}.log", text, scan.base, vouched.next_offset)
        if is_whole or vouched.valid_bytes > scan.size:
            scan.next_offset = max(scan.next_offset, vouched.next_offset)

    def _examine_rest(self, name: str, scan: SegmentScan, following: int | None) -> None:
        """Bytes at a segment's end that are no whole batch."""
        end, rest = scan.end, scan.size - scan.end
        if following is None and end >= scan.vouched:
            text = (
                f"expected whole batches; found {rest:,} torn bytes after byte {end} ({scan.fault}), from "
                f"offset {scan.next_offset} on: a write that a crash cut short, or damage to records that "
                "were acknowledged; the next start cuts them off, and keeps them in a separate file"
            )
            self._add(Level.WARNING, f"{name}.log", text, partial(_cut, scan.next_offset, end))
            return
        text = (
            f"expected whole batches up to byte {max(scan.vouched, scan.size)}; found at byte {end}: "
            f"{scan.fault}; offsets from {scan.next_offset} on can't be read here: restore the file from "
            "a copy."
        )
        upto = max(following or 0, scan.next_offset + 1)
        self._add_lost(f"{name}.log", text, scan.next_offset, upto)
        scan.interrupt(scan.next_offset, upto)

    def _load_index(self, name: str) -> tuple[SparseIndex, Checkpoint] | None:
        file = self._directory / f"{name}.index"
        if not file.exists():
            return None
        try:
            loaded = SparseIndex.load(file.read_bytes())
        except Exception:  # noqa: BLE001 - any content at all
            loaded = None
        if loaded is None:
            text = "expected an index with its checksum; found another; the next start rebuilds it"
            self._add(Level.WARNING, f"{name}.index", text, delete)
            return None
        return loaded[0], loaded[1]

    def _compare_end(self, start: int) -> None:
        """What others know of the log's end."""
        end = self._next_offset or 0
        known = [KnownEnd(start, "it starts at, as records before were deleted")]
        known.append(KnownEnd(self._manifest.end_offset, "the tier's manifest lists"))
        if self._place in self._knowledge.ends:
            known.append(self._knowledge.ends[self._place])
        offset, what = max(known)
        if end < offset and not self._manifest.missing_from(end) >= offset:
            text = (
                f"expected the log to reach offset {offset}, which {what}; found its end at {end}: offsets "
                f"{end} to {offset - 1} are lost. The next start continues at {offset}: restore the files "
                "from a copy before"
            )
            self._report.add(Level.DAMAGE, self._path, text)
            self._holes.append((end, offset))
            self._interrupted += [
                Interrupted(*one, end, offset)
                for one in self._open.items()
                if all(known.first_offset != one[1] for known in self._interrupted)
            ]

    def _ended_as(self, producer_id: int, first: int) -> bool | None:
        return self._ended.get((producer_id, first))

    def _examine_transactions(self) -> None:
        """What damage did to transactions, as far as the journal shows."""
        knowledge = self._knowledge
        outcomes = knowledge.outcomes.get(self._place, [])
        holes = sorted(set(self._holes))
        for text in split_reports(outcomes, self._interrupted, holes, self._ended_as):
            self._report.add(Level.DAMAGE, self._path, text)
        for producer_id, began in self._open.items():
            mine = [one for one in outcomes if one.producer_id == producer_id]
            found, _ = lost_marker(mine, began, began, knowledge.unsettled)
            if found is not None:
                way = "commit" if found.is_commit else "abort"
                text = (
                    f"expected the {way} of the transaction of {found.id!r} from offset {began} on; found "
                    "that it is lost"
                )
                self._report.add(Level.DAMAGE, self._path, text)

    def _examine_cleaner(self) -> None:
        file = self._directory / "cleaner"
        if not file.exists():
            return
        content = file.read_bytes()
        if content[:9] != b"%08x " % crc32c(content[9:]):
            self._gaps_upto = 1 << 62
            return
        said = json.loads(content[9:])
        self._gaps_upto = int(said["gaps_upto"])
        if said.get("hole_from") is not None:
            text = (
                f"compaction passed over a damaged or lost segment at offset {said['hole_from']}, and keeps "
                "all tombstones after it: restore its .log file from a copy"
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
            text = "expected producers with a checksum; found another; the next start reads the log"
            self._add(Level.WARNING, "producers", text + " for them", delete)
        elif self._next_offset is not None and restored[1] > self._next_offset:
            text = f"it knows of offsets up to {restored[1]}, the log ends at {self._next_offset}: the "
            self._add(Level.DAMAGE, "producers", text + "log lost its end")


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and len(name) == 24 and name[:-4].isdigit()


def _cut(offset: int, end: int, path: Path) -> None:
    """Does with a torn end what the next start would do."""
    data = path.read_bytes()[end:]
    with contextlib.suppress(OSError):  # no room: as the next start would
        keep_cut(LocalFiles(path.parent.parent), path.parent.name, offset, data)
    os.truncate(path, end)
