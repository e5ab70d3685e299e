"""`Capture`: a database's changes into topics, each once, in the order of its commits.

    read what was stored -> snapshots of tables that are new -> changes, transaction by transaction

A source transaction is never cut: its records become visible together with the position behind its commit.
What the server confirms as no longer needed is never more than what was stored.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from penstock.capture.database import (
    Kind,
    Moves,
    Settings,
    Stream,
    TableName,
    TakesRequests,
    spelled,
)
from penstock.capture.envelope import Format, Values
from penstock.capture.kinds import kind_of
from penstock.capture.notifications import INITIAL, Notifications
from penstock.capture.output import Captured, Output
from penstock.capture.progress import (
    KIND,
    Control,
    Log,
    State,
    Watched,
    control_topic,
    letters_topic,
    schemas_topic,
    state_topic,
    stored,
)
from penstock.capture.registered import Registered
from penstock.capture.snapshots import Initial, StoppedError, written_before
from penstock.capture.table_schemas import OnSchemaChange, Schemas
from penstock.capture.unread import OnUnreadable
from penstock.core.databases import described
from penstock.errors import FencedError, SetupError, UserError
from penstock.follow.follower import Body, Follower
from penstock.formats.registered import KINDS, RegisteredFormat

__all__ = ["Capture", "topic_name"]

LOOK_S: Final = 1.0
"""How often requests are passed on."""
WAIT_S: Final = 0.1
"""How long changes are waited for, before it is looked whether it is over."""
LAG_LOOK_S: Final = 10.0
"""How often is looked how much the database keeps, where that has a bound."""
_log = logging.getLogger(__name__)


class Capture:
    """Captures tables of a database.

    Args:
        url: the database's address, `postgresql://user@host:port/database`. If it has no password,
            PGPASSWORD, PGPASSFILE or `~/.pgpass` is used.
        tables: `schema.table`, with `*` for anything; or a mapping of tables to topics.
        to: the beginning of the topics' names: `TO.schema.table`. Not with a mapping.
        log: the broker's address.
        name: the name under which the position is stored: lower-case letters, digits, `_`, `.` and `-`. By
            default `to`. Only one process at a time can use a name: a second one fences the first.
        format: `debezium` (envelopes) or `flat` (rows) as JSON; or `avro`, `json-schema` or `protobuf`:
            envelopes with schemas of a registry, as Debezium writes them with Confluent's converters.
        registry: the URL of the schema registry, for these.
        values: `precise`, Debezium's types, or `readable`: decimals, dates and times as text.
        slot: the replication slot, created if it doesn't exist; by default `penstock_NAME`.
        publication: the publication, created if it doesn't exist; by default `penstock_NAME`.
        partitions: the number of partitions of new topics.
        compact: whether new topics keep only the newest record of each key.
        transactions: whether changes contain their place in their transaction, and the topic
            `TO.transaction` lists the changes of each transaction.
        heartbeat_s: seconds between heartbeats, which are written to `__debezium-heartbeat.TO`; None: none.
        max_lag: how many bytes of its log the database keeps for this capture. Beyond that, the slot is
            dropped before the database's disk is full, and `run` raises SetupError. None: no limit.
        outbox: a table whose rows are events for the topics `outbox.event.AGGREGATETYPE`.
        snapshot_connections: how many connections read a table in chunks at a time.
        large_values: how to write large values that an update of PostgreSQL didn't change: `read` (from the
            table, the default) or `placeholder` (Debezium's).
        cascades: what to do when a foreign key's action (`ON DELETE CASCADE`) has changed rows of MySQL or
            MariaDB, which their binary log doesn't have: `read` (the table again, the default) or `ignore`.
        schema_changes: whether changes of the tables' schemas are written to the topic `TO`, as Debezium's
            records.
        on_schema_change: what to do if readers of a topic may fail: a NOT NULL column is dropped or can be
            null, a type or the key changes. `pass` logs a warning and continues; `stop` stops before it.
        notifications: whether Debezium's notifications of snapshots are written to `TO.notifications`.
        on_unreadable: what to do with a row that has a value that can't be read or written: `null` writes
            the row with NULL there, `letter` writes it to the topic `NAME.capture.dead-letters` instead.
            Both count, and log a warning once for each column. A row whose key has such a value is always
            a dead letter.
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
        format: Format | RegisteredFormat = "debezium",  # noqa: A002 - the field's name
        registry: str | None = None,
        values: Values = "precise",
        slot: str | None = None,
        publication: str | None = None,
        partitions: int = 1,
        compact: bool = False,
        transactions: bool = False,
        heartbeat_s: float | None = None,
        outbox: str | None = None,
        max_lag: int | None = None,
        snapshot_connections: int | None = None,
        large_values: Literal["read", "placeholder"] | None = None,
        cascades: Literal["read", "ignore"] | None = None,
        schema_changes: bool = False,
        on_schema_change: OnSchemaChange = "pass",
        notifications: bool = False,
        on_unreadable: OnUnreadable = "null",
        **settings: Any,
    ) -> None:
        topics = dict(tables) if isinstance(tables, Mapping) else None
        if (to is None) == (topics is None):
            raise UserError("expected to=… or a mapping of tables to topics; found both or neither")
        self._kind = kind_of(url)
        options = {
            "slot": slot,
            "publication": publication,
            "outbox": outbox,
            "registry": registry,
            "transactions": transactions or None,
            "heartbeat_s": heartbeat_s,
            "max_lag": max_lag,
            "snapshot_connections": snapshot_connections,
            "large_values": large_values,
            "cascades": cascades,
        }
        self._settings = Settings(
            name=name or to or "",
            url=url,
            patterns=self._kind.patterns(url, [*tables, *([outbox] if outbox else [])]),
            topics=topics,
            to=to,
            address=log.removeprefix("kafka://"),
            client=settings,
            format=cast("Format", "debezium" if format in KINDS else format),
            values=values,
            partitions=partitions,
            is_compact=compact,
            options={option: value for option, value in options.items() if value is not None},
            schema_changes=schema_changes,
            on_schema_change=on_schema_change,
            notifications=notifications,
            schemas=KINDS.get(format),
            on_unreadable=on_unreadable,
        )
        self._check_options()
        self._check_registry(format)
        body = _Capturing(self._settings, self._kind)
        self._follower = Follower(body, self._settings.address, settings)
        self.name, self.done = body.name, body.done

    def _check_options(self) -> None:
        """Checks that this kind of database has the options that are given.

        Raises:
            UserError: it doesn't have one.
        """
        if unknown := self._settings.options.keys() - self._kind.options:
            hint = ". A registry's schemas need columns with types" if "registry" in unknown else ""
            names = ", ".join(sorted(unknown)) + ", which it hasn't"
            raise UserError(f"expected options of {self._kind.name}; found {names}{hint}")

    def _check_registry(self, format_: str) -> None:
        """Checks what goes with a registry.

        Raises:
            UserError: something else is given.
        """
        settings, registry = self._settings, self._settings.options.get("registry")
        if (format_ in KINDS) != (registry is not None):
            raise UserError(
                "expected registry='http://…', a schema registry's URL, with format='avro', 'json-schema' or "
                f"'protobuf', and with no other one; found format={format_!r} and registry={registry!r}"
            )
        if registry is None:
            return
        if not registry.startswith(("http://", "https://")):
            raise UserError(f"expected a registry's URL, http://…; found {registry!r}")
        if settings.values != "precise":
            raise UserError(
                f"expected values='precise' with format={format_!r}, whose schemas say what they mean; found "
                f"{settings.values!r}"
            )
        topics = [*(settings.topics or {}).values()]
        if twice := sorted({one for one in topics if topics.count(one) > 1}):
            raise UserError(
                f"expected a topic for each table with format={format_!r}, as a topic has one schema; found "
                f"several tables for {', '.join(twice)}"
            )

    def stop(self) -> None:
        """Ends `run` soon. Can be called from any thread."""
        self._follower.stop()

    def run(self, *, until: Callable[[Captured], bool] | None = None) -> Captured:
        """Captures until it is stopped. While the server or the log is unavailable, it waits.

        Args:
            until: polled; `run` ends when it returns true.

        Raises:
            SetupError: the server isn't set up for it; the message says what to do.
            FencedError: another process has begun under this name.
        """
        return self._follower.run(until)

    def figures(self) -> dict[str, Any]:
        """What this capture does now, as values of JSON; `Captured` describes them.

        Returns:
            `source`, the database (without a password), `target`, the topics, `phase`, `breaker`, `trouble`,
            `last_error`, `records`, `transactions`, `snapshot_rows`, `unread`, `dead`, `retries`;
            `since_ms`, when the phase began, and `at_ms`, now, in milliseconds since 1970.
        """
        return self._follower.figures()


