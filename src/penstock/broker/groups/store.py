"""Groups that outlive the broker's process: members, epochs and assignments, in a journal.

DATA/groups/members.journal     one JSON record per change, [kind, group, what it is now or null]

The coordinator defines what a change looks like (see `Kept`). A change is in the journal before the
answer that shows it is sent. So a broker that is killed continues where it was: members keep their
generation or epoch and their partitions, and no record is read twice. It is durable with the next
flush; after a power failure members may be refused and join again, as after a session's end.

A full disk doesn't stop groups: a later rewrite adds what could not be written.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from penstock.log.disk.files import LogFiles
from penstock.log.disk.journal import Journal
from penstock.log.errors import StorageError

__all__ = ["GroupStore", "Kept"]

REWRITE_BYTES_MIN: Final = 4 << 20
"""A journal is rewritten when it is larger than this, and than twice what it was after the last
time."""
_log = logging.getLogger(__name__)


class Kept(Protocol):
    """A coordinator whose groups are kept."""

    def take_changes(self) -> Iterable[tuple[str, dict[str, Any] | None]]:
        """Groups that have changed since the last call, each with what `restore` needs; None: the
        group is gone.
        """
        ...

    def snapshot(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """All groups, as changes to nothing."""
        ...

    def restore(self, now_ms: int, group_id: str, change: dict[str, Any] | None) -> None:
        """Applies a change from the journal."""
        ...

    def restored(self) -> None:
        """All changes have been applied."""
        ...


class GroupStore:
    """The groups of one data directory.

    Args:
        files: the data directory.
        kept: the coordinators, by the name that the journal has for them.
        now_ms: the present time on the coordinators' clock; sessions start again.
    """

    def __init__(self, files: LogFiles, kept: Mapping[str, Kept], now_ms: int) -> None:
        self._kept = kept
        self._is_behind = False
        self.journal = Journal(files, "groups/members.journal")
        for body in self.journal:
            kind, group_id, change = json.loads(body)
            if kind in kept:
                kept[kind].restore(now_ms, group_id, change)
        for one in kept.values():
            one.restored()
        self._size_then = self.journal.size
        with contextlib.suppress(OSError):  # a full disk: it is done later
            self.compact()

    def save(self) -> None:
        """Writes what has changed."""
        for kind, one in self._kept.items():
            for group_id, change in one.take_changes():
                if self._is_behind:
                    continue
                try:
                    self.journal.append(_encode(kind, group_id, change))
                except StorageError as error:
                    _log.warning("groups are not saved for now: %s", error)
                    self._is_behind = True

    def compact(self) -> None:
        """Rewrites the journal if that is due. No sync may be under way.

        Raises:
            OSError: the disk refuses; the journal is as before.
        """
        self.save()
        if self.journal.failure is not None:
            return
        if self._is_behind or self.journal.size > max(REWRITE_BYTES_MIN, 2 * self._size_then):
            self.journal.rewrite(
                _encode(kind, group_id, change)
                for kind, one in self._kept.items()
                for group_id, change in one.snapshot()
            )
            self._size_then = self.journal.size
            self._is_behind = False


def _encode(kind: str, group_id: str, change: dict[str, Any] | None) -> bytes:
    return json.dumps([kind, group_id, change], separators=(",", ":")).encode()
