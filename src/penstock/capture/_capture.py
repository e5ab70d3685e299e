"""`Capture`: a PostgreSQL database's changes into topics, each once, in the order of its commits.

    read what was stored -> snapshots of tables that are new -> changes, transaction by transaction

A source transaction is never cut: its records become visible together with the position behind its commit.
What the server confirms as no longer needed is never more than what was stored.
"""

from __future__ import annotations

import logging
import random
import re
import select
import struct
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.capture._envelope import Encoder, Format, Moment, Table
from penstock.capture._pgoutput import (
    Begin,
    Change,
    Commit,
    Message,
    Relation,
    Truncate,
    lsn_text,
    parse,
)
from penstock.capture._progress import Log, State, Watched
from penstock.capture._server import Server, TableName, parse_tables
from penstock.capture._snapshot import Snapshot, slot_name
from penstock.capture._types import Values
from penstock.errors import BrokerError, FencedError, SetupError, UserError

__all__ = ["Capture", "Captured"]

STEP_BYTES: Final = 4 << 20
"""Bytes that are sent to the log at a time, and are in memory."""
LINGER_S: Final = 0.05
"""How long a committed change waits for others, while the server has more of them at hand."""
IDLE_STORE_S: Final = 10.0
"""How often the position is stored while nothing changes in the tables, so that the server can let go."""
STATUS_S: Final = 5.0
"""How often the server is told; it ends connections that say nothing for wal_sender_timeout, 60 s."""
LOOK_S: Final = 1.0
"""How often is looked whether it is to pause."""
BACKOFF_S: Final = (0.2, 30.0)
"""The first pause after a lost connection, and the longest; doubled each time, with jitter."""
TAKEOVER_S: Final = 10.0
"""How long the slot may still be in use by a connection that we have ended."""
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,50}")
_WAL: Final = struct.Struct(">qqq").unpack_from
_log = logging.getLogger(__name__)


@dataclass
class Captured:
    """What a capture has done since it began.

    Attributes:
        phase: `starting`, `snapshot`, `streaming`, `paused` or `waiting` (for a server or the log).
        records: written and committed.
        transactions: of the database, with changes of the tables.
        snapshot_rows: read.
        lsn: transactions that committed before this position are in the log.
        time_us: when the newest of them committed, since 1970.
        is_caught_up: whether the server had nothing more at hand when it was asked last.
        unchanged: large values that updates didn't touch, and whose place a placeholder takes.
        trouble: why it waits; empty where it doesn't.
    """

    phase: str = "starting"
    records: int = 0
    transactions: int = 0
    snapshot_rows: int = 0
    lsn: int = 0
    time_us: int = 0
    is_caught_up: bool = False
    unchanged: int = 0
    trouble: str = ""


@dataclass
class _Plan:
    """What is captured, where to, and what has been done; see `Capture`."""

    name: str
    url: str
    patterns: list[str]
    topics: dict[str, str] | None
    to: str | None
    address: str
    settings: dict[str, Any]
    format: Format
    values: Values
    slot: str
    publication: str
    partitions: int
    is_compact: bool
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    owns: bool = False
    end: threading.Event = field(default_factory=threading.Event)
    done: Captured = field(default_factory=Captured)

    def is_over(self, until: Callable[[Captured], bool] | None) -> bool:
        return self.end.is_set() or (until is not None and until(self.done))

    def topic_of(self, table: TableName) -> str | None:
        """The topic of a table."""
        if self.topics is None:
            return topic_name(f"{self.to}.{table[0]}.{table[1]}")
        return self.topics.get(".".join(table), self.topics.get(table[1]))


