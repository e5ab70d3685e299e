"""Small JSON files in the data directory's `security/`: for their owner's eyes, and replaced whole.

    users.json      SCRAM credentials (see `users`)
    acls.json       access control lists (see `acls`)
    quotas.json     quotas (see `quotas`)
    LOCK            held while one of them is changed

The broker and the command line may change a file at the same time: each does so under the lock,
starting from the existing ones, and the broker looks every second whether a file has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.errors import SetupError

__all__ = ["SecurityFile"]

DIRECTORY: Final = "security"
FORMAT: Final = 1
FILE_BYTES_MAX: Final = 64 << 20
"""Largest such file: about a hundred times what 10,000 users or rules take."""

Stamp = tuple[int, int, int]


class SecurityFile:
    """One of the files.

    Args:
        data: the data directory.
        name: the file's name.
        section: the key of what it holds.
    """

    def __init__(self, data: Path, name: str, section: str) -> None:
        self.path = data / DIRECTORY / name
        self._section = section
        self._stamp: Stamp | None = None

    def has_changed(self) -> bool:
        """Whether the file is another than the one that was last read or written."""
        return self._look() != self._stamp

    def load(self) -> Any:
        """What the file holds; None where there is none.

        Raises:
            SetupError: it can't be read, or holds something else.
        """
        stamp = self._look()
        if stamp is None:
            self._stamp = None
            return None
        try:
            if stamp[2] > FILE_BYTES_MAX:
                raise ValueError(f"{stamp[2]} bytes")
            content = json.loads(self.path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            found = content[self._section]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(
                f"expected {self._section} in {str(self.path)!r}; found: {error}; restore the file "
                "from a backup, or remove it and enter them again"
            ) from None
        self._stamp = stamp
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from changing the files."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            lock = os.open(self.path.parent / "LOCK", flags, 0o600)
        except OSError as error:
            raise SetupError(
                f"expected to write to {str(self.path.parent)!r}; found: {error.strerror}"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def store(self, content: Any) -> None:
        """Replaces the file, durably; call it under the lock."""
        data = json.dumps({"format": FORMAT, self._section: content}, indent=1).encode()
        temporary = self.path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._stamp = self._look()

    def _look(self) -> Stamp | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
