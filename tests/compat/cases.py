"""What a fixture consists of: cases, each a directory that this release or an earlier one has written.

A case has two halves. `write` is run once, by `make.py`, with the release that the fixture is of; it returns
facts that are stored with the files. `check` is run by every release after it, on a copy of the files.

    fixtures/VERSION/CASE.tar.xz
        facts.json      what `write` has returned
        files/…         what a user would have on the disk
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import orjson

FIXTURES: Final = Path(__file__).with_name("fixtures")
FACTS: Final = "facts.json"
FILES: Final = "files"

Facts = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One kind of files.

    Attributes:
        name: of the archive.
        write: makes the files in an empty directory; returns facts about them.
        check: reads a copy of the files with the current code, continues, and asserts what comes of it.
        is_slow: whether the check takes more than two seconds of processor time.
        is_spark: whether it needs a Java runtime.
    """

    name: str
    write: Callable[[Path], Facts]
    check: Callable[[Path, Facts], None]
    is_slow: bool = False
    is_spark: bool = False


def pack(folder: Path, archive: Path) -> None:
    """Writes a directory as an archive, without times, owners and modes of this machine."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            content = path.read_bytes()
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, BytesIO(content))


def unpack(archive: Path, folder: Path) -> Facts:
    """Writes the files of an archive into a directory; returns the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(folder, filter="data")
    facts: Facts = orjson.loads((folder / FACTS).read_bytes())
    return facts


def read_facts(archive: Path) -> Facts:
    """The facts in an archive."""
    with tarfile.open(archive, "r:xz") as tar:
        member = tar.extractfile(FACTS)
        assert member is not None
        facts: Facts = orjson.loads(member.read())
    return facts


def releases() -> list[str]:
    """The releases that have a fixture, the newest last."""
    names = (path.name for path in FIXTURES.iterdir() if path.is_dir())
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])
