"""A PostgreSQL database's changes, by the replication protocol."""

from __future__ import annotations

import select
import struct
import time
from typing import Any, Final

from penstock.capture._envelope import Values
from penstock.capture._output import Output
from penstock.capture._postgres._encoder import Encoder, Moment, Table
from penstock.capture._postgres._pgoutput import (
    Begin,
    Change,
    Commit,
    Message,
    Relation,
    Truncate,
    parse,
)
from penstock.capture._postgres._server import Server
from penstock.capture._progress import Watched

__all__ = ["Stream"]

STATUS_S: Final = 5.0
"""How often the server is told; it ends connections that say nothing for wal_sender_timeout, 60 s."""
_WAL: Final = struct.Struct(">qqq").unpack_from


class Stream:
    """Changes as they come.

    Args:
        pg: libpq's connection, which replicates.
        server: whose, for questions.
        encoder: makes records.
        values: how they are written.
        output: where to.
        message_topic: where messages go; None: nowhere.
    """

    def __init__(
        self,
        pg: Any,
        server: Server,
        encoder: Encoder,
        values: Values,
        output: Output,
        message_topic: str | None,
    ) -> None:
        self._pg, self._server, self._encoder, self._values = pg, server, encoder, values
        self._output, self._message_topic = output, message_topic
        self._tables: dict[int, tuple[Table, Watched] | None] = {}
        self._begin: Begin | None = None
        self._skips = self._is_due = False
        self._said_at, self._said = time.monotonic(), -1

    def take(self, wait_s: float) -> bool:
        """Tells the output what has come; waits if nothing has. Whether anything had."""
        came, self._is_due = False, False
        while True:
            count, data = self._pg.get_copy_data(1)
            if count > 0:
                came = True
                self._take(data)
                if self._is_due or self._output.is_full:
                    return True
            elif count < 0:
                raise ConnectionError(f"{self._server.name} has ended the connection")
            elif came:
                return True
            else:
                ready, _, _ = select.select([self._pg.socket], [], [], wait_s)
                if not ready:
                    return False
                self._pg.consume_input()
                wait_s = 0.0

    def confirm(self) -> None:
        """Tells the server how far it needn't keep its log for us: as far as it is stored."""
        is_early = time.monotonic() - self._said_at < STATUS_S
        if not (is_early and self._said == self._output.stored):
            self._say()

    def _say(self) -> None:
        stored = self._output.stored
        now_us = time.time_ns() // 1000 - 946_684_800_000_000
        received = self._output.received
        status = struct.pack(">cqqqqB", b"r", received, stored, stored, now_us, 0)
        self._pg.put_copy_data(status)
        while self._pg.flush():
            select.select([], [self._pg.socket], [], 1.0)
        self._said_at, self._said = time.monotonic(), stored

    def _take(self, data: Any) -> None:
        """A message of the replication protocol: the server's log, or that it is alive."""
        if data[0] == ord("k"):
            (end,) = struct.unpack_from(">q", data, 1)
            if self._begin is None:
                self._output.reached(end)
            if data[17]:
                self._say()
            return
        lsn, _, _ = _WAL(data, 1)
        match parse(bytes(data[25:])):
            case Change() as change:
                found = self._watched(change.relation)
                if found is not None:
                    table, watched = found
                    before = table.placeholders
                    at = self._moment(lsn)
                    for record in self._encoder.change(table, watched.topic, change, at):
                        self._output.add(record)
                    self._output.done.unchanged += table.placeholders - before
            case Begin() as begin:
                self._begin, self._skips = begin, begin.commit_lsn < self._output.position
                self._output.is_open = True
            case Commit(end):
                self._close(end)
            case Relation() as relation:
                self._describe(relation)
            case Truncate(relations):
                for oid in relations:
                    if (found := self._watched(oid)) is not None:
                        at = self._moment(lsn)
                        for record in self._encoder.truncated(found[0], found[1].topic, at):
                            self._output.add(record)
            case Message() as message:
                self._take_message(message, lsn)
            case None:
                pass

    def _moment(self, lsn: int) -> Moment:
        assert self._begin is not None, "a change outside a transaction"
        return Moment.of(self._begin, lsn, self._output.position)

    def _watched(self, oid: int) -> tuple[Table, Watched] | None:
        """A table and its topic; None where the change isn't ours, or is in the snapshot."""
        found = self._tables.get(oid)
        if found is None or self._skips:
            return None
        assert self._begin is not None, "a change outside a transaction"
        return found if self._begin.commit_lsn >= found[1].since else None

    def _describe(self, relation: Relation) -> None:
        watched = self._output.tables.get(f"{relation.schema}.{relation.name}")
        if watched is None:
            self._tables[relation.oid] = None
            return
        facts = self._server.facts(relation.oid)
        table = Table(relation, facts, self._server.types, self._values)
        self._tables[relation.oid] = table, watched

    def _take_message(self, message: Message, lsn: int) -> None:
        topic, output = self._message_topic, self._output
        if topic is None:
            return
        if message.is_transactional:
            if not self._skips:
                output.add(self._encoder.message(topic, message, self._moment(lsn)))
        elif message.lsn >= output.position:
            time_us = output.state.time_us
            at = Moment(message.lsn, time_us, None, output.position)
            output.add(self._encoder.message(topic, message, at))
            self._is_due |= output.committed(message.lsn + 1, time_us)

    def _close(self, end: int) -> None:
        """A transaction is complete."""
        begin, self._begin = self._begin, None
        assert begin is not None, "an end without a beginning"
        output = self._output
        output.reached(end)
        if self._skips:
            output.is_open = False
            return
        self._is_due |= output.committed(end, begin.time_us)
