"""Snapshots of a file's tables while its changes flow: in chunks by primary key, that continue after a kill.

    invariant: a row of a chunk is as it is behind the last change that was written

SQLite needs no watermarks: one transaction reads the changes up to its end, and then the chunk. So no row of
it is older than a change that was written, and changes that follow are newer. No other process waits.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from penstock.capture.databases.sqlite.triggers import Layout, quoted
from penstock.capture.snapshots import Requests

__all__ = ["Chunks"]

CHUNK_ROWS: Final = 10_000
"""Rows of a chunk: the file's log can't be shortened while they are read."""
CHUNK_BYTES: Final = 16 << 20
"""Of texts and binary values of these rows, beyond which a chunk has fewer of them."""
_log = logging.getLogger(__name__)


class Chunks(Requests):
    """Snapshots that were asked for; belongs to a stream."""

    @property
    def is_due(self) -> bool:
        """Whether there is something to do without a change."""
        return bool(self._requests) or (bool(self.progress.tables) and not self.progress.is_paused)

    def step(
        self,
        sql: sqlite3.Connection,
        layout_of: Callable[[str], Layout | None],
        write: Callable[[Layout, tuple[Any, ...]], None],
        position: int,
    ) -> bool:
        """Takes requests, and writes the next chunk, at the end of what a transaction has read.

        Args:
            sql: in the transaction that has read all changes before `position`.
            layout_of: what a table looks like; None: it isn't captured any more.
            write: takes a row.
            position: of the rows.

        Returns: whether anything was stored.
        """
        is_asked = bool(self._requests)
        self._take_requests()
        if is_reading := self.is_due:
            self._chunk(sql, layout_of(self.progress.tables[0]), write, position)
        self._output.is_reading = self.is_due
        return is_asked or is_reading

    def _chunk(
        self,
        sql: sqlite3.Connection,
        layout: Layout | None,
        write: Callable[[Layout, tuple[Any, ...]], None],
        position: int,
    ) -> None:
        """Writes the next chunk; leaves out a table that can't be read."""
        progress, output = self.progress, self._output
        table = progress.tables[0]
        if layout is None:
            self._skip("UNKNOWN_SCHEMA")
            return
        if not layout.key:
            _log.warning("%s: no snapshot of it: expected a primary key; found none", table)
            self._skip("SQL_EXCEPTION")
            return
        try:
            count, cursor = self._write(sql, layout, write)
        except sqlite3.OperationalError as error:  # the condition makes no sense
            _log.warning("%s: no snapshot of it: %s", table, error)
            self._skip("SQL_EXCEPTION")
            return
        output.done.snapshot_rows += count
        total = progress.rows + count
        if count:
            key = {"last_processed_key": ",".join(cursor)}
            self._notify("IN_PROGRESS", progress, current_collection_in_progress=table, **key)
        following = replace(progress, cursor=cursor, rows=total)
        if not cursor:
            if not progress.where.get(table):  # all of its rows were read
                for _ in output.forget_unseen(table):
                    pass
            self._completed("SUCCEEDED" if total else "EMPTY", total)
            following = progress.following
        self.progress = following
        state = output.state
        details = {**state.details, **following.details}
        output.commit(replace(state, position=max(position, state.position), details=details))

    def _write(
        self,
        sql: sqlite3.Connection,
        layout: Layout,
        write: Callable[[Layout, tuple[Any, ...]], None],
    ) -> tuple[int, tuple[str, ...]]:
        """Writes the next chunk: how many rows, and the key of the last one; none at the table's end."""
        columns, count, size = len(layout.columns), 0, 0
        with closing(self._read(sql, layout)) as rows:  # a query that is open keeps what it sees
            for count, row in enumerate(rows, 1):
                write(layout, row[:columns])
                size += sum(len(one) for one in row if isinstance(one, str | bytes))
                key = row[columns:]
                if (count >= CHUNK_ROWS or size >= CHUNK_BYTES) and "NULL" not in key:
                    return count, key
        return count, ()

    def _read(
        self, sql: sqlite3.Connection, layout: Layout
    ) -> Generator[tuple[Any, ...], None, None]:
        """Rows of the next chunk: their columns, and their keys as SQL.

        A primary key's columns can be NULL if they aren't integers and the table has row numbers. Such rows
        are behind no other one; they are read with the first chunk.
        """
        progress = self.progress
        keys = [quoted(one) for one in layout.key]
        columns = ", ".join(quoted(one.name) for one in layout.columns)
        literals = ", ".join(f"quote({one})" for one in keys)
        table, where = quoted(layout.table), progress.where.get(layout.table) or ""
        some = f" AND ({where})" if where else ""
        if not progress.cursor:
            without = " OR ".join(f"{one} IS NULL" for one in keys)
            yield from sql.execute(
                f"SELECT {columns}, {literals} FROM {table} WHERE ({without}){some}"
            )
        behind = (
            f" AND ({', '.join(keys)}) > ({', '.join(progress.cursor)})" if progress.cursor else ""
        )
        there = " AND ".join(f"{one} IS NOT NULL" for one in keys)
        yield from sql.execute(
            f"SELECT {columns}, {literals} FROM {table} WHERE {there}{behind}{some} "
            f"ORDER BY {', '.join(keys)}"
        )
