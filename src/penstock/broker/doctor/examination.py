"""Examines a data directory: its root, its topics, its journals."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from penstock.broker.doctor.knowledge import Knowledge
from penstock.broker.doctor.partitions import PartitionExam
from penstock.broker.doctor.report import Finding, Level, Report, TopicSummary, beginning, delete
from penstock.broker.dynamic_settings import dynamic_settings_in
from penstock.broker.groups.settings import groups_in
from penstock.broker.security.files import SecurityFile
from penstock.broker.storage import machine_run
from penstock.broker.storage.data_lock import owner_of
from penstock.broker.storage.journals import lost_files
from penstock.broker.storage.topics import Topic, described, name_fault
from penstock.errors import CorruptError, SetupError
from penstock.log.disk import documents
from penstock.log.disk.journal import length_path, lost_text, records_in, stored_length

__all__ = ["examine", "is_data_directory", "repair"]

_KNOWN: Final = {
    "LOCK",
    "cluster.json",
    "producer_ids.json",
    "settings.json",
    "topics",
    "groups",
    "trash",
    "ballast",
    machine_run.FILE,
}
_DOCUMENTS: Final[dict[str, tuple[Callable[[bytes], object], str]]] = {
    "cluster.json": (
        lambda content: documents.load(content, "cluster.json")["id"],
        "the broker won't start",
    ),
    "producer_ids.json": (
        lambda content: int(documents.load(content, "producer_ids.json")["next"]),
        "without it, ids continue far above the highest one known here",
    ),
    "settings.json": (
        lambda content: (
            f"{sum(map(len, dynamic_settings_in(content).values()))} settings of the broker"
        ),
        "the broker won't start; without it, its settings are those of the command line",
    ),
    "groups/settings.json": (
        lambda content: f"{len(groups_in(content))} groups with settings of their own",
        "the broker won't start; without it, all groups have the defaults",
    ),
}
"""How each document is read, and what its damage means."""
_SECURITY: Final = ("users", "acls", "quotas")
_KNOWN_MORE: Final = {"share", "security", "transactions", "tier", "iceberg"}


@contextmanager
def _locked(data: Path) -> Iterator[bool]:
    """Whether no broker serves the directory; none can start while the block lasts."""
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


def is_data_directory(data: Path) -> bool:
    """Whether a broker has ever served it."""
    return any((data / name).exists() for name in _KNOWN)


def examine(data: Path) -> Report:
    """Reads a data directory and reports its faults.

    Raises:
        SetupError: it is none.
    """
    if not data.is_dir():
        raise SetupError(f"expected a data directory; found none at {str(data)!r}; check its name")
    if not is_data_directory(data):
        raise SetupError(
            f"expected a broker's data in {str(data)!r}; found none of {', '.join(sorted(_KNOWN))}; check "
            "its name"
        )
    report = Report(data)
    with _locked(data) as is_free:
        if not is_free:
            owner = owner_of(data)
            report.add(
                Level.WARNING,
                "LOCK",
                f"process {owner.pid if owner else '?'} serves this directory: what it writes meanwhile may "
                "look torn; stop it for a certain answer",
            )
        for part in (_examine_root, _examine_topics, _examine_journals):
            report.guard(".", partial(part, report))
    return report


def repair(report: Report) -> list[Finding]:
    """Does what is safe about a report's findings; returns those that were repaired.

    Raises:
        SetupError: the directory is being served.
    """
    done = []
    with _locked(report.data) as is_free:
        if not is_free:
            raise SetupError(
                f"expected {str(report.data)!r} to be free; found that it is served; stop the broker"
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


# -- the root --------------------------------------------------------------------------------------


def _examine_root(report: Report) -> None:
    data = report.data
    for name in sorted(os.listdir(data)):  # noqa: PTH208 - names alone
        if name.endswith(".tmp"):
            report.add(Level.NOTE, name, "a file that was being replaced; it is of no use", delete)
        elif name not in _KNOWN and name not in _KNOWN_MORE:
            report.add(Level.NOTE, name, "not the broker's; it is left alone")
    trash = sum(file.stat().st_size for file in data.glob("trash/**/*") if file.is_file())
    if trash:
        text = f"{trash:,} bytes of deleted topics, which the next start removes"
        report.add(Level.NOTE, "trash", text, delete)
    if not (data / "cluster.json").exists():
        report.add(Level.NOTE, "cluster.json", "missing; the next start makes a new one")
    for name, (read, then) in _DOCUMENTS.items():
        if (data / name).exists():
            _examine_document(report, name, read, then)
    for name in _SECURITY:
        file = SecurityFile(data, f"{name}.json", name)
        try:
            file.load()
        except SetupError as error:
            report.add(Level.DAMAGE, f"security/{name}.json", f"{error}; the broker won't start")
    total = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
    report.facts["bytes"] = f"{total:,}"


def _examine_document(
    report: Report, name: str, read: Callable[[bytes], object], then: str
) -> None:
    path = report.data / name
    try:
        report.facts[name] = str(read(path.read_bytes()))
    except SetupError as error:
        report.add(Level.DAMAGE, name, f"{error}; {then}")
    except (ValueError, KeyError, TypeError) as error:
        text = f"expected another content; found {beginning(path)[:60]!r} ({error!r}); {then}"
        report.add(Level.DAMAGE, name, text)


# -- topics ----------------------------------------------------------------------------------------


def _examine_topics(report: Report) -> None:
    topics = report.data / "topics"
    if not topics.is_dir():
        report.add(Level.NOTE, "topics", "there are no topics")
        return
    knowledge = Knowledge()

    def learn() -> None:
        nonlocal knowledge
        knowledge = Knowledge.of(report.data)

    report.guard(".", learn)
    for directory in sorted(topics.iterdir()):
        path = f"topics/{directory.name}"
        if not directory.is_dir():
            report.add(Level.NOTE, path, "a file where only topics are; it is left alone")
            continue
        report.guard(path, partial(_examine_topic, report, directory, path, knowledge))


def _examine_topic(report: Report, directory: Path, path: str, knowledge: Knowledge) -> None:
    summary = TopicSummary(directory.name)
    report.topics.append(summary)
    if fault := name_fault(directory.name):
        report.add(Level.WARNING, path, fault)
    description = _description(report, directory, path)
    numbers = sorted(int(one.name) for one in directory.iterdir() if one.name.isdigit())
    count = len(numbers) if description is None else description[1]
    for one in sorted(directory.iterdir()):
        if one.name != "topic.json" and not (one.name.isdigit() and int(one.name) < count):
            is_leftover = one.name.endswith(".tmp")
            report.add(
                Level.NOTE if is_leftover else Level.WARNING,
                f"{path}/{one.name}",
                "no part of the topic; nothing reads it",
                delete if is_leftover else None,
            )
    for number in range(count):
        place = f"{path}/{number}"
        if not (directory / str(number)).is_dir():
            text = "expected a partition's directory; found none; it will begin empty"
            report.add(Level.DAMAGE, place, text)
            continue
        summary.partitions += 1
        work = PartitionExam(report, directory / str(number), place, summary, knowledge)
        report.guard(place, work.run)


def _description(report: Report, directory: Path, path: str) -> tuple[Topic, int] | None:
    file = directory / "topic.json"
    content = file.read_bytes() if file.exists() else None
    if content is None and not any(_is_of_use(one) for one in directory.glob("*/*")):
        text = (
            "expected topic.json; found none: its creation was cut short, the next start removes it"
        )
        report.add(Level.WARNING, path, text)
        return None
    try:
        return described(directory.name, content)
    except CorruptError as error:
        report.add(Level.DAMAGE, path if content is None else f"{path}/topic.json", str(error))
        return None


def _is_of_use(file: Path) -> bool:
    return file.suffix != ".log" or file.stat().st_size > 0


# -- journals --------------------------------------------------------------------------------------


def _examine_journals(report: Report) -> None:
    if report.topics:
        for path, text in lost_files(lambda path: (report.data / path).exists()):
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
                f"expected whole entries; found {len(content) - end:,} bytes after byte {end} that are "
                "none: torn at the end of a crash, or damaged; the next start cuts them off"
            )
            report.add(Level.WARNING, path, text)
    for file in sorted(report.data.glob("*/*.tmp")):
        path = str(file.relative_to(report.data))
        report.add(Level.NOTE, path, "a file that was being replaced; it is of no use", delete)
