"""What has been read of which files: a compacted topic, written in the transactions of the records.

    invariant: after any transaction, the target has the rows of each file up to its place, each once

The newest record of a path says how far it has been read. Who begins starts transactions under the same
id, which ends what a killed one left, and then reads the topic; so it continues at exactly that place.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from penstock.client import Client, Reader
from penstock.errors import CorruptError
from penstock.files.births import born_ns
from penstock.files.reading import Place

__all__ = ["FileState", "load"]


@dataclass(frozen=True)
class FileState:
    """What is known of a file.

    Attributes:
        inode: of it, when it was begun.
        size: likewise, bytes.
        mtime_ns: likewise, when it was last changed.
        at: see `Place`.
        line: see `Place`.
        done: whether it has been read to its end, or as far as it can be.
        reason: why it couldn't be read to its end; empty where it could.
        born_ns: when it was created; 0 where that isn't known.
    """

    inode: int
    size: int
    mtime_ns: int
    at: int = 0
    line: int = 0
    done: bool = False
    reason: str = ""
    born_ns: int = 0

    @staticmethod
    def of(path: Path) -> FileState:
        """A file that hasn't been read.

        Raises:
            OSError: it isn't there.
        """
        stat = path.stat()
        return FileState(stat.st_ino, stat.st_size, stat.st_mtime_ns, born_ns=born_ns(path))

    @property
    def place(self) -> Place:
        """How far it has been read."""
        return Place(self.at, self.line)

    def moved(self, place: Place) -> FileState:
        """Read as far as that."""
        return replace(self, at=place.at, line=place.line)

    def is_same(self, other: FileState) -> bool:
        """Whether it is the same file with the same content, as far as the directory shows."""
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)

    def is_other(self, other: FileState) -> bool:
        """Whether it is another file that has taken the name, not the same one with other content."""
        if self.is_same(other):  # moved to another disk, maybe
            return False
        is_younger = self.born_ns != other.born_ns and 0 not in (self.born_ns, other.born_ns)
        return self.inode != other.inode or is_younger

    def encoded(self) -> bytes:
        """As a record's value."""
        return orjson.dumps(asdict(self))


def load(address: str, topic: str, **settings: Any) -> dict[str, FileState]:
    """What the topic says about each path.

    Raises:
        CorruptError: somebody else has written to it.
    """
    found: dict[str, FileState] = {}
    with Client(address, **settings) as client, Reader(address, **settings) as reader:
        first, end = client.offsets(topic, "earliest")[0], client.offsets(topic, "latest")[0]
        for records in reader.read(topic, 0, first, end):
            pairs = zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
            for key, value in pairs:
                try:
                    found[os.fsdecode(key or b"")] = FileState(**orjson.loads(value or b""))
                except (TypeError, ValueError) as error:
                    raise CorruptError(
                        f"expected what has been read of files in topic {topic!r}; found {value!r} "
                        f"({error}). Name another ingestion (name=…)"
                    ) from None
    return found
