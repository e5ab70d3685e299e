"""Examines a data directory: its root, its topics, its journals."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.broker.doctor.partitions import PartitionExam
from penstock.broker.doctor.report import Finding, Level, Report, TopicSummary, beginning, delete
from penstock.broker.journals import lost_journals
from penstock.broker.settings import log_config
from penstock.broker.topics import name_fault
from penstock.errors import SetupError
from penstock.log.journal import length_path, lost_text, records_in, stored_length

__all__ = ["examine", "repair"]

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
            owner = beginning(data / "LOCK").strip() or "?"
            report.add(
                Level.WARNING,
                "LOCK",
                f"process {owner} serves this directory: what it writes meanwhile may look torn; stop "
                "it for a certain answer",
            )
        for part in (_examine_root, _examine_topics, _examine_journals):
            report.guard(".", partial(part, report))
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
    for name, key in (("cluster.json", "id"), ("producer_ids.json", "next")):
        path = data / name
        if not path.exists():
            if name == "cluster.json":
                report.add(Level.NOTE, name, "missing; the next start makes a new one")
            continue
        try:
            report.facts[name] = str(json.loads(path.read_bytes())[key])
        except (ValueError, KeyError, TypeError, OSError) as error:
            text = f"expected JSON with {key!r}, found {beginning(path)[:60]!r} ({error!r}); restore it"
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
        report.guard(path, partial(_examine_topic, report, directory, path))


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
                delete if is_leftover else None,
            )
    for number in range(count):
        place = f"{path}/{number}"
        if not (directory / str(number)).is_dir():
            text = "expected a partition's directory, found none; it will begin empty"
            report.add(Level.DAMAGE, place, text)
            continue
        summary.partitions += 1
        work = PartitionExam(report, directory / str(number), place, summary, is_compacted)
        report.guard(place, work.run)


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
        text = f"expected a topic's description, found {beginning(file)[:60]!r} ({error!r}); the broker "
        report.add(Level.DAMAGE, f"{path}/topic.json", text + "won't start: restore it")
    else:
        return described
    return None


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
        report.add(Level.NOTE, path, "a file that was being replaced; it is of no use", delete)