def topic_name(text: str) -> str:
    """A topic's name, with `_` for what Kafka doesn't allow there."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


class _TakenOverError(FencedError):
    """The state says that another process has begun."""


class _Capturing(Body[Captured]):
    """A database's changes into topics.

    Args:
        settings: what is captured, and where to.
        kind: of the database.
    """

    kind = KIND

    def __init__(self, settings: Settings, kind: Kind) -> None:
        self.name, self.done = settings.name, Captured()
        self._settings, self._kind = settings, kind
        self._owner, self._owns = uuid.uuid4().hex, False
        self._state: State | None = None
        self._too_far: int | None = (
            None  # bytes that the database keeps, where they are more than it may
        )
        self._lag_looked = self._looked = time.monotonic()

    def figures(self) -> dict[str, Any]:
        """See `Body`."""
        done, settings = self.done, self._settings
        return {
            "source": described(settings.url),
            "target": settings.to or ", ".join(sorted({*(settings.topics or {}).values()})),
            "records": done.records,
            "transactions": done.transactions,
            "snapshot_rows": done.snapshot_rows,
            "unread": done.unread,
            "dead": done.letters,
        }

    def attempt(self) -> None:
        """Captures until it is over, or to pause."""
        settings = self._settings
        with Log(settings.address, settings.name, **settings.client) as self._log:
            self._check_owner()
            state = self._log.start()
            self._check_owner()  # a process that began in between has fenced this one, or is fenced
            if state is not None:
                self._log.commit(replace(state, owner=self._owner))
                self._owns, self._state = True, state
                state = None if state.is_begun else state
            self._database = self._kind.open(settings)
            try:
                self._stream(self._prepare(state))
            except StoppedError:
                pass
            except SetupError:
                self._log.abort()  # no process continues soon: readers needn't wait for an open transaction
                raise
            finally:
                self._database.close()
            self._log.abort()

    def watch(self) -> None:
        """Looks how much the database keeps, and lets it remove its log if that is too much.

        Raises:
            SetupError: it may.
            OSError: the database hasn't noticed yet that the connection has ended.
        """
        if not self._keeps_too_much():
            return
        assert self._state is not None
        assert self._too_far is not None
        try:
            self._kind.forget(self._settings.url, self.name, self._state)
        except UserError as error:
            raise BlockingIOError(f"the slot can't be dropped yet: {error}") from None
        raise SetupError(
            f"expected the database to keep at most {self._settings.options['max_lag']:,} bytes of its log "
            f"for {self.name!r}; found {self._too_far:,}. The slot was dropped, so that the database's disk "
            f"doesn't fill. Start again with a new snapshot: penstock capture drop {self.name}"
        )

    def rest(self) -> None:
        """Finds what the database keeps for it, where it was paused before it began."""
        if self._state is None and self._settings.options.get("max_lag") is not None:
            settings = self._settings
            self._state = stored(
                self.follower.client, settings.address, self.name, **settings.client
            )

    def ending(self, error: Exception) -> Exception | None:
        """See `Body`."""
        if isinstance(error, SetupError | UserError | _TakenOverError):
            return error
        if advice := self._kind.refuses(error, self.name):
            where = described(self._settings.url)
            return SetupError(
                f"expected {where} to let it capture; found: {str(error).strip()}. {advice}"
            )
        # The log also fences one whose transaction was open for too long.
        passes = isinstance(error, FencedError) and self._owns
        return None if passes or self._kind.passes(error) else super().ending(error)

    def _keeps_too_much(self) -> bool:
        """Whether the database keeps more than it may; says so from half of that on."""
        max_lag, now = self._settings.options.get("max_lag"), time.monotonic()
        is_due = now - self._lag_looked >= LAG_LOOK_S and self._too_far is None
        if max_lag is None or self._state is None or not is_due:
            return self._too_far is not None
        self._lag_looked = now
        try:
            kept_bytes = self._kind.look(self._settings.url, self._state).kept_bytes or 0
        except Exception as error:
            if not (isinstance(error, OSError) or self._kind.passes(error)):
                raise
            return False
        if kept_bytes > max_lag:
            self._too_far = kept_bytes
        elif kept_bytes > max_lag // 2:
            _log.warning(
                "%s: the database keeps %s bytes of its log for it, of %s that it may",
                *(self.name, f"{kept_bytes:,}", f"{max_lag:,}"),
            )
        return self._too_far is not None

    def _check_owner(self) -> None:
        """A connection that is created again doesn't take back what another process has taken over.

        Raises:
            _TakenOverError: another one has.
            SetupError: the capture was dropped.
        """
        if not self._owns:
            return
        state, name = self._log.load(), self.name
        if state is None:  # to begin again would undo that
            raise SetupError(
                f"expected to continue the capture {name!r}; found that its position is gone from the log: "
                f"it was dropped, or the topic {state_topic(name)} was deleted. Start it again with a new "
                "snapshot"
            )
        if state.owner != self._owner:
            raise _TakenOverError(
                f"expected to continue the capture {name!r}; found that another process has "
                "begun under this name. Run one at a time"
            )

    def _prepare(self, state: State | None) -> Output:
        """Makes topics, and what the database needs, be there; takes snapshots of tables that are new."""
        settings, database = self._settings, self._database
        self.follower.enter("starting")
        system = database.check()
        found = database.tables(settings.patterns)
        former = state.tables if state is not None else {}
        topics = self._topics(found, former)
        if state is not None and state.system != system and isinstance(database, Moves):
            state = database.moved(state, system)
        if state is not None and state.system != system:
            raise SetupError(
                f"expected the database that {settings.name!r} has captured so far ({state.server}); "
                f"found another one at {database.name}. Give this capture another name=…, or drop the old "
                f"one: penstock capture drop {settings.name}"
            )
        name = settings.name
        own = {state_topic(name), control_topic(name), schemas_topic(name), letters_topic(name)}
        own.update(database.topics)
        changes = topic_name(settings.to or "") if settings.schema_changes else None
        notes = topic_name(f"{settings.source_name}.notifications")
        notifications = Notifications(
            notes if settings.notifications else None, settings.source_name
        )
        for topic in (changes, notifications.topic):
            if topic is not None:
                own.add(topic)
                self._log.create_topic(topic, 1, {"retention.ms": "-1"})
        if taken := [spelled(t) for t, topic in topics.items() if topic in own]:
            raise SetupError(
                f"expected tables whose topics aren't the capture's own; found {', '.join(taken)} for "
                f"{', '.join(sorted(own & {*topics.values()}))}. Give this capture another name=…"
            )
        if state is None:
            self._begin(system)
        details = database.prepare(state, topics, self.follower.wait)
        if state is None:
            state = State(database.name, system, self._kind.name)
        state = replace(state, server=database.name, details={**state.details, **details})
        configs = {"retention.ms": "-1"}
        for topic in database.topics:
            self._log.create_topic(topic, 1, configs)
        if settings.is_compact:
            configs["cleanup.policy"] = "compact"
        for topic in topics.values():
            self._log.create_topic(topic, settings.partitions, configs)
        numbers = {spelled(t): identity for t, identity in found.items()}
        kept = {
            t: w
            for t, w in state.tables.items()
            if w.topic in topics.values() and w.identity == numbers.get(t)
        }
        source = (database.source[0], settings.source_name, database.source[1])
        schemas = Schemas(
            *(self._log.versions(), schemas_topic(name), changes, source),
            settings.on_schema_change,
        )
        state = replace(state, tables=kept)
        registry = settings.options.get("registry")
        by_schemas = None
        if registry is not None and settings.schemas is not None:
            by_schemas = Registered(registry, settings.schemas, database.source[0])
        output = Output(
            *(self._log, state, self.done, self._owner, schemas, notifications, by_schemas),
            settings.on_unreadable,
        )
        new = {t: topic for t, topic in topics.items() if spelled(t) not in kept}
        if new:
            read_again = written_before(new, kept, former, schemas.known)
            ends = {one: self._log.ends(topic) for one, topic in read_again.items()}
            again = {one: offsets for one, offsets in ends.items() if any(offsets)}
            self.follower.enter("snapshot")
            Initial(self._database, output, new, self.follower.wait).write(numbers, again)
            self._owns = True
        else:
            output.notify_now(INITIAL, "SKIPPED", uuid.uuid4().hex)
        self._state = output.state
        self.done.position, self.done.time_us = output.state.position, output.state.time_us
        return output

    def _begin(self, system: str) -> None:
        """Stores what the database will keep for the capture: who drops it now has to let go of that."""
        database, claims = self._database, dict(self._database.claims)
        kind, owner = self._kind.name, self._owner
        state = State(database.name, system, kind, claims, owner=owner, is_begun=True)
        self._log.commit(state)
        self._owns, self._state = True, state

    def _topics(
        self, tables: Iterable[TableName], former: Mapping[str, Watched]
    ) -> dict[TableName, str]:
        """The topics of tables: as they are given, or by their names.

        Kafka's names lack most letters, so that those of several tables may be the same. Such topics have a
        checksum of the table's name. A table that was captured before keeps its topic.
        """
        given, made = self._settings.topics, dict[TableName, str]()
        if given is not None:
            named = {one: given.get(spelled(one), given.get(one[1])) for one in tables}
            return {one: topic for one, topic in named.items() if topic}
        full = {one: ".".join((self._settings.to or "", *filter(None, one))) for one in tables}
        used = Counter(map(topic_name, full.values()))
        for table, wanted in full.items():
            name, topic = spelled(table), topic_name(wanted)
            apart = f"{topic}_{zlib.crc32(name.encode()):08x}"
            is_shared = used[topic] > 1 and (topic != wanted or name.startswith('"'))
            before = former[name].topic if name in former else ""
            made[table] = before if before in (topic, apart) else apart if is_shared else topic
        return made

    def _stream(self, output: Output) -> None:
        """Takes changes as they come."""
        end = self._database.end()
        stream = self._database.stream(output)
        self.done.is_caught_up = False
        self.follower.enter("streaming")
        self.follower.look(now=True)  # before it is said to be caught up
        self._ask(stream)
        while True:
            came = stream.take(WAIT_S)
            is_busy = came or output.is_open or output.is_reading
            self.done.is_caught_up = not is_busy and output.received >= end
            if output.store(came=came) or not came:
                stream.confirm()
            self.follower.succeed()
            if self._turn_ends(stream, output):
                output.settle()
                stream.confirm()
                return

    def _turn_ends(self, stream: Stream, output: Output) -> bool:
        """What is to be done now and then; whether it is over, or to pause."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if self._keeps_too_much() or self.follower.look():
                return True
            output.wanted = self._ask(stream).position
        return self.follower.is_over

    def _ask(self, stream: Stream) -> Control:
        """Passes on requests for snapshots; all that is asked."""
        asked = Control.of(self.follower.requests)
        if isinstance(stream, TakesRequests):
            for number, request in asked.requests.items():
                stream.ask(number, request)
        return asked
