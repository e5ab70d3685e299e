"""`Stream` and `Table`: what a program chains its operators on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, get_args, overload

import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import Field, Schema
from penstock.errors import FlowError
from penstock.expr import compile_expression
from penstock.flow import shaping
from penstock.flow.aggregates import (
    AggregateCall,
    check_calls,
    check_groups,
    column_of,
    inputs_of,
)
from penstock.flow.checks import (
    check_columns,
    check_condition,
    check_duration,
    check_function,
    check_schema,
    check_text,
    quoted,
)
from penstock.flow.comparison import compared
from penstock.flow.enrichment import AsOf, enrich
from penstock.flow.graph import (
    Closed,
    Emission,
    Node,
    OutputNode,
    RowStep,
    Stateful,
    keys_of,
    origins,
    retracts,
    row_key,
    timed,
)
from penstock.flow.interval_join import Within, interval_join
from penstock.flow.joins import On, check_how, check_names_differ, check_on, check_same_flow
from penstock.flow.rolling import RolledRows, Rolling, RowWindow
from penstock.flow.windows import Late, check_window
from penstock.ops import AggregateSpec, SessionAggregate, Window, WindowedAggregate
from penstock.ops.joins.enriched import HowEnriched
from penstock.ops.joins.table_join import How, TableJoin
from penstock.ops.keyed.process import Function
from penstock.ops.rolling.sessions import RevisedSessions
from penstock.ops.rows import MapBatches, RowOperator, Select, Where

Emit: TypeAlias = Literal["closed", "upserts", "changes"]

__all__ = ["AggregateCall", "Grouped", "Stream", "Table", "Windowed"]


N = TypeVar("N", bound=Node)


class Owner(Protocol):
    """The flow that a collection belongs to."""

    name: str

    def node(self, node: N) -> N:
        """The one node of the flow that means the same, be it this one or one from before."""
        ...

    def add_output(self, output: OutputNode) -> None:
        """Adds a topic to write to."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Rows with a schema: what streams and tables have in common."""

    flow: Owner = field(repr=False)
    node: Node = field(repr=False)

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
    ) -> Windowed:
        """Cuts the rows into windows of event time.

        Args:
            window: `ps.tumbling(…)`, `ps.hopping(…)` or `ps.session(…)`. Sessions are cut from what is
                grouped: each key has its own.
            keep: how long a closed window stays in views and state; None keeps it for ever.
            late: what happens to a row whose window is closed: `"drop"` counts it and keeps it in the
                dead-letter topic; `"correct"` counts it in the window for as long as `keep` says, and
                whatever reads the window follows, topics too.
        """
        kept_us, corrected_us = check_window(self.node, window, keep, late)
        return Windowed(self, window, kept_us, corrected_us)

    def group_by(self, *keys: str) -> Grouped:
        """Groups the rows of all time by the given columns; `agg` then gives a table."""
        return Windowed(self, Window("none")).group_by(*keys)

    def distinct(self) -> Table:
        """The rows that there are, each once."""
        return _aggregated(Windowed(self, Window("none")).group_by(*self.schema.names), {})

    def top(self, n: int, *, by: str | tuple[str, ...], per: str | tuple[str, ...] = ()) -> Table:
        """The first rows of each group in some order.

        Args:
            n: how many.
            by: columns, the first one decides first; `"score DESC"` puts the greatest first, NULL is always
                last. Rows that are equal in them are told apart by their other columns.
            per: the columns that make up a group; none puts all rows into one.
        """
        return Table(self.flow, self.flow.node(shaping.top(self.node, n, by, per)))

    def where(self, condition: str) -> Self:
        """Keeps the rows for which a SQL condition is true."""
        return self._then(Where(check_condition(condition, self.schema)), self.schema)

    def select(self, *columns: str, **computed: str) -> Self:
        """Keeps some columns and computes others by SQL: `select("user", kb="bytes / 1024")`."""
        for column in columns:
            if isinstance(column, str) and column not in self.schema and not column.isidentifier():
                raise FlowError(
                    f"expected a name for what is computed, such as select(name={column!r}); found none"
                )
        check_columns(columns, self.schema, "select")
        for name, text in computed.items():
            check_text(text, f"the column {name!r}", f"{name}='bytes / 1024'")
        texts = {**{self.schema[name].name: quoted(name) for name in columns}, **computed}
        compiled = tuple(
            (name, compile_expression(text, self.schema)) for name, text in texts.items()
        )
        required = {name for name in columns if self.schema[name].required}
        schema = Schema(tuple(Field(n, e.type, n in required) for n, e in compiled))
        return self._then(Select(compiled), schema)

    def _write(
        self,
        topic: str,
        node: Node,
        emission: Emission,
        keys: tuple[str, ...],
        partitions: int,
        retention: str | timedelta | None,
    ) -> None:
        kept_us = None if retention is None else check_duration(retention, "retention", "'7 days'")
        self.flow.add_output(OutputNode(topic, node, emission, keys, partitions, kept_us))

    def _then(self, operator: RowOperator, schema: Schema) -> Self:
        return replace(self, node=self.flow.node(RowStep(self.node, operator, schema)))


