"""Chunks of a table, read ahead by several connections, in the order of its primary key.

    a lock: where the next chunk ends  ->  a connection each: the chunk's rows  ->  the queue, in key order

The rows of a chunk are those of one snapshot of the database, another one for each chunk. `Incremental` says
which of them are older than what is written. A kind of database gives a `Reader` for each connection.

    invariant: each key from the cursor to the table's last one is in exactly one chunk of the queue, or
               behind all of them
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from penstock.capture.database import TableName
from penstock.capture.table_schemas import Shape, Version
from penstock.capture.unread import Lost
from penstock.errors import UserError

__all__ = ["CONNECTIONS", "Chunk", "Chunks", "GoneError", "Key", "Mark", "Part", "Reader", "Rows"]

CONNECTIONS: Final = 3
"""That read chunks at a time."""
AGAIN_S: Final = 0.02
"""How long a chunk waits for a transaction that a snapshot lacks; longer where a standby must confirm it."""
CLOSE_S: Final = 5.0
"""After which reads that a server doesn't end lose their connections."""
AHEAD: Final = 2
"""Chunks that are in memory in addition to those that are being read."""
_log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, ...]
"""The texts of a row's primary key; empty: none."""


class Rows(NamedTuple):
    """Rows as JSON, binary: of their keys, and of the rows; the key of the last one as texts; by row, the
    values that aren't written.
    """

    keys: pa.Array[Any]
    values: pa.Array[Any]
    last: tuple[str, ...]
    lost: Mapping[int, tuple[Lost, ...]] = MappingProxyType({})


class _NoRoomError(Exception):
    """The server has as many connections as it allows."""


class GoneError(UserError):
    """A table was dropped."""


@dataclass(frozen=True)
class Part:
    """What is to be read of a table.

    Attributes:
        table: `schema.table`.
        where: a condition in SQL; empty: all rows.
        after: the key behind which it begins; empty: the first one.
        last: the last key; empty: it isn't known yet.
        estimate: of rows, as the database estimates.
    """

    table: str
    where: str = ""
    after: Key = ()
    last: Key = ()
    estimate: int = 0


class Mark(NamedTuple):
    """How far the stream was before a chunk was read.

    Attributes:
        number: of its transactions that had begun.
        known: the version of the table's schema that it had come to.
        recent: those of the transactions that a snapshot may lack: one is sent before all see it.
    """

    number: int
    known: Version | None = None
    recent: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """Rows that were read.

    Attributes:
        part: what they are of, with the last key of the whole table.
        name: of the table; None: it has no rows.
        rows: as JSON; None: there are none.
        end: the key up to which they were read: all of them, or as many as a chunk may have.
        mark: how far the stream was before they were read; all of its transactions are in them.
        high: the position of the database's log that has all that is in them.
        visible: whether a transaction is in them.
        shape: what the table looked like.
        way: how they were read, of a kind of database.
    """

    part: Part
    name: TableName | None = None
    rows: Rows | None = None
    end: Key = ()
    mark: Mark = field(default_factory=lambda: Mark(0))
    high: int = 0
    visible: Callable[[int], bool] = lambda _: True
    shape: Shape | None = None
    way: Any = None

    @property
    def count(self) -> int:
        """Of rows."""
        return 0 if self.rows is None else len(self.rows.keys)

    @property
    def is_last(self) -> bool:
        """Whether nothing of the table is behind it."""
        return self.end == self.part.last


class Reader(Protocol):
    """What one connection reads; belongs to one thread, but for `cancel` and `sever`."""

    def opened(self, part: Part) -> Part:
        """A part with its last key and an estimate; without one where there are no rows."""

    def end(self, part: Part, after: Key) -> Key:
        """The last key of the chunk behind a key."""

    def read(self, part: Part, after: Key, end: Key, mark: Mark) -> Chunk | None:
        """A chunk; None: its snapshot would lack a transaction that the stream has sent.

        Raises:
            GoneError: the table was dropped.
        """

    def has_no_room(self, error: Exception) -> bool:
        """Whether the server has refused a connection because there are as many as it allows."""

    def cancel(self) -> None:
        """Cancels the query that runs; from any thread."""

    def sever(self) -> None:
        """Ends the connection, also if the server doesn't answer; from any thread."""

    def close(self) -> None:
        """Closes the connection."""


@dataclass(eq=False)
class _Job:
    """A chunk to be read: up to a key. `mark` is that of `Chunk`, while it is being read and afterwards."""

    after: Key
    end: Key
    mark: Mark | None = None
    result: Chunk | Exception | None = None


