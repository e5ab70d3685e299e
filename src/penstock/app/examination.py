"""Examines a pipeline's directory: its log, and its state.

    report = examine_pipeline(Path("shop.penstock"))

The state is owners, plans, versions and the files of traces (see `penstock.engine.store`). Each of them is
read: what is JSON as such, what versions refer to by its length and checksum, and the newest version by
every invariant of its operators. State is derived from the log, so whatever is damaged there costs a
rebuild and no record.

A pipeline that runs replaces its versions meanwhile: what is missing counts only as long as the version
that refers to it is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from penstock.broker.doctor import Level, Report, examine, is_data_directory
from penstock.engine.record.version import Version
from penstock.engine.savepoints import check_savepoint, find_savepoint
from penstock.engine.store import Store, unsealed, version_of
from penstock.errors import CorruptError, SetupError
from penstock.ops import operator_from_spec
from penstock.state import LocalStateFiles
from penstock.state.garbage import garbage, pieces
from penstock.state.runs import Piece
from penstock.wire.checksum import crc32c

__all__ = ["STATE", "examine_pipeline", "examine_state", "is_pipeline_directory"]

LOG: Final = "log"
STATE: Final = "state"
_KEYS: Final = {  # what each document has at least
    "epochs": frozenset({"owner"}),
    "plans": frozenset({"version", "program", "splits"}),
    "versions": frozenset({"version", "offsets", "operators", "views"}),
}
_NUMBERED: Final = re.compile(r"(\d{20})\.json")
_REBUILD: Final = "the state can be computed again from the log: run the pipeline with --rebuild"


def is_pipeline_directory(directory: Path) -> bool:
    """Whether a pipeline has run in a directory."""
    state = directory / STATE
    return (
        (directory / "broker.json").is_file()
        or is_data_directory(directory / LOG)
        or any((state / folder).is_dir() for folder in _KEYS)
    )


def examine_pipeline(directory: Path) -> list[Report]:
    """Reads a pipeline's directory: a report of its log, where that is here, and one of its state.

    Raises:
        SetupError: there is neither.
    """
    # The state first: while the pipeline runs, the log grows, and what was committed was read from it.
    exam = _examined(directory / STATE) if (directory / STATE).is_dir() else None
    log = examine(directory / LOG) if is_data_directory(directory / LOG) else None
    if exam is not None and log is not None:
        exam.report.guard(".", partial(exam.compare, log))
    state = None if exam is None else exam.report
    reports = [one for one in (log, state) if one is not None]
    if not reports:
        raise SetupError(
            f"expected a log or state in {str(directory)!r}; found neither: both are elsewhere, or no "
            "batch has run yet"
        )
    return reports


def examine_state(state: Path) -> Report:
    """Reads a pipeline's state."""
    return _examined(state).report


def _examined(state: Path) -> _StateExam:
    exam = _StateExam(state)
    parts = (exam.folders, exam.documents, exam.savepoints)
    for part in (*parts, exam.traces, exam.operators, exam.leftovers):
        exam.report.guard(".", part)
    return exam


