"""Reads records as they were produced: from a topic's Iceberg table as far as that goes, then the log.

Both give the same records, so a reader that reads a stretch again may find that the table now goes
further. What compaction or retention has removed from the log is still there in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.client.reader import Reader
from penstock.client.tables.history import TopicTable
from penstock.wire.columns import Records

__all__ = ["OldRecords"]


@dataclass(slots=True)
class _Cursor:
    """Where reading the table stands: `chunk` and `rest` hold all records from `floor` on."""

    partition: int
    floor: int
    chunk: Records | None
    rest: Iterator[Records]


class OldRecords:
    """Reads like a `Reader`, of one topic; stretches that follow on one another are read quickly.

    Args:
        history: the topic's.
        reader: for what isn't in the table; the caller closes it.

    Raises:
        UserError: the table has decoded values only.
    """

    def __init__(self, history: TopicTable, reader: Reader) -> None:
        history.require_values()
        self._history = history
        self._reader = reader
        self._cursor: _Cursor | None = None

    def covers(self, partition: int, offset: int) -> bool:
        """Whether an offset is read from the table."""
        return offset < self._history.covered.get(partition, 0)

    def read(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        to_offset: int,
        *,
        missing: Literal["error", "skip"] = "error",
    ) -> Iterator[Records]:
        """See `Reader.read`; `missing` concerns what isn't in the table."""
        covered = self._history.covered.get(partition, 0)
        middle = min(max(covered, from_offset), to_offset)
        if from_offset < middle:
            yield from self._from_table(partition, from_offset, middle)
        if middle < to_offset:
            self._cursor = None
            yield from self._reader.read(topic, partition, middle, to_offset, missing=missing)

    def _from_table(self, partition: int, start: int, end: int) -> Iterator[Records]:
        cursor = self._cursor
        if cursor is None or cursor.partition != partition or start < cursor.floor:
            rest = self._history.records(partition, start, self._history.covered[partition])
            cursor = self._cursor = _Cursor(partition, start, None, rest)
        while True:
            if cursor.chunk is None:
                cursor.chunk = next(cursor.rest, None)
                if cursor.chunk is None:
                    return
            chunk = cursor.chunk
            part = chunk.between(start, end)
            if len(part):
                yield part
            if chunk.next_offset >= end:
                return
            cursor.floor, cursor.chunk = chunk.next_offset, None
