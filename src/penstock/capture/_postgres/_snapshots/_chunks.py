"""Chunks of a table, read ahead by several connections, in the order of its primary key.

    a lock: where the next chunk ends  ->  a connection each: the chunk's rows  ->  the queue, in key order

The rows of a chunk are those of one snapshot of the database, another one for each chunk. `Incremental` says
which of them are older than what is written.

    invariant: each key from the cursor to the table's last one is in exactly one chunk of the queue, or
               behind all of them
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from penstock.capture._database import TableName, spelled
from penstock.capture._envelope import Values
from penstock.capture._postgres._copy import quoted, split
from penstock.capture._postgres._pgoutput import Relation, lsn_number
from penstock.capture._postgres._rows import Facts, Table
from penstock.capture._postgres._server import Server, has_no_room
from penstock.capture._postgres._snapshots._blocks import Rows, rows_of
from penstock.capture._schemas import Shape, Version
from penstock.errors import UserError

__all__ = ["CONNECTIONS", "Chunk", "Chunks", "GoneError", "Key", "Mark", "Part"]

CHUNK_ROWS: Final = 20_000
"""Rows of a chunk."""
CHUNK_BYTES: Final = 16 << 20
"""Of these rows, beyond which a chunk has fewer of them."""
CONNECTIONS: Final = 3
"""That read chunks at a time."""
AGAIN_S: Final = 0.02
"""How long a chunk waits for a transaction that a snapshot lacks; longer where a standby must confirm it."""
CLOSE_S: Final = 5.0
"""After which reads that a server doesn't end lose their connections."""
AHEAD: Final = 2
"""Chunks that are in memory in addition to those that are being read."""
_log = logging.getLogger(__name__)
_PAGE, _SEGMENT = 8192, 16 << 20
_PAGE_HEAD, _SEGMENT_HEAD = 24, 40

