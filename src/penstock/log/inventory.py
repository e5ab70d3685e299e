"""What a partition's directory says before any segment is read: where its segments begin, where the
log starts, and what of it lies in the tier.

An index file without its segment is evidence of one that is lost: it is stored after the segment and
deleted before it. So does the tier's manifest, of a segment between local ones.
"""

from __future__ import annotations

import json

from penstock.log.disk.files import LogFiles
from penstock.log.errors import StorageError
from penstock.log.segments.index import SparseIndex
from penstock.log.segments.segment import NAME_DIGITS
from penstock.log.tier import Manifest
from penstock.wire.checksum import crc32c

__all__ = ["Inventory", "base_of", "start_document"]


def start_document(start_offset: int) -> bytes:
    """What the file of the log's start holds."""
    body = json.dumps({"start_offset": start_offset}).encode()
    return b"%08x " % crc32c(body) + body


class Inventory:
    """What there is in a directory. Removes what a tier's manifest says was about to be removed.

    Args:
        files: where they are.
        directory: the partition's.
        may_tier: segments may lie in a tier, and no longer here.
        was_there: the partition isn't a new one, so there should be a segment.

    Attributes:
        names: of all files.
        bases: where segments begin: those that are there, and those of which there is evidence.
        start_offset: of the log; None where that can't be read.
        remote: what lies in the tier.
        tier_fault: why that isn't known, if it isn't.
        faults: what is not as it was written.
    """

    def __init__(self, files: LogFiles, directory: str, *, may_tier: bool, was_there: bool) -> None:
        self._files = files
        self._directory = directory
        self.faults: list[str] = []
        self.tier_fault = ""
        names = files.list(directory)
        self.start_offset = self._load_start()
        bases = self._find_bases(names)
        self.remote = self._load_manifest(bases, may_tier=may_tier, was_there=was_there)
        self.names = self._without_dropped(names)
        self.bases = self._with_copied(bases)
        is_known = self.start_offset is not None and not self.tier_fault
        if self.bases and is_known and self.bases[0] > self.begins:
            self.bases.insert(0, self.begins)

    @property
    def begins(self) -> int:
        """Where the local log is said to begin."""
        return max(self.start_offset or 0, self.remote.end_offset)

    def _find_bases(self, names: list[str]) -> list[int]:
        """Where segments begin: those that are there, and those for which there is an index file.

        Retention may delete a segment whose index a sync is about to store: such an index speaks
        of nothing beyond the log's start.
        """
        found = [base for name in names if (base := base_of(name, ".log")) is not None]
        floor = self.start_offset if self.start_offset is not None else min(found, default=0)
        there = set(found)
        for name in names:
            base = base_of(name, ".index")
            if base is None or base in there:
                continue
            loaded = SparseIndex.load(self._files.load(f"{self._directory}/{name}"))
            if loaded is None and base >= floor:
                self.faults.append(
                    f"expected a segment next to {self._directory}/{name}; found none, and the index "
                    "itself is damaged. If there was a segment, its records are lost"
                )
            elif loaded and loaded[1].valid_bytes and loaded[1].next_offset > max(floor, base):
                found.append(base)
        return sorted(found)

    def _load_manifest(self, bases: list[int], *, may_tier: bool, was_there: bool) -> Manifest:
        """What lies in the tier. Where that is lost, what is local is kept and served; offsets
        below are refused rather than taken for deleted, until `adopt` is given what there is.
        """
        path = f"{self._directory}/tier"
        try:
            found = Manifest.restore(self._files.load(path))
        except StorageError as error:
            self.tier_fault = f"{path}: {error}"
            return Manifest()
        lacks_some = min(bases) > (self.start_offset or 0) if bases else was_there
        if found is None and lacks_some and may_tier:
            where = f"begins at offset {min(bases)}" if bases else "is gone"
            self.tier_fault = (
                f"expected a manifest of remote segments in {path}, for the local "
                f"log {where}; found none. Restore the file from the newest manifest in the object "
                "storage"
            )
        return found or Manifest()

    def _without_dropped(self, names: list[str]) -> list[str]:
        """Removes what `drop_local` was about to remove: the tier has it."""
        kept = []
        for name in names:
            stem = name.partition(".")[0]
            if stem.isdigit() and int(stem) < self.remote.local_start_offset:
                self._files.delete(f"{self._directory}/{name}")
            else:
                kept.append(name)
        return kept

    def _with_copied(self, bases: list[int]) -> list[int]:
        """Where local segments begin: what is lost, but in the tier, stays a place among the others."""
        there = {base_of(name, ".log") for name in self.names}
        found = {one for one in bases if one in there or self.remote.segment_of(one) is None}
        if found:
            first = min(found)
            found |= {one.base_offset for one in self.remote.segments if one.base_offset > first}
        return sorted(found)

    def _load_start(self) -> int | None:
        """The stored start, 0 where none was ever stored, None where it can't be read."""
        data = self._files.load(f"{self._directory}/start")
        if data is None:
            return 0
        if data[:9] != b"%08x " % crc32c(data[9:]):
            self.faults.append(
                f"expected the log's start in {self._directory}/start; found {data[:40]!r}: its "
                "checksum is wrong; records that were deleted may be there again"
            )
            return None
        return int(json.loads(data[9:])["start_offset"])


def base_of(name: str, suffix: str) -> int | None:
    """The base offset in a file's name; None for another file."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == NAME_DIGITS and stem.isdigit() else None
