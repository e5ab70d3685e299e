"""`Stream` and `Table`: what a program chains its operators on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, Self, TypeAlias, get_args, overload

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import FlowError
from penstock.expr import compile_expression
from penstock.flow import shaping
from penstock.flow.aggregates import AggregateCall
from penstock.flow.algebra import groups
from penstock.flow.algebra.joins import join
from penstock.flow.algebra.rows import filtered, mapped, project
from penstock.flow.algebra.times import closes
from penstock.flow.checks import (
    check_columns,
    check_condition,
    check_duration,
    check_function,
    check_schema,
    check_text,
    check_written,
)
from penstock.flow.comparison import compared
from penstock.flow.enrichment import AsOf, Percolates, enrich
from penstock.flow.graph import (
    Emission,
    Node,
    OutputNode,
    Owner,
    is_one_row,
    keys_of,
    retracts,
    row_key,
)
from penstock.flow.interval_join import Within, interval_join
from penstock.flow.joins import (
    On,
    check_how,
    check_names_differ,
    check_on,
    check_same_flow,
)
from penstock.flow.patterns import MatchedRows, Names, Options, Pattern, pattern_of
from penstock.flow.rolling import Rolling, RowWindow
from penstock.flow.windows import Grouped, Late, Windowed, check_window
from penstock.formats.registered import Encoded
from penstock.ops import Window
from penstock.ops.joins.enriched import HowEnriched
from penstock.ops.joins.table_join import How
from penstock.ops.keyed.process import Function
from penstock.ops.rows import MapBatches

Emit: TypeAlias = Literal["closed", "upserts", "changes"]
WrittenFormat: TypeAlias = Literal["json", "avro", "json-schema", "protobuf"] | Encoded

__all__ = ["AggregateCall", "Grouped", "Matched", "Stream", "Table", "Windowed"]


@dataclass(frozen=True, eq=False)
class Collection(Percolates):
    """Rows with a schema: what streams and tables have in common."""

    flow: Owner = field(repr=False)
    node: Node = field(repr=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shaping.columns_shown(self.node)})"

    @property
    def schema(self) -> Schema:
        """The columns of the rows."""
        return self.node.schema

    def window(
        self,
        window: Window,
        *,
        keep: str | timedelta | None = None,
        late: Late = "drop",
    ) -> Windowed[Table]:
        """Assigns rows to windows of event time.

        Args:
            window: `ps.tumbling(…)`, `ps.hopping(…)` or `ps.session(…)`. Sessions are cut from what is
                grouped: each key has its own.
            keep: how long a closed window stays in views and state; None: without limit.
            late: what to do with a row whose window is closed. `"drop"` counts it and writes it to the
                dead-letter topic. `"correct"` adds it to the window within `keep`; everything that
                reads the window follows, including topics.
        """
        kept_us, corrected_us = check_window(self.node, window, keep, late)
        return Windowed(self.node, window, self._table, kept_us, corrected_us)

    def group_by(self, *keys: str) -> Grouped[Table]:
        """Groups all rows by the given columns; `agg` then gives a table.

        Without columns, all rows are one group. Like every group, it is in the table only while it has rows;
        SQL's aggregates without GROUP BY have one row also of none.
        """
        return Windowed(self.node, Window("none"), self._table).group_by(*keys)

    def distinct(self) -> Table:
        """The distinct rows."""
        return self._table(groups.distinct(self.node))

    def top(self, n: int, *, by: str | tuple[str, ...], per: str | tuple[str, ...] = ()) -> Table:
        """The first rows of each group in an order.

        Args:
            n: how many.
            by: the columns to order by; `"score DESC"` puts the greatest first. NULL is always last.
                Ties are broken by the other columns.
            per: the grouping columns; none puts all rows into one group.
        """
        return self._table(shaping.top(self.node, n, by, per))

    def where(self, condition: str) -> Self:
        """Keeps the rows for which an SQL condition is true."""
        return self._then(filtered(self.node, check_condition(condition, self.schema)))

    def select(self, *columns: str, **computed: str) -> Self:
        """Keeps some columns and computes others with SQL: `select("user", kb="bytes / 1024")`."""
        for column in columns:
            if isinstance(column, str) and column not in self.schema and not column.isidentifier():
                raise FlowError(
                    f"expected a name for what is computed, such as select(name={column!r}); found none"
                )
        check_columns(columns, self.schema, "select")
        for name, text in computed.items():
            check_text(text, f"the column {name!r}", f"{name}='bytes / 1024'")
        compiled = {name: compile_expression(text, self.schema) for name, text in computed.items()}
        return self._then(project(self.node, {**{name: name for name in columns}, **compiled}))

    def _write(
        self,
        topic: str,
        node: Node,
        emission: Emission,
        keys: tuple[str, ...],
        partitions: int,
        retention: str | timedelta | None,
        format_: object,
        registry: object,
    ) -> None:
        kept_us = None if retention is None else check_duration(retention, "retention", "'7 days'")
        written = check_written(format_, registry, node.schema)
        self.flow.add_output(OutputNode(topic, node, emission, keys, partitions, kept_us, written))

    def _table(self, node: Node) -> Table:
        return Table(self.flow, self.flow.node(node))

    def _then(self, node: Node) -> Self:
        return replace(self, node=self.flow.node(node))


@dataclass(frozen=True, eq=False, repr=False)
class Stream(Collection):
    """Rows that are only ever added: events."""

    @overload
    def window(self, window: RowWindow) -> Rolling[Stream]: ...

    @overload
    def window(
        self, window: Window, *, keep: str | timedelta | None = None, late: Late = "drop"
    ) -> Windowed[Table]: ...

    def window(
        self,
        window: Window | RowWindow,
        *,
        keep: str | timedelta | None = None,
        late: Late = "drop",
    ) -> Windowed[Table] | Rolling[Stream]:
        """Assigns rows to windows of event time, or of a number of rows.

        Args:
            window: `ps.tumbling(…)`, `ps.hopping(…)` or `ps.session(…)`, whose aggregates are a table; or
                `ps.sliding(…)` or `ps.count_window(…)`, whose aggregates are a stream of final rows, and
                which take none of the following arguments.
            keep: how long a closed window stays in views and state; None: without limit.
            late: what to do with a row whose window is closed. `"drop"` counts it and writes it to the
                dead-letter topic. `"correct"` adds it to the window within `keep`; everything that
                reads the window follows, including topics.
        """
        if not isinstance(window, RowWindow):
            return super().window(window, keep=keep, late=late)
        if keep is not None or late != "drop":
            raise FlowError(
                "expected ps.sliding(…) and ps.count_window(…) without keep= and late=, as what they give is "
                "final and not kept; found one of them"
            )
        return Rolling(self.node, window, self._rolled)

    def _rolled(self, node: Node) -> Stream:
        return Stream(self.flow, self.flow.node(node))

    def to(
        self,
        topic: str,
        *,
        partitions: int = 1,
        retention: str | timedelta | None = None,
        format: WrittenFormat = "json",  # noqa: A002 - the field's name
        registry: str | None = None,
    ) -> None:
        """Writes each row to a topic, exactly once. The key is that of the stream, if it has one.

        Args:
            topic: its name; created if it doesn't exist.
            partitions: the number of partitions of a new topic.
            retention: how long a new topic keeps records; None: without limit.
            format: see `Table.to`.
            registry: likewise.
        """
        emission: Emission = "changes" if retracts(self.node) else "rows"
        keys = keys_of(self.node)
        self._write(topic, self.node, emission, keys, partitions, retention, format, registry)

    def unnest(self, column: str, *, name: str | None = None) -> Stream:
        """Makes a row from each element of an array. A row with an empty or NULL array is dropped.

        Args:
            column: the array.
            name: the name of the elements' column, which replaces the array; by default the array's.
        """
        return self._then(shaping.unnest(self.node, column, name))

    def deduplicate(self, *on: str, within: str | timedelta | None = None) -> Stream:
        """Drops duplicates: a row passes unless one with its key has passed before.

        Duplicates in different partitions pass in the order in which they are read.

        Args:
            on: the columns that identify duplicates; none means all.
            within: how far apart in event time duplicates are dropped. Later, the key is forgotten. Without
                it, every key is kept.
        """
        return self._then(shaping.deduplicate(self.node, on, within))

    def enrich(
        self, table: Table, *, on: On, how: HowEnriched = "inner", as_of: AsOf | None = None
    ) -> Stream:
        """Adds the table's columns to each row.

        Args:
            table: the table; its column names differ from the stream's, except those in `on`.
            on: what must be equal: a column of both, some, or a mapping of the stream's to the table's. NULL
                is equal to nothing.
            how: `"inner"`; `"left"` keeps rows without a match, with NULL for the table's columns.
            as_of: None uses the table as it is when a row is processed, so the result depends on arrival
                order. `"event time"` uses it as it was at the row's event time, which gives the
                same result on every replay. A row waits until the table's watermark has passed its time.
                The table is then one of `app.table`, `on` has its key, and its `time` says when it changes.
        """
        if not isinstance(table, Table):
            raise FlowError(f"expected a table to enrich with; found {type(table).__name__}")
        check_same_flow(self.flow, table.flow)
        return self._then(enrich(self.node, table.node, on, how, as_of))

    def match(
        self,
        pattern: str,
        *,
        by: Names = (),
        within: str | timedelta | None = None,
        keep: int | None = None,
        measures: Mapping[str, str] | None = None,
        after: str = "past last row",
        rows: MatchedRows = "one",
        order: Names = (),
        subsets: Mapping[str, Sequence[str]] | None = None,
        define: Mapping[str, str] | None = None,
        correct: str | timedelta | None = None,
        **defines: str,
    ) -> Matched:
        """The matches of a row pattern among each key's rows, in event-time order.

        `match("fail{5,} ok", by="user", within="10 minutes", fail="NOT success", ok="success")`. A match is
        emitted once, as soon as no later row can change it; that time is its event time. docs/patterns.md
        describes the language.

        Args:
            pattern: variables, with SQL's quantifiers and groups; `a -> b` allows other rows in between, `!b`
                is the absence of a row.
            by: the key; none puts all rows into one sequence.
            within: the largest distance in time between a match's first and last row.
            keep: the number of rows that a match may span; at most, and by default, 100,000. A stream's
                pattern that any number of rows may match needs this or `within`.
            measures: the columns of a match: expressions such as `"LAST(ok.at)"`, `"count(fail.*)"`.
            after: where the next match begins: `"past last row"`, `"next row"`, `"first x"`, `"last x"`.
            rows: `"one"` gives `by` and the measures once for each match; `"all"` gives each row of a match
                with all its columns; `"all, unmatched too"` also those of no match.
            order: the order of rows that have the same event time.
            subsets: names for several variables, for conditions and measures.
            define: conditions of variables whose names are those of arguments.
            correct: how far behind the watermark a late row still counts: matches are then retracted and made
                again. By default, late rows are dead letters.
            defines: the condition of each variable. A variable without one is any row.
        """
        options = Options(by, within, keep, measures, after, rows, order, subsets, correct)
        found = pattern_of(self.node, pattern, options, define, defines)
        return Matched(self.flow, self.flow.node(found.matches()), found)

    def process(
        self,
        function: Function,
        *,
        per: str | tuple[str, ...],
        schema: str | Schema,
        time: str,
        state: str | Schema,
        wake: str | None = None,
        name: str | None = None,
        broadcast: Table | None = None,
        as_of: AsOf | None = "event time",
    ) -> Stream:
        """Passes rows through a Python function with state for each key, and timers.

        The function is `function(rows, state, until) -> (rows, state)`, all `pyarrow.Table`s. It receives
        the rows of many keys at once, in event-time order (`$time`) for each key, once the watermark
        has passed them. It must treat each key separately and depend only on its arguments, because
        batches are cut anywhere and may be repeated after a crash.

        Args:
            function: receives rows, the state of all keys that have rows or a due timer, and the time
                that the watermark has passed. State that it doesn't return is deleted.
            per: the key.
            schema: of the rows that it returns.
            time: their event-time column.
            state: the columns of the state, without the key; at most one row for each key.
            wake: a TIMESTAMP column of the state: when event time has passed it, the function is called for
                the key even without a row. It must then set a later time, or NULL.
            name: the name under which state is stored; by default the function's.
            broadcast: a table, such as rules that change: the function receives all of it as a fourth
                argument.
            as_of: the version of that table: `"event time"` is the one at the rows' own times, for a
                table of `app.table`. The function is then called for each version in turn, and `until`
                may be the time of a change. None is the one when the batch is computed, which may
                differ on replay.
        """
        side_input = None
        if broadcast is not None:
            if not isinstance(broadcast, Table):
                raise FlowError(
                    f"expected broadcast= as a table, such as app.table(…); found {type(broadcast).__name__}"
                )
            check_same_flow(self.flow, broadcast.flow)
            side_input = shaping.broadcast_of(broadcast.node, as_of)
        node = shaping.process(
            self.node,
            function,
            per=per,
            schema=schema,
            time=time,
            state=state,
            wake=wake,
            name=name,
            broadcast=side_input,
        )
        return self._then(node)

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and others that have the same columns."""
        for other in others:
            if not isinstance(other, Stream):
                raise FlowError(
                    f"expected streams, such as a.union(b); found {type(other).__name__}"
                )
            if other.flow is not self.flow:
                raise FlowError(
                    f"expected streams of the app {self.flow.name!r}; found one of {other.flow.name!r}"
                )
        nodes = [self.node, *(other.node for other in others)]
        return self._then(shaping.union(nodes))

    def join(
        self,
        other: Stream,
        *,
        on: On,
        within: Within,
        how: How = "inner",
    ) -> Stream:
        """The pairs of rows of this stream (left) and another (right) that happen near each other.

        The event time of a pair is the later one of its rows. A row without a partner is emitted once none
        can arrive any more, with its own event time. NULL is equal to nothing.

        Args:
            other: the right stream; it may be this one. Rename columns that both have and that aren't
                in `on` first.
            on: what must be equal: a column of both, some, or a mapping of this stream's to the other's.
            within: the largest distance: `"1 hour"`; or how far the right row may be before the left
                one, and how far after it: `("0 seconds", "1 hour")`. Bounds are included.
            how: `"inner"` gives the pairs; `"left"`, `"right"` and `"full"` also the rows of one side or both
                that have no partner, with NULLs; `"semi"` the left rows that have a partner, `"anti"`
                those that have none, both without right's columns.

        Returns:
            A stream with this stream's columns, then the other's except those in `on`.
        """
        if not isinstance(other, Stream):
            raise FlowError(
                f"expected a stream to join with within an interval; found {type(other).__name__}"
            )
        check_same_flow(self.flow, other.flow)
        return self._then(interval_join(self.node, other.node, on=on, within=within, how=how))

    def map_batches(
        self,
        function: Callable[[pa.Table], pa.Table],
        schema: str,
        *,
        name: str | None = None,
    ) -> Stream:
        """Passes each batch through a Python function over a `pyarrow.Table`.

        The function must depend only on its rows, each on its own: batches are cut anywhere, and may be
        repeated after a crash.

        Args:
            function: also receives Penstock's own columns (their names begin with `$`) and must return them
                for the rows that it keeps.
            schema: the columns that it returns.
            name: the name under which state is stored; by default the function's. Change it when the function
                computes something else; the new state is then backfilled.
        """
        check_function(function, "map_batches' first argument")
        name = name or getattr(function, "__qualname__", None)
        if name is None:
            raise FlowError(f"expected a function with a name, or name=…; found {function!r}")
        return self._then(mapped(self.node, MapBatches(function, check_schema(schema), name)))


