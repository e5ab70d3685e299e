"""Files that lose power at a chosen operation."""

from __future__ import annotations

from penstock.log.disk.files import LogFile
from penstock.log.disk.memory import MemoryFiles
from penstock.wire.batches import Buffer


class PowerLossError(Exception):
    """The machine is off."""


class _CountedFile:
    def __init__(self, files: FailingFiles, file: LogFile) -> None:
        self._files = files
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def write(self, at: int, data: Buffer) -> None:
        self._files.count()
        self._file.write(at, data)

    def read(self, at: int, size: int) -> Buffer:
        return self._file.read(at, size)

    def truncate(self, size: int) -> None:
        self._files.count()
        self._file.truncate(size)

    def sync(self) -> None:
        self._files.count()
        self._file.sync()

    def rest(self) -> None:
        self._file.rest()

    def close(self) -> None:
        self._file.close()


class FailingFiles(MemoryFiles):
    """Memory files that raise `PowerLossError` once `left` changing operations were done."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.done = 0

    def count(self) -> None:
        """Counts an operation, or fails."""
        if self.left == 0:
            raise PowerLossError
        self.left -= 1
        self.done += 1

    def open(self, path: str) -> LogFile:
        """Opens a log file."""
        return _CountedFile(self, super().open(path))

    def store(self, path: str, data: Buffer) -> None:
        """Replaces a small file."""
        self.count()
        super().store(path, data)

    def rename(self, path: str, new_path: str) -> None:
        """Moves a file."""
        self.count()
        super().rename(path, new_path)

    def delete(self, path: str) -> None:
        """Removes a file."""
        self.count()
        super().delete(path)
