"""Chunks of MySQL's and MariaDB's tables: those of a place in the binary log each.

    invariant: a chunk has the changes of all groups that begin before its place, and of no other

MariaDB says at which place a transaction with a consistent snapshot is. With MySQL, the table is locked for
writes while such a transaction begins and the place is read: all who have written to the table have committed
by then, also to the engine, and nobody else writes. Nothing is written to the database.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.capture.chunked import Chunk, GoneError, Key, Mark, Part, Rows, wrapped
from penstock.capture.chunked import Reader as AnyReader
from penstock.capture.database import TableName, spelled, unspelled
from penstock.capture.databases.mysql.binlog import Places
from penstock.capture.databases.mysql.charsets import BINARY
from penstock.capture.databases.mysql.columns import Column, Definition, shape_of
from penstock.capture.databases.mysql.encoder import Encoder
from penstock.capture.databases.mysql.server import READ_S, Server, ask, quoted
from penstock.capture.databases.mysql.snapshots import Makes, Packets, read
from penstock.capture.envelope import Values
from penstock.capture.unread import Lost
from penstock.errors import UserError

__all__ = ["MysqlWays", "Reader", "unordered"]

CHUNK_ROWS: Final = 20_000
"""Rows of a chunk."""
CHUNK_BYTES: Final = 16 << 20
"""Of these rows, beyond which a chunk has fewer of them."""
LOCK_S: Final = 1
"""How long is waited for a lock of a table at a time; who comes later waits as well."""
_ALTERED, _LOCK_TIME, _TOO_MANY, _TOO_MANY_OF_USER = 1412, 1205, 1040, 1203
_WRONG: Final = {1054, 1305}
"""Errors of a condition: a column, or a function, that there isn't."""
_INTEGERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "decimal"}
_ORDERED: Final = {
    *_INTEGERS,
    *("char", "varchar", "binary", "varbinary", "date", "datetime", "timestamp"),
}
"""Types of keys whose texts are in the order of `ORDER BY`; those of ENUM, SET and FLOAT aren't."""


def unordered(definition: Definition) -> str:
    """Why a table can't be read in the order of its key; empty where it can."""
    if not definition.key:
        return "expected a primary key; found none"
    kinds = {one.name: one.kind for one in definition.columns}
    for name in definition.key:
        if kinds[name] not in _ORDERED:
            return f"expected a primary key of numbers, texts or times; found {name} {kinds[name]}"
    return ""


class MysqlWays:
    """See `penstock.capture.chunked.Ways`.

    Args:
        url: of the database.
        encoder: makes records.
        values: how they are written.
        places: in the binary log.
        system: which server the stream comes from.
        connections: that read at a time.
    """

    def __init__(
        self,
        url: str,
        encoder: Encoder,
        values: Values,
        places: Places,
        system: str,
        connections: int,
    ) -> None:
        self._url, self._encoder, self._values = url, encoder, values
        self._places, self._system, self._connections = places, system, connections
        self._scratch = np.empty(0, np.uint8)

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """Errors with which a table can't be read."""
        from pymysql import err

        return (err.ProgrammingError, err.DataError, _RefusedError)

    def readers(self) -> list[AnyReader]:
        """One for each connection."""
        return [
            Reader(self._url, self._values, self._places, self._system)
            for _ in range(self._connections)
        ]

    def wrapped(self, chunk: Chunk, values: pa.Array[Any], position: int) -> pa.Array[Any]:
        """Rows as values of records."""
        if not self._encoder.envelope.is_debezium:
            return values
        assert chunk.name is not None, "a chunk without rows"
        file, _, at = self._places.text(position).partition(":")
        where = {"file": f"{self._places.base}.{file}", "pos": int(at), "row": 0}
        source = {"time_s": int(time.time()), "snapshot": "incremental", "server": 0, "gtid": None}
        head, tail = self._encoder.around(chunk.name, {**source, **where})
        made, self._scratch = wrapped(values, head, tail, self._scratch)
        return made


class _RefusedError(UserError):
    """A table can't be read, and it is said why."""


@contextlib.contextmanager
def _refusing() -> Generator[None]:
    """A condition that is wrong isn't one that passes.

    Raises:
        UserError: it is wrong.
    """
    from pymysql import err

    try:
        yield
    except err.OperationalError as error:
        if error.args[0] not in _WRONG:
            raise
        raise _RefusedError(str(error.args[-1])) from None


