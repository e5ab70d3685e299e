"""A data directory belongs to one process at a time.

The lock is the system's (`flock`), so it ends with its process, however that ends. The file holds the
owner's process id, and once it serves, where: `owner_of` finds a directory's broker without asking at any
port, behind which another one may be.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import SetupError

__all__ = ["FILE", "DataLock", "Owner", "owner_of"]

FILE: Final = "LOCK"

RETRY_S: Final = 0.05
"""How often a lock that is taken is tried again."""


OWNER_BYTES_MAX: Final = 8192
"""What an owner writes about itself: its process id and its listeners."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who serves a data directory.

    Attributes:
        pid: the process; 0 where it could not be written (a full disk).
        listeners: `PROTOCOL://HOST:PORT`; none until it serves.
    """

    pid: int
    listeners: tuple[str, ...]


def owner_of(data: Path) -> Owner | None:
    """The broker that serves a data directory now; None: none does."""
    try:
        descriptor = os.open(data / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.pread(descriptor, OWNER_BYTES_MAX, 0).decode(errors="replace").split()
        pid = int(words[0]) if words and words[0].isdigit() else 0
        return Owner(pid, tuple(words[1:]))
    else:
        return None
    finally:
        os.close(descriptor)


class DataLock:
    """The lock of a data directory.

    Args:
        data: the directory; made where it isn't there.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._file = -1

    async def take(self, wait_s: float) -> None:
        """Waits for a predecessor that is still stopping, for so long.

        Raises:
            SetupError: another process serves the directory, or it can't be written.
        """
        data = self._data
        try:
            data.mkdir(parents=True, exist_ok=True)
            self._file = os.open(data / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SetupError(
                f"expected a directory to write to; found {str(data)!r}: {error.strerror}; "
                "choose another one with --data"
            ) from None
        import asyncio  # commands only look who has the lock

        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if loop.time() >= deadline:
                    self.release()
                    owner = owner_of(data)
                    raise SetupError(
                        f"expected {str(data)!r} to be free; found that process "
                        f"{owner.pid if owner else '?'} serves it; stop that process or choose another "
                        "directory with --data"
                    ) from None
                await asyncio.sleep(RETRY_S)
            else:
                break
        self.announce(())

    def announce(self, listeners: Sequence[str]) -> None:
        """Says who has the directory, and where it is served."""
        with contextlib.suppress(OSError):  # the lock holds without: a full disk may have no room
            os.ftruncate(self._file, 0)
            os.pwrite(
                self._file, "".join(f"{one}\n" for one in (os.getpid(), *listeners)).encode(), 0
            )

    def release(self) -> None:
        """Gives the directory up, if it was taken."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
