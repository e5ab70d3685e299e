"""Snapshots of tables while their changes flow: in chunks by primary key, that can go on after a kill.

    invariant: a row of a chunk is written only if all changes of its key that were written are in the chunk

Source: Andreakis and Papapanagiotou, "DBLog: A Watermark Based Change-Data-Capture Framework" (2019). A chunk
is read with a snapshot of its own, which says which transactions it has. It is held until the stream has
passed the position at which it was read. Meanwhile, and before, changes were written: where one's
transaction isn't in the chunk's snapshot, the chunk's row is older, and is dropped. Nothing is written
to the database: the snapshot's list of transactions takes the place of DBLog's watermark table.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from penstock.capture._database import TableName, spelled
from penstock.capture._envelope import Headers, Values
from penstock.capture._notifications import INCREMENTAL
from penstock.capture._output import Output
from penstock.capture._postgres._copy import quoted, split
from penstock.capture._postgres._encoder import Encoder
from penstock.capture._postgres._pgoutput import lsn_number
from penstock.capture._postgres._rows import Fragments, Table
from penstock.capture._postgres._server import Server
from penstock.capture._schemas import Shape, Version
from penstock.errors import UserError

__all__ = ["DETAIL", "Incremental", "Progress"]

CHUNK_ROWS: Final = 10_000
"""Rows that are read at a time, and are in memory; changes wait while they are read."""
CHUNK_BYTES: Final = 32 << 20
"""Of these rows, beyond which a chunk has fewer of them."""
LOCK_MS: Final = 2000
"""How long a chunk waits for a table that is locked, and changes with it; then it is tried again."""
RECENT: Final = 20_000
"""Transactions that are remembered: one that has committed may be missing from a snapshot for a moment."""
_PAGE, _SEGMENT = 8192, 16 << 20
_PAGE_HEAD, _SEGMENT_HEAD = 24, 40
DETAIL: Final = "snapshot"
"""Where the progress is in `State.details`."""
_NOTIFIED: Final = {
    "start": "STARTED",
    "pause": "PAUSED",
    "resume": "RESUMED",
    "stop": "ABORTED",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far snapshots are.

    Attributes:
        asked: the newest request that was taken.
        tables: that are to be read; the first is being read.
        where: conditions in SQL, by table.
        cursor: the key up to which the first one was read; empty where nothing was.
        last: its last key when it was begun.
        rows: of it that were read.
        estimate: how many it has, as the database estimates.
        is_paused: whether it waits.
    """

    asked: int = 0
    tables: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    cursor: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    rows: int = 0
    estimate: int = 0
    is_paused: bool = False

    @staticmethod
    def of(details: Mapping[str, Any]) -> Progress:
        """That of a state."""
        told = dict(details.get(DETAIL, {}))
        for name in ("tables", "cursor", "last"):
            told[name] = tuple(told.get(name, ()))
        return Progress(**told)

    @property
    def details(self) -> dict[str, Any]:
        """For a state."""
        return {DETAIL: asdict(self)}

    def after(self, asked: int, request: Mapping[str, Any]) -> Progress:
        """What it is once a request was taken."""
        match request["what"]:
            case "start":
                told = self.with_tables(request["tables"], request.get("where") or "")
                return replace(told, asked=asked)
            case "pause" | "resume":
                return replace(self, asked=asked, is_paused=request["what"] == "pause")
            case _:
                return Progress(asked=asked)

    def with_tables(self, tables: Iterable[str], where: str = "") -> Progress:
        """What it is with tables to be read from their beginning, also one that is being read."""
        added = dict.fromkeys(tables, where)
        rest = self.following if self.tables and self.tables[0] in added else self
        kept = tuple(one for one in rest.tables if one not in added)
        return replace(rest, tables=(*kept, *added), where={**rest.where, **added})

    @property
    def following(self) -> Progress:
        """What it is once the first table was read."""
        return replace(self, tables=self.tables[1:], cursor=(), last=(), rows=0, estimate=0)


@dataclass
class _Chunk:
    """Rows that wait to be written.

    Attributes:
        topic: where to.
        table: how they were read.
        rows: by key.
        high: the position that has to be passed.
        visible: whether a transaction is in it.
        next: the progress once they are written.
        count: of rows that were read.
        last: the key of the last one.
        end: the last key of the table.
        shape: what the table looked like.
        known: the version that the stream had come to then.
    """

    topic: str
    table: Table
    rows: dict[bytes | None, Fragments]
    high: int
    visible: Callable[[int], bool]
    next: Progress
    count: int
    last: tuple[str, ...]
    end: tuple[str, ...]
    shape: Shape
    known: Version | None


