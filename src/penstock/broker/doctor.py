"""Examines a data directory that nobody serves: reads all of it, changes nothing, explains what it
finds.

    report = examine(Path("shop.penstock"))
    report.is_sound, report.findings, report.topics

A finding is a *note* (worth knowing), a *warning* (the next start deals with it; something may have
been lost that was never acknowledged as durable), or *damage* (records that were durable are gone or
changed). `repair` does what is safe: what the next start would do anyway, and clearing away what
nothing refers to. Whatever the bytes are, it ends with a report.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.broker.journals import lost_journals
from penstock.broker.settings import log_config
from penstock.broker.topics import name_fault
from penstock.errors import SetupError
from penstock.log.errors import StorageError
from penstock.log.index import SparseIndex
from penstock.log.journal import length_path, lost_text, records_in, stored_length
from penstock.log.producers import Producers
from penstock.log.tier import RESTORED, Manifest
from penstock.log.verification import add_prefix
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES
from penstock.wire.checksum import crc32c

__all__ = ["Finding", "Level", "Report", "TopicSummary", "examine", "repair"]

FINDINGS_MAX: Final = 10_000
"""Findings that are kept; a directory of garbage must not fill the memory."""
_KNOWN: Final = {
    "LOCK",
    "cluster.json",
    "producer_ids.json",
    "topics",
    "groups",
    "trash",
    "ballast",
}
_KNOWN_MORE: Final = {"share", "security", "transactions", "tier", "iceberg"}


class Level(Enum):
    """How bad a finding is."""

    NOTE = "note"
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found.

    Attributes:
        level: how bad it is.
        path: where, from the data directory on.
        text: what was expected, what was found, and what to do.
        repair: what sets it right, where that is safe.
    """

    level: Level
    path: str
    text: str
    repair: Callable[[Path], None] | None = None


@dataclass(slots=True)
class TopicSummary:
    """What a topic holds."""

    name: str
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Report:
    """What the examination gave."""

    data: Path
    findings: list[Finding] = field(default_factory=list)
    topics: list[TopicSummary] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing that was durable is lost."""
        return all(one.level is not Level.DAMAGE for one in self.findings)

    def add(
        self,
        level: Level,
        path: str,
        text: str,
        repair: Callable[[Path], None] | None = None,
    ) -> None:
        """Takes note of something."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(level, path, text, repair))