class Chunks:
    """Reads a part of a table in threads, until it is closed; belongs to one thread.

    Args:
        readers: one for each connection.
        part: what is to be read.
        mark: how far the stream is; asked in other threads.
        ready: called in other threads, when a chunk has been read.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        part: Part,
        *,
        mark: Callable[[], Mark],
        ready: Callable[[], None],
    ) -> None:
        self._mark, self._ready = mark, ready
        self._part, self._after, self._is_planned = part, part.after, False
        self._jobs: deque[_Job] = deque()  # in the order of keys
        self._todo: deque[_Job] = deque()
        self._room, self._is_closed = len(readers) + AHEAD, False
        self._changed, self._left = threading.Condition(), len(readers)
        self._planning = threading.Lock()
        self._readers = readers
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name="penstock-chunks", daemon=True)
            for one in self._readers
        ]
        for one in self._threads:
            one.start()

    def close(self) -> None:
        """Ends the reads, and closes the connections."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_S
        for thread, reader in zip(self._threads, self._readers, strict=True):
            while thread.is_alive():
                reader.cancel()
                thread.join(0.1)
                if time.monotonic() > deadline:
                    reader.sever()

    def first(self) -> Chunk | None:
        """The chunk that is next; None: it isn't read yet.

        Raises:
            Exception: of the database, with which it was not read.
        """
        with self._changed:
            found = self._jobs[0].result if self._jobs else None
        if isinstance(found, Exception):
            raise found
        return found

    def pop(self) -> None:
        """Takes the next chunk out of the queue; what it doesn't have up to its end is read next."""
        with self._changed:
            job = self._jobs.popleft()
            assert isinstance(job.result, Chunk), "a chunk that wasn't read"
            if job.result.end != job.end:
                rest = _Job(job.result.end, job.end)
                self._jobs.appendleft(rest)
                self._todo.appendleft(rest)
            self._changed.notify_all()

    def oldest(self, number: int) -> int:
        """The smallest number of the chunks that are read, or being read; by default this one."""
        with self._changed:
            return min([number, *(one.mark.number for one in self._jobs if one.mark is not None)])

    # -- in other threads -------------------------------------------------------------------------------

    def _work(self, reader: Reader) -> None:
        try:
            while (job := self._next(reader)) is not None:
                self._read(reader, job)
                self._ready()
        except _NoRoomError:
            _log.warning("%s: the server has no room for another connection", self._part.table)
        finally:
            reader.close()

    def _leave(self, reader: Reader, error: Exception) -> None:
        """Leaves the reads to the other connections, if this one can't be used.

        Raises:
            _NoRoomError: it isn't, and there are others.
        """
        with self._changed:
            if self._left > 1 and reader.has_no_room(error):
                self._left -= 1
                raise _NoRoomError from error

    def _next(self, reader: Reader) -> _Job | None:
        """A chunk to be read; None: it is over."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._is_closed
                        or self._todo
                        or (len(self._jobs) < self._room and not self._is_planned)
                    )
                )
                if self._is_closed:
                    return None
                if self._todo:
                    return self._todo.popleft()
            with self._planning:
                if (job := self._plan(reader)) is not None:
                    return job

    def _plan(self, reader: Reader) -> _Job | None:
        """The chunk behind the newest one; None: there is no room for it, or it has begun otherwise."""
        with self._changed:
            if self._is_planned or self._is_closed or len(self._jobs) >= self._room:
                return None
            part, after = self._part, self._after
        try:
            if not part.last:
                part = reader.opened(part)
            end = reader.end(part, after) if part.last else ()
            job = _Job(after, end)
        except Exception as error:  # noqa: BLE001 - raised by `first`
            self._leave(reader, error)
            job = _Job(after, (), result=error)
        with self._changed:
            self._part, self._after = part, job.end
            self._is_planned = job.result is not None or job.end == part.last
            if not part.last and job.result is None:
                job.result = Chunk(part)  # it has no rows, or it is gone
            self._jobs.append(job)
            self._changed.notify_all()
        self._ready()
        return job if job.result is None else None

    def _read(self, reader: Reader, job: _Job) -> None:
        result: Chunk | Exception | None = None
        while result is None:
            with self._changed:
                job.mark = self._mark()
            try:
                result = reader.read(self._part, job.after, job.end, job.mark)
            except Exception as error:  # noqa: BLE001 - raised by `first`
                try:
                    self._leave(reader, error)
                except _NoRoomError:
                    with self._changed:
                        job.mark = None
                        self._todo.appendleft(job)
                        self._changed.notify_all()
                    raise
                result = error
            with self._changed:
                job.result = result
                if result is None and self._changed.wait_for(lambda: self._is_closed, AGAIN_S):
                    return
