"""Databases in a program: tables that are captured, and tables that follow."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.core.schema import JSON, Schema
from penstock.errors import FlowError, PenstockError, SetupError, UserError
from penstock.flow import Stream, Table
from penstock.flow.graph import row_key
from penstock.flow.times import EventTime
from penstock.formats.changelog import ChangelogFormat
from penstock.formats.registered import RegisteredFormat
from penstock.sql import SqlFlow
from penstock.sql.flow import (
    CAPTURE_OPTIONS,
    computed_refused,
    statement_options,
    watermark_of,
)

# Captures and sinks are imported where a program has some: they take half a second of processor time.
if TYPE_CHECKING:
    from penstock.capture import Capture, TableSource
    from penstock.sinks import Sink, Target
    from penstock.sinks.figures import SinkFigures
    from penstock.sql.statements import Statement

__all__ = ["DatabaseFlow", "Running"]

DRAIN_S: Final = 5.0
"""How long sinks may continue when the pipeline has ended, until they have written what there is."""
TARGET_OPTIONS: Final = ("table", "topic", "sink", "partitions", "retention")
"""Of CREATE SINK … INTO an address."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Source:
    topic: str
    source: TableSource
    partitions: int


@dataclass(frozen=True)
class _Written:
    """What a topic between a table and its targets has: of which table, and how."""

    table: Table | Stream
    emit: str | None
    every: str | timedelta | None

    def is_same(self, other: _Written) -> bool:
        """Whether the records are the same."""
        how, others = (self.emit, self.every), (other.emit, other.every)
        return self.table.node is other.table.node and how == others


@dataclass(frozen=True)
class _Sink:
    name: str
    target: Target
    topic: str
    schema: Schema
    key: tuple[str, ...]
    written: _Written
    pace_s: float | None
    batch_records: int | None


