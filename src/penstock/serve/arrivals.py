"""Readers that wait for a version are woken when one is committed.

A version is a file (`versions/N.json` of the state), which the driver that commits it moves into place.
Linux reports files in a directory of the machine (inotify): the same way for readers in the pipeline's
process and in others. One thread of the process reads its reports, whatever the number of readers.
Elsewhere (object stores, other systems, a directory that isn't there yet) readers look for themselves: at
first often, then less often.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.closing import Closing
from penstock.engine.store import Store
from penstock.errors import LimitError
from penstock.serve.places import offsets_of
from penstock.state import LocalStateFiles
from penstock.wire.positions import Position

__all__ = ["Arrivals", "wait_for"]

LOOK_S_MIN: Final = 0.02
"""Between two looks at first, where nobody notifies."""
LOOK_S_MAX: Final = 1.0
"""Between two looks after a while; also where the system notifies, which may not hear of other machines."""
LOOK_SHARE: Final = 0.1
"""Of the time since the last version, until the next look: what waiting adds to a batch's own time."""
GONE_S: Final = 0.1
"""Between two questions whether anyone waits."""
_MOVED_TO: Final = 0x80
_CREATED: Final = 0x100
_DELETED: Final = 0x200
_IGNORED: Final = 0x8000  # the directory has gone
_LOST: Final = 0x4000  # more happened than the system could note
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16


class Arrivals(Closing):
    """Notifies of versions that come, or are taken back, until `close`; also a context.

    Args:
        store: the pipeline's record.
        call: called in another thread when there is something to look at; it must not wait. None: `wait`
            is notified alone.
    """

    def __init__(self, store: Store, call: Callable[[], None] | None = None) -> None:
        self._event = threading.Event()
        self._call = call
        self._since_s = self._looked_s = time.monotonic()
        self._folder: str | None = None
        if isinstance(store.files, LocalStateFiles):
            self._folder = str(store.files.directory / store.folder / "versions")
        self.is_watched = False
        self._listen()

    def _listen(self) -> None:
        if self._folder is not None and (watcher := _watcher()) is not None:
            self.is_watched = watcher.add(self._folder, self)

    def close(self) -> None:
        """Ends it."""
        if self._folder is not None and (watcher := _watcher()) is not None:
            watcher.remove(self._folder, self)

    def notify(self, *, goes_on: bool = True) -> None:
        """Notes that something has happened; called by the thread that reads the system's reports.

        Args:
            goes_on: whether the directory is still there.
        """
        self.is_watched = self.is_watched and goes_on
        self._since_s = time.monotonic()
        self._event.set()
        if self._call is not None:
            self._call()

    def pause_s(self) -> float:
        """How many seconds may pass until the next look, if nothing is reported meanwhile."""
        if self.is_watched:
            return LOOK_S_MAX
        waited = time.monotonic() - self._since_s
        return min(max(LOOK_S_MIN, LOOK_SHARE * waited), LOOK_S_MAX)

    def wait(self, seconds: float) -> bool:
        """Waits until it is time to look for a version.

        Args:
            seconds: at most.

        Returns:
            Whether it is time; False where the seconds have passed before.
        """
        if not self.is_watched:
            self._listen()  # the directory may have appeared
        left = self._looked_s + self.pause_s() - time.monotonic()
        is_due = self._event.wait(max(0.0, min(seconds, left))) or left <= seconds
        if is_due:
            self._event.clear()
            self._looked_s = time.monotonic()
        return is_due


def wait_for(store: Store, token: str, timeout: float, gone: Callable[[], bool]) -> int:
    """Waits until a version has read what was written; see `Views.wait_for`."""
    positions = Position.parse_all(token)
    deadline = time.monotonic() + timeout
    with Arrivals(store) as arrivals:
        while True:
            number = store.newest_version()
            offsets = _offsets(store, number)
            if offsets is not None and all(one.is_in(offsets) for one in positions):
                return number
            is_due = False
            while not is_due:
                left = deadline - time.monotonic()
                if left <= 0 or gone():
                    raise LimitError(
                        f"expected a version that has read {token} within {timeout:g} s; found version "
                        f"{number}, which has not. Ask again, or see whether the pipeline runs"
                    )
                is_due = arrivals.wait(min(left, GONE_S))


def _offsets(store: Store, number: int) -> Mapping[str, Mapping[str, int]] | None:
    if number:
        try:
            return offsets_of(store.version(number))
        except FileNotFoundError:  # vacuumed, or taken back, since
            return None
    return None


class _Watcher:
    """Directories that the system watches for this process, and who wants to know."""

    def __init__(self, libc: ctypes.CDLL, descriptor: int) -> None:
        self._libc, self._descriptor = libc, descriptor
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._readers: dict[int, set[Arrivals]] = {}
        threading.Thread(target=self._read, name="penstock-arrivals", daemon=True).start()

    def add(self, folder: str, reader: Arrivals) -> bool:
        """Notifies a reader from now on; False where the system can't."""
        with self._lock:
            mask = _MOVED_TO | _CREATED | _DELETED
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
            if number < 0:
                return False
            self._numbers[folder] = number
            self._readers.setdefault(number, set()).add(reader)
            return True

    def remove(self, folder: str, reader: Arrivals) -> None:
        """Stops notifying a reader."""
        with self._lock:
            number = self._numbers.get(folder)
            readers = self._readers.get(number, set()) if number is not None else set()
            readers.discard(reader)
            if number is not None and not readers:
                del self._numbers[folder]
                if self._readers.pop(number, None) is not None:
                    self._libc.inotify_rm_watch(self._descriptor, number)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except OSError:
                return
            notified: dict[Arrivals, bool] = {}
            with self._lock:
                at = 0
                while at < len(data):
                    number, mask, _, size = _EVENT.unpack_from(data, at)
                    name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
                    at += _EVENT.size + size
                    if mask & _LOST:
                        notified |= {one: True for some in self._readers.values() for one in some}
                    elif mask & _IGNORED:
                        notified |= dict.fromkeys(self._readers.pop(number, ()), False)
                    elif not name.endswith(b".tmp"):
                        notified |= dict.fromkeys(self._readers.get(number, ()), True)
            for one, goes_on in notified.items():
                one.notify(goes_on=goes_on)


@functools.cache
def _watcher() -> _Watcher | None:
    """This process's; None where the system has none, or no more."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    return _Watcher(libc, descriptor) if descriptor >= 0 else None