@dataclass
class _StateExam:
    """One examination, and what it has read so far."""

    state: Path
    report: Report = field(init=False)
    files: LocalStateFiles = field(init=False)
    numbers: dict[str, list[int]] = field(default_factory=dict)  # by folder
    versions: dict[int, Version] = field(default_factory=dict)
    pinned: list[Version] = field(default_factory=list)  # the versions of savepoints
    newest: int = 0
    is_whole: bool = True  # the newest version's files are there

    def __post_init__(self) -> None:
        self.report = Report(self.state, durable="file of a committed version")
        self.files = LocalStateFiles(self.state)

    def folders(self) -> None:
        """What there is, and what is none of it."""
        for folder in _KEYS:
            self.numbers[folder] = []
            for path in self.files.list(folder, temporary=True):
                name = path.rpartition("/")[2]
                if match := _NUMBERED.fullmatch(name):
                    self.numbers[folder].append(int(match[1]))
                elif name.endswith(".tmp"):
                    self.report.add(Level.NOTE, path, "an unfinished write; it is of no use")
                else:
                    self.report.add(Level.NOTE, path, "not the pipeline's; it is left alone")
            numbers = self.numbers[folder]
            self.report.facts[folder] = f"{len(numbers):,}, the newest is {max(numbers, default=0)}"
        self.newest = max(self.numbers["versions"], default=0)

    def documents(self) -> None:
        """Owners, plans and versions can be read, and belong to one another."""
        for folder, numbers in self.numbers.items():
            for number in numbers:
                self._document(folder, number)
        plans, newest = max(self.numbers["plans"], default=0), self.newest
        if not newest and not plans:
            self.report.add(Level.NOTE, "versions", "there is none: no batch has been committed")
        elif plans not in {newest, newest + 1}:
            text = (
                f"expected the newest plan to be that of version {newest}, the newest there is, or the "
                f"next; found that of {plans}: files are missing, and the offsets in them; {_REBUILD}"
            )
            self.report.add(Level.DAMAGE, "plans", text)

    def _document(self, folder: str, number: int) -> None:
        path = _path(folder, number)
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return  # the pipeline runs, and has cleared it away
        try:
            content = unsealed(bytes(data), path)
            is_right = _KEYS[folder] <= content.keys() and content.get("version", number) == number
            if is_right and folder == "versions":
                version = version_of(content, path)
                list(_pieces(version))
                self.versions[number] = version
        except (CorruptError, ValueError, AttributeError, TypeError, KeyError, IndexError):
            is_right = False
        if is_right:
            return
        text = (
            f"expected the JSON of number {number} with {', '.join(sorted(_KEYS[folder]))}; found "
        )
        text += f"{data[:40]!r} ({len(data):,} bytes)"
        if folder != "epochs" and number >= self.newest:  # what the pipeline continues from
            self.report.add(Level.DAMAGE, path, f"{text}; {_REBUILD}")
        else:
            self.report.add(Level.WARNING, path, f"{text}; the pipeline doesn't need it any more")

    def savepoints(self) -> None:
        """Every savepoint can be gone back to."""
        store = Store(self.files)
        for name in store.pins():
            try:
                found = find_savepoint(store, name)
                self.pinned.append(found.content)
                check_savepoint(store, found)
            except (CorruptError, KeyError) as error:
                text = f"{error}. The pipeline doesn't need it: penstock savepoint drop"
                self.report.add(Level.DAMAGE, f"savepoints/{name}.json", text)
        self.report.facts["savepoints"] = ", ".join(store.pins()) or "none"

    def traces(self) -> None:
        """Every file that a version refers to is there, and what was written."""
        seen: set[Piece] = set()
        for number, version in sorted(self.versions.items(), reverse=True):
            for piece in set(_pieces(version)) - seen:
                seen.add(piece)
                fault = self._fault(piece)
                if fault is None or not self.files.exists(_path("versions", number)):
                    continue  # a version that is gone takes its files along
                if number == self.newest:
                    self.is_whole = False
                    self.report.add(Level.DAMAGE, piece.path, f"{fault}; {_REBUILD}")
                else:
                    text = (
                        f"{fault}; version {number}, which was the last to need it, can't be read"
                    )
                    self.report.add(Level.WARNING, piece.path, text)
        size = sum(piece.bytes for piece in seen)
        self.report.facts["trace files"] = f"{len(seen):,}, {size:,} bytes"

    def _fault(self, piece: Piece) -> str | None:
        """What is the matter with a file."""
        try:
            data = self.files.map(piece.path)
        except FileNotFoundError:
            return f"expected a trace's file of {piece.bytes:,} bytes; found none"
        except OSError as error:
            return f"expected to read it; found: {error.strerror or error}"
        if data.size != piece.bytes:
            return f"expected {piece.bytes:,} bytes; found {data.size:,}"
        crc = crc32c(memoryview(data))
        if crc != piece.crc:
            return f"expected the CRC-32C {piece.crc:#010x}; found {crc:#010x}"
        return None

    def operators(self) -> None:
        """The newest version's operators keep to all their invariants."""
        version = self.versions.get(self.newest)
        if version is None:
            return
        self.report.facts["views"] = ", ".join(version.views) or "none"
        if not self.is_whole:
            return
        for name, operator in version.operators.items():
            for shard, described in operator.traces.items():
                try:
                    found = operator_from_spec(operator.spec)
                    found.check(found.open(self.files, described))
                except Exception as error:  # noqa: BLE001 - any content at all
                    if self.files.exists(_path("versions", self.newest)):
                        text = f"expected the invariants of operator {name}, shard {shard}; found "
                        text += f"{error!r}; {_REBUILD}"
                        self.report.add(Level.DAMAGE, _path("versions", self.newest), text)

    def leftovers(self) -> None:
        """Files that no version refers to, but for those that a batch is just writing."""
        states = [s for v in (*self.versions.values(), *self.pinned) for s in v.states()]
        if len(self.versions) < len(self.numbers["versions"]):
            return  # one that can't be read may refer to them
        found = garbage(self.files, "runs", states, self.newest)
        if found:
            text = f"{len(found):,} files that no version refers to; the pipeline clears them away"
            self.report.add(Level.NOTE, "runs", text)

    def compare(self, log: Report) -> None:
        """What the newest version has read is in the log."""
        version = self.versions.get(self.newest)
        topics = {one.name: one for one in log.topics}
        for topic, partitions in version.offsets.items() if version else ():
            for partition, read in partitions.items():
                known = topics[topic].next_offsets if topic in topics else {}
                end = known.get(partition, 0)
                if end < read:
                    text = (
                        f"expected {topic}/{partition} to reach offset {read}, which was read already; found "
                        f"its end at {end}: this state was computed from another log, or the log has lost "
                        f"records. Restore the log, or run the pipeline with --rebuild"
                    )
                    self.report.add(Level.DAMAGE, _path("versions", self.newest), text)


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:020d}.json"


def _pieces(version: Version) -> Iterator[Piece]:
    """The files that a version refers to, and what they must be."""
    for state in version.states():
        yield from pieces(state)
