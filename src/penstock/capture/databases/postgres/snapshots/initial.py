"""The rows that tables have at one position of the database's log.

    invariant: a row is in the snapshot exactly if the transaction that wrote it committed before `position`

A temporary slot is created; it says where the log is read from and exports the snapshot that fits that
place (PostgreSQL's documentation, CREATE_REPLICATION_SLOT). Tables are read by COPY in one transaction
with that snapshot: no lock is held but that tables can't be altered meanwhile. One that was rewritten before
it was locked is empty to the snapshot, which then is taken again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Self

import numpy as np

from penstock.capture.chunked import wrapped
from penstock.capture.database import TableName, spelled
from penstock.capture.databases.postgres.copy import quoted, split
from penstock.capture.databases.postgres.encoder import Encoder
from penstock.capture.databases.postgres.outboxes import Router
from penstock.capture.databases.postgres.pgoutput import lsn_number
from penstock.capture.databases.postgres.rows import Table, Texts
from penstock.capture.databases.postgres.server import Server
from penstock.capture.databases.postgres.snapshots.blocks import rows_of
from penstock.capture.envelope import Record, Records, Values
from penstock.capture.snapshots import Progress, marked

__all__ = ["Snapshot"]

LARGE_ROWS: Final = 1_000_000
"""A table with more rows is read in chunks afterwards, while its changes are captured already."""


BLOCK_BYTES: Final = 1 << 20
"""Of rows that are made records of at a time."""


class _RewrittenError(OSError):
    """A table is empty to a snapshot that is older."""


class Snapshot:
    """A transaction that sees the database at `position`; a context manager.

    Args:
        server: whose.
        name: of the temporary slot, which no other one of the server has.
        encoder: makes records.
        values: how they are written.
        progress: of snapshots in chunks, to which large tables are added.
        outbox: the table whose rows are events.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        encoder: Encoder,
        values: Values,
        progress: Progress,
        outbox: str,
    ) -> None:
        self._outbox, self._scratch = outbox, np.empty(0, np.uint8)
        self._encoder, self._values, self._progress = encoder, values, progress
        self._server = server.another()
        replication = server.connect(replication=True)
        try:
            with server.watch(replication, "to begin the snapshot"):
                row = replication.execute(
                    f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT'
                ).fetchone()
            self.position = lsn_number(row[1])
            sql = self._server.sql
            sql.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            sql.execute(f"SET TRANSACTION SNAPSHOT '{row[2]}'")
            [(self._xid, self._time_us)] = self._server.ask(
                "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, "
                "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
            )
        except BaseException:
            self._server.close()
            raise
        finally:
            replication.close()  # the snapshot is ours now; the slot goes with its connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def read(
        self, topics: Mapping[TableName, str]
    ) -> Generator[tuple[TableName, Record | Records], None, None]:
        """The rows of tables, in the tables' order; Debezium's markers say which are first and last.

        Raises:
            OSError: a table was rewritten since the snapshot was taken.
        """
        self._lock(topics)
        self._encoder.at(self._time_us, self._xid, None)
        tables: dict[TableName, tuple[Table, Router | None]] = {}
        for name in topics:
            table = self._table(name)
            router = Router(table) if spelled(name) == self._outbox else None
            is_keyed = router is None and table.has_primary_key
            if is_keyed and self._server.estimated_rows(name) > LARGE_ROWS:
                self._progress = self._progress.with_tables((spelled(name),))
            else:
                tables[name] = table, router
        blocks = ((n, self._blocks(n, *one)) for n, one in tables.items())
        for name, lines, marker in marked(blocks):
            table, router = tables[name]
            if len(lines) == 1:
                yield name, self._record(table, router, topics[name], split(lines[0]), marker)
            else:
                yield name, self._records(table, lines, marker)

    @property
    def details(self) -> dict[str, Any]:
        """For the state: which tables are to be read in chunks."""
        return self._progress.details

    def _lock(self, tables: Iterable[TableName]) -> None:
        """Keeps tables as they are, until all are read.

        Raises:
            OSError: one was rewritten since the snapshot was taken.
        """
        names = [f"{quoted(schema)}.{quoted(name)}" for schema, name in tables]
        sql = self._server.sql
        with self._server.watch(sql, "to lock the tables, so that they aren't altered"):
            sql.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
        # The row is the snapshot's, the function looks at the table as it is now.
        rewritten = self._server.ask(
            "SELECT DISTINCT name FROM unnest(%s::text[]) name, LATERAL (SELECT name::regclass oid UNION "
            "SELECT relid FROM pg_partition_tree(name::regclass)) part JOIN pg_class USING (oid) "
            "WHERE relfilenode <> coalesce(pg_relation_filenode(oid), 0)",
            names,
        )
        if rewritten:
            found = ", ".join(name for (name,) in rewritten)
            raise _RewrittenError(f"{found} was rewritten since the snapshot was taken")

    def _record(
        self, table: Table, router: Router | None, topic: str, texts: Texts, marker: str
    ) -> Record:
        row, time_ms = table.of_texts(texts), self._encoder.time_ms
        if router is not None:
            event = router.route(row)
            return Record(*event[:4], time_ms, event.lost)
        key, value = self._encoder.read(table, row, self.position, marker.encode())
        return Record(topic, key, value, (), time_ms, table.losses.take())

    def _records(self, table: Table, lines: list[bytes], marker: str) -> Records:
        rows, encoder = rows_of(table, b"".join(lines), ()), self._encoder
        around = encoder.around(table, self.position, marker.encode())
        values, self._scratch = wrapped(rows.values, *around, self._scratch)
        return Records(rows.keys, values, encoder.time_ms, rows.lost)

    def _table(self, name: TableName) -> Table:
        relation = self._server.relation(name)
        return Table(relation, self._server.facts(relation.oid), self._server.types, self._values)

    def _blocks(
        self, name: TableName, table: Table, router: Router | None
    ) -> Iterator[list[bytes]]:
        """Lines of COPY, many at a time: the first one and the last one by themselves, as they have markers
        of their own. All by themselves where rows are events, or have no key.
        """
        lines = self._lines(name, table)
        if router is not None or not table.key:
            yield from ([line] for line in lines)
            return
        yield from ([line] for line in itertools.islice(lines, 1))
        held: list[bytes] = []
        size = 0
        for line in lines:
            if size >= BLOCK_BYTES:
                yield held
                held, size = [], 0
            held.append(line)
            size += len(line)
        if len(held) > 1:
            yield held[:-1]
        yield from ([line] for line in held[-1:])

    def _lines(self, name: TableName, table: Table) -> Iterator[bytes]:
        columns = ", ".join(quoted(one.name) for one in table.relation.columns)
        query = f"COPY (SELECT {columns} FROM {self._server.own_rows(name)}) TO STDOUT"
        if not columns:
            return
        with self._server.sql.cursor() as cursor, cursor.copy(query) as copy:
            for line in copy:
                yield bytes(line)


def slot_name(name: str) -> str:
    """A name of a temporary slot that no other one has."""
    return f"{name[:40]}_snapshot_{time.time_ns() // 1000 % 10**12}"