class Incremental:
    """Snapshots that were asked for; belongs to a stream.

    Args:
        url: of the database.
        encoder: makes records.
        values: how they are written.
        output: where to; its state says how far it is.
        alive: tells the database that the capture is there; called often while something takes long.
    """

    def __init__(
        self,
        url: str,
        encoder: Encoder,
        values: Values,
        output: Output,
        alive: Callable[[], None],
    ) -> None:
        self._alive = alive
        self._server, self._encoder, self._values = Server(url), encoder, values
        self._output, self._put = output, output.put
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._chunk: _Chunk | None = None
        self._hides = False
        self._requests: list[tuple[int, Mapping[str, Any]]] = []
        self.progress = Progress.of(output.state.details)

    def close(self) -> None:
        """Closes the connection."""
        self._server.close()

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request, once: `start` with `tables` and `where`, `pause`, `resume` or `stop`."""
        newest = max([self.progress.asked, *(asked for asked, _ in self._requests)])
        if number > newest:
            self._requests.append((number, request))

    @property
    def has_chunk(self) -> bool:
        """Whether rows wait to be written."""
        return self._chunk is not None

    # -- changes ----------------------------------------------------------------------------------------

    def begin(self, xid: int) -> None:
        """A transaction's changes follow."""
        self._recent.append(xid)
        self._hides = self._chunk is not None and not self._chunk.visible(xid)

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """A record of a change; what the chunk has of its key is older where it doesn't have the change."""
        if self._hides and self._chunk is not None and topic == self._chunk.topic:
            self._chunk.rows.pop(key, None)
        self._put(topic, key, value, time_ms, headers)

    def truncated(self, topic: str) -> None:
        """A table was emptied."""
        if self._hides and self._chunk is not None and topic == self._chunk.topic:
            self._chunk.rows.clear()

    # -- chunks -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Between transactions: takes requests, reads a chunk, writes it in time. Whether it wrote."""
        for number, request in self._requests:
            if request["what"] != "resume":
                self._chunk = None  # it is read again
            progress = self.progress.after(number, request)
            self._notify(_NOTIFIED[request["what"]], progress if progress.tables else self.progress)
            self._keep(progress)
        self._requests.clear()
        if self._chunk is None and self.progress.tables and not self.progress.is_paused:
            self._try_to_read()
        if self._chunk is None or self._output.received < self._chunk.high:
            return False
        return self._write(self._chunk)

    def _write(self, chunk: _Chunk) -> bool:
        self._chunk, output = None, self._output
        time_us = output.state.time_us or time.time_ns() // 1000
        self._encoder.at(time.time_ns() // 1000, None, output.position)
        relation, known = chunk.table.relation, output.schemas.known
        name = (relation.schema, relation.name)
        if known.get(spelled(name)) == chunk.known:  # else the stream knows a newer one
            output.describe(name, chunk.shape, self._encoder.time_ms)
        for row in chunk.rows.values():
            key, value = self._encoder.read(chunk.table, row, chunk.high, b"incremental")
            self._put(chunk.topic, key, value, self._encoder.time_ms)
        output.done.snapshot_rows += len(chunk.rows)
        if chunk.count:
            told = {
                "maximum_key": ",".join(chunk.end),
                "last_processed_key": ",".join(chunk.last),
            }
            table = self.progress.tables[0]
            self._notify("IN_PROGRESS", self.progress, current_collection_in_progress=table, **told)
        if chunk.next.tables != self.progress.tables:
            table = self.progress.tables[0]
            if not self.progress.where.get(table):  # all of its rows were read
                for _ in output.forget_unseen(table):
                    self._alive()
            count = self.progress.rows + chunk.count
            self._completed("SUCCEEDED" if count else "EMPTY", count)
        self.progress = chunk.next
        output.committed(output.position, time_us, self.progress.details)
        return True

    def _notify(self, what: str, progress: Progress, **more: str | int) -> None:
        id_ = str(progress.asked or "initial")
        self._output.notify(INCREMENTAL, what, id_, progress.tables, **more)

    def _completed(self, status: str, rows: int) -> None:
        """A table was read, or can't be."""
        progress = self.progress
        told: dict[str, str | int] = {"scanned_collection": progress.tables[0], "status": status}
        self._notify("TABLE_SCAN_COMPLETED", progress, total_rows_scanned=rows, **told)
        if not progress.following.tables:
            self._notify("COMPLETED", progress.following)

    def _keep(self, progress: Progress) -> None:
        self.progress = progress
        state = self._output.state
        self._output.commit(replace(state, details={**state.details, **progress.details}))

    def _try_to_read(self) -> None:
        """Reads the next chunk; leaves out a table that can't be read, and waits for one that is locked."""
        from psycopg import errors

        try:
            self._read()
        except errors.LockNotAvailable:
            return
        except (errors.ProgrammingError, errors.DataError, UserError) as error:
            _log.warning("%s: no snapshot of it: %s", self.progress.tables[0], str(error).strip())
            self._completed("SQL_EXCEPTION", self.progress.rows)
            self._keep(self.progress.following)

    def _read(self) -> None:
        """Reads the next chunk; nothing where the snapshot lacks a transaction that was written."""
        sql = self._server.sql
        with sql.transaction():
            sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            sql.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
            [(snapshot, insert)] = self._server.ask(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
            )
            visible = _visible(snapshot)
            if not all(visible(xid) for xid in self._recent):
                return
            name = self._name(self.progress.tables[0])
            watched = self._output.tables.get(self.progress.tables[0])
            if name is None or watched is None:  # it was dropped, or isn't captured any more
                self._completed("UNKNOWN_SCHEMA", self.progress.rows)
                self._keep(self.progress.following)
                return
            relation = self._server.relation(name)
            facts = self._server.facts(relation.oid)
            table = Table(relation, facts, self._server.types, self._values)
            shape = self._server.shape(relation, facts, table.key)
            rows, following, last, end = self._rows(name, table, facts.primary_key)
        high = _flushed(lsn_number(insert))
        told = (watched.topic, table, rows, high, visible)
        known = self._output.schemas.known.get(spelled(name))
        self._chunk = _Chunk(*told, following, len(rows), last, end, shape, known)
        self._hides = False

    def _name(self, told: str) -> TableName | None:
        found = self._server.ask(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = %s",
            told,
        )
        return (found[0][0], found[0][1]) if found else None

    def _rows(
        self, name: TableName, table: Table, key: tuple[str, ...]
    ) -> tuple[dict[bytes | None, Fragments], Progress, tuple[str, ...], tuple[str, ...]]:
        """A chunk's rows, what the progress is once they are written, their last key, and the table's."""
        progress = self.progress
        if not table.has_primary_key:
            raise UserError(
                f"expected the table {spelled(name)} to have a primary key that its records are keyed by; "
                "found none"
            )
        keys = ", ".join(quoted(one) for one in key)
        source = f"{quoted(name[0])}.{quoted(name[1])}"
        where = [f"({told})"] if (told := progress.where.get(spelled(name))) else []
        if not progress.last:
            order = ", ".join(f"{quoted(one)} DESC" for one in key)
            text = f"SELECT {keys} FROM {source} {_where(where)} ORDER BY {order} LIMIT 1"
            found = list(self._copy(text))
            if not found:
                return {}, progress.following, (), ()
            estimate = max(self._server.estimated_rows(name), 0)
            progress = replace(progress, last=_texts(found[0]), estimate=estimate)
        where.append(f"({keys}) <= ({self._literals(progress.last)})")
        if progress.cursor:
            where.append(f"({keys}) > ({self._literals(progress.cursor)})")
        columns = [one.name for one in table.relation.columns]
        listed = ", ".join(quoted(one) for one in columns)
        rest = f"FROM {source} {_where(where)} ORDER BY {keys} LIMIT {CHUNK_ROWS}"
        rows: dict[bytes | None, Fragments] = {}
        newest: list[bytes | None] = []
        count = size = 0
        with contextlib.closing(self._copy(f"SELECT {listed} {rest}")) as found_rows:
            for newest in found_rows:
                row = table.of_texts(newest)
                rows[table.key_of(row)] = row
                count, size = count + 1, size + sum(map(len, row))
                if size > CHUNK_BYTES:
                    break
        cursor = _texts([newest[columns.index(one)] for one in key]) if count else ()
        if count < CHUNK_ROWS and size <= CHUNK_BYTES:
            return rows, progress.following, cursor, progress.last
        return (
            rows,
            replace(progress, cursor=cursor, rows=progress.rows + count),
            cursor,
            progress.last,
        )

    def _copy(self, query: str) -> Generator[list[bytes | None], None, None]:
        with self._server.sql.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for line in copy:
                yield split(bytes(line))

    def _literals(self, texts: tuple[str, ...]) -> str:
        return ", ".join(self._server.literal(one) for one in texts)


def _where(conditions: list[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def _texts(values: list[bytes | None]) -> tuple[str, ...]:
    return tuple((one or b"").decode() for one in values)


def _visible(snapshot: str) -> Callable[[int], bool]:
    """Whether a transaction is in a snapshot, from `xmin:xmax:xip,…`; numbers count in a circle.

    >>> sees = _visible("4294967300:4294967310:4294967300,4294967305")
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