class Reader:
    """See `penstock.capture.chunked.Reader`.

    Args:
        url: of the database.
        values: how they are written.
        places: in the binary log.
        system: which server that of the stream is: another one's places say nothing.
    """

    def __init__(self, url: str, values: Values, places: Places, system: str) -> None:
        self._server, self._locks = Server(url, READ_S), Server(url)
        self._values, self._places, self._system = values, places, system
        self._is_known = False
        self._thread: int | None = None

    # -- reads ------------------------------------------------------------------------------------------

    def opened(self, part: Part) -> Part:
        """A part with its last key and an estimate; without one where there are no rows."""
        name, definition = self._defined(part)
        order = ", ".join(f"{quoted(one)} DESC" for one in definition.key)
        found = self._keys(name, definition, part, [], f"ORDER BY {order} LIMIT 1")
        if not found:
            return part
        return replace(part, last=found[0], estimate=self._server.estimated_rows(name))

    def end(self, part: Part, after: Key) -> Key:
        """The last key of the chunk behind a key."""
        name, definition = self._defined(part)
        order = ", ".join(quoted(one) for one in definition.key)
        conditions = self._between(definition, after, part.last)
        limit = f"ORDER BY {order} LIMIT {CHUNK_ROWS - 1}, 1"
        found = self._keys(name, definition, part, conditions, limit)
        return found[0] if found else part.last

    def read(self, part: Part, after: Key, end: Key, mark: Mark) -> Chunk | None:
        """A chunk; None: its snapshot would lack a transaction that the stream has sent, or it failed for
        something that passes.
        """
        from pymysql import err

        name, _ = self._defined(part)
        try:
            with self._snapshot(name) as place:
                if any(one >= place for one in mark.recent):
                    return None
                # From the first use on, the table can't be altered.
                self._server.ask(f"SELECT 1 FROM {_spelled(name)} LIMIT 0")
                _, definition = self._defined(part)
                rows, is_cut = self._rows(name, definition, part, (after, end))
        except err.OperationalError as error:
            if error.args[0] in {_ALTERED, _LOCK_TIME}:
                return None
            raise
        last = rows.last if rows is not None and is_cut else end
        visible: Callable[[int], bool] = lambda begin: begin < place  # noqa: E731
        return Chunk(part, name, rows, last, mark, place, visible, shape_of(definition))

    @property
    def _tells_place(self) -> bool:
        """Whether the server says at which place a snapshot is."""
        return self._server.is_mariadb

    @contextlib.contextmanager
    def _snapshot(self, name: TableName) -> Generator[int]:
        """A transaction at a place in the binary log: its position."""
        sql = self._connection()
        if self._tells_place:
            ask(sql, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        else:
            locks = self._locks.sql
            ask(locks, f"SET SESSION lock_wait_timeout = {LOCK_S}")
            ask(locks, f"LOCK TABLES {_spelled(name)} READ")
            try:
                ask(sql, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
                file, at = self._server.position(sql)
            finally:
                ask(locks, "UNLOCK TABLES")
        try:
            if self._tells_place:
                file, at = self._server.snapshot_place(sql)
            yield self._places.number(file, at)
        finally:
            if self._server.is_connected:  # it isn't where a read was cut
                ask(sql, "ROLLBACK")

    def _rows(
        self, name: TableName, definition: Definition, part: Part, between: tuple[Key, Key]
    ) -> tuple[Rows | None, bool]:
        """The rows behind a key, up to another one; whether there are more than a chunk may have."""
        columns = ", ".join(quoted(one.name) for one in definition.columns)
        order = ", ".join(quoted(one) for one in definition.key)
        source = self._from(name, part, self._between(definition, *between))
        query = f"SELECT {columns} {source} ORDER BY {order} LIMIT {2 * CHUNK_ROWS}"
        makes = Makes(definition, self._values, spelled(name))
        found: list[Rows] = []
        size = count = 0
        for packets in self._packets(query):
            found.append(makes.rows(packets))
            size += len(packets.data)
            count += packets.rows
            if size > CHUNK_BYTES:
                self._server.close()  # the rest would be read to its end
                break
        is_cut = size > CHUNK_BYTES or count == 2 * CHUNK_ROWS
        return _together(found) if found else None, is_cut

    def _keys(
        self, name: TableName, definition: Definition, part: Part, conditions: list[str], rest: str
    ) -> list[Key]:
        columns = ", ".join(quoted(one) for one in definition.key)
        with self._connection().cursor() as cursor:
            with _refusing():
                cursor.execute(f"SELECT {columns} {self._from(name, part, conditions)} {rest}")
            return [tuple(_text(one) for one in row) for row in cursor.fetchall()]

    def _packets(self, query: str) -> Generator[Packets]:
        with _refusing():
            yield from read(self._connection(), query, 2 * CHUNK_ROWS, CHUNK_BYTES)

    def _defined(self, part: Part) -> tuple[TableName, Definition]:
        """A table as it is now.

        Raises:
            GoneError: it was dropped.
            UserError: it can't be read in the order of its key.
        """
        name = unspelled(part.table)
        self._connection()
        definition = self._server.definition(name)
        if not definition.columns:
            raise GoneError(f"expected the table {part.table}; found that it was dropped")
        if why := unordered(definition):
            raise _RefusedError(why)
        return name, definition

    def _between(self, definition: Definition, after: Key, end: Key) -> list[str]:
        """Conditions: behind a key, up to another one. Servers look them up in the key only where each
        column is compared by itself.
        """
        kinds = {one.name: one for one in definition.columns}
        columns = [kinds[one] for one in definition.key]
        made = [self._compared(columns, end, "<")]
        return [*made, self._compared(columns, after, ">")] if after else made

    def _compared(self, columns: list[Column], key: Key, sign: str) -> str:
        parts = []
        for i, last in enumerate(columns):
            same = [
                f"{quoted(one.name)} = {self._literal(one, text)}"
                for one, text in zip(columns[:i], key, strict=False)
            ]
            parts.append(
                " AND ".join([*same, f"{quoted(last.name)} {sign} {self._literal(last, key[i])}"])
            )
        if sign == "<":
            parts.append(
                " AND ".join(
                    f"{quoted(one.name)} = {self._literal(one, text)}"
                    for one, text in zip(columns, key, strict=True)
                )
            )
        return "(" + " OR ".join(f"({one})" for one in parts) + ")"

    def _literal(self, column: Column, text: str) -> str:
        if column.kind in _INTEGERS:
            return text
        is_binary = column.charset.codec == BINARY
        if is_binary and column.kind in {"binary", "varbinary", "char", "varchar"}:
            return f"x'{text}'"
        return str(self._connection().escape(text))

    @staticmethod
    def _from(name: TableName, part: Part, conditions: list[str]) -> str:
        some = [*conditions, f"({part.where})"] if part.where else conditions
        where = f" WHERE {' AND '.join(some)}" if some else ""
        return f"FROM {_spelled(name)}{where}"

    # -- the connection ---------------------------------------------------------------------------------

    def _connection(self) -> Any:
        """The connection, to the server that the stream comes from.

        Raises:
            ConnectionError: it is another one now.
        """
        if not self._server.is_connected:
            sql = self._server.sql
            ask(sql, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if self._server.system != self._system:
                raise ConnectionError(f"{self._server.name} is another server now")
            self._thread = sql.thread_id()
        return self._server.sql

    def has_no_room(self, error: Exception) -> bool:
        """Whether the server has refused a connection because there are as many as it allows."""
        return bool(error.args) and error.args[0] in {_TOO_MANY, _TOO_MANY_OF_USER}

    def cancel(self) -> None:
        """Cancels the query that runs; from any thread."""
        if self._thread is not None:
            self._server.kill_query(self._thread, self._system)

    def sever(self) -> None:
        """Ends the connection, also if the server doesn't answer; from any thread."""
        self._server.sever()
        self._locks.sever()

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()
        self._locks.close()


def _together(found: list[Rows]) -> Rows:
    """Rows that follow each other."""
    if len(found) == 1:
        return found[0]
    keys, values = [one.keys for one in found], [one.values for one in found]
    lost, begin = dict[int, tuple[Lost, ...]](), 0
    for one in found:
        lost |= {begin + place: some for place, some in one.lost.items()}
        begin += len(one.keys)
    return Rows(pa.concat_arrays(keys), pa.concat_arrays(values), found[-1].last, lost)


def _text(value: Any) -> str:
    """A value of a key, for a state and for SQL."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _spelled(name: TableName) -> str:
    return f"{quoted(name[0])}.{quoted(name[1])}"
