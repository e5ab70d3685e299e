"""The files that a log is made of: a seam, so that crashes and full disks can be tested.

`LogFiles` is one directory tree; paths are relative, with `/`. A write is durable after `sync` of
its file, and the file's name after `sync_directory`. `LocalFiles` is the real one.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from pathlib import Path
from typing import Final, Protocol

from penstock.wire.batches import Buffer

__all__ = ["LocalFiles", "LogFile", "LogFiles", "is_want_of_room"]

MAP_BYTES_MIN: Final = 128 << 10
"""Reads from this size on are views of a memory map; below it, a copy is cheaper than the map."""


def is_want_of_room(error: OSError) -> bool:
    """Whether something failed because the disk (or a quota, or a limit) is full."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LogFile(Protocol):
    """One append-mostly file."""

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def write(self, at: int, data: Buffer) -> None:
        """Writes all of `data` at `at`, or raises OSError (the file may then hold a part of it)."""
        ...

    def read(self, at: int, size: int) -> Buffer:
        """Up to `size` bytes from `at`; possibly a view that stays valid while it is referenced."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file."""
        ...

    def sync(self) -> None:
        """Makes the file's bytes durable. May be called from another thread."""
        ...

    def rest(self) -> None:
        """Gives up what the system limits (descriptors, maps) until the next use."""
        ...

    def close(self) -> None:
        """Gives up the file for good; views that were read stay valid."""
        ...


class LogFiles(Protocol):
    """A directory tree of log files and of small files that are replaced whole."""

    def open(self, path: str) -> LogFile:
        """Opens a log file, making it (and its directory) where it is missing."""
        ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted; none where it is missing."""
        ...

    def load(self, path: str) -> bytes | None:
        """A small file's bytes, None where it is missing."""
        ...

    def store(self, path: str, data: Buffer) -> None:
        """Replaces a small file as a whole, durably."""
        ...

    def rename(self, path: str, new_path: str) -> None:
        """Moves a file or a directory tree, durably."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file or a directory tree; nothing happens where it is missing."""
        ...

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        ...


class _LocalFile:
    """A file that opens its descriptor when it needs it. The last reference to it closes it."""

    __slots__ = ("_descriptor", "_map", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _open(self) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._open()).st_size

    def write(self, at: int, data: Buffer) -> None:
        written = os.pwrite(self._open(), data, at)
        while written < len(data):
            more = os.pwrite(self._descriptor, memoryview(data)[written:], at + written)
            if more == 0:
                raise OSError(errno.ENOSPC, "expected to write a whole batch; found no space")
            written += more

    def read(self, at: int, size: int) -> Buffer:
        if size < MAP_BYTES_MIN:
            return os.pread(self._open(), size, at)
        if self._map is None or len(self._map) < at + size:
            self._map = mmap.mmap(self._open(), 0, prot=mmap.PROT_READ)
        return memoryview(self._map)[at : at + size]

    def truncate(self, size: int) -> None:
        self._map = None
        os.ftruncate(self._open(), size)

    def sync(self) -> None:
        os.fdatasync(self._open())

    def rest(self) -> None:
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        self.rest()

    def __del__(self) -> None:
        self.rest()


class LocalFiles:
    """Log files under a local directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def open(self, path: str) -> LogFile:
        """Opens a log file, making it (and its directory) where it is missing."""
        full = self.root / path
        try:
            return _LocalFile(full)
        except FileNotFoundError:
            full.parent.mkdir(parents=True, exist_ok=True)
            return _LocalFile(full)

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        try:
            return sorted(os.listdir(self.root / path))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []

    def load(self, path: str) -> bytes | None:
        """A small file's bytes, None where it is missing."""
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def store(self, path: str, data: Buffer) -> None:
        """Replaces a small file as a whole, durably; its directory must be there."""
        full = self.root / path
        temporary = full.with_name(full.name + ".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            temporary.replace(full)
        except OSError:
            with contextlib.suppress(OSError):  # it takes room that may be needed
                temporary.unlink()
            raise
        self._sync(full.parent)

    def rename(self, path: str, new_path: str) -> None:
        """Moves a file or a directory tree, durably."""
        target = self.root / new_path
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).rename(target)
        self._sync(target.parent)
        self._sync((self.root / path).parent)

    def delete(self, path: str) -> None:
        """Removes a file or a directory tree."""
        full = self.root / path
        if full.is_dir():
            shutil.rmtree(full, ignore_errors=True)
            return
        with contextlib.suppress(FileNotFoundError):
            full.unlink()

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        self._sync(self.root / path)

    @staticmethod
    def _sync(directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
