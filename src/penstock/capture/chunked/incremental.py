"""Snapshots of tables while their changes flow: in chunks by primary key, that can continue after a kill.

    invariant: a row of a chunk is written only if all changes of its key that were written are in the chunk

Source: Andreakis and Papapanagiotou, "DBLog: A Watermark Based Change-Data-Capture Framework" (2019). Several
connections read chunks ahead (`queue`), each with a snapshot of its own, which says which transactions it
has. Chunks are written in the order of their keys, each once the stream has passed the position at which it
was read. Changes that were written since the read began are remembered: where one's transaction isn't in the
chunk's snapshot, the chunk's row is older, and is dropped. A snapshot must have all transactions that were
sent before, and is taken again where it lacks one: the server sends a transaction a moment before all see it,
and long before where a synchronous standby hasn't confirmed it yet. Nothing is written to the database: what
is in the snapshot takes the place of DBLog's watermark table.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.chunked.queue import Chunk, Chunks, GoneError, Mark, Part, Reader
from penstock.capture.database import spelled
from penstock.capture.envelope import Headers
from penstock.capture.output import Output
from penstock.capture.snapshots import Requests
from penstock.capture.table_schemas import Version
from penstock.errors import UserError

__all__ = ["Changes", "Incremental", "Ways"]

KEYS_MAX: Final = 1_000_000
"""Changed keys that are remembered while chunks are read; beyond them, the chunks are read again."""
STEP_S: Final = 0.05
"""How long chunks are written, before changes are looked for."""
RECENT: Final = 20_000
"""Transactions that are remembered, as a snapshot may lack them though they have committed."""
_log = logging.getLogger(__name__)


class Changes:
    """The transactions of a stream, and the keys of one topic that they have changed while chunks are read.

    Attributes:
        number: of transactions that have begun.
    """

    def __init__(self) -> None:
        self.number, self._xid = 0, 0
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)
        # Number and xid of a transaction, and the key that it has changed; True: all of them.
        self._keys: deque[tuple[int, int, bytes | bool | None]] = deque()

    def begin(self, xid: int) -> None:
        """A transaction's changes follow."""
        with self._lock:
            self.number += 1
            self._xid = xid
            self._recent.append((self.number, xid))

    def begin_all(self, xids: Sequence[int]) -> None:
        """Transactions began, one after another; the changes of the last one follow."""
        if xids:
            with self._lock:
                self._recent.extend(enumerate(xids, self.number + 1))
                self.number += len(xids)
                self._xid = xids[-1]

    def mark(self, known: Version | None = None) -> Mark:
        """How far the stream is, and the version of the table's schema that it knows; in any thread."""
        with self._lock:
            return Mark(self.number, known, tuple(xid for _, xid in self._recent))

    def add(self, key: bytes | bool | None) -> None:  # noqa: FBT001
        """It has changed the row of a key; True: all rows. Not remembered once there are too many."""
        if not self.is_full:
            self._keys.append((self.number, self._xid, key))

    @property
    def is_full(self) -> bool:
        """Whether there are as many keys as are remembered at most."""
        return len(self._keys) >= KEYS_MAX

    def newer(self, chunk: Chunk) -> set[bytes | bool | None]:
        """Keys whose rows in a chunk are older than what was written."""
        return {
            key
            for number, xid, key in self._keys
            if number > chunk.mark.number and not chunk.visible(xid)
        }

    def forget(self, seen: int, oldest: int) -> None:
        """Forgets what isn't needed any more.

        Args:
            seen: the number of a chunk that was read: later snapshots have its transactions, too.
            oldest: the smallest number of the chunks that are read, or being read.
        """
        with self._lock:
            while self._recent and self._recent[0][0] <= seen:
                self._recent.popleft()
        while self._keys and self._keys[0][0] <= oldest:
            self._keys.popleft()

    def clear(self) -> None:
        """Forgets the keys: nothing is read."""
        self._keys.clear()


class Ways(Protocol):
    """What a kind of database does for snapshots in chunks.

    Attributes:
        refusals: errors of the database with which a table can't be read.
    """

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """See above."""
        ...

    def readers(self) -> list[Reader]:
        """One for each connection."""

    def wrapped(self, chunk: Chunk, values: pa.Array[Any], position: int) -> pa.Array[Any]:
        """Rows as values of records; they are valid until the next call.

        Args:
            chunk: whose rows they are.
            values: the rows as JSON, binary.
            position: that the stream has got to.
        """