@dataclass(frozen=True, eq=False)
class Stream(Collection):
    """Rows that only ever come: events."""

    @overload
    def window(self, window: RowWindow) -> Rolling[Stream]: ...

    @overload
    def window(
        self, window: Window, *, keep: str | timedelta | None = None, late: Late = "drop"
    ) -> Windowed: ...

    def window(
        self,
        window: Window | RowWindow,
        *,
        keep: str | timedelta | None = None,
        late: Late = "drop",
    ) -> Windowed | Rolling[Stream]:
        """Cuts the rows into windows of event time, or of so many rows.

        Args:
            window: `ps.tumbling(…)`, `ps.hopping(…)` or `ps.session(…)`, whose aggregates are a table; or
                `ps.sliding(…)` or `ps.count_window(…)`, whose aggregates are a stream of rows that are
                final, and which take neither of the following.
            keep: how long a closed window stays in views and state; None keeps it for ever.
            late: what happens to a row whose window is closed: `"drop"` counts it and keeps it in the
                dead-letter topic; `"correct"` counts it in the window for as long as `keep` says, and
                whatever reads the window follows, topics too.
        """
        if not isinstance(window, RowWindow):
            return super().window(window, keep=keep, late=late)
        if keep is not None or late != "drop":
            raise FlowError(
                "expected ps.sliding(…) and ps.count_window(…) without keep= and late=, as what they give is "
                "final and not kept; found one of them"
            )
        return Rolling(self.node, window, self._rolled)

    def _rolled(self, made: RolledRows) -> Stream:
        rows = self
        if made.computed or (made.names and set(made.names) < set(self.schema.names)):
            rows = self.select(*made.names, **made.computed)
        return Stream(self.flow, self.flow.node(made.node(rows.node)))

    def to(
        self, topic: str, *, partitions: int = 1, retention: str | timedelta | None = None
    ) -> None:
        """Writes the rows to a topic, exactly once, as JSON, as they come.

        A record's key is the text of the stream's key, if it has one.

        Args:
            topic: its name; created where it doesn't exist.
            partitions: how many it is created with.
            retention: how long it keeps records, if it is created; None is for ever.
        """
        emission: Emission = "changes" if retracts(self.node) else "rows"
        self._write(topic, self.node, emission, keys_of(self.node), partitions, retention)

    def unnest(self, column: str, *, name: str | None = None) -> Stream:
        """Makes a row of each element of an array; a row whose array is empty or NULL goes.

        Args:
            column: the array.
            name: of the elements' column, which takes the array's place; by default the array's.
        """
        return replace(self, node=self.flow.node(shaping.unnest(self.node, column, name)))

    def deduplicate(self, *on: str, within: str | timedelta | None = None) -> Stream:
        """Leaves out duplicates: a row goes through unless one of its key has gone through before.

        Args:
            on: the columns that duplicates agree in; none means all.
            within: how far apart in event time duplicates may lie. After that the key is forgotten; without
                it, every key is kept for ever.
        """
        return Stream(self.flow, self.flow.node(shaping.deduplicate(self.node, on, within)))

    def enrich(
        self, table: Table, *, on: On, how: HowEnriched = "inner", as_of: AsOf | None = None
    ) -> Stream:
        """Puts the table's columns beside those of each row.

        Args:
            table: what is looked up; its column names differ from the stream's, but for those in `on`.
            on: what must be equal: a column of both, some, or a mapping of the stream's to the table's. NULL
                is equal to nothing.
            how: `"inner"`; `"left"` keeps rows that the table has nothing for, with NULL for its columns.
            as_of: None takes the table as it is when a row is processed, so what a row meets depends on
                when it arrives. `"event time"` takes it as it was at the row's event time, which is the
                same whenever it is computed: a row is held until the table's watermark is above its time.
                The table is then one of `app.table`, `on` has its key, and its `time` says when it changes.
        """
        if not isinstance(table, Table):
            raise FlowError(f"expected a table to enrich with; found {type(table).__name__}")
        check_same_flow(self.flow, table.flow)
        return Stream(self.flow, enrich(self.flow, self.node, table.node, on, how, as_of))

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
        """Passes rows through a Python function that keeps state for each key, and may set timers.

        The function is `function(rows, state, until) -> (rows, state)`, all `pyarrow.Table`s. It gets the
        rows of many keys at once, those of a key in the order of their event time (`$time`): they wait until
        the watermark has passed them. It must treat each key by itself and depend on nothing but
        what it is given, as batches are cut anywhere and may be repeated after a crash.

        Args:
            function: gets rows, the state of all keys that have rows or are to be woken, and the time
                that the watermark has passed. What it doesn't give back of the state is forgotten.
            per: the key.
            schema: of the rows that it gives.
            time: the column of them that is their event time.
            state: the columns of the state, without the key: at most one row a key.
            wake: a TIMESTAMP column of the state: when event time has passed it, the key is given to the
                function even if no row has come. It must then be set to a later time, or to NULL.
            name: what state is kept under; by default the function's own.
            broadcast: a table, such as rules that change: the function gets all of it as a fourth argument.
            as_of: as of when: `"event time"` is as it was at the rows' own times, for a table of `app.table`.
                The function is then called for each of its versions in turn, and `until` may be the time of
                a change. None is as it is when the batch is computed, which a replay may see otherwise.
        """
        told = None
        if broadcast is not None:
            if not isinstance(broadcast, Table):
                raise FlowError(
                    f"expected broadcast= as a table, such as app.table(…); found {type(broadcast).__name__}"
                )
            check_same_flow(self.flow, broadcast.flow)
            told = shaping.told(self.flow, broadcast.node, as_of)
        node = shaping.process(
            self.node,
            function,
            per=per,
            schema=schema,
            time=time,
            state=state,
            wake=wake,
            name=name,
            told=told,
        )
        return Stream(self.flow, self.flow.node(node))

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
        return Stream(self.flow, self.flow.node(shaping.union(nodes)))

    def join(
        self,
        other: Stream,
        *,
        on: On,
        within: Within,
        how: How = "inner",
    ) -> Stream:
        """The pairs of rows of this stream (left) and another (right) that happen near each other.

        The event time of a pair is the later one of its rows. A row without a partner is given when none
        can come any more, with its own event time. NULL is equal to nothing.

        Args:
            other: the right stream; it may be this one. A column that both have, and that isn't in `on`, must
                be renamed before.
            on: what must be equal: a column of both, some, or a mapping of this stream's to the other's.
            within: how far apart: `"1 hour"`; or how far the right row may lie before the left one, and how
                far after it: `("0 seconds", "1 hour")`. Bounds are included.
            how: `"inner"` gives the pairs; `"left"`, `"right"` and `"full"` also the rows of one side or both
                that have no partner, with NULLs; `"semi"` the left rows that have a partner, `"anti"`
                those that have none, both without right's columns.

        Returns:
            A stream of this stream's columns, then the other's but for those in `on`.
        """
        if not isinstance(other, Stream):
            raise FlowError(
                f"expected a stream to join with within an interval; found {type(other).__name__}"
            )
        check_same_flow(self.flow, other.flow)
        node = interval_join(self.node, other.node, on=on, within=within, how=how)
        return Stream(self.flow, self.flow.node(node))

    def map_batches(
        self,
        function: Callable[[pa.Table], pa.Table],
        schema: str,
        *,
        name: str | None = None,
    ) -> Stream:
        """Passes each batch through a Python function over a `pyarrow.Table`.

        The function must depend on nothing but the rows it is given, each on its own: batches are cut
        anywhere, and may be repeated after a crash.

        Args:
            function: sees Penstock's own columns too (their names begin with `$`) and must hand them on
                for the rows it keeps.
            schema: of what it gives.
            name: what state is kept under; by default the function's own. Another name when the function
                computes something else makes the pipeline ask for `--rebuild`.
        """
        check_function(function, "map_batches' first argument")
        name = name or getattr(function, "__qualname__", None)
        if name is None:
            raise FlowError(f"expected a function with a name, or name=…; found {function!r}")
        declared = check_schema(schema)
        return self._then(MapBatches(function, declared, name), declared)


