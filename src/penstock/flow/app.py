"""`Flow`: the graph under construction. `penstock.App` is a flow that can also run."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from datetime import timedelta
from typing import Final, Literal, TypeVar

import pyarrow as pa

from penstock.core.names import also_at, built, place
from penstock.core.schema import JSON, Schema, type_text
from penstock.errors import FlowError
from penstock.expr import Expression, compile_expression
from penstock.flow.checks import (
    check_changelog,
    check_columns,
    check_condition,
    check_duration,
    check_format,
    check_number,
    check_schema,
    check_text,
)
from penstock.flow.collections import Stream, Table
from penstock.flow.graph import (
    Changelog,
    Graph,
    Node,
    OutputNode,
    Source,
    Stateful,
    ViewNode,
    ancestors,
    function_of,
    over_others,
)
from penstock.flow.shaping import columns_shown
from penstock.flow.times import EventTime, check_time
from penstock.formats.changelog import ChangelogFormat
from penstock.formats.lines import LineFormat
from penstock.formats.registered import RegisteredFormat
from penstock.ops import Upserts
from penstock.ops.rows import same_function

__all__ = ["Flow"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule
PARTITIONS_MAX: Final = 1_024  # of one topic: each costs a task's split and a few files

ON_ERROR: Final = ("dead-letter", "stop")
N = TypeVar("N", bound=Node)


class Flow:
    """What a program describes: streams, views and outputs.

    Args:
        name: of letters, digits and `_`.
        transactions: whether what a batch writes to topics is one transaction.
        on_error: what becomes of an error that some rows cause and that no operator foresaw, such as one in a
            function of the user's: `"dead-letter"`: these rows are dead letters, and the others are used;
            `"stop"`: the pipeline stops.
    """

    def __init__(
        self, name: str, *, transactions: bool = False, on_error: str = "dead-letter"
    ) -> None:
        _check_name(name)
        if on_error not in ON_ERROR:
            raise FlowError(
                f"expected on_error={' or '.join(map(repr, ON_ERROR))}; found {on_error!r}"
            )
        self.on_error = on_error
        if not isinstance(transactions, bool):
            raise FlowError(f"expected transactions=True or False; found {transactions!r}")
        self.name, self.transactions = name, transactions
        self._sources: dict[str, Source] = {}
        self._nodes: dict[str, Node] = {}  # by identity
        self._views: dict[str, ViewNode] = {}
        self._outputs: dict[str, OutputNode] = {}
        self._places: dict[tuple[str, str], str] = {}
        self._is_in_sql = False  # whether it has statements of a program in SQL
        #: What queries may name: streams and tables by their topics, views by their names.
        self.named: dict[str, Stream | Table] = {}

    def __repr__(self) -> str:
        parts: list[tuple[str, Node]] = [
            (f"{'stream' if one.changelog is None else 'table'} {one.topic}", one)
            for one in self._sources.values()
        ]
        parts += [(f"view {one.name}", one.node) for one in self._views.values()]
        parts += [(f"output {one.topic}", one.node) for one in self._outputs.values()]
        lines = [f"\n  {name} ({columns_shown(node)})" for name, node in parts]
        return f"{type(self).__name__}({self.name!r}){''.join(lines)}"

    def stream(
        self,
        topic: str,
        schema: str | Schema,
        *,
        time: EventTime | None = None,
        key: str | None = None,
        partitions: int = 1,
        retention: str | timedelta | None = None,
        format: Literal["json", "csv"] | RegisteredFormat | LineFormat = "json",  # noqa: A002
        registry: str | None = None,
    ) -> Stream:
        """Reads a topic as a stream of rows.

        Args:
            topic: its name; created with `partitions` if it doesn't exist.
            schema: the columns, as in SQL: `"user BIGINT NOT NULL, at TIMESTAMP"`. Other fields are
                ignored. A record that doesn't fit goes to the dead-letter topic.
            time: `ps.event_time(column, lateness=…)`, or `ps.processing_time()`; by default the record's own
                timestamp.
            key: the column whose text is the record's key, if all producers guarantee that. Aggregates
                grouped by it then run where the partition is read, without an exchange.
            partitions: the number of partitions of a new topic.
            retention: how long a new topic keeps records, by their timestamps; None: without
                limit.
            format: of the records' values: `"json"`, objects; `"csv"` or `ps.csv(…)`, lines with the schema's
                columns in their order; `ps.pattern(…)`, lines in which a regular expression finds them;
                `"avro"`, `"json-schema"` or `"protobuf"`, with a registry: by its schemas; `ps.avro(…)`.
            registry: the URL of a schema registry, for these.
        """
        _check_topic(topic)
        columns = check_schema(schema)
        time = check_time(time, columns)
        if key is not None:
            check_text(key, "key", "key='user': the column whose text is the record's key")
        if key is not None and (pa.types.is_nested(columns[key].type) or columns[key].type == JSON):
            raise FlowError(
                f"expected a key of single values; found {key!r}, {type_text(columns[key].type)}"
            )
        _check_partitions(partitions)
        source = Source(
            topic,
            columns,
            time,
            key,
            partitions,
            None if retention is None else check_duration(retention, "retention", "'7 days'"),
            marker=None if time.punctuated is None else check_condition(time.punctuated, columns),
            format=check_format(format, registry, columns),
            clock=_clock(time, columns),
        )
        made = self.named[topic] = Stream(self, self._source(source))
        return made

    def table(
        self,
        topic: str,
        schema: str | Schema,
        *,
        key: str | tuple[str, ...],
        format: ChangelogFormat | RegisteredFormat = "json",  # noqa: A002 - the field's name
        registry: str | None = None,
        time: EventTime | None = None,
        partitions: int = 1,
    ) -> Table:
        """Reads a compacted topic, or a changelog, as a table: the newest row of each key.

        A record is the new row of its key. A record without a value (a tombstone) deletes the row of the
        record's key: the text of the key column, or a JSON object with the key columns, alone or as the
        `payload` next to a `schema`. Records of one key must be in one partition; the last one
        counts. A record that doesn't fit goes to the dead-letter topic.

        Args:
            topic: its name; created with `partitions` if it doesn't exist.
            schema: the columns, as in SQL. The key's are NOT NULL.
            key: the column or columns that identify a row.
            format: of the records' values. `"json"`: the row. `"debezium"`: Debezium's envelope, with or
                without its schema, or what `Table.to(…, emit="changes")` writes. `"debezium-precise"`:
                the same, with decimals as Debezium writes them by default. `"maxwell"`: what Maxwell writes.
                `"avro"`, `"json-schema"` or `"protobuf"`, with a registry: the row by its schemas.
            registry: the URL of a schema registry, for these, and for `"debezium"` envelopes by its schemas,
                of any kind. Keys are by its schemas as well, or text.
            time: when changes happen, for `enrich(…, as_of="event time")`:
                `ps.event_time(column, lateness=…)`; by default the record's own timestamp, which is also
                that of every deletion.
            partitions: the number of partitions of a new topic.
        """
        _check_topic(topic)
        columns = check_schema(schema)
        names = _check_keys(key, columns)
        changes, encoded = check_changelog(format, registry)
        columns = Schema(tuple(replace(f, required=f.required or f.name in names) for f in columns))
        time = check_time(time, columns, table=True)
        _check_partitions(partitions)
        source = self._source(
            Source(
                topic,
                columns,
                time,
                None,
                partitions,
                None,
                Changelog(names, changes),
                format=encoded,
                clock=_clock(time, columns),
            )
        )
        node = self.node(Stateful((source,), Upserts(columns.arrow, names), columns))
        made = self.named[topic] = Table(self, node)
        return made

    def _source(self, source: Source) -> Source:
        """The one declaration of a topic.

        Raises:
            FlowError: there is another one.
        """
        known = self._sources.setdefault(source.topic, source)
        first = self._first("topic", source.topic)
        if astuple(known) != astuple(replace(source, built_at=known.built_at)):
            raise FlowError(
                f"expected one declaration of the topic {source.topic!r}; found two that differ.{first} "
                "Declare it once, and build on that"
            )
        return known

    def _first(self, kind: str, name: str) -> str:
        """Notes where the program builds something; where it built it first, as a sentence."""
        return also_at(self._places.setdefault((kind, name), place()))

    def node(self, node: N) -> N:
        """The one node of this flow that means the same, be it this one or one from before.

        It is over nodes of the flow, whatever this one was made of.

        Raises:
            FlowError: another function of the same name was passed to `map_batches` or `process`.
        """
        known = self._nodes.get(node.identity)
        if known is None:
            node = over_others(node, [self.node(one) for one in node.inputs])
            known = self._nodes.setdefault(node.identity, node)
        assert isinstance(known, type(node)), "a digest collides"
        one, other = function_of(known), function_of(node)
        first = "" if one is None else self._first("function", one[0])
        if one is not None and other is not None and not same_function(one[1], other[1]):
            raise FlowError(
                "expected different functions to have different names, because state is kept "
                f"under them; found two called {one[0]!r}.{first} Pass name=… as well"
            )
        return known

    def view(self, name: str, table: Table) -> Table:
        """Publishes a table under a name, for `penstock query` and the page, and keeps it up to date.

        Returns:
            The table, to build on.
        """
        _check_name(name)
        if name in self._views:
            first = self._first("view", name)
            raise FlowError(
                f"expected each view once; found {name!r} twice.{first} Rename one of them"
            )
        if not isinstance(table, Table):
            raise FlowError(
                f"expected a table for the view {name!r}; found {type(table).__name__}. "
                "Aggregate the stream first: .window(…).group_by(…).agg(…)"
            )
        self._check_own(table)
        self._first("view", name)
        self._views[name] = ViewNode(name, table.node)
        self.named[name] = table
        return table

    def _check_own(self, table: Table) -> None:
        if table.flow is not self:
            raise FlowError(
                f"expected a table of the app {self.name!r}; found one of {table.flow.name!r}. An app "
                "reads another's topic: table.to(…) there, app.stream(…) here"
            )

    def add_output(self, output: OutputNode) -> None:
        """Adds a topic to write to; `Stream.to` and `Table.to` call it."""
        topic = output.topic
        _check_topic(topic)
        _check_partitions(output.partitions)
        if topic in self._outputs:
            raise FlowError(
                f"expected one writer for each topic; found two to {topic!r}.{self._first('output', topic)} "
                "Write to another topic, or write a union of both"
            )
        self._first("output", topic)
        self._outputs[topic] = output

    def graph(self) -> Graph:
        """The finished graph.

        Raises:
            FlowError: nothing would be computed.
        """
        if not self._views and not self._outputs:
            in_sql = "CREATE MATERIALIZED VIEW or CREATE SINK (CREATE VIEW only names a query)"
            add = in_sql if self._is_in_sql else "app.view(…)"
            raise FlowError(f"expected at least one view or output; found none. Add {add}")
        used = {s.topic for s in self._sources.values()}
        overlap = used & self._outputs.keys()
        if overlap:
            topic = min(overlap)
            where = self._places.get(("output", topic), "")
            raise FlowError(
                f"expected topics that are either read or written, not both, because rows would come back; "
                f"found {topic!r} read and written{built(where)}. Write to another topic"
            )
        ends = [view.node for view in self._views.values()]
        ends += [output.node for output in self._outputs.values()]
        read = {id(node) for end in ends for node in ancestors(end)}
        declared = self._sources.values()
        return Graph(
            self.name,
            tuple(source for source in declared if id(source) in read),
            tuple(self._views.values()),
            tuple(self._outputs.values()),
            self.transactions,
            self.on_error == "stop",
            tuple(source for source in declared if id(source) not in read),
        )


def _clock(time: EventTime, columns: Schema) -> Expression | None:
    """The expression that gives rows their time; None: a column does, or the record."""
    return None if time.computed is None else compile_expression(time.computed, columns)


def _check_keys(key: object, columns: Schema) -> tuple[str, ...]:
    """The columns of a table's key."""
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, tuple) or not names or len(set(names)) < len(names):
        raise FlowError(
            f"expected the table's key as a column or a tuple of them, such as key='id'; found {key!r}"
        )
    check_columns(names, columns, "table")
    for name in names:
        if pa.types.is_list(columns[name].type):
            raise FlowError(f"expected a key of single values; found the array {name!r}")
        if columns[name].type == JSON:
            raise FlowError(
                f"expected a key of single values; found {name!r}, which is JSON. Declare it STRING, if keys "
                "are texts"
            )
    return names


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(
            f"expected a name of letters, digits and '_' that begins with a letter; found {name!r}"
        )


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise FlowError(
            f"expected a topic name of up to 249 letters, digits, '.', '_' and '-'; found {topic!r}"
        )


def _check_partitions(partitions: object) -> None:
    check_number(partitions, "partitions", 1, PARTITIONS_MAX)
