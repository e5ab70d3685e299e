"""Savepoints: versions with a name, whose files stay until they are dropped.

    savepoints/NAME.json     the whole version, behind its checksum, and when it was pinned

Invariant: from the moment `create` returns, no vacuum deletes a file that the savepoint's version refers to.
A vacuum keeps what its newest versions (`versions_kept`) refer to, and what savepoints do. So a pin holds
if its version was still among the kept ones when the pin had been written: a vacuum that began earlier
kept it as a version, one that begins later sees the pin.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.names import known_names, unknown
from penstock.engine.record.plan import Switch
from penstock.engine.record.version import Version
from penstock.engine.store import NO_SAVEPOINTS, Store
from penstock.errors import CorruptError, UserError
from penstock.state.garbage import pieces
from penstock.wire.checksum import crc32c

if TYPE_CHECKING:
    from penstock.state.runs import Piece

__all__ = [
    "Savepoint",
    "check_savepoint",
    "create_savepoint",
    "drop_savepoint",
    "find_savepoint",
    "go_back",
    "list_savepoints",
]

NAME_CHARS_MAX: Final = 100  # it is a file's name
ATTEMPTS_MAX: Final = (
    10  # of pinning a version before it is too old: each takes a millisecond or so
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Savepoint:
    """A pinned version.

    Attributes:
        name: of the savepoint.
        created_us: when it was made, microseconds since 1970 UTC.
        content: the version.
    """

    name: str
    created_us: int
    content: Version

    @property
    def version(self) -> int:
        """The version's number."""
        return self.content.number

    @property
    def bytes(self) -> int:
        """Of the state's files; versions share most of theirs."""
        return sum(piece.bytes for piece in _pieces(self.content))


def create_savepoint(store: Store, name: str, now_us: int) -> Savepoint:
    """Pins the last committed version, and checks every file of it.

    Args:
        store: the pipeline's record; the pipeline may run meanwhile.
        name: letters, digits, `_`, `-` and `.`.
        now_us: the wall clock.

    Raises:
        UserError: the name is none, or taken; or nothing has been committed yet.
        CorruptError: a file of the version isn't what was written; nothing is pinned.
    """
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise UserError(
            f"expected a name of at most {NAME_CHARS_MAX} letters, digits, '_', '-' and '.'; found {name!r}"
        )
    for _ in range(ATTEMPTS_MAX):
        number = store.newest_version()
        if number == 0:
            raise UserError(
                "expected a pipeline that has committed a batch; found none. Run it first"
            )
        try:
            content = store.version(number)
            store.sync(content)
        except FileNotFoundError:
            continue
        if not store.pin(name, content, now_us):
            raise UserError(
                f"expected a new name; found that there is a savepoint {name!r} already. Drop it first, or "
                "choose another name"
            )
        newest = store.newest_version()
        if newest - number < store.versions_kept(newest) - 1:
            break
        store.unpin(name)
    else:
        raise UserError(
            f"expected to pin a version while it is kept; found {ATTEMPTS_MAX} times that the pipeline "
            "had gone too far meanwhile. Try again when the machine is less busy"
        )
    made = Savepoint(name, now_us, content)
    try:
        check_savepoint(store, made)
    except CorruptError:
        store.unpin(name)
        raise
    return made


def check_savepoint(store: Store, savepoint: Savepoint) -> None:
    """Reads every file of a savepoint.

    Raises:
        CorruptError: one is missing, or isn't what was written.
    """
    for piece in _pieces(savepoint.content):
        fault = None
        try:
            data = store.files.map(piece.path)
            if data.size != piece.bytes:
                fault = f"{data.size:,}"
            elif crc32c(memoryview(data)) != piece.crc:
                fault = "other ones"
        except FileNotFoundError:
            fault = "none"
        if fault is not None:
            raise CorruptError(
                f"expected the {piece.bytes:,} bytes that were written in {piece.path}, a file of version "
                f"{savepoint.version}; found {fault}. That version is of no use any more: make a savepoint "
                "of another one, or run the pipeline with --rebuild"
            )


def list_savepoints(store: Store) -> list[Savepoint]:
    """All savepoints, the oldest first."""
    found = [_savepoint(store, name) for name in store.pins()]
    return sorted(found, key=lambda one: (one.created_us, one.name))


def find_savepoint(store: Store, name: str) -> Savepoint:
    """The savepoint of a name.

    Raises:
        UserError: there is none.
    """
    _check_known(store, name)
    return _savepoint(store, name)


def drop_savepoint(store: Store, name: str) -> None:
    """Lets go of a savepoint; the pipeline deletes the files that nothing else needs.

    Raises:
        UserError: there is none of that name.
    """
    _check_known(store, name)
    store.unpin(name)


def go_back(store: Store, name: str, outputs: Collection[str], *, again: bool) -> int:
    """Makes the version of a savepoint the newest one: the pipeline continues from there.

    Versions are never taken back: a new one has the savepoint's content. Its writers are new ones, since
    brokers take the sequences of the old ones for repetitions of what was written after the savepoint.

    Args:
        store: the pipeline's record. A process that runs the pipeline ends.
        name: of the savepoint.
        outputs: the topics that the program writes.
        again: whether what was written there after the savepoint may be written again.

    Returns:
        The number of the new version.

    Raises:
        UserError: there is no such savepoint, or topics would get records twice.
        CorruptError: a file of the savepoint isn't what was written.
    """
    savepoint = find_savepoint(store, name)
    check_savepoint(store, savepoint)
    newest = store.newest_version()
    last: Version | None = None
    with contextlib.suppress(CorruptError):  # a savepoint is a way out of that
        last = store.version(newest) if newest else savepoint.content
    has_read_more = last is None or last.offsets != savepoint.content.offsets
    if outputs and has_read_more and not again:
        raise UserError(
            f"expected to return to {name!r} without writing anything twice; found that the program writes "
            f"{known_names(outputs)}, which may have records from after the savepoint. Use --outputs all to "
            "write them again after the existing records, or name other topics"
        )
    epoch = store.claim(f"a return to the savepoint {name!r}")
    while True:
        number = store.newest_version() + 1
        # An upgrade from here on must not take up one that was made of a later version. What counts in the
        # log was written by what is given up.
        switches = (newest if last is None else last.switches) + 1
        content = replace(
            savepoint.content,
            number=number,
            epoch=epoch,
            writers={},
            incarnation=None,
            switches=switches,
        )
        # Not to be run; but an examination of the record expects the plan of the newest version.
        store.write_plan(Switch(number, f"savepoint {name}", f"savepoint {name}"))
        if store.commit(content):
            return number


def _check_known(store: Store, name: str) -> None:
    names = store.pins()
    if name not in names:
        raise UserError(unknown("savepoint", name, names, NO_SAVEPOINTS))


def _savepoint(store: Store, name: str) -> Savepoint:
    content, created_us = store.pinned(name)
    return Savepoint(name, created_us, content)


def _pieces(version: Version) -> Iterator[Piece]:
    for state in version.states():
        yield from pieces(state)
