"""Reads chunks of a table: those of one snapshot of the database each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final

from penstock.capture.chunked import Chunk, GoneError, Key, Mark, Part
from penstock.capture.database import TableName, spelled, unspelled
from penstock.capture.databases.postgres.copy import quoted, split
from penstock.capture.databases.postgres.pgoutput import Relation, lsn_number
from penstock.capture.databases.postgres.rows import Facts, Table
from penstock.capture.databases.postgres.server import Server, has_no_room
from penstock.capture.databases.postgres.snapshots.blocks import key_text, rows_of
from penstock.capture.envelope import Values
from penstock.capture.table_schemas import Shape
from penstock.errors import UserError

__all__ = ["Reader", "visible_in"]

CHUNK_ROWS: Final = 20_000
"""Rows of a chunk."""
CHUNK_BYTES: Final = 16 << 20
"""Of these rows, beyond which a chunk has fewer of them."""
_PAGE, _SEGMENT = 8192, 16 << 20
_PAGE_HEAD, _SEGMENT_HEAD = 24, 40


class Reader:
    """See `penstock.capture.chunked.Reader`."""

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
                *self._copy(
                    f"SELECT {columns} {self._from(name, part, [])} ORDER BY {order} LIMIT 1"
                )
            ]
            if not rows:
                return part
            last = tuple(map(key_text, split(rows[0])))
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
                    f"SELECT {columns} {self._from(name, part, conditions)} ORDER BY {columns} "
                    f"OFFSET {CHUNK_ROWS - 1} LIMIT 1"
                )
            ]
        return tuple(map(key_text, split(rows[0]))) if rows else part.last

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
                f"SELECT {columns} {self._from(name, part, self._between(table.key, after, end))} "
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
            name,
            rows,
            rows.last if rows is not None and is_cut else end,
            mark,
            _flushed(lsn_number(insert)),
            visible,
            shape,
            table,
        )

    def has_no_room(self, error: Exception) -> bool:
        """Whether the server has refused a connection because there are as many as it allows."""
        return has_no_room(error)

    def cancel(self) -> None:
        """Cancels the query that runs; from any thread."""
        self._server.cancel()

    def sever(self) -> None:
        """Ends the connection, also if the server doesn't answer; from any thread."""
        self._server.sever()

    def close(self) -> None:
        """Closes the connection."""
        self._server.close()

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
            "WHERE c.relkind IN ('r', 'p') AND n.nspname = %s AND c.relname = %s",
            *unspelled(part.table),
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

    def _from(self, name: TableName, part: Part, conditions: list[str]) -> str:
        some = [*conditions, f"({part.where})"] if part.where else conditions
        where = f" WHERE {' AND '.join(some)}" if some else ""
        return f"FROM {self._server.own_rows(name)}{where}"

    def _literals(self, key: Key) -> str:
        return ", ".join(self._server.literal(one) for one in key)

    def _copy(self, query: str) -> Generator[bytes, None, None]:
        """The lines of COPY."""
        with self._server.sql.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for line in copy:
                yield bytes(line)


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
