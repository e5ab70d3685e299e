"""`Stream` and `Table`: what a program chains its operators on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from penstock.core.schema import Field, Schema
from penstock.core.time import duration_us
from penstock.errors import FlowError, SchemaError
from penstock.flow.graph import TIME, Aggregation, Node, OutputNode, RowStep, table_of
from penstock.ops import Aggregate, AggregateSpec, Column, Window
from penstock.ops.expressions import compile_expression
from penstock.ops.rows import MapBatches, RowOperator, Select, Where
from penstock.ops.spec import Kind

if TYPE_CHECKING:
    from penstock.flow.app import Flow

__all__ = ["AggregateCall", "Grouped", "Stream", "Table", "Windowed"]


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate function over a column: what `ps.count()`, `ps.sum("v")`… give."""

    kind: Kind
    column: str | None = None


@dataclass(frozen=True, eq=False)
class Collection:
    """Rows with a schema: what streams and tables have in common."""

    flow: Flow = field(repr=False)
    node: Node = field(repr=False)

    @property
    def schema(self) -> Schema:
        """The columns of the rows."""
        return self.node.schema

    def window(self, window: Window, *, keep: str | timedelta | None = None) -> Windowed:
        """Cuts the rows into windows of event time.

        Args:
            window: `ps.tumbling(…)` or `ps.hopping(…)`.
            keep: how long a closed window stays in views and state; None keeps it for ever.
        """
        if not isinstance(window, Window):
            raise FlowError(f"expected ps.tumbling(…) or ps.hopping(…); found {window!r}")
        table = table_of(self.node)
        if table is not None and table.spec.window.kind == "none":
            raise FlowError(
                "expected rows with an event time; found a table that has no windows. "
                "Window the stream it was made of"
            )
        return Windowed(self, window, None if keep is None else duration_us(keep))

    def group_by(self, *keys: str) -> Grouped:
        """Groups the rows of all time by the given columns; `agg` then gives a table."""
        return Windowed(self, Window("none"), None).group_by(*keys)

    def to(
        self, topic: str, *, partitions: int = 1, retention: str | timedelta | None = None
    ) -> None:
        """Writes the rows to a topic, exactly once, as JSON.

        A stream's rows are written as they come. A table's are written when their window closes, one
        record each, with the grouping columns as its key.

        Args:
            topic: its name; created where it doesn't exist.
            partitions: how many it is created with.
            retention: how long it keeps records, if it is created; None is for ever.
        """
        kept_us = None if retention is None else duration_us(retention)
        self.flow.add_output(OutputNode(topic, self.node, partitions, kept_us))

    def where(self, condition: str) -> Self:
        """Keeps the rows for which a SQL condition is true."""
        expression = compile_expression(condition, self.schema)
        if expression.type != pa.bool_():
            raise SchemaError(
                f"expected a condition; found {condition!r} of type {expression.type}"
            )
        return self._then(Where(expression), self.schema)

    def select(self, *columns: str, **computed: str) -> Self:
        """Keeps some columns and computes others by SQL: `select("user", kb="bytes / 1024")`."""
        texts = {**{self.schema[name].name: _quoted(name) for name in columns}, **computed}
        compiled = tuple(
            (name, compile_expression(text, self.schema)) for name, text in texts.items()
        )
        schema = Schema(tuple(Field(name, e.type) for name, e in compiled))
        return self._then(Select(compiled), schema)

    def _then(self, operator: RowOperator, schema: Schema) -> Self:
        return replace(self, node=RowStep(self.node, operator, schema))


@dataclass(frozen=True, eq=False)
class Stream(Collection):
    """Rows that only ever come: events."""

    def map_batches(self, function: Callable[[pa.Table], pa.Table], schema: str) -> Stream:
        """Passes each batch through a Python function over a `pyarrow.Table`.

        The function must depend on nothing but the rows it is given, each on its own: batches are cut
        anywhere, and may be repeated after a crash.

        Args:
            function: sees Penstock's own columns too (their names begin with `$`) and must hand them on
                for the rows it keeps.
            schema: of what it gives.
        """
        declared = Schema.parse(schema)
        return self._then(MapBatches(function, declared), declared)


@dataclass(frozen=True, eq=False)
class Table(Collection):
    """Rows that come, change and go: an aggregate's content."""


@dataclass(frozen=True)
class Windowed:
    """Rows cut into windows; say next by what to group them."""

    rows: Collection
    window: Window
    keep_us: int | None

    def group_by(self, *keys: str) -> Grouped:
        """Groups by the given columns; none puts all rows of a window into one group."""
        for key in keys:
            if pa.types.is_list(self.rows.schema[key].type):
                raise FlowError(
                    f"expected a column of single values to group by; found the array {key!r}"
                )
        if len(set(keys)) != len(keys):
            raise FlowError(f"expected each column once; found group_by{keys!r}")
        return Grouped(self, keys)

    def agg(self, **aggregates: AggregateCall) -> Table:
        """The same as `group_by().agg(…)`."""
        return self.group_by().agg(**aggregates)


@dataclass(frozen=True)
class Grouped:
    """Rows in windows and groups; say next what to compute."""

    windowed: Windowed
    keys: tuple[str, ...]

    def agg(self, **aggregates: AggregateCall) -> Table:
        """Computes aggregates: `agg(n=ps.count(), total=ps.sum("v"))`.

        Returns:
            A table of `window_start`, `window_end` (where there are windows), the grouping columns and
            the aggregates.
        """
        rows, window = self.windowed.rows, self.windowed.window
        if not aggregates:
            raise FlowError("expected at least one aggregate, such as n=ps.count(); found none")
        for name, call in aggregates.items():
            if not isinstance(call, AggregateCall):
                raise FlowError(f"expected ps.count(), ps.sum(…)… for {name!r}; found {call!r}")
        spec = AggregateSpec(
            keys=tuple(_column(rows.schema[key]) for key in self.keys),
            window=window,
            aggregates=tuple(
                Aggregate(name, call.kind, _input(rows.schema, call))
                for name, call in aggregates.items()
            ),
            time=None if window.kind == "none" else TIME,
            retracts=table_of(rows.node) is not None,
            keep_us=self.windowed.keep_us,
        )
        node = Aggregation(rows.node, spec, Schema.from_arrow(spec.schema))
        return Table(rows.flow, node)


def _input(schema: Schema, call: AggregateCall) -> Column | None:
    return None if call.column is None else _column(schema[call.column])


def _column(field: Field) -> Column:
    return Column(field.name, field.type, field.required)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