class Incremental(Requests):
    """Snapshots that were asked for; belongs to a stream.

    Args:
        output: where to; its state says how far it is.
        ways: how a kind of database does that.
        alive: confirms the position to the database, which ends connections that say nothing; called often
            while something takes long.
    """

    def __init__(self, output: Output, ways: Ways, alive: Callable[[], None]) -> None:
        super().__init__(output)
        self._ways, self._alive, self._put = ways, alive, output.put
        self._changes = Changes()
        self._chunks: Chunks | None = None
        self._topic = ""
        #: Can be read from when a chunk has come.
        self.news, self._bell = socket.socketpair()
        for one in (self.news, self._bell):
            one.settimeout(0)

    def close(self) -> None:
        """Closes the connections."""
        self._abandon()
        self.news.close()
        self._bell.close()

    # -- changes ----------------------------------------------------------------------------------------

    def begin(self, xid: int) -> None:
        """A transaction's changes follow."""
        self._changes.begin(xid)

    def begin_all(self, xids: Sequence[int]) -> None:
        """Transactions whose changes were taken began; that of the last one may be open."""
        self._changes.begin_all(xids)

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """A record of a change of the table that is read; rows of its key in chunks are older where they
        don't have the change.
        """
        self._changes.add(key)
        self._put(topic, key, value, time_ms, headers)

    def truncated(self, table: str) -> None:
        """A table was emptied."""
        if table == self.table:
            self._changes.add(True)  # noqa: FBT003

    @property
    def table(self) -> str:
        """The table whose chunks are read; its changes have to go through `put`. Empty: none is."""
        return "" if self._chunks is None else self.progress.tables[0]

    # -- chunks -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Between transactions: takes requests, writes chunks that have been read. Whether it wrote."""
        self._heard()
        self._take_requests()
        if self._chunks is None and self.progress.tables and not self.progress.is_paused:
            self._begin_table()
        self._output.is_reading = self._chunks is not None
        began, wrote = time.monotonic(), False
        while self._chunks is not None and self._next_is_ready(self._chunks):
            wrote = True
            if time.monotonic() - began > STEP_S:
                break
        return wrote

    def _begin_table(self) -> None:
        """Lets the chunks of the first table be read."""
        progress = self.progress
        table = progress.tables[0]
        watched = self._output.tables.get(table)
        if watched is None:  # it isn't captured any more
            self._skip("UNKNOWN_SCHEMA")
            return
        self._topic = watched.topic
        where = progress.where.get(table) or ""
        part = Part(table, where, progress.cursor, progress.last, progress.estimate)
        known = self._output.schemas.known
        self._chunks = Chunks(
            self._ways.readers(),
            part,
            mark=lambda: self._changes.mark(known.get(table)),
            ready=self._ring,
        )

    def _abandon(self) -> None:
        """Ends what is read."""
        if self._chunks is not None:
            self._chunks.close()
            self._chunks, self._topic = None, ""
            self._changes.clear()

    def _ring(self) -> None:
        try:
            self._bell.send(b"!")
        except OSError:  # it was set, and has not been looked at
            return

    def _heard(self) -> None:
        """Forgets what has rung."""
        try:
            while self.news.recv(1024):
                pass
        except BlockingIOError:
            return

    def _next_is_ready(self, chunks: Chunks) -> bool:
        """Writes the next chunk, if that can be. Whether it did.

        A table that can't be read is left out.
        """
        if self._changes.is_full:
            self._abandon()
            return False
        refusals: tuple[type[Exception], ...] = (UserError, *self._ways.refusals)
        try:
            chunk = chunks.first()
        except GoneError:
            self._skip("UNKNOWN_SCHEMA")
            return False
        except refusals as error:
            _log.warning("%s: no snapshot of it: %s", self.progress.tables[0], str(error).strip())
            self._skip("SQL_EXCEPTION")
            return False
        if chunk is None or self._output.received < chunk.high:
            return False
        self._write(chunk)
        chunks.pop()
        number = chunk.mark.number
        self._changes.forget(number, chunks.oldest(number))
        if chunk.is_last:
            self._abandon()
        return True

    def _write(self, chunk: Chunk) -> None:
        """Writes a chunk, and how far that is; at its table's end, what goes with that."""
        output, progress = self._output, self.progress
        time_us = output.state.time_us or time.time_ns() // 1000
        if chunk.count:
            self._write_rows(chunk)
            keys = {
                "maximum_key": ",".join(chunk.part.last),
                "last_processed_key": ",".join(chunk.end),
            }
            table = progress.tables[0]
            self._notify("IN_PROGRESS", progress, current_collection_in_progress=table, **keys)
        count = progress.rows + chunk.count
        following = replace(
            progress,
            cursor=chunk.end,
            last=chunk.part.last,
            rows=count,
            estimate=chunk.part.estimate,
        )
        if chunk.is_last:
            if not chunk.part.where:  # all of its rows were read
                for _ in output.forget_unseen(chunk.part.table):
                    self._alive()
            self._completed("SUCCEEDED" if count else "EMPTY", count)
            following = progress.following
        self.progress = following
        output.committed(output.position, time_us, following.details)

    def _write_rows(self, chunk: Chunk) -> None:
        """Writes rows, without those that are older than what was written."""
        name, rows, shape, output = chunk.name, chunk.rows, chunk.shape, self._output
        assert name is not None, "a chunk without rows"
        assert rows is not None, "a chunk without rows"
        assert shape is not None, "rows of no table"
        known, time_ms = output.schemas.known, time.time_ns() // 1_000_000
        if known.get(spelled(name)) == chunk.mark.known:  # else the stream knows a newer one
            output.describe(name, shape, time_ms)
        keys, values, lost = rows.keys, rows.values, rows.lost
        newer = self._changes.newer(chunk)
        if True in newer:
            return
        if newer:
            older = pc.is_in(keys, value_set=pa.array([*newer], pa.binary()))
            kept = pc.invert(older)
            keys, values = keys.filter(kept), values.filter(kept)
            if lost:
                places = pc.indices_nonzero(kept).to_numpy().tolist()
                lost = {i: lost[place] for i, place in enumerate(places) if place in lost}
        if not len(keys):
            return
        values = self._ways.wrapped(chunk, values, output.position)
        output.put_all(self._topic, keys, values, time_ms, shape, lost)
        output.done.snapshot_rows += len(keys)
