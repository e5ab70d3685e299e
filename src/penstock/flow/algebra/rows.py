"""Steps that keep nothing: columns, conditions, elements of arrays, unions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.schema import Field, Schema
from penstock.expr.expression import Expression, column_expression
from penstock.flow.graph import Node, RowStep, Union
from penstock.ops.rows import MapBatches, Select, Unnest, Where

__all__ = ["filtered", "mapped", "project", "union", "unnest"]


def project(node: Node, columns: Mapping[str, str | Expression]) -> RowStep:
    """Some columns, and others that are computed.

    Args:
        node: the rows.
        columns: by name: a column of the rows, which is required where that is; or how it is computed.
    """
    schema = node.schema
    computed, fields = [], []
    for name, of in columns.items():
        expression = column_expression(schema[of]) if isinstance(of, str) else of
        required = schema[of].required if isinstance(of, str) else False
        computed.append((name, expression))
        fields.append(Field(name, expression.type, required))
    return RowStep(node, Select(tuple(computed)), Schema(tuple(fields)))


def filtered(node: Node, condition: Expression) -> RowStep:
    """The rows for which a condition is true."""
    return RowStep(node, Where(condition), node.schema)


def mapped(node: Node, operator: MapBatches) -> RowStep:
    """What a function makes of the rows."""
    return RowStep(node, operator, operator.schema)


def unnest(node: Node, column: str, name: str) -> RowStep:
    """A row of each element of an array, whose column has another name."""
    array: Any = node.schema[column].type
    fields = (
        Field(name, array.value_type) if field.name == column else field for field in node.schema
    )
    return RowStep(node, Unnest(column, name), Schema(tuple(fields)))


def union(nodes: Sequence[Node]) -> Union:
    """The rows of nodes that differ, and have columns of the same names and types in one order."""
    assert len(set(nodes)) == len(nodes), "a node reaches a reader once"
    schemas = [node.schema for node in nodes]
    fields = (
        Field(one.name, one.type, all(field.required for field in alike))
        for one, *others in zip(*schemas, strict=True)
        for alike in [(one, *others)]
    )
    return Union(tuple(nodes), Schema(tuple(fields)))
