"""Next to the batches: versions are settled, and files that are no longer needed are deleted.

A version is *settled* when it and its state have been written to the disk, so that they survive the
machine. Where driver and lanes share a machine, batches don't wait for that: what a process has written
survives the process anyway. They wait for their plans alone.

    plan 7 (on the disk)  version 7      plan 8 (on the disk)  version 8      …
                          settled                              not yet

Invariant: the plans of all batches after the settled version are on the disk, and of these batches at
most the last one has written to topics. So what a machine loses when it stops is computed again from the
plans, and is the same; topics have it already, and recognise the one batch (`Store.recover`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from penstock.engine.record.version import Version
from penstock.engine.store import VERSIONS_KEPT, Store

__all__ = ["Keeper"]

SETTLE_EVERY_S: Final = 1.0
"""Between two times: what a machine that stops has to compute again. A settling costs some syncs."""
VACUUM_EVERY: Final = 16
"""Versions: often enough that files stay few, rarely enough to cost nothing."""
VACUUM_SHARE: Final = 4
"""A vacuum reads all versions that are kept: of many, only when a fourth of as many have been committed."""


class Keeper:
    """The upkeep of one pipeline's record. Its methods are for the driver's thread.

    Args:
        store: the record.
        relaxed: whether batches continue before their versions are settled.
        beside: whether the work is done in a thread, while batches continue.
    """

    def __init__(self, store: Store, *, relaxed: bool = False, beside: bool = False) -> None:
        self.store, self.relaxed, self._beside = store, relaxed, beside
        self._settled: int | None = None if relaxed else 0
        self._settled_s = 0.0
        self._vacuumed = 0
        self._has_written = False
        self._gone: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def committed(self, version: Version, *, has_written: bool) -> None:
        """Takes note of a version; does what is due.

        Args:
            version: that was committed just now.
            has_written: whether its batch wrote to topics.

        Raises:
            OSError: files can't be written, or deleted.
        """
        self._has_written = self._has_written or has_written
        self._look(version)

    def before(self, version: Version) -> None:
        """Does what is due before another batch is begun, and while nothing happens.

        Args:
            version: the last one.

        Raises:
            OSError: files can't be written, or deleted.
        """
        if self.relaxed and (self._settled is None or self._has_written):
            self.settle(version)
        else:
            self._look(version)

    def settle(self, version: Version) -> None:
        """Settles a version now, if it isn't.

        Raises:
            OSError: files can't be written.
        """
        self._join()
        if self.relaxed and self._settled != version.number:
            self._settle(version)
        self._has_written = False

    def needed(self, upgrades: Iterable[str]) -> list[str]:
        """Those upgrades of which files are still needed."""
        return [name for name in upgrades if name not in self._gone]

    def _look(self, version: Version) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._join()
        number = version.number
        wants_settling = (
            self.relaxed
            and self._settled != number
            and time.monotonic() - self._settled_s >= SETTLE_EVERY_S
        )
        if not wants_settling and not self._wants_vacuum(version):
            return
        if not self._beside:
            self._work(version)
            return
        self._thread = threading.Thread(
            target=self._worked, args=(version,), name="penstock-upkeep", daemon=True
        )
        self._thread.start()

    def _wants_vacuum(self, version: Version) -> bool:
        every = max(VACUUM_EVERY, (version.versions_kept or VERSIONS_KEPT) // VACUUM_SHARE)
        return version.number - self._vacuumed >= every

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _worked(self, version: Version) -> None:
        try:
            self._work(version)
        except BaseException as error:  # noqa: BLE001 - raised on the driver's thread
            self._failure = error

    def _work(self, version: Version) -> None:
        number = version.number
        if self.relaxed and self._settled != number:
            self._settle(version)
        if self._wants_vacuum(version):
            self._vacuumed = number
            states = self.store.states_kept(number)
            self.store.vacuum(number, states)
            gone = [
                name for name in version.upgrades if not self.store.vacuum_upgrade(name, states)
            ]
            self._gone = self._gone.union(gone)

    def _settle(self, version: Version) -> None:
        self.store.settle(version)
        self._settled, self._settled_s = version.number, time.monotonic()