@contextmanager
def _locked(data: Path) -> Iterator[bool]:
    """Whether nobody serves the directory; nobody can while the block lasts."""
    try:
        descriptor = os.open(data / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def examine(data: Path) -> Report:
    """Reads a data directory and says what is the matter with it.

    Raises:
        SetupError: it is no directory.
    """
    if not data.is_dir():
        raise SetupError(f"expected a data directory, found none at {str(data)!r}; check its name")
    report = Report(data)
    with _locked(data) as is_free:
        if not is_free:
            owner = _text(data / "LOCK").strip() or "?"
            report.add(
                Level.WARNING,
                "LOCK",
                f"process {owner} serves this directory: what it writes meanwhile may look torn; stop "
                "it for a certain answer",
            )
        for part in (_examine_root, _examine_topics, _examine_journals):
            _guarded(report, ".", partial(part, report))
    return report


def repair(report: Report) -> list[Finding]:
    """Does what is safe about a report's findings; returns those that were set right.

    Raises:
        SetupError: the directory is being served.
    """
    done = []
    with _locked(report.data) as is_free:
        if not is_free:
            raise SetupError(
                f"expected {str(report.data)!r} to be free, found that it is served; stop the broker"
            )
        for finding in report.findings:
            if finding.repair is not None:
                try:
                    finding.repair(report.data / finding.path)
                except OSError as error:
                    report.add(Level.WARNING, finding.path, f"could not be repaired: {error}")
                else:
                    done.append(finding)
    return done


def _guarded(report: Report, path: str, work: Callable[[], Any]) -> None:
    """Does one part; whatever goes wrong there is a finding."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - garbage must not end the examination
        report.add(Level.DAMAGE, path, f"expected to read it, found {error!r}")


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[:4096].decode(errors="replace")
    except OSError:
        return ""


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- the root --------------------------------------------------------------------------------------


def _examine_root(report: Report) -> None:
    data = report.data
    for name in sorted(os.listdir(data)):  # noqa: PTH208 - names alone
        if name.endswith(".tmp"):
            report.add(Level.NOTE, name, "a file that was being replaced; it is of no use", _delete)
        elif name not in _KNOWN and name not in _KNOWN_MORE:
            report.add(Level.NOTE, name, "not the broker's; it is left alone")
    trash = sum(file.stat().st_size for file in data.glob("trash/**/*") if file.is_file())
    if trash:
        text = f"{trash:,} bytes of deleted topics, which the next start removes"
        report.add(Level.NOTE, "trash", text, _delete)
    for name, key in (("cluster.json", "id"), ("producer_ids.json", "next")):
        path = data / name
        if not path.exists():
            if name == "cluster.json":
                report.add(Level.NOTE, name, "missing; the next start makes a new one")
            continue
        try:
            report.facts[name] = str(json.loads(path.read_bytes())[key])
        except (ValueError, KeyError, TypeError, OSError) as error:
            text = f"expected JSON with {key!r}, found {_text(path)[:60]!r} ({error!r}); restore it"
            report.add(Level.DAMAGE, name, text)
    total = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
    report.facts["bytes"] = f"{total:,}"


# -- topics ----------------------------------------------------------------------------------------


def _examine_topics(report: Report) -> None:
    topics = report.data / "topics"
    if not topics.is_dir():
        report.add(Level.NOTE, "topics", "there are no topics")
        return
    for directory in sorted(topics.iterdir()):
        path = f"topics/{directory.name}"
        if not directory.is_dir():
            report.add(Level.NOTE, path, "a file where only topics are; it is left alone")
            continue
        _guarded(report, path, partial(_examine_topic, report, directory, path))


def _examine_topic(report: Report, directory: Path, path: str) -> None:
    summary = TopicSummary(directory.name)
    report.topics.append(summary)
    if fault := name_fault(directory.name):
        report.add(Level.WARNING, path, fault)
    described = _description(report, directory, path)
    numbers = sorted(int(one.name) for one in directory.iterdir() if one.name.isdigit())
    count, is_compacted = len(numbers), False
    if described is not None:
        count = int(described["partitions"])
        is_compacted = "compact" in described["settings"].get("cleanup.policy", "")
    for one in sorted(directory.iterdir()):
        if one.name != "topic.json" and not (one.name.isdigit() and int(one.name) < count):
            is_leftover = one.name.endswith(".tmp")
            report.add(
                Level.NOTE if is_leftover else Level.WARNING,
                f"{path}/{one.name}",
                "no part of the topic; nothing reads it",
                _delete if is_leftover else None,
            )
    for number in range(count):
        place = f"{path}/{number}"
        if not (directory / str(number)).is_dir():
            text = "expected a partition's directory, found none; it will begin empty"
            report.add(Level.DAMAGE, place, text)
            continue
        summary.partitions += 1
        work = _PartitionExam(report, directory / str(number), place, summary, is_compacted)
        _guarded(report, place, work.run)


def _description(report: Report, directory: Path, path: str) -> dict[str, Any] | None:
    file = directory / "topic.json"
    try:
        described: dict[str, Any] = json.loads(file.read_bytes())
        uuid.UUID(described["id"])
        int(described["partitions"])
        log_config(dict(described["settings"]))
    except FileNotFoundError:
        has_records = any(one.stat().st_size for one in directory.glob("*/*.log"))
        text = "expected topic.json, found none: "
        if has_records:
            text += "the broker won't start; restore it, or move the directory away"
        else:
            text += "its creation was cut short, the next start removes it"
        report.add(Level.DAMAGE if has_records else Level.WARNING, path, text)
    except Exception as error:  # noqa: BLE001 - any content at all
        text = (
            f"expected a topic's description, found {_text(file)[:60]!r} ({error!r}); the broker "
        )
        report.add(Level.DAMAGE, f"{path}/topic.json", text + "won't start: restore it")
    else:
        return described
    return None


class _PartitionExam:
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
        names = sorted(os.listdir(self._directory))  # noqa: PTH208
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
            _guarded(
                self._report,
                f"{self._path}/{name}.log",
                partial(self._examine_segment, name, base, is_last=is_last),
            )
        self._examine_producers()
        self._examine_cleaner()

    def _examine_name(self, name: str, bases: list[int]) -> None:
        if name.endswith(".tmp"):
            self._add(Level.NOTE, name, "a file that was being replaced; it is of no use", _delete)
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
            self._add(Level.WARNING, name, text, _delete)
            return
        if loaded is None or not loaded[1].valid_bytes or loaded[1].next_offset <= self._gone_upto:
            self._add(Level.NOTE, name, "the index of a segment that is gone", _delete)
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
            _guarded(
                self._report, f"{self._path}/{name}.index", lambda: loaded[0].check(max(size, 1))
            )
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
            self._add(Level.WARNING, f"{name}.index", text, _delete)
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
            self._add(Level.WARNING, "producers", text + " for them", _delete)
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


# -- journals --------------------------------------------------------------------------------------


def _examine_journals(report: Report) -> None:
    if report.topics:
        for path, text in lost_journals(lambda path: (report.data / path).exists()):
            report.add(Level.DAMAGE, path, text)
    for file in sorted(report.data.glob("*/*.journal")):
        path = str(file.relative_to(report.data))
        content = file.read_bytes()
        count = end = 0
        for _, after in records_in(content):
            count, end = count + 1, after
        report.facts[path] = f"{count:,} entries, {len(content):,} bytes"
        beside = file.with_name(length_path(file.name))
        expected = stored_length(beside.read_bytes() if beside.exists() else None)
        if end < expected:
            report.add(Level.DAMAGE, path, lost_text(expected, end))
        if end < len(content):
            text = (
                f"expected whole entries, found {len(content) - end:,} bytes after byte {end} that are "
                "none: torn at the end of a crash, or damaged; the next start cuts them off"
            )
            report.add(Level.WARNING, path, text)
    for file in sorted(report.data.glob("*/*.tmp")):
        path = str(file.relative_to(report.data))
        report.add(Level.NOTE, path, "a file that was being replaced; it is of no use", _delete)
