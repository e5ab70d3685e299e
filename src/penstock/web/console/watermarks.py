"""What is known here, without their programs, of the watermarks of the pipelines that read a topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client.letters.lateness import Mark
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.engine.record.version import Version


class Watermarks:
    """The watermarks of the pipelines in a folder that read from one broker.

    Args:
        address: the broker's.
        said: what `--broker` says: it may name the directory of a pipeline.
        here: the folder.
    """

    def __init__(self, address: str, said: str | None, here: Path = Path()) -> None:
        self._versions = list(_versions(address, said, here))

    def marks(self, topic: str) -> list[Mark]:
        """The watermarks of a topic of which it is known where its records have their event time."""
        found = []
        for version in self._versions:
            mark, time = version.watermark_us.get(topic), version.times.get(topic)
            if mark is not None and time is not None and time.kind != "processing":
                found.append(Mark(mark, time.name))
        return found

    def unknown(self, topic: str) -> str | None:
        """Why it can't be said which records of a topic lie behind its watermark; None: it can."""
        readers = [one for one in self._versions if topic in one.offsets]
        if not readers:
            return "no pipeline in this folder has read it from this broker"
        for one in readers:
            if topic not in one.times:
                return f"the pipeline {one.name} has not run with this release yet"
            if one.times[topic] is None and topic in one.watermark_us:
                return f"in the pipeline {one.name}, its event time isn't a field of a JSON object"
        return None


def _versions(address: str, said: str | None, here: Path) -> Iterator[Version]:
    """The newest committed versions of the pipelines whose log is at the address."""
    from penstock.app import address_of
    from penstock.serve.places import newest, open_store

    named = {
        one.resolve()
        for one in (Path(said or ""), Path(f"{said}.penstock"))
        if said and one.is_dir()
    }
    for directory in sorted({one.resolve() for one in here.glob("*.penstock")} | named):
        if directory not in named and address_of(directory) not in (None, address):
            continue
        try:
            version = newest(open_store(directory), str(directory), lambda content: content)
        except (PenstockError, OSError):  # nothing is committed, or it can't be read
            continue
        yield version
