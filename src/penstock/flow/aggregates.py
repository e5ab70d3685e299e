"""Aggregates as programs write them, and which columns of the rows they need.

What isn't a plain column is computed by a step before the aggregation, under its own text as name: the
operator then knows nothing of expressions and conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.core.delta import TIME
from penstock.core.schema import TIMESTAMP, Schema
from penstock.errors import FlowError
from penstock.expr import compile_expression
from penstock.flow.checks import check_columns, check_condition, quoted
from penstock.ops import Aggregate, Column
from penstock.ops.aggregates import Parameter

_OF_DOUBLES: Final = frozenset({"variance", "stddev", "quantile", "approx_quantile"})
"""Aggregates that take decimals as doubles."""

__all__ = ["AggregateCall", "Inputs", "check_calls", "check_groups", "column_of", "inputs_of"]


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate function: what `ps.count()`, `ps.sum("v")`… give.

    Attributes:
        kind: which function.
        column: a column's name, or an expression; None counts rows.
        where: which rows it sees, as a condition; None is all.
        by: a second column, or expression, or `$time`.
        parameter: a number, or some, of functions that take one.
    """

    kind: str
    column: str | None = None
    where: str | None = None
    by: str | None = None
    parameter: Parameter | None = None

    @property
    def text(self) -> str:
        """What it is computed of, as messages name it."""
        return " WHERE ".join(part for part in (self.column, self.where) if part is not None)


@dataclass(frozen=True)
class Inputs:
    """What some aggregates read.

    Attributes:
        plain: columns of the rows.
        computed: expressions, by the name of their column.
        names: by aggregate, the names of the columns that it takes.
    """

    plain: tuple[str, ...]
    computed: Mapping[str, str]
    names: Mapping[str, tuple[str | None, str | None]]

    def aggregates(
        self, schema: Schema, calls: Mapping[str, AggregateCall]
    ) -> tuple[Aggregate, ...]:
        """The aggregates of rows that have these columns.

        Raises:
            FlowError: one can't be computed of its columns.
        """
        made = []
        for name, call in calls.items():
            pair = self.names[name]
            column, by = (None if one is None else column_of(schema, one) for one in pair)
            made.append(Aggregate(name, call.kind, column, by, call.parameter))
        return tuple(made)


def check_groups(keys: tuple[str, ...], schema: Schema) -> None:
    """The columns to group by.

    Raises:
        FlowError: one is there twice, or can't be grouped by.
        SchemaError: there is no such column.
    """
    check_columns(keys, schema, "group_by")
    if len(set(keys)) != len(keys):
        raise FlowError(f"expected each column once; found group_by{keys!r}")


def check_calls(unnamed: tuple[object, ...], calls: Mapping[str, AggregateCall]) -> None:
    """What `agg` is given.

    Raises:
        FlowError: an aggregate has no name, or there is none.
    """
    if unnamed:
        raise FlowError(
            f"expected a name for each aggregate, such as n=ps.count(); found {unnamed[0]!r} without one"
        )
    if not calls:
        raise FlowError("expected at least one aggregate, such as n=ps.count(); found none")
    for name, call in calls.items():
        if not isinstance(call, AggregateCall):
            raise FlowError(f"expected ps.count(), ps.sum(…)… for {name!r}; found {call!r}")


def column_of(schema: Schema, name: str) -> Column:
    """A column of rows, or their event time."""
    if name == TIME:
        return Column(TIME, TIMESTAMP, required=True)
    field = schema[name]
    return Column(field.name, field.type, field.required)


def inputs_of(schema: Schema, calls: Mapping[str, AggregateCall]) -> Inputs:
    """What aggregates read of rows.

    Raises:
        SchemaError: an expression or condition can't be read, or names what isn't there.
    """
    computed: dict[str, str] = {}
    names = {
        name: (_value(call, schema, computed), _by(call, schema, computed))
        for name, call in calls.items()
    }
    read = dict.fromkeys(one for pair in names.values() for one in pair if one is not None)
    return Inputs(tuple(n for n in read if n not in computed and n != TIME), computed, names)


def _value(call: AggregateCall, schema: Schema, computed: dict[str, str]) -> str | None:
    if call.kind == "theta_union_agg":
        return _checked_sketch(call, schema, computed)
    is_double = call.kind in _OF_DOUBLES and pa.types.is_decimal(_type_of(call, schema))
    if call.where is None and not is_double and (call.column is None or call.column in schema):
        return call.column and schema[call.column].name
    value, name = "1", call.text
    if call.column is not None:
        value = quoted(call.column) if call.column in schema else call.column
        compile_expression(value, schema)  # so that a mistake is reported in the user's words
    if is_double:
        value, name = f"CAST(({value}) AS DOUBLE)", f"{name} AS DOUBLE"
    if call.where is not None:
        check_condition(call.where, schema)
        value = f"CASE WHEN ({call.where}) THEN ({value}) END"
    computed[name] = value
    return name


def _checked_sketch(call: AggregateCall, schema: Schema, computed: dict[str, str]) -> str:
    """A column of sketches that have been read once: a row whose value isn't one is a dead letter."""
    found = _type_of(call, schema)
    if found != pa.binary():
        raise FlowError(
            f"expected a BINARY column of theta sketches for theta_union_agg({call.column}); found {found}. "
            "theta_sketch_agg makes them"
        )
    assert call.column is not None, "it is of a column"
    value = quoted(call.column) if call.column in schema else call.column
    if call.where is not None:
        check_condition(call.where, schema)
        value = f"CASE WHEN ({call.where}) THEN ({value}) END"
    name = f"theta_union({call.text})"
    computed[name] = f"theta_union({value}, {value})"
    return name


def _type_of(call: AggregateCall, schema: Schema) -> pa.DataType:
    """Of what an aggregate is computed of."""
    assert call.column is not None, "it is of a column"
    if call.column in schema:
        return schema[call.column].type
    return compile_expression(call.column, schema).type


def _by(call: AggregateCall, schema: Schema, computed: dict[str, str]) -> str | None:
    if call.by is None or call.by == TIME:
        return call.by
    if call.by in schema:
        return schema[call.by].name
    compile_expression(call.by, schema)
    computed[call.by] = call.by
    return call.by