@dataclass(frozen=True, eq=False)
class Table(Collection):
    """Rows that come, change and go, such as an aggregate's content."""

    def join(self, other: Table, *, on: On, how: How = "inner") -> Table:
        """Joins two tables; the result follows every change of either.

        Args:
            other: the right table. A column that both have, and that isn't in `on`, must be renamed before.
            on: what must be equal: a column of both, some, or a mapping of this table's to the other's. NULL
                is equal to nothing.
            how: `"inner"`; `"left"`, `"right"` or `"full"`, which keep rows without a partner, with NULL for
                the other's columns; `"semi"` or `"anti"`: this table's rows that have a partner, or none.

        Returns:
            A table of this table's columns, then the other's but for those in `on`.
        """
        if not isinstance(other, Table):
            raise FlowError(f"expected a table to join with; found {type(other).__name__}")
        check_same_flow(self.flow, other.flow)
        check_how(how, get_args(How))
        pairs = check_on(on, self.schema, other.schema)
        if how not in ("semi", "anti"):
            check_names_differ(self.schema, other.schema, pairs)
        join = TableJoin(how, self.schema.arrow, other.schema.arrow, pairs)
        mine, theirs = row_key(self.node), row_key(other.node)
        if how in ("semi", "anti"):
            join = replace(join, keys=mine)
        elif mine and theirs:
            equal = {name for _, name in pairs}
            join = replace(join, keys=(*mine, *(name for name in theirs if name not in equal)))
        node = Stateful((self.node, other.node), join, Schema.from_arrow(join.schema))
        return Table(self.flow, self.flow.node(node))

    def closed(self) -> Stream:
        """The rows of the table's windows as a stream: each when its window is closed, and final then.

        With `late="correct"`, what changes a closed window later follows as a row taken back and one
        given anew.
        """
        return Stream(self.flow, self._closed(self.node))

    def compared(self, to: str | timedelta, *, prefix: str = "previous_") -> Stream:
        """Closed windows, each beside the same group's window of some time before: a day ago, a week ago.

        What the former window has comes in columns of the same names with a prefix. They are NULL where there
        was none, and for groups that are NULL in a key.

        Args:
            to: how long before: a multiple of what lies between windows.
            prefix: of the former window's columns.
        """
        node = compared(self.flow, self._closed(self.node), to, prefix)
        return Stream(self.flow, self.flow.node(node))

    def to(
        self,
        topic: str,
        *,
        emit: Emit | None = None,
        every: str | timedelta | None = None,
        partitions: int = 1,
        retention: str | timedelta | None = None,
    ) -> None:
        """Writes the table to a topic, exactly once, as JSON. The grouping columns are the records' key.

        Args:
            topic: its name; created where it doesn't exist.
            emit: what is written. `"closed"`: the rows of each window when it is closed, and with
                `late="correct"` the newest row again where a late one changes it; so it is for tables with
                windows. `"upserts"`: the newest row of each key whenever it has changed, and a record
                without a value (a tombstone) where there is none any more; so it is for others.
                `"changes"`: each change as `{"op": "c" | "u" | "d", "before": …, "after": …}`.
            every: of upserts and changes, a record of each key at most so often, by the wall clock: what
                changed meanwhile is added up. By default whenever a batch changes it.
            partitions: how many it is created with.
            retention: how long it keeps records, if it is created; None is for ever.
        """
        if emit is None:
            emit = "closed" if self._closes else "upserts"
        match emit:
            case "closed":
                node = self._closed(self.node)
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
        if emission == "upserts" and not keys and not self._is_one_row:
            raise FlowError(
                f"expected columns that tell the table's rows apart, to write upserts to {topic!r}; found "
                f"none among {', '.join(self.schema.names)}. Keep the key in select(…), or say emit='changes'"
            )
        self._write(topic, node, emission, keys, partitions, retention)

    @property
    def _closes(self) -> bool:
        return all(isinstance(o, Stateful) and o.operator.closes for o in origins(self.node))

    @property
    def _is_one_row(self) -> bool:
        """Whether all is one group, so that there is nothing to tell apart."""
        return all(
            isinstance(o, Stateful) and isinstance(o.operator, WindowedAggregate) and not row_key(o)
            for o in origins(self.node)
        )

    def _closed(self, node: Node) -> Node:
        """The same steps over closed rows."""
        match node:
            case Stateful() if node.operator.closes:
                return self.flow.node(Closed(node))
            case RowStep():
                return self.flow.node(replace(node, parent=self._closed(node.parent)))
            case _:
                raise FlowError(
                    "expected a table with windows, whose closing makes rows final; found one without. "
                    "Window the stream before you aggregate it"
                )