class DatabaseFlow(SqlFlow):
    """A flow with tables of databases at its ends."""

    def __init__(
        self, name: str, *, transactions: bool = False, on_error: str = "dead-letter"
    ) -> None:
        super().__init__(name, transactions=transactions, on_error=on_error)
        self._captured: dict[str, _Source] = {}
        self._followers: dict[str, _Sink] = {}

    def table(
        self,
        topic: str,
        schema: str | Schema | None = None,
        *,
        key: str | tuple[str, ...] | None = None,
        format: ChangelogFormat | RegisteredFormat | None = None,  # noqa: A002 - the field's name
        registry: str | None = None,
        time: EventTime | None = None,
        partitions: int = 1,
        source: TableSource | None = None,
    ) -> Table:
        """Reads a compacted topic, or a changelog, as a table: the newest row of each key.

        A record is the new row of its key. A record without a value (a tombstone) deletes the row of the
        record's key: the text of the key column, or a JSON object with the key columns, alone or as the
        `payload` next to a `schema`. Records of one key must be in one partition; the last one
        counts. A record that doesn't fit goes to the dead-letter topic.

        Args:
            topic: its name; created with `partitions` if it doesn't exist.
            schema: the columns, as in SQL. The key's are NOT NULL. With a source, by default the
                database's, which are read when the program is loaded.
            key: the column or columns that identify a row; with a source, by default the primary key.
            format: of the records' values. `"json"` (default): the row. `"debezium"`: Debezium's envelope,
                with or without its schema, or what `Table.to(…, emit="changes")` writes.
                `"debezium-precise"`: the same, with decimals as Debezium writes them by default.
                `"maxwell"`: what Maxwell writes. `"avro"`, `"json-schema"` or `"protobuf"`, with a registry:
                the row by its schemas.
            registry: the URL of a schema registry, for these, and for `"debezium"` envelopes by its schemas,
                of any kind. Keys are by its schemas as well, or text.
            time: when changes happen, for `enrich(…, as_of="event time")`:
                `ps.event_time(column, lateness=…)`; by default the record's own timestamp, which is also
                that of every deletion.
            partitions: the number of partitions of a new topic.
            source: `ps.capture.postgres(url, table=…)`, `mysql`, `sqlite`: while the program runs, the table
                is captured into the topic.
        """
        if source is None:
            if schema is None or key is None:
                raise FlowError("expected schema and key=…, or source=…; found neither")
            return super().table(
                topic,
                schema,
                key=key,
                format=format or "json",
                registry=registry,
                time=time,
                partitions=partitions,
            )
        from penstock.capture import TableSource

        if not isinstance(source, TableSource):
            raise FlowError(
                f"expected source=ps.capture.postgres(…) or another source; found {source!r}"
            )
        if format is not None or registry is not None:
            raise FlowError("expected format=… of the source; found one of the table")
        if schema is None or key is None:
            found, found_key = source.describe()
            schema, key = schema or found, key or found_key
        made = super().table(
            topic,
            schema,
            key=key,
            format="debezium" if source.format == "debezium" else _format_of(schema),
            time=time,
            partitions=partitions,
        )
        one = _Source(topic, source, partitions)
        if self._captured.setdefault(topic, one) != one:
            raise FlowError(f"expected one source of the topic {topic!r}; found two")
        return made

    def _create_captured(self, statement: Statement) -> None:
        """CREATE TABLE … FROM POSTGRES '…'."""
        from penstock import capture
        from penstock.sql.statements import PlacedError

        options = statement_options(statement, CAPTURE_OPTIONS)
        assert statement.source is not None
        word, url = statement.source
        form = options.get("format", "flat")
        if form not in ("flat", "debezium"):
            raise FlowError(f"expected format = 'flat' or 'debezium'; found {form!r}")
        try:
            kind = capture.kind_called(word)
        except UserError as error:
            raise PlacedError(str(error), statement.places["from"]) from None
        source = capture.source_of(
            kind,
            url,
            table=options.get("table", statement.name),
            name=options.get("capture"),
            format=form,
        )
        columns = statement.columns
        if columns is not None and columns.computed:
            raise computed_refused(statement, "CREATE TABLE … FROM a database")
        self.named[statement.name] = self.table(
            options.get("topic", statement.name),
            columns.text if columns is not None else None,
            key=columns.key or None if columns is not None else None,
            time=watermark_of(columns) if columns is not None else None,
            partitions=options.get("partitions", 1),
            source=source,
        )

    def sink(
        self,
        table: Table | Stream,
        target: Target,
        *,
        topic: str | None = None,
        name: str | None = None,
        emit: Literal["closed", "upserts"] | None = None,
        every: str | timedelta | None = None,
        partitions: int = 1,
        retention: str | timedelta | None = None,
        pace_s: float | None = None,
        batch_records: int | None = None,
    ) -> None:
        """Keeps a table of another system equal to a table of this program, or appends a stream's rows to it.

        The rows are written to a topic, exactly once. The target follows the topic at its own pace, while the
        program runs. An unavailable target doesn't delay anything else.

        Args:
            table: the table or stream to write.
            target: such as `ps.sinks.postgres(…)`; docs/sinks.md lists them.
            topic: the one that the target follows; by default `APP.TABLE`. Several targets of one table may
                share it.
            name: the name under which the target's offsets are stored; by default the topic's.
            emit: of a table: `"closed"`, the default for tables with windows, or `"upserts"`, as of
                `Table.to`.
            every: of upserts, the shortest time between two changes of a key, as for `Table.to`.
            partitions: the number of partitions of a new topic.
            retention: how long a new topic keeps records; None: without limit.
            pace_s: the shortest time between two writes, as for `ps.sinks.Sink`.
            batch_records: the most records of a transaction of the target, as for `ps.sinks.Sink`.
        """
        if not isinstance(table, Table | Stream):
            raise FlowError(f"expected a table or a stream; found {type(table).__name__}")
        target_name = target.table
        between = topic or re.sub(r"[^A-Za-z0-9._-]", "_", f"{self.name}.{target_name}")
        if emit not in (None, "closed", "upserts"):
            raise FlowError(
                f"expected emit='closed' or 'upserts', which a target can follow; found emit={emit!r}"
            )
        if isinstance(table, Stream) and (emit is not None or every is not None):
            raise FlowError("expected emit=… and every=… for a table; found a stream")
        written = _Written(table, emit, every)
        if not self._is_followed(between, written):
            if isinstance(table, Table):
                table.to(
                    between, partitions=partitions, retention=retention, emit=emit, every=every
                )
            else:
                table.to(between, partitions=partitions, retention=retention)
        output = self._outputs[between]
        key: tuple[str, ...] = ()
        if isinstance(table, Table):
            key = row_key(output.node)
            if not key:
                raise FlowError(
                    f"expected columns that identify the rows of {target_name!r}; found none among "
                    f"{', '.join(table.schema.names)}. Keep the key in select(…)"
                )
        elif output.emission != "rows":
            raise FlowError(
                f"expected a table, or a stream without retractions, for {target_name!r}; found a "
                "stream of changes"
            )
        own = name or between
        if own in self._followers:
            raise FlowError(f"expected each sink once; found two called {own!r}. Give name=…")
        schema = output.node.schema
        _check_rows(target, between, schema, key)
        self._followers[own] = _Sink(
            *(own, target, between, schema, key, written), pace_s, batch_records
        )

    def _create_sink(self, statement: Statement, dialect: str) -> None:
        """CREATE SINK … INTO 'postgresql://…', or a topic."""
        from penstock.sql.statements import PlacedError

        address = statement.into
        assert address is not None
        if not (statement.is_quoted and _is_address(address)):
            super()._create_sink(statement, dialect)
            return
        from penstock.sinks import from_address

        options = statement_options(statement, TARGET_OPTIONS)
        assert statement.query is not None
        try:
            target = from_address(address, options.pop("table", statement.name))
        except UserError as error:
            raise PlacedError(str(error), statement.places["into"]) from None
        except SetupError as error:
            raise SetupError(f"line {statement.line}, SINK {statement.name}: {error}") from None
        emit: Any = statement.emit
        self.sink(
            self._rows(statement.query, dialect).collection,
            target,
            topic=options.pop("topic", f"{self.name}.{statement.name}"),
            name=options.pop("sink", None),
            emit=emit,
            every=statement.every,
            **options,
        )

    def _is_followed(self, topic: str, written: _Written) -> bool:
        """Whether another target follows a topic that has the same."""
        followers = self._followers.values()
        return any(one.topic == topic and one.written.is_same(written) for one in followers)

    def targets(self) -> dict[str, list[str]]:
        """By topic, what follows it: each sink's name and its target, without a password."""
        found: dict[str, list[str]] = {}
        for one in self._followers.values():
            found.setdefault(one.topic, []).append(f"{one.name}: {one.target.name}")
        return found

    def databases(self, address: str) -> Running:
        """The captures and sinks of this program, for a log."""
        return Running(self._make_captures(address), self._make_sinks(address))

    def _make_captures(self, address: str) -> list[Capture]:
        if not self._captured:
            return []
        from penstock.capture import Capture, TableSource

        groups: dict[tuple[str, TableSource], list[_Source]] = {}
        for one in self._captured.values():
            source = one.source
            name = source.name or re.sub(r"[^a-z0-9_]", "_", self.name.lower())[:50]
            alike = TableSource(source.url, "", name, source.format)
            groups.setdefault((name, alike), []).append(one)
        names = [name for name, _ in groups]
        for name in names:
            if names.count(name) > 1:
                raise FlowError(
                    f"expected one database, and one format, for the capture {name!r}; found several. Give "
                    "the source name=…"
                )
        return [
            Capture(
                alike.url,
                {one.source.table: one.topic for one in some},
                name=name,
                log=address,
                format=alike.format,
                values="readable",
                partitions=max(one.partitions for one in some),
            )
            for (name, alike), some in groups.items()
        ]

    def _make_sinks(self, address: str) -> list[Sink]:
        if not self._followers:
            return []
        from penstock.sinks import Sink

        return [
            Sink(
                *(one.target, one.topic, one.schema),
                key=one.key,
                log=address,
                name=one.name,
                pace_s=one.pace_s,
                batch_records=one.batch_records,
            )
            for one in self._followers.values()
        ]