Key: TypeAlias = tuple[str, ...]
"""The texts of a row's primary key; empty: none."""


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
        table: how they were read; None: the table has no rows.
        rows: as JSON; None: there are none.
        end: the key up to which they were read: all of them, or as many as a chunk may have.
        mark: how far the stream was before they were read; all of its transactions are in them.
        high: the position of the database's log that has all that is in them.
        visible: whether a transaction is in them.
        shape: what the table looked like.
    """

    part: Part
    table: Table | None = None
    rows: Rows | None = None
    end: Key = ()
    mark: Mark = field(default_factory=lambda: Mark(0))
    high: int = 0
    visible: Callable[[int], bool] = lambda _: True
    shape: Shape | None = None

    @property
    def count(self) -> int:
        """Of rows."""
        return 0 if self.rows is None else len(self.rows.keys)

    @property
    def is_last(self) -> bool:
        """Whether nothing of the table is behind it."""
        return self.end == self.part.last


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
        url: of the database.
        values: how they are written.
        part: what is to be read.
        connections: that read at a time.
        mark: how far the stream is; asked in other threads.
        ready: called in other threads, when a chunk has been read.
    """

    def __init__(
        self,
        url: str,
        values: Values,
        part: Part,
        connections: int,
        *,
        mark: Callable[[], Mark],
        ready: Callable[[], None],
    ) -> None:
        self._values, self._mark, self._ready = values, mark, ready
        self._part, self._after, self._is_planned = part, part.after, False
        self._jobs: deque[_Job] = deque()  # in the order of keys
        self._todo: deque[_Job] = deque()
        self._room, self._is_closed = connections + AHEAD, False
        self._changed, self._readers = threading.Condition(), connections
        self._planning = threading.Lock()
        self._servers = [Server(url) for _ in range(connections)]
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name="penstock-chunks", daemon=True)
            for one in self._servers
        ]
        for one in self._threads:
            one.start()

    def close(self) -> None:
        """Ends the reads, and closes the connections."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_S
        for thread, server in zip(self._threads, self._servers, strict=True):
            while thread.is_alive():
                server.cancel()
                thread.join(0.1)
                if time.monotonic() > deadline:
                    server.sever()

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

    def _work(self, server: Server) -> None:
        reader = _Reader(server, self._values)
        try:
            while (job := self._next(reader)) is not None:
                self._read(reader, job)
                self._ready()
        except _NoRoomError:
            _log.warning("%s: the server has no room for another connection", self._part.table)
        finally:
            server.close()

    def _leave(self, error: Exception) -> None:
        """Leaves the reads to the other connections, if this one isn't to be had.

        Raises:
            _NoRoomError: it isn't, and there are others.
        """
        with self._changed:
            if self._readers > 1 and has_no_room(error):
                self._readers -= 1
                raise _NoRoomError from error

    def _next(self, reader: _Reader) -> _Job | None:
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

    def _plan(self, reader: _Reader) -> _Job | None:
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
            self._leave(error)
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

    def _read(self, reader: _Reader, job: _Job) -> None:
        result: Chunk | Exception | None = None
        while result is None:
            with self._changed:
                job.mark = self._mark()
            try:
                result = reader.read(self._part, job.after, job.end, job.mark)
            except Exception as error:  # noqa: BLE001 - raised by `first`
                try:
                    self._leave(error)
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


class _Reader:
    """What one connection reads; belongs to one thread."""

    def __init__(self, server: Server, values: Values) -> None:
        self._server, self._values = server, values
        self._known: tuple[Relation, Facts, Table, Shape] | None = None

    def opened(self, part: Part) -> Part:
        """A part with its last key and an estimate; without one where there are no rows."""
        name = self._name(part)
        with self._locked(name):
            key = self._keyed(name)[0].key
            columns = ", ".join(quoted(one) for one in key)
            order = ", ".join(f"{quoted(one)} DESC" for one in key)
            rows = [
                *self._copy(f"SELECT {columns} {_from(name, part, [])} ORDER BY {order} LIMIT 1")
            ]
            if not rows:
                return part
            last = tuple((one or b"").decode() for one in split(rows[0]))
            return replace(part, last=last, estimate=max(self._server.estimated_rows(name), 0))

    def end(self, part: Part, after: Key) -> Key:
        """The last key of the chunk behind a key."""
        name = self._name(part)
        with self._locked(name):
            key = self._keyed(name)[0].key
            columns = ", ".join(quoted(one) for one in key)
            conditions = self._between(key, after, part.last)
            rows = [
                *self._copy(
                    f"SELECT {columns} {_from(name, part, conditions)} ORDER BY {columns} "
                    f"OFFSET {CHUNK_ROWS - 1} LIMIT 1"
                )
            ]
        return tuple((one or b"").decode() for one in split(rows[0])) if rows else part.last

    def read(self, part: Part, after: Key, end: Key, mark: Mark) -> Chunk | None:
        """A chunk; None: its snapshot would lack a transaction that the stream has sent."""
        name = self._name(part)
        with self._locked(name):
            [(snapshot, insert)] = self._server.ask(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
            )
            visible = visible_in(snapshot)
            if not all(map(visible, mark.recent)):
                return None
            table, shape = self._keyed(name)
            columns = ", ".join(quoted(one.name) for one in table.relation.columns)
            order = ", ".join(quoted(one) for one in table.key)
            lines, size = [], 0
            query = (
                f"SELECT {columns} {_from(name, part, self._between(table.key, after, end))} "
                f"ORDER BY {order} LIMIT {2 * CHUNK_ROWS}"
            )
            with contextlib.closing(self._copy(query)) as found_lines:
                for line in found_lines:
                    lines.append(line)
                    size += len(line)
                    if size > CHUNK_BYTES:
                        break
        rows = rows_of(table, b"".join(lines), table.key) if lines else None
        is_cut = rows is not None and (size > CHUNK_BYTES or len(lines) == 2 * CHUNK_ROWS)
        return Chunk(
            part,
            table,
            rows,
            rows.last if rows is not None and is_cut else end,
            mark,
            _flushed(lsn_number(insert)),
            visible,
            shape,
        )

    @contextlib.contextmanager
    def _locked(self, name: TableName) -> Generator[None, None, None]:
        """A transaction whose snapshot is taken when the table is locked, so that it isn't altered.

        A table that ALTER TABLE has rewritten is empty to snapshots that were taken before (PostgreSQL's
        documentation, "Caveats" of concurrency control).
        """
        sql = self._server.sql
        with sql.transaction():
            sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            sql.execute(f"LOCK TABLE {quoted(name[0])}.{quoted(name[1])} IN ACCESS SHARE MODE")
            yield

    def _name(self, part: Part) -> TableName:
        """A table's name.

        Raises:
            GoneError: it was dropped.
        """
        found = self._server.ask(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = %s",
            part.table,
        )
        if not found:
            raise GoneError(f"expected the table {part.table}; found that it was dropped")
        return found[0][0], found[0][1]

    def _keyed(self, name: TableName) -> tuple[Table, Shape]:
        """A table as it is now.

        Raises:
            UserError: it has no primary key.
        """
        table, shape = self._table(name)
        if not table.has_primary_key:
            raise UserError(
                f"expected the table {spelled(name)} to have a primary key that its records are keyed by; "
                "found none"
            )
        return table, shape

    def _table(self, name: TableName) -> tuple[Table, Shape]:
        relation = self._server.relation(name)
        facts = self._server.facts(relation.oid)
        if self._known is None or self._known[:2] != (relation, facts):
            table = Table(relation, facts, self._server.types, self._values)
            shape = self._server.shape(relation, facts, table.key)
            self._known = relation, facts, table, shape
        return self._known[2:]

    def _between(self, key: Key, after: Key, end: Key) -> list[str]:
        """Conditions: behind a key, up to another one."""
        names = ", ".join(quoted(one) for one in key)
        made = [f"({names}) <= ({self._literals(end)})"]
        return [*made, f"({names}) > ({self._literals(after)})"] if after else made

    def _literals(self, key: Key) -> str:
        return ", ".join(self._server.literal(one) for one in key)

    def _copy(self, query: str) -> Generator[bytes, None, None]:
        """The lines of COPY."""
        with self._server.sql.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for line in copy:
                yield bytes(line)


def _from(name: TableName, part: Part, conditions: list[str]) -> str:
    some = [*conditions, f"({part.where})"] if part.where else conditions
    where = f" WHERE {' AND '.join(some)}" if some else ""
    return f"FROM {quoted(name[0])}.{quoted(name[1])}{where}"


def visible_in(snapshot: str) -> Callable[[int], bool]:
    """Whether a transaction is in a snapshot, from `xmin:xmax:xip,…`; numbers count in a circle.

    >>> sees = visible_in("4294967300:4294967310:4294967300,4294967305")
    >>> [sees(xid) for xid in (4294967290, 3, 4, 5, 9, 13, 14)]
    [True, True, False, True, False, True, False]
    """
    _, end, running = snapshot.split(":")
    xmax = int(end)
    some = {int(one) & 0xFFFFFFFF for one in running.split(",") if one}

    def visible(xid: int) -> bool:
        return (xmax - 1 - xid) & 0xFFFFFFFF < 1 << 31 and xid not in some

    return visible


def _flushed(insert: int) -> int:
    """The position that is flushed once all before the next record is: without the head of a new page.

    >>> _flushed(8192 + 24), _flushed(8192 + 25), _flushed((16 << 20) + 40)
    (8192, 8217, 16777216)
    """
    if insert % _SEGMENT == _SEGMENT_HEAD:
        return insert - _SEGMENT_HEAD
    return insert - _PAGE_HEAD if insert % _PAGE == _PAGE_HEAD else insert
