"""A PostgreSQL database's changes, by the replication protocol."""

from __future__ import annotations

import logging
import select
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from penstock.capture.chunked import CONNECTIONS, Incremental
from penstock.capture.database import Settings, spelled
from penstock.capture.databases.postgres.encoder import Encoder
from penstock.capture.databases.postgres.outboxes import Router
from penstock.capture.databases.postgres.pgoutput import (
    Begin,
    Commit,
    Message,
    Origin,
    Relation,
    Truncate,
    parse,
)
from penstock.capture.databases.postgres.plain import Changes, Place
from penstock.capture.databases.postgres.rows import Fragments, Table
from penstock.capture.databases.postgres.server import Lookout, Server, to_be_read
from penstock.capture.databases.postgres.snapshots import LargeValues, PostgresWays
from penstock.capture.databases.postgres.streamed import Streamed
from penstock.capture.databases.postgres.types import PLACEHOLDER
from penstock.capture.databases.postgres.watched import Extras, Watch
from penstock.capture.envelope import DELETIONS_FOLLOW
from penstock.capture.output import Output
from penstock.capture.unread import keys_of
from penstock.errors import CorruptError

__all__ = ["Stream"]

_log = logging.getLogger(__name__)

STATUS_S: Final = 5.0
"""How often the position is confirmed; the server ends silent connections after wal_sender_timeout, 60 s."""
SILENCE_S: Final = 600.0
"""After how long without an answer the connection is given up; longer than a server takes to decode a
transaction of which nothing is for us, in which older ones say nothing. One that has vanished is noticed by
TCP, before.
"""
HELD_BYTES: Final = 512 << 10
"""Bytes of messages that are read at a time: with envelopes around their rows, about as many as are sent to
the log at a time."""
RUN_MIN: Final = 16
"""So many messages are taken one by one in less time than it takes to begin a run."""
_HEAD: Final = 25
"""Bytes before a message: of its kind, three numbers."""
_LSN: Final = struct.Struct(">q").unpack_from
_OID: Final = struct.Struct(">I").unpack_from
_STREAM_COMMIT: Final = struct.Struct(">IBqqq").unpack_from
_STREAM_ABORT: Final = struct.Struct(">II").unpack_from
_EPOCH_US: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from which PostgreSQL counts."""
_ALIVE, _INSERT, _UPDATE, _DELETE, _OLD_KEY, _NEW, _ORIGIN = b"kIUDKNO"
_START, _STOP, _COMMIT, _ABORT = b"SEcA"


class _RenamedError(OSError):
    """A table has another name."""


class Stream:
    """Changes as they come.

    Args:
        pg: libpq's connection, which replicates.
        server: whose, for questions.
        encoder: makes records.
        settings: the capture's.
        output: where to.
        extras: further topics, and what goes there.
    """

    def __init__(
        self,
        pg: Any,
        server: Server,
        encoder: Encoder,
        settings: Settings,
        output: Output,
        extras: Extras,
    ) -> None:
        self._pg, self._server, self._encoder = pg, server, encoder
        self._values = values = settings.values
        self._name, self._lookout = settings.name, Lookout(server, settings.name)
        self._output, self._extras = output, extras
        self._put = output.put
        connections = settings.options.get("snapshot_connections", CONNECTIONS)
        ways = PostgresWays(server, encoder, values, connections)
        self._incremental = Incremental(output, ways, self.confirm)
        self._tables: dict[int, Watch | None] = {}
        self._reported: set[tuple[int, str]] = set()  # columns whose placeholders were reported
        self._large = (
            LargeValues(server, settings.name)
            if settings.options.get("large_values", "read") == "read"
            else None
        )
        self._begin: Begin | None = None
        self._commit_lsn = 0
        self._skips = self._is_due = False
        self._renamed: str | None = None  # a captured table, and its name now
        self._said_at, self._said = time.monotonic(), -1
        self._looked_at = self._heard_at = time.monotonic()
        self._asked_at: float | None = None  # first, to answer, since the server was heard
        self._beat_at = self._compared_at = float("-inf")
        self._streamed: dict[int, Streamed] = {}
        self._streaming: Streamed | None = None  # the one whose piece comes now
        self._streaming_xid = 0
        self._is_over = False
        self._held: list[bytes] = []  # messages that were read and aren't taken
        self._runs: Changes | None = None  # of the tables as they are known
        #: Whether there may be runs of plain changes.
        self._makes_runs = settings.format == "debezium" and extras.transactions is None

    def close(self) -> None:
        """Forgets transactions that are open, and closes the connection of snapshots."""
        self._incremental.close()
        for one in self._streamed.values():
            one.close()
        self._streamed.clear()

    def take(self, wait_s: float) -> bool:
        """Passes what has come to the output; waits if nothing has. Whether anything had."""
        came, self._is_due = False, False
        if self._begin is None:
            if self._renamed is not None:
                raise _RenamedError(self._renamed)
            self._beat()
            self._compare()
            if self._incremental.step():
                return True
        taken_bytes = 0
        while True:
            taken_bytes += self._read()
            if self._held:
                came = True
                self._heard()
                self._take_held()
                if self._is_due or self._output.is_full or taken_bytes >= HELD_BYTES:
                    return True
                self._pg.consume_input()  # what came meanwhile; doesn't wait
            elif self._is_over:
                raise self._ended()
            elif came:
                return True
            else:
                # Within a transaction chunks wait, and what has rung isn't heard.
                news = [self._incremental.news] if self._begin is None else []
                ready, _, _ = select.select([self._pg.socket, *news], [], [], wait_s)
                if self._pg.socket not in ready:
                    self._check_heard()
                    return False
                self._pg.consume_input()
                self._heard()
                wait_s = 0.0

    def _heard(self) -> None:
        """The server has said something."""
        self._heard_at, self._asked_at = time.monotonic(), None

    def _check_heard(self) -> None:
        """Looks whether the server has answered. While it decodes a large transaction, it may not for long.

        Raises:
            ConnectionError: it hasn't for too long, and doesn't send to this connection any more.
        """
        if self._asked_at is None or time.monotonic() - self._asked_at <= SILENCE_S:
            return
        active = "SELECT 1 FROM pg_replication_slots WHERE active_pid = %s"
        if self._server.ask(active, self._pg.backend_pid):
            self._asked_at = time.monotonic()
        else:
            raise ConnectionError(
                f"expected {self._server.name} to answer within {SILENCE_S:g} s; found no answer"
            )

    def _read(self) -> int:
        """Holds messages that the connection has, if none are held; their bytes."""
        held, next_, size = self._held, self._pg.get_copy_data, 0
        if held or self._is_over:
            return 0
        while size < HELD_BYTES:
            count, data = next_(1)
            if count > 0:
                held.append(bytes(data))
                size += count
            else:
                self._is_over = count < 0
                break
        return size

    def _take_held(self) -> None:
        """Passes on what is held, until there is enough: many messages at a time where they are plain."""
        held = self._held
        while held:
            changes = self._changes if len(held) >= RUN_MIN and self._takes_runs() else None
            if changes is not None and (stop := self._take_run(changes)):
                del held[:stop]
            else:
                # Where one isn't plain, others soon behind it mostly aren't either.
                self._take_some(RUN_MIN)
            if self._is_due or self._output.is_full:
                return

    def _take_some(self, count: int) -> None:
        """Passes on so many of those that are held, or fewer if there is enough, one by one."""
        held, output, taken = self._held, self._output, 0
        try:
            for message in held[:count]:
                taken += 1
                self._take(message)
                if self._is_due or output.is_full:
                    return
        finally:
            del held[:taken]

    def _takes_runs(self) -> bool:
        """Whether changes may be taken many at a time."""
        return (
            self._makes_runs
            and not (self._begin is not None and self._skips)
            and self._streaming is None
            and self._renamed is None
            and not self._incremental.table
            and not self._encoder.is_replicated
        )

    @property
    def _changes(self) -> Changes | None:
        """What takes changes many at a time; None where no table is plain."""
        if self._runs is None:
            tables = {
                oid: None
                if found is None
                else Place(found.table, found.topic, found.since, self._encoder.said(found.table))
                for oid, found in self._tables.items()
                if found is None or found.router is None
            }
            self._runs = Changes(tables, self._server.types, self._values)
        return self._runs if self._runs.has_any else None

    def _take_run(self, changes: Changes) -> int:
        """Passes on the plain ones of those that are held, from the first one on; how many."""
        output = self._output
        had_open = output.has_open
        run = changes.take(self._held, self._begin, had_open, output.position, self._encoder.pieces)
        if not run.stop:
            return 0
        for block in run.blocks:
            output.put_block(block)
        self._incremental.begin_all(run.xids)
        if run.end:
            output.reached(run.end)
            self._is_due |= output.passed(run.end, run.ended_us, run.transactions, run.open_records)
        self._begin = run.begin
        output.is_open = run.begin is not None
        if run.begin is not None and (run.xids or run.end):
            self._commit_lsn, self._skips = run.begin.commit_lsn, False
            self._encoder.begin(run.begin, output.position)
        return run.stop

    def _ended(self) -> Exception:
        """Why nothing more comes."""
        why = self._server.why(self._pg)
        return why or ConnectionError(f"{self._server.name} has ended the connection")

    def _beat(self) -> None:
        """Writes a heartbeat when it is time."""
        topic, now = self._extras.heartbeats, time.monotonic()
        if topic is None or now - self._beat_at < self._extras.heartbeat_s:
            return
        self._beat_at, now_ms = now, time.time_ns() // 1_000_000
        key = orjson.dumps({"serverName": self._extras.source_name})
        self._output.put(topic, key, b'{"ts_ms":%d}' % now_ms, now_ms)

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request for a snapshot; see `Incremental.ask`."""
        self._incremental.ask(number, request)

    def confirm(self) -> None:
        """Confirms to the server what is stored: it needn't keep its log up to there."""
        is_early = time.monotonic() - self._said_at < STATUS_S
        if not (is_early and self._said == self._output.stored):
            self._say()

    def _say(self) -> None:
        self._look()
        stored = self._output.stored
        now_us = time.time_ns() // 1000 - _EPOCH_US
        received = self._output.received
        now = time.monotonic()
        asks = now - self._heard_at >= STATUS_S
        if asks and self._asked_at is None:
            self._asked_at = now
        status = struct.pack(">cqqqqB", b"r", received, stored, stored, now_us, asks)
        self._pg.put_copy_data(status)
        while self._pg.flush():
            select.select([], [self._pg.socket], [], 1.0)
        self._said_at, self._said = now, stored

    def _look(self) -> None:
        """Looks now and then whether changes of all tables still come; see `Lookout.look`."""
        now = time.monotonic()
        if now - self._looked_at >= STATUS_S:
            self._looked_at = now
            self._lookout.look(self._output.state)

    def _compare(self) -> None:
        """Looks now and then, between transactions, whether tables have other partitions."""
        now = time.monotonic()
        if now - self._compared_at >= STATUS_S:
            self._compared_at = now
            changed, details = to_be_read(self._server, self._output.state, self._name)
            if details:
                self._incremental.read_again(changed, details)

    def _take(self, data: bytes) -> None:
        """A message of the replication protocol: the server's log, or that it is alive."""
        if data[0] == _ALIVE:
            if self._begin is None and self._streaming is None:
                self._output.reached(_LSN(data, 1)[0])
            if data[17]:
                self._say()
            return
        try:
            kind = data[_HEAD]
            if self._streaming is not None:
                self._keep(kind, data)
            elif kind in _STREAM_KINDS:
                self._piece(kind, data)
            else:
                self._apply(data, _HEAD, _LSN(data, 1)[0])
        except (IndexError, ValueError, struct.error) as error:
            raise CorruptError(
                f"expected a message of pgoutput; found {data[_HEAD : _HEAD + 40]!r} ({error})"
            ) from None

    # -- messages ---------------------------------------------------------------------------------------

    def _apply(self, data: bytes, at: int, lsn: int) -> None:
        """The message that begins there."""
        kind = data[at]
        if kind == _INSERT:
            if (found := self._watched(_OID(data, at + 1)[0])) is not None:
                table, topic, _, _, router = found
                row, _ = table.parse(data, at + 6)
                if router is not None:
                    event = router.route(row)
                    put, time_ms = (
                        self._output.judged(event.lost) or self._put,
                        self._encoder.time_ms,
                    )
                    put(event.topic, event.key, event.value, time_ms, event.headers)
                    return
                put = self._output.judged(table.losses.take()) or self._put
                self._encoder.inserted(table, topic, row, lsn, put)
        elif kind == _UPDATE:
            found = self._watched(_OID(data, at + 1)[0])
            if found is not None and found.router is None:
                self._update(found, data, at + 5, lsn)
        elif kind == _DELETE:
            found = self._watched(_OID(data, at + 1)[0])
            if found is not None and found.router is None:
                table, topic, *_ = found
                parse_ = table.parse_key if data[at + 5] == _OLD_KEY else table.parse
                row, _ = parse_(data, at + 6)
                put = self._output.judged(keys_of(table.losses.take())) or self._put
                self._encoder.deleted(table, topic, row, lsn, put)
        else:
            self._apply_other(data[at:], lsn)

    def _update(self, found: Watch, data: bytes, at: int, lsn: int) -> None:
        table, topic, *_ = found
        kind, before, gone = data[at], None, None
        if kind == _OLD_KEY:
            gone, at = table.parse_key(data, at + 1)
        elif kind != _NEW:
            before, at = table.parse(data, at + 1)
        # A row whose key can't be written isn't in the topic.
        known = (before, gone) if not keys_of(table.losses.take()) else (None, None)
        row, _ = table.parse(data, at + 1, before)
        if table.missing:
            row = self._completed(table, row, data, at + 1)
        letter = self._output.judged(table.losses.take())
        if letter is None:
            self._encoder.updated(table, topic, row, lsn, self._put, *known)
            return
        old = known[0] or known[1]
        if old is not None and table.key_of(old) != table.key_of(row):
            self._encoder.deleted(table, topic, old, lsn, self._put)
        self._encoder.updated(table, topic, row, lsn, letter)

    def _completed(self, table: Table, row: Fragments, data: bytes, at: int) -> Fragments:
        """A row of an update with the large values that it didn't touch, as far as they can be read."""
        missing, table.missing = table.missing, []
        columns = [table.names[i] for i in missing]
        key = None if self._large is None else table.key_texts(data, at)
        if self._large is not None and key is not None and self._begin is not None:
            name = table.relation.schema, table.relation.name
            texts = self._large.read(name, key, columns, self._begin.xid)
            if texts is not None:
                return table.completed(row, dict(zip(missing, texts, strict=True)))
        self._count_unchanged(table, columns)
        return row

    def _count_unchanged(self, table: Table, columns: Sequence[str]) -> None:
        """Counts placeholders, and says once of each column what they are: readers take them for values."""
        self._output.done.unchanged += len(columns)
        if self._large is not None:
            return  # the row is gone, and a record that says so follows, or it was said why it can't be read
        relation = table.relation
        name = relation.schema, relation.name
        new = {(relation.oid, column) for column in columns} - self._reported
        if new:
            self._reported |= new
            _log.warning(
                "%s: expected an update of %s to have all values; found that the database leaves out "
                "large ones that it doesn't change. Records have %s there, of the columns: %s. For whole "
                "rows: ALTER TABLE %s REPLICA IDENTITY FULL; then penstock capture snapshot %s --tables %s",
                *(self._name, spelled(name), PLACEHOLDER),
                *(", ".join(sorted(column for _, column in new)), self._server.quoted(name)),
                *(self._name, spelled(name)),
            )

    def _apply_other(self, data: bytes, lsn: int) -> None:
        match parse(data):
            case Begin() as begin:
                self._start(begin)
            case Commit(end):
                self._close(end)
            case Origin() as origin:
                self._encoder.replicated(origin)
            case Relation() as relation:
                self._describe(relation)
            case Truncate(relations):
                for oid in relations:
                    found = self._watched(oid)
                    if found is not None and found.router is None:
                        self._truncate(found, lsn)
            case Message() as message:
                self._take_message(message, lsn)
            case None:
                pass

    def _truncate(self, found: Watch, lsn: int) -> None:
        """A table was emptied: a record says so, and each of its keys is deleted."""
        output, (table, topic, *_) = self._output, found
        deletes = bool(table.key) and output.is_alone(topic)
        self._incremental.truncated(found.name)
        if output.takes_truncation(topic):
            headers = DELETIONS_FOLLOW if deletes else ()
            self._encoder.truncated(table, topic, lsn, self._put, headers)
        if deletes:
            for _ in output.emptied(topic, self._encoder.time_ms):
                self.confirm()

    def _watched(self, oid: int) -> Watch | None:
        """A table and its topic; None where the change isn't ours, or is in the snapshot."""
        found = self._tables.get(oid)
        if found is None or self._skips or self._commit_lsn < found.since:
            return None
        is_read = found.name == self._incremental.table
        self._put = self._incremental.put if is_read else self._output.put
        return found

    def _describe(self, relation: Relation) -> None:
        self._runs = None
        full_name = spelled((relation.schema, relation.name))
        watched = self._output.tables.get(full_name)
        if watched is None:
            self._renamed = self._renamed or self._renamed_to(relation)
            self._tables[relation.oid] = None
            return
        facts = self._server.facts(relation.oid)
        table = Table(relation, facts, self._server.types, self._values)
        router = Router(table) if full_name == self._extras.outbox else None
        self._tables[relation.oid] = Watch(table, watched.topic, watched.since, full_name, router)
        shape = self._server.shape(relation, facts, table.key)
        self._output.use(watched.topic, shape)
        if not self._skips and self._commit_lsn >= watched.since:
            name = relation.schema, relation.name
            self._output.describe(name, shape, self._encoder.time_ms)

    def _renamed_to(self, relation: Relation) -> str | None:
        """What a table that is captured is called now, where it has another name; None: it isn't captured.

        What came before is stored first. Then the capture starts again, and reads the table under its new
        name, with the rows of this transaction.
        """
        for name, one in self._output.tables.items():
            if one.identity == relation.oid and self._commit_lsn >= one.since and not self._skips:
                return f"{name} is {spelled((relation.schema, relation.name))} now"
        return None

    def _take_message(self, message: Message, lsn: int) -> None:
        topic, output = self._extras.messages, self._output
        if topic is None:
            return
        if message.is_transactional:
            if not self._skips:
                self._encoder.message(topic, message, lsn, output.put)
        elif message.lsn >= output.position:
            time_us = output.state.time_us
            self._encoder.at(time_us, None, output.position)
            self._encoder.message(topic, message, message.lsn, output.put)
            self._is_due |= output.committed(message.lsn + 1, time_us)

    def _start(self, begin: Begin) -> None:
        """A transaction begins."""
        output = self._output
        self._begin, self._commit_lsn = begin, begin.commit_lsn
        self._skips = begin.commit_lsn < output.position
        self._encoder.begin(begin, output.position)
        self._incremental.begin(begin.xid)
        output.is_open = True

    def _close(self, end: int) -> None:
        """A transaction is complete."""
        begin, self._begin = self._begin, None
        assert begin is not None, "an end without a beginning"
        output = self._output
        output.reached(end)
        if self._skips:
            output.is_open = False
            return
        if self._extras.transactions is not None:
            self._encoder.ended(self._extras.transactions, output.put)
        is_due = output.committed(end, begin.time_us)
        self._is_due |= is_due or self._renamed is not None

    # -- transactions that are still open ---------------------------------------------------------------

    def _keep(self, kind: int, data: bytes) -> None:
        """A message of a piece; after its kind it has the transaction's number."""
        assert self._streaming is not None
        if kind == _STOP:
            self._streaming = None
            return
        if kind == _ORIGIN:  # the only one without that number
            self._streaming.add(self._streaming_xid, _LSN(data, 1)[0], data[_HEAD:])
            return
        xid = _OID(data, _HEAD + 1)[0]
        message = data[_HEAD : _HEAD + 1] + data[_HEAD + 5 :]
        self._streaming.add(xid, _LSN(data, 1)[0], message)

    def _piece(self, kind: int, data: bytes) -> None:
        """A piece begins, or its transaction has ended."""
        if kind == _START:
            xid = _OID(data, _HEAD + 1)[0]
            if xid not in self._streamed:
                self._streamed[xid] = Streamed()
            self._streaming, self._streaming_xid = self._streamed[xid], xid
        elif kind == _ABORT:
            xid, inner = _STREAM_ABORT(data, _HEAD + 1)
            if xid != inner:
                self._streamed[xid].abort(inner)
            elif (found := self._streamed.pop(xid, None)) is not None:
                found.close()
        else:
            xid, _, lsn, end, time_us = _STREAM_COMMIT(data, _HEAD + 1)
            found = self._streamed.pop(xid)
            try:
                self._start(Begin(lsn, time_us + _EPOCH_US, xid))
                for at, message in found.messages():
                    self._apply(message, 0, at)
                    if self._output.is_full:
                        self._output.send()
                        self.confirm()
                self._close(end)
            finally:
                found.close()


_STREAM_KINDS: Final = frozenset((_START, _COMMIT, _ABORT))