@dataclass(frozen=True)
class Windowed:
    """Rows cut into windows; say next by what to group them."""

    rows: Collection
    window: Window
    keep_us: int | None = None
    correct_us: int = 0

    def group_by(self, *keys: str) -> Grouped:
        """Groups by the given columns; none puts all rows of a window into one group."""
        check_groups(keys, self.rows.schema)
        return Grouped(self, keys)

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> Table:
        """The same as `group_by().agg(…)`."""
        return self.group_by().agg(*unnamed, **aggregates)


@dataclass(frozen=True)
class Grouped:
    """Rows in windows and groups; say next what to compute."""

    windowed: Windowed
    keys: tuple[str, ...]

    def agg(self, *unnamed: AggregateCall, **aggregates: AggregateCall) -> Table:
        """Computes aggregates: `agg(n=ps.count(), total=ps.sum("v"))`.

        Args:
            unnamed: there must be none: each is a column, and needs a name.
            aggregates: by the names of their columns.

        Returns:
            A table of `window_start`, `window_end` (where there are windows), the grouping columns and
            the aggregates.
        """
        check_calls(unnamed, aggregates)
        return _aggregated(self, aggregates)


def _aggregated(grouped: Grouped, aggregates: Mapping[str, AggregateCall]) -> Table:
    window, rows = grouped.windowed.window, grouped.windowed.rows
    for name, call in aggregates.items():
        if call.by == TIME and not timed(rows.node):
            raise FlowError(
                f"expected rows with an event time for {name!r}, the first or last by it; found a table "
                'that has no windows. Name the order, such as ps.arg_max("price", by="version")'
            )
    inputs = inputs_of(rows.schema, aggregates)
    needed = dict.fromkeys([*grouped.keys, *inputs.plain])
    if inputs.computed or (needed and any(pa.types.is_nested(f.type) for f in rows.schema)):
        rows = rows.select(*needed, **inputs.computed)
    spec = AggregateSpec(
        keys=tuple(column_of(rows.schema, key) for key in grouped.keys),
        window=window,
        aggregates=inputs.aggregates(rows.schema, aggregates),
        time=None if window.kind == "none" else TIME,
        retracts=retracts(rows.node),
        keep_us=grouped.windowed.keep_us,
        correct_us=grouped.windowed.correct_us,
    )
    made: type[WindowedAggregate | SessionAggregate | RevisedSessions] = WindowedAggregate
    if window.kind == "session":
        revised = spec.retracts or spec.correct_us or spec.kept
        made = RevisedSessions if revised else SessionAggregate
    node = Stateful((rows.node,), made(spec), Schema.from_arrow(spec.schema))
    return Table(rows.flow, rows.flow.node(node))
