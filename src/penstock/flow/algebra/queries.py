"""What DuckDB computes of each group that changed, window functions, and conditions on now()."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.expr.query import fixed_query
from penstock.flow.algebra.stateful import stateful
from penstock.flow.graph import (
    Node,
    RowStep,
    Source,
    Stateful,
    is_one_row,
    origins,
    retracts,
    row_key,
)
from penstock.ops.keyed.corrected_match import CorrectedMatch
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.keyed.temporal_filter import TemporalFilter
from penstock.ops.over.functions import Function
from penstock.ops.over.window_functions import Ordered, WindowFunctions
from penstock.ops.rows import Select, Where

__all__ = ["constant", "kept", "lasting", "over", "plain_names", "query", "tables_of"]


def tables_of(nodes: Sequence[Node]) -> dict[str, Schema]:
    """What a query over some nodes calls them: `rows0`, …"""
    return {f"rows{i}": node.schema for i, node in enumerate(nodes)}


def query(
    nodes: Sequence[Node],
    key: Sequence[Sequence[str]],
    text: str,
    *,
    placed: Sequence[str] = (),
    row_key: Sequence[str] = (),
    single: bool = False,
    always: bool = False,
    like: Schema | None = None,
) -> Stateful:
    """What a query gives of each group, computed again where a group changes.

    Args:
        nodes: that it is over.
        key: of each, the columns that make up a group.
        text: the query, over `rows0`, …
        placed: columns of the result that have the key's values.
        row_key: columns of the result that identify its rows, where something does.
        single: whether it has one row at most.
        always: whether it is asked of no rows, too; there is no key then.
        like: columns of the names and types of the result's, where it hands them on; else DuckDB is asked.

    Raises:
        SchemaError: DuckDB can't read it, or it depends on more than the rows.
    """
    fixed, schema = fixed_query(text, tables_of(nodes), like)
    operator = GroupQuery(
        inputs=tuple(node.schema.arrow for node in nodes),
        key_=tuple(tuple(one) for one in key),
        query=fixed,
        output=schema.arrow,
        placed=tuple(placed),
        row_key=tuple(row_key),
        always=always,
    )
    return stateful(operator, *nodes, single=single)


def constant(text: str) -> Stateful:
    """The rows of a query over nothing.

    Raises:
        SchemaError: it can't be read, or depends on more than constants.
    """
    return query((), (), text, always=True)


def kept(node: Node) -> Node:
    """The same rows, kept, so that they can be looked at: a view's."""
    below = node
    while isinstance(below, RowStep) and isinstance(below.operator, Select | Where):
        below = below.parent
    if (
        isinstance(below, Stateful)
        and retracts(below)
        and not isinstance(below.operator, CorrectedMatch)
    ):
        return node  # it keeps its rows; what corrects matches only keeps those that may change
    names = plain_names(node)
    operator = GroupQuery(
        inputs=(node.schema.arrow,),
        key_=(names,),
        query="",
        output=node.schema.arrow,
        placed=names,
        row_key=row_key(node),
    )
    return stateful(operator, node, single=is_one_row(node))


def plain_names(node: Node) -> tuple[str, ...]:
    """The columns of single values."""
    return tuple(field.name for field in node.schema if not pa.types.is_nested(field.type))


def over(
    node: Node,
    per: Sequence[str],
    order: Sequence[Ordered],
    functions: Sequence[tuple[Function, pa.DataType]],
) -> Stateful:
    """The rows with columns of window functions that have one partition and one order.

    Args:
        node: the rows.
        per: columns that make up a partition.
        order: in it.
        functions: each with its type; they may be NULL.
    """
    columns = node.schema.arrow
    operator = WindowFunctions(
        input=columns,
        per=tuple(per),
        order=tuple(order),
        functions=tuple(function for function, _ in functions),
        output=pa.schema([*columns, *(pa.field(one.name, type_) for one, type_ in functions)]),
        row_key=row_key(node) if retracts(node) else (),
    )
    return stateful(operator, node)


def lasting(
    node: Node, clocks: Sequence[Node], starts: str | None, ends: str | None
) -> RowStep | Stateful:
    """The rows while now() is between times that they have.

    Args:
        node: the rows.
        clocks: whose watermarks now() is.
        starts: the column of the time from which a row is there; None: it is from the beginning.
        ends: of the time until which it is there; None: it stays.
    """
    sources = _sources(node)
    is_own = sources is not None and set(sources) == set(clocks)
    key = row_key(node)
    operator = TemporalFilter(
        input=node.schema.arrow,
        key_=key or plain_names(node),
        starts=starts,
        ends=ends,
        clocks=(0,) if is_own else tuple(range(1, 1 + len(clocks))),
        row_key=key,
    )
    return stateful(operator, node, *(() if is_own else clocks))


def _sources(node: Node) -> Sequence[Node] | None:
    """The sources whose rows a node has through steps that keep nothing; None where others are among them."""
    found = origins(node)
    return found if all(isinstance(one, Source) for one in found) else None