class Capture:
    """Captures tables of a database.

    Args:
        url: of the database, `postgresql://user@host:port/database`. A password that it doesn't have is
            taken from PGPASSWORD, PGPASSFILE or `~/.pgpass`.
        tables: `schema.table`, with `*` for anything; or a mapping of them to topics.
        to: what topics begin with: `TO.schema.table`. Not with a mapping.
        log: the broker's address.
        name: of lower-case letters, digits, `_`, `.` and `-`: under which the position is kept; one process
            at a time has it, another one that begins fences the first. By default `to`.
        format: `debezium`, envelopes, or `flat`, rows.
        values: `precise`, Debezium's types, or `readable`: decimals, dates and times as text.
        slot: of replication, created where it isn't there; by default `penstock_NAME`.
        publication: likewise.
        partitions: of topics that are created here.
        compact: whether these keep only the newest record of each key.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        tables: Sequence[str] | Mapping[str, str],
        *,
        to: str | None = None,
        log: str = "127.0.0.1:9092",
        name: str | None = None,
        format: Format = "debezium",  # noqa: A002 - the field's name
        values: Values = "precise",
        slot: str | None = None,
        publication: str | None = None,
        partitions: int = 1,
        compact: bool = False,
        **settings: Any,
    ) -> None:
        topics = dict(tables) if isinstance(tables, Mapping) else None
        if (to is None) == (topics is None):
            raise UserError("expected to=… or a mapping of tables to topics; found both or neither")
        name = name or to or ""
        if not _NAME.fullmatch(name):
            raise UserError(
                "expected a name of at most 50 lower-case letters, digits, '_', '.' and '-', such as "
                f"name='shop'; found {name!r}"
            )
        if format not in ("debezium", "flat"):
            raise UserError(f"expected format='debezium' or 'flat'; found {format!r}")
        if values not in ("precise", "readable"):
            raise UserError(f"expected values='precise' or 'readable'; found {values!r}")
        own = "penstock_" + re.sub(r"[^a-z0-9_]", "_", name)
        self._plan = _Plan(
            name=name,
            url=url,
            patterns=parse_tables(tables),
            topics=topics,
            to=to,
            address=log.removeprefix("kafka://"),
            settings=settings,
            format=format,
            values=values,
            slot=slot or own,
            publication=publication or own,
            partitions=partitions,
            is_compact=compact,
        )
        self.name, self.done = name, self._plan.done

    def stop(self) -> None:
        """Ends `run` soon; from any thread."""
        self._plan.end.set()

    def run(self, *, until: Callable[[Captured], bool] | None = None) -> Captured:
        """Captures, until it is stopped; a server or a log that is away is waited for.

        Args:
            until: asked often; it ends when this is true.

        Raises:
            SetupError: the server isn't set up for it; the message has the SQL.
            FencedError: another process has begun under this name.
        """
        pause_s = BACKOFF_S[0]
        while not self._plan.is_over(until):
            began = time.monotonic()
            try:
                _Session(self._plan, until).run()
            except (SetupError, UserError, FencedError):
                raise
            except Exception as error:
                if not _passes(error):
                    raise
                if time.monotonic() - began > BACKOFF_S[1]:
                    pause_s = BACKOFF_S[0]
                self.done.phase, self.done.trouble = "waiting", str(error).strip()
                _log.warning("%s: %s; trying again", self.name, self.done.trouble)
                self._plan.end.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause_s = min(2 * pause_s, BACKOFF_S[1])
        return self.done


def topic_name(text: str) -> str:
    """A topic's name, with `_` for what Kafka doesn't allow there."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _passes(error: Exception) -> bool:
    """Whether it may be better later."""
    if isinstance(error, BrokerError | OSError):
        return True
    import psycopg

    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