def _is_address(text: str) -> bool:
    """Whether a text is the address of another system; a name without a dot needs no look at them."""
    if "/" not in text and "." not in text:
        return False
    from penstock.sinks import is_address

    return is_address(text)


def _check_rows(target: Target, topic: str, schema: Schema, key: tuple[str, ...]) -> None:
    """Checks what can be known of a target before it is asked."""
    from penstock.sinks import Choosing, Rows

    if isinstance(target, Choosing):
        try:
            target.check_rows(Rows(topic, schema, key))
        except UserError as error:
            raise FlowError(str(error)) from None


class Running:
    """Captures and sinks in threads.

    An error of a capture that doesn't pass ends the pipeline, which gets nothing more to read. One of a sink
    is logged, and the others continue.
    """

    def __init__(self, captures: list[Capture], sinks: list[Sink]) -> None:
        self.captures, self.sinks = captures, sinks
        #: What ended a capture.
        self.error: PenstockError | None = None

    def figures(self) -> dict[str, SinkFigures]:
        """By name, what the sinks do, as values of JSON: `Sink.figures`."""
        return {one.name: one.figures() for one in self.sinks}

    @contextlib.contextmanager
    def running(self) -> Iterator[Running]:
        """Runs them meanwhile; at the end sinks may write what there is, for a while."""
        threads = [threading.Thread(target=self._capture, args=(one,)) for one in self.captures]
        followers = [threading.Thread(target=self._follow, args=(one,)) for one in self.sinks]
        for thread in threads + followers:
            thread.start()
        try:
            yield self
        finally:
            for capture in self.captures:
                capture.stop()
            deadline = time.monotonic() + DRAIN_S
            for sink in self.sinks:
                sink.finish()
            for thread in followers:
                thread.join(max(deadline - time.monotonic(), 0.0))
            for sink in self.sinks:
                sink.stop()
            for thread in threads + followers:
                thread.join()

    def _capture(self, capture: Capture) -> None:
        try:
            capture.run()
        except PenstockError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - what isn't known ends the pipeline, too
            _log.debug("the capture failed", exc_info=True)
            self.error = PenstockError(f"the capture {capture.name!r} failed: {error}")

    def _follow(self, sink: Sink) -> None:
        try:
            sink.run()
        except Exception as error:  # noqa: BLE001 - one that fails holds up nothing else
            sink.done.phase, sink.done.trouble = "failed", str(error)
            _log.error("the sink %s stopped: %s", sink.name, error)


def _format_of(schema: str | Schema) -> ChangelogFormat:
    """How the rows of a captured table are read: "flat" where there is JSON, which others don't differ in."""
    columns = Schema.parse(schema) if isinstance(schema, str) else schema
    return "flat" if any(one.type == JSON for one in columns) else "json"