@dataclass(frozen=True, eq=False, repr=False)
class Matched(Stream):
    """The matches of a row pattern over a stream."""

    pattern: Pattern | None = None

    @property
    def timed_out(self) -> Stream:
        """Attempts that `within` ended, at that instant; measures of what wasn't reached are NULL."""
        return Stream(self.flow, self.flow.node(self._asked().timed_out()))

    @property
    def partial(self) -> Table:
        """How far each key is: when its open attempt `started`, its `rows`, the variable it has `reached`."""
        return self._table(self._asked().partial())

    def _asked(self) -> Pattern:
        if self.pattern is None:
            raise FlowError("expected match(…) directly before it; found steps between. Move them")
        return self.pattern

    def _then(self, node: Node) -> Self:
        return replace(self, node=self.flow.node(node), pattern=None)


@dataclass(frozen=True, eq=False, repr=False)
class Table(Collection):
    """Rows that are added, changed and removed, such as the content of an aggregate."""

    def join(self, other: Table, *, on: On, how: How = "inner") -> Table:
        """Joins two tables; the result follows every change of either.

        Args:
            other: the right table. Rename columns that both have and that aren't in `on` first.
            on: what must be equal: a column of both, some, or a mapping of this table's to the other's. NULL
                is equal to nothing.
            how: `"inner"`; `"left"`, `"right"` or `"full"`, which keep rows without a partner, with NULL for
                the other's columns; `"semi"` or `"anti"`: this table's rows that have a partner, or none.

        Returns:
            A table with this table's columns, then the other's except those in `on`.
        """
        if not isinstance(other, Table):
            raise FlowError(f"expected a table to join with; found {type(other).__name__}")
        check_same_flow(self.flow, other.flow)
        check_how(how, get_args(How))
        pairs = check_on(on, self.schema, other.schema)
        if how not in ("semi", "anti"):
            check_names_differ(self.schema, other.schema, pairs)
        return self._then(join(self.node, other.node, pairs, how))

    def match(
        self,
        pattern: str,
        *,
        order: Names,
        by: Names = (),
        within: str | timedelta | None = None,
        measures: Mapping[str, str] | None = None,
        after: str = "past last row",
        rows: MatchedRows = "one",
        subsets: Mapping[str, Sequence[str]] | None = None,
        define: Mapping[str, str] | None = None,
        **defines: str,
    ) -> Table:
        """The matches of a row pattern among each key's rows; the result follows every change of the table.

        Args:
            pattern: see `Stream.match`, as for the other arguments.
            order: the columns by which rows are ordered; for `within`, the first one is a TIMESTAMP.
            by: the key.
            within: the largest distance in time between a match's first and last row.
            measures: the columns of a match. One that is `"MATCH_NUMBER()"` identifies matches.
            after: where the next match begins.
            rows: what is given of a match.
            subsets: names for several variables.
            define: conditions of variables, as in `defines`.
            defines: the condition of each variable.
        """
        options = Options(by, within, None, measures, after, rows, order, subsets)
        found = pattern_of(self.node, pattern, options, define, defines)
        return self._table(found.matches())

    def closed(self) -> Stream:
        """The rows of closed windows as a stream. A row is emitted when its window closes, and is then final.

        With `late="correct"`, a later change of a closed window follows as a retraction and a new row.
        """
        return Stream(self.flow, self.flow.node(shaping.closed(self.node)))

    def compared(self, to: str | timedelta, *, prefix: str = "previous_") -> Stream:
        """Closed windows, each with the same group's earlier window: a day ago, a week ago.

        The earlier window's columns have a prefix. They are NULL if there was no such window, and for
        groups with NULL in a key.

        Args:
            to: how much earlier: a multiple of the windows' step.
            prefix: of the earlier window's columns.
        """
        node = compared(shaping.closed(self.node), to, prefix)
        return Stream(self.flow, self.flow.node(node))

    def to(
        self,
        topic: str,
        *,
        emit: Emit | None = None,
        every: str | timedelta | None = None,
        partitions: int = 1,
        retention: str | timedelta | None = None,
        format: WrittenFormat = "json",  # noqa: A002 - the field's name
        registry: str | None = None,
    ) -> None:
        """Writes the table to a topic, exactly once. What identifies its rows is the records' key.

        Args:
            topic: its name; created if it doesn't exist.
            emit: what is written. `"closed"`, the default for tables with windows: the rows of each
                window when it closes; with `late="correct"`, a changed row again. `"upserts"`, the
                default for other tables: the newest row of a key whenever it changes, and a record
                without a value (a tombstone) when it is removed. `"changes"`: each change as `{"op":
                "c" | "u" | "d", "before": …, "after": …}`.
            every: for upserts and changes, the shortest time between two records of a key, by the wall
                clock. Changes in between are combined. By default, every batch that changes the key
                writes it.
            partitions: the number of partitions of a new topic.
            retention: how long a new topic keeps records; None: without limit.
            format: of keys and values: `"json"`; `"avro"`, `"json-schema"` or `"protobuf"`, with schemas
                derived from the columns. When the program starts, these are registered under the subjects
                `TOPIC-key` and `TOPIC-value`.
            registry: the URL of the schema registry, for these.
        """
        if emit is None:
            emit = "closed" if closes(self.node) else "upserts"
        match emit:
            case "closed":
                node = self.flow.node(shaping.closed(self.node))
                emission: Emission = "upserts" if retracts(node) else "rows"
                keys = row_key(node) if retracts(node) else keys_of(node)
            case "upserts" | "changes":
                node, emission, keys = self.node, emit, row_key(self.node)
            case _:
                raise FlowError(
                    f"expected emit='closed', 'upserts' or 'changes'; found emit={emit!r}"
                )
        if every is not None:
            if emit == "closed":
                raise FlowError(
                    "expected emit='upserts' or 'changes' with every=…, as closed windows come once anyway; "
                    "found emit='closed'"
                )
            node = self.flow.node(shaping.paced(node, keys, every))
        if emission == "upserts" and not keys and not is_one_row(self.node):
            raise shaping.no_key(topic, self.schema)
        self._write(topic, node, emission, keys, partitions, retention, format, registry)