class _Session:
    """One connection to the server and one to the log, until either breaks."""

    def __init__(self, plan: _Plan, until: Callable[[Captured], bool] | None) -> None:
        self._plan, self._until, self._done = plan, until, plan.done
        self._tables: dict[int, tuple[Table, Watched] | None] = {}
        self._begin: Begin | None = None
        self._skips = False
        self._closed_at: float | None = None  # when the oldest transaction that waits was complete
        self._looked = self._said = self._stored = time.monotonic()

    def run(self) -> None:
        """Captures until it is over, or to pause."""
        plan = self._plan
        self._log = Log(plan.address, plan.name, **plan.settings)
        try:
            self._check_owner()
            state = self._log.start()
            self._check_owner()  # whoever began in between has fenced us, or is fenced
            if state is not None:
                self._log.commit(replace(state, owner=plan.owner))
                plan.owns = True
            if self._waits_for_resume():
                return
            self._server = Server(plan.url)
            try:
                self._state = self._prepare(state)
                self._stream()
            finally:
                self._server.close()
        finally:
            self._log.close()

    def _check_owner(self) -> None:
        """A connection that is created again doesn't take back what another process has taken over.

        Raises:
            FencedError: another one has.
        """
        plan = self._plan
        if not plan.owns:
            return
        state = self._log.load()
        if state is not None and state.owner != plan.owner:
            raise FencedError(
                f"expected to go on with the capture {plan.name!r}; found that another process has begun "
                "under this name. Run one at a time"
            )

    def _waits_for_resume(self) -> bool:
        """Waits while it is to pause; whether it is over then."""
        while self._log.told() == "pause":
            self._done.phase, self._done.trouble = "paused", ""
            if self._plan.end.wait(LOOK_S) or self._plan.is_over(self._until):
                return True
        return False

    # -- before changes come ----------------------------------------------------------------------------

    def _prepare(self, state: State | None) -> State:
        """Makes slot, publication and topics be there, and takes snapshots of tables that are new."""
        plan, server = self._plan, self._server
        self._done.phase, self._done.trouble = "starting", ""
        server.check()
        self._encoder = Encoder(plan.to or plan.name, server.database, plan.format, time.time_ns)
        names = {t: topic for t in server.tables(plan.patterns) if (topic := plan.topic_of(t))}
        system = server.system
        if state is not None and state.system != system:
            raise SetupError(
                f"expected the database that {plan.name!r} has captured so far ({state.server}); "
                f"found another one at {server.name}. Give this capture another name=…, or drop the old one: "
                f"penstock capture drop {plan.name}"
            )
        self._check_slot(state)
        server.publish(plan.publication, names)
        if state is None:
            state = State(server.name, system, plan.slot, plan.publication)
        state = replace(state, server=server.name)
        configs = {"retention.ms": "-1"}
        if plan.is_compact:
            configs["cleanup.policy"] = "compact"
        for topic in names.values():
            self._log.create_topic(topic, plan.partitions, configs)
        if self._has_messages:
            self._log.create_topic(self._message_topic, 1, {"retention.ms": "-1"})
        self._oids = {".".join(t): server.oid(t) for t in names}
        kept = {
            t: w
            for t, w in state.tables.items()
            if w.topic in names.values() and w.oid == self._oids.get(t)
        }
        state = replace(state, tables=kept)
        new = {t: topic for t, topic in names.items() if ".".join(t) not in kept}
        return self._read_snapshot(state, new) if new else state

    def _check_slot(self, state: State | None) -> None:
        """Makes the slot be there, and ours.

        Raises:
            SetupError: changes were lost.
        """
        plan, server = self._plan, self._server
        lost = (
            "Changes between were lost. Begin anew with a new snapshot: penstock capture drop "
            f"{plan.name}"
        )
        slot = server.slot(plan.slot)
        if slot is None:
            if state is not None:
                raise SetupError(
                    f"expected the slot {plan.slot!r} at {server.name}, where this capture stopped at "
                    f"{lsn_text(state.lsn)}; found none. {lost}"
                )
            server.create_slot(plan.slot)
            return
        if slot.wal_status == "lost":
            raise SetupError(
                f"expected the slot {plan.slot!r} to have kept the server's log; found that the server "
                f"has let go of it (max_slot_wal_keep_size). {lost}"
            )
        if state is not None and state.lsn and slot.confirmed > state.lsn:
            raise SetupError(
                f"expected the slot {plan.slot!r} to be at {lsn_text(state.lsn)} or before; found it "
                f"at {lsn_text(slot.confirmed)}: something else has read from it, or the log was "
                f"restored. {lost}"
            )
        deadline = time.monotonic() + TAKEOVER_S
        while slot is not None and slot.is_active:
            # Whoever has it can't write any more: it was fenced when this one began.
            if slot.pid is not None:
                server.disconnect(slot.pid)
            if time.monotonic() > deadline:
                raise SetupError(
                    f"expected the slot {plan.slot!r} to be free; found it in use by the server's process "
                    f"{slot.pid}. End that, or name another slot"
                )
            self._plan.end.wait(0.1)
            slot = server.slot(plan.slot)

    def _read_snapshot(self, state: State, new: dict[TableName, str]) -> State:
        """Writes the rows that tables have, in one transaction of the log, and from where changes count."""
        self._done.phase = "snapshot"
        counts = dict.fromkeys(new, 0)
        values = self._plan.values
        with Snapshot(self._server, slot_name(self._plan.slot)) as snapshot:
            for one in snapshot.read(new, self._encoder, values):
                self._log.add(one.record)
                counts[one.table] += 1
                self._done.snapshot_rows += 1
                if self._log.waiting_bytes >= STEP_BYTES:
                    self._log.send()
            tables = {
                (told := ".".join(t)): Watched(topic, snapshot.lsn, counts[t], self._oids[told])
                for t, topic in new.items()
            }
            lsn = state.lsn if state.tables else snapshot.lsn
            state = replace(state, lsn=lsn, tables=state.tables | tables)
            state = replace(state, time_us=state.time_us or time.time_ns() // 1000)
            return self._commit(state)

    # -- changes ----------------------------------------------------------------------------------------

    def _stream(self) -> None:
        """Takes changes as they come."""
        plan, done = self._plan, self._done
        self._pg = self._server.start(
            plan.slot, plan.publication, self._state.lsn, messages=self._has_messages
        )
        self._received = self._state.lsn
        done.phase, done.lsn, done.time_us = "streaming", self._state.lsn, self._state.time_us
        while True:
            count, data = self._pg.get_copy_data(1)
            if count > 0:
                self._take(data)
                if self._log.waiting_bytes >= STEP_BYTES or self._lingers():
                    self._store()
                continue
            if count < 0:
                raise ConnectionError(f"{self._server.name} has ended the connection")
            self._store()
            if self._turn_ends():
                return
            ready, _, _ = select.select([self._pg.socket], [], [], 0.1)
            done.is_caught_up = not ready and self._begin is None
            if ready:
                self._pg.consume_input()

    def _turn_ends(self) -> bool:
        """What is to be done now and then; whether it is over, or to pause."""
        now = time.monotonic()
        if now - self._said >= STATUS_S:
            self._say()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if self._log.told() == "pause":
                return True
        return self._plan.is_over(self._until)

    def _lingers(self) -> bool:
        return self._closed_at is not None and time.monotonic() - self._closed_at > LINGER_S

    def _take(self, data: Any) -> None:
        """A message of the replication protocol: the server's log, or that it is alive."""
        if data[0] == ord("k"):
            (end,) = struct.unpack_from(">q", data, 1)
            if self._begin is None:
                self._received = max(self._received, end)
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
                        self._log.add(record)
                    self._done.unchanged += table.placeholders - before
            case Begin() as begin:
                self._begin, self._skips = begin, begin.commit_lsn < self._state.lsn
            case Commit(end):
                self._close(end)
            case Relation() as relation:
                self._describe(relation)
            case Truncate(relations):
                for oid in relations:
                    if (found := self._watched(oid)) is not None:
                        at = self._moment(lsn)
                        for record in self._encoder.truncated(found[0], found[1].topic, at):
                            self._log.add(record)
            case Message() as message:
                self._take_message(message, lsn)
            case None:
                pass

    def _moment(self, lsn: int) -> Moment:
        assert self._begin is not None, "a change outside a transaction"
        return Moment.of(self._begin, lsn, self._state.lsn)

    def _watched(self, oid: int) -> tuple[Table, Watched] | None:
        """A table and its topic; None where the change isn't ours, or is in the snapshot."""
        found = self._tables.get(oid)
        if found is None or self._skips:
            return None
        assert self._begin is not None, "a change outside a transaction"
        return found if self._begin.commit_lsn >= found[1].since else None

    def _describe(self, relation: Relation) -> None:
        watched = self._state.tables.get(f"{relation.schema}.{relation.name}")
        if watched is None:
            self._tables[relation.oid] = None
            return
        facts = self._server.facts(relation.oid)
        table = Table(relation, facts, self._server.types, self._plan.values)
        self._tables[relation.oid] = table, watched

    def _take_message(self, message: Message, lsn: int) -> None:
        if not self._has_messages:
            return
        state = self._state
        if message.is_transactional:
            if not self._skips:
                self._log.add(
                    self._encoder.message(self._message_topic, message, self._moment(lsn))
                )
        elif message.lsn >= state.lsn:
            at = Moment(message.lsn, state.time_us, None, state.lsn)
            self._log.add(self._encoder.message(self._message_topic, message, at))
            self._state = replace(state, lsn=message.lsn + 1)
            self._closed_at = self._closed_at or time.monotonic()

    @property
    def _has_messages(self) -> bool:
        return self._plan.format == "debezium" and self._plan.to is not None

    @property
    def _message_topic(self) -> str:
        return topic_name(f"{self._plan.to}.message")

    def _close(self, end: int) -> None:
        """A transaction is complete."""
        begin, self._begin = self._begin, None
        assert begin is not None, "an end without a beginning"
        self._received = max(self._received, end)
        if self._skips:
            return
        self._state = replace(self._state, lsn=end, time_us=begin.time_us)
        if self._log.open_records:
            self._done.transactions += 1
            self._closed_at = self._closed_at or time.monotonic()

    def _store(self) -> None:
        """Commits what is complete; of a transaction that isn't, sends what there is."""
        if self._begin is not None:
            if self._log.waiting_bytes >= STEP_BYTES:
                self._log.send()
            return
        now = time.monotonic()
        is_idle = not self._log.open_records
        if is_idle and (now - self._stored < IDLE_STORE_S or self._received <= self._done.lsn):
            return
        lsn = max(self._state.lsn, self._received)
        self._state = self._commit(replace(self._state, lsn=lsn))
        self._say()

    def _commit(self, state: State) -> State:
        count = self._log.open_records
        state = self._log.commit(replace(state, owner=self._plan.owner))
        self._plan.owns = True
        self._stored, self._closed_at = time.monotonic(), None
        done = self._done
        done.records += count
        done.lsn, done.time_us = state.lsn, state.time_us
        return state

    def _say(self) -> None:
        """Tells the server how far it needn't keep its log for us: as far as it is stored."""
        stored = self._done.lsn
        now_us = time.time_ns() // 1000 - 946_684_800_000_000
        received = max(self._received, stored)
        status = struct.pack(">cqqqqB", b"r", received, stored, stored, now_us, 0)
        self._pg.put_copy_data(status)
        while self._pg.flush():
            select.select([], [self._pg.socket], [], 1.0)
        self._said = time.monotonic()
