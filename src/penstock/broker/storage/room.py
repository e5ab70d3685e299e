"""Room on the disk: when to refuse records so that everything else can continue.

Records are refused (KAFKA_STORAGE_ERROR, which clients retry) while less is free than a reserve. What
is left is for what must continue: committed offsets, checkpoints, transactions' ends, retention. Once
refused, records are taken again when there is some more room than the reserve, so that it doesn't
flicker.

Should something else fill the disk to the last byte, a small file that was set aside (`DATA/ballast`)
is given up, so that retention has room for the few bytes that it must write before it may delete.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["BALLAST", "RESERVE_BYTES", "Room"]

RESERVE_BYTES: Final = 256 << 20
"""Bytes that are left free (log.min.free.bytes), as far as `RESERVE_SHARE` allows: more than a fast
producer writes between two looks."""
RESERVE_SHARE: Final = 0.05
"""Of the file system that the reserve takes at most: a small one is not refused from the start."""
SLACK_SHARE: Final = 0.1
"""Of the reserve that must be free beyond it before records are taken again."""
BALLAST: Final = "ballast"
"""Its file in the data directory."""
BALLAST_BYTES: Final = 256 << 10
"""The reserve: retention writes a few small files, of a block each."""

_log = logging.getLogger(__name__)


class _Space(NamedTuple):
    free: int
    total: int


def _ask(path: Path) -> _Space:
    found = os.statvfs(path)
    return _Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class Room:
    """The room on one file system.

    Args:
        data: a directory on it.
        reserve_bytes: the bytes to leave free; None: `RESERVE_BYTES`, as far as `RESERVE_SHARE` allows.
        ask: bytes free and in all.
    """

    def __init__(
        self,
        data: Path,
        reserve_bytes: int | None = None,
        ask: Callable[[Path], tuple[int, int]] = _ask,
    ) -> None:
        self._data = data
        self._ask = ask
        self._wanted = reserve_bytes
        self._has_ballast = False
        self.reserve_bytes = 0
        self.free_bytes = 0
        self.is_full = False

    @property
    def message(self) -> str:
        """Why records are refused."""
        return (
            f"expected at least {self.reserve_bytes} bytes free for {self._data} "
            f"(log.min.free.bytes); found {self.free_bytes}; free space on the disk, delete topics, "
            "or lower their retention"
        )

    def look(self) -> None:
        """Asks how much is free."""
        self.free_bytes, total = self._ask(self._data)
        if self._wanted is None:
            self.reserve_bytes = min(RESERVE_BYTES, int(total * RESERVE_SHARE))
        else:
            self.reserve_bytes = self._wanted
        slack = int(self.reserve_bytes * SLACK_SHARE) if self.is_full else 0
        was_full, self.is_full = self.is_full, self.free_bytes < self.reserve_bytes + slack
        if self.is_full and not was_full:
            _log.error("refusing records: %s", self.message)
        elif was_full and not self.is_full:
            _log.warning("taking records again: %d bytes are free", self.free_bytes)

    def take(self, size: int) -> None:
        """Takes note of bytes that were written since the last look."""
        self.free_bytes -= size
        if self.free_bytes < self.reserve_bytes and not self.is_full:
            self.look()

    # -- the ballast -------------------------------------------------------------------------------

    @property
    def _ballast(self) -> Path:
        return self._data / BALLAST

    def set_aside(self) -> None:
        """Sets the ballast aside, where there is room for it."""
        if self._has_ballast or self.is_full:
            return
        try:
            descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            self.give_up_ballast()
        else:
            self._has_ballast = True

    def give_up_ballast(self) -> bool:
        """Deletes the ballast; whether there was any."""
        self._has_ballast = False
        with contextlib.suppress(OSError):
            self._ballast.unlink()
            return True
        return False

    def check(self) -> None:
        """Asserts the invariant: no records are taken while less than the reserve is free."""
        assert self.is_full or self.free_bytes >= self.reserve_bytes
