"""Directories that one process writes at a time, and that take each other's place.

    PATH, PATH__new, PATH__old: the live one, what a rebuild writes, what was there before
    .NAME.lock next to PATH: locked by who writes PATH or exchanges it, and freed by its end

The file `MARK`, with the live one's name, is in the directory that a rebuild has made. Where it is in
`PATH`, the two were exchanged, and `PATH__new` is the one before. It is removed when that is `PATH__old`, so
a kill in between is completed by the next one. The system exchanges two names at once (Linux: renameat2);
where it can't, `PATH` isn't there for a moment.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final, Self

from penstock.errors import UserError
from penstock.sinks.targets.contract import (
    NEW,
    OLD,
    BaseTarget,
    Rows,
    nothing_before,
    nothing_built,
)
from penstock.sinks.targets.kind import Rebuilt

__all__ = ["FOLDER_RENAMED", "LOCK_MODE", "Folder", "FolderTarget"]

MARK: Final = "penstock-rebuilt"
APART: Final = "__apart"
"""Behind a directory's name, while it is on its way."""
LOCK_MODE: Final = 0o644
"""Of the file that is locked."""
AT_CWD: Final = -100
EXCHANGE: Final = 2
"""Of linux/fcntl.h and linux/fs.h: AT_FDCWD, RENAME_EXCHANGE."""


FOLDER_RENAMED: Final = Rebuilt(
    new="the directory `PATH__new`",
    replaced="the directories are renamed; readers must open the directory again",
    old="`PATH__old`",
)
"""What a rebuild does, for the documentation."""


class Folder:
    """A directory that one process has.

    Args:
        path: of the directory; its parent is created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.new, self.old = (path.with_name(path.name + end) for end in (NEW, OLD))
        self._locks: list[int] = []

    def take(self) -> None:
        """Has the directory, which is created, until `let_go`.

        Raises:
            BlockingIOError: another process has it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock(self.path)
        self._settle()
        self.path.mkdir(exist_ok=True)

    def _lock(self, path: Path) -> None:
        place = path.with_name(f".{path.name}.lock")
        self._locks.append(os.open(place, os.O_CREAT | os.O_RDWR, LOCK_MODE))
        try:
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.let_go()
            raise BlockingIOError(f"{path} is written to by another process") from None

    def let_go(self) -> None:
        """Frees it."""
        while self._locks:
            os.close(self._locks.pop())

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        try:
            self.take()
            yield
        finally:
            self.let_go()

    def beside(self) -> Path:
        """What a rebuild writes; what an earlier one has written stays."""
        if self._is_rebuilt:
            with self._taken():  # completes the switch
                pass
        self.new.mkdir(parents=True, exist_ok=True)
        (self.new / MARK).write_text(self.path.name)
        return self.new

    def switch(self) -> None:
        """Puts what was built in its place.

        Raises:
            UserError: nothing was built.
            BlockingIOError: another process has the directory, or builds.
        """
        with self._taken():
            self._lock(self.new)
            if not (self.new / MARK).exists():
                raise nothing_built(str(self.path))
            _exchange(self.new, self.path)
            self._settle()

    def go_back(self) -> None:
        """Exchanges it and the one before.

        Raises:
            UserError: there is none.
            BlockingIOError: another process has the directory.
        """
        with self._taken():
            if not self.old.exists():
                raise nothing_before(str(self.path))
            _exchange(self.old, self.path)

    @property
    def _is_rebuilt(self) -> bool:
        """Whether the live one was built by a rebuild whose switch isn't complete."""
        mark = self.path / MARK
        return mark.exists() and mark.read_text() == self.path.name

    def _settle(self) -> None:
        """Completes what a kill has interrupted."""
        apart = self.path.with_name(self.path.name + APART)
        if apart.exists():  # where the system exchanges no names
            free = self.new if self._is_rebuilt else self.old
            apart.rename(free if self.path.exists() else self.path)
        if not self._is_rebuilt:
            return
        if self.new.exists():
            shutil.rmtree(self.old, ignore_errors=True)
            self.new.rename(self.old)
        (self.path / MARK).unlink()


class FolderTarget(BaseTarget):
    """A target that is a directory, which has the offsets, too; one process has it.

    Args:
        path: of the directory.
        owner: the sink that it is written for, where a rebuild writes it; None: the one that opens it.
    """

    kind: ClassVar[str]
    """What it is, and what the directory's name ends in."""

    def __init__(self, path: str | Path, owner: str | None) -> None:
        self._path, self._owner = Path(path), owner
        self.table = self._path.name.removesuffix(f".{self.kind}")
        self._folder = Folder(self._path)

    @property
    def name(self) -> str:
        """The directory."""
        return f"{self.kind} {self._path}"

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """A directory that another process writes to; a disk that is full."""
        return (OSError,)

    @abc.abstractmethod
    def _at(self, path: Path, owner: str) -> Self:
        """The same in another directory, for a sink."""

    def _owned_by(self, sink: str, rows: Rows) -> str:
        """What has the directory: a sink and its topic."""
        return f"{self._owner or sink}/{rows.topic}"

    def _others(self, own: str, found: str) -> UserError:
        """What is said where a directory is of another sink, or topic."""
        return UserError(
            f"expected {self._path} to belong to the sink and the topic {own!r}; found that it is "
            f"{found!r}'s. Choose another directory"
        )

    def beside(self, sink: str, rows: Rows) -> Self:  # noqa: ARG002 - offsets are in it
        """A directory with `__new` behind its name, whose offsets are the sink's."""
        return self._at(self._folder.beside(), sink)

    def switch(self, sink: str, rows: Rows) -> None:  # noqa: ARG002
        """Exchanges the directories, while no process has the live one."""
        self._folder.switch()

    def go_back(self, sink: str, rows: Rows) -> None:  # noqa: ARG002
        """Exchanges the directory and the one before."""
        self._folder.go_back()


def _exchange(one: Path, other: Path) -> None:
    """Exchanges the names of two directories."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    arguments = (AT_CWD, os.fsencode(one), AT_CWD, os.fsencode(other), EXCHANGE)
    if rename is not None and rename(*arguments) == 0:
        return
    apart = other.with_name(other.name + APART)
    other.rename(apart)
    one.rename(other)
    apart.rename(one)
