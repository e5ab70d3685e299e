"""What an examination finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

__all__ = ["Finding", "Level", "Report", "TopicSummary", "beginning", "delete"]

FINDINGS_MAX: Final = 10_000
"""Findings that are kept; a directory of garbage must not fill the memory."""


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
    """What a topic holds.

    Attributes:
        next_offsets: by partition, the one after the last that is there.
    """

    name: str
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    next_offsets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """The result of an examination.

    Attributes:
        data: the directory that was examined.
        durable: what must be there, because a client has an acknowledgement of it.
    """

    data: Path
    findings: list[Finding] = field(default_factory=list)
    topics: list[TopicSummary] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    durable: str = "batch that is known to have been durable"

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

    def guard(self, path: str, work: Callable[[], object]) -> None:
        """Does one part of the examination; whatever goes wrong there is a finding."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - garbage must not end the examination
            self.add(Level.DAMAGE, path, f"expected to read it; found {error!r}")


def beginning(path: Path) -> str:
    """The first bytes of a small file, as text; empty where it can't be read."""
    try:
        return path.read_bytes()[:4096].decode(errors="replace")
    except OSError:
        return ""


def delete(path: Path) -> None:
    """Removes a file or a directory."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
