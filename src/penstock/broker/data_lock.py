"""A data directory belongs to one process at a time.

The lock is the system's (`flock`), so it ends with its process, however that ends. The file holds
the owner's process id, for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from penstock.errors import SetupError

__all__ = ["DataLock"]

RETRY_S: Final = 0.05
"""How often a lock that is taken is tried again."""


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
            self._file = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SetupError(
                f"expected a directory to write to, found {str(data)!r}: {error.strerror}; "
                "choose another one with --data"
            ) from None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if loop.time() >= deadline:
                    owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
                    self.release()
                    raise SetupError(
                        f"expected {str(data)!r} to be free, found that process {owner or '?'} "
                        "serves it; stop that process or choose another directory with --data"
                    ) from None
                await asyncio.sleep(RETRY_S)
            else:
                break
        with contextlib.suppress(OSError):  # for people only: on a full disk it may have no room
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Gives the directory up, if it was taken."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
