"""What shapes rows, checked: the first of each group, elements of arrays, unions, closed windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Schema
from penstock.errors import FlowError
from penstock.flow.algebra import groups, rows, times
from penstock.flow.checks import (
    check_columns,
    check_duration,
    check_function,
    check_number,
    check_schema,
    check_text,
)
from penstock.flow.enrichment import AsOf, check_as_of, key_of
from penstock.flow.graph import Node, RowStep, Source, Stateful, Union, retracts, row_key
from penstock.ops.keyed.process import Function

__all__ = [
    "broadcast_of",
    "closed",
    "columns_shown",
    "deduplicate",
    "no_key",
    "ordered",
    "paced",
    "process",
    "top",
    "union",
    "unnest",
]

COLUMNS_SHOWN: Final = 30  # of a stream in a message or a REPL
TOP_MAX: Final = 100_000  # rows of each group: they are sorted whenever one changes


def columns_shown(node: Node) -> str:
    """A node's columns with their types, and the key of its rows, for people."""
    fields = node.schema.fields
    text = Schema(fields[:COLUMNS_SHOWN]).text
    more = len(fields) - COLUMNS_SHOWN
    if isinstance(node, Source):
        key = () if node.changelog is None else node.changelog.key
    else:
        key = row_key(node) if retracts(node) else ()
    return (
        text + (f", … {more} more" if more > 0 else "") + (f"; key {', '.join(key)}" if key else "")
    )


def no_key(topic: str, schema: Schema) -> FlowError:
    """The error of upserts whose rows nothing identifies."""
    what = (
        f"expected columns that identify the table's rows, to write upserts to {topic!r}; found none among "
        f"{', '.join(schema.names)}. "
    )
    full = ". Rows in a full join are identified by columns that are NOT NULL in one of its sides"
    error = FlowError(f"{what}Keep the key in select(…), or use emit='changes'{full}")
    return error.but_in_sql(f"{what}Keep the key in SELECT, or write EMIT CHANGES{full}")


def top(node: Node, n: int, by: str | tuple[str, ...], per: str | tuple[str, ...]) -> Stateful:
    """The first rows of each group; see `Collection.top`."""
    schema = node.schema
    check_number(n, "rows of each group", 1, TOP_MAX)
    per_ = (per,) if isinstance(per, str) else tuple(per)
    check_columns(per_, schema, "per")
    order = tuple(ordered(one, schema) for one in ((by,) if isinstance(by, str) else by))
    if not order:
        raise FlowError('expected an order, such as by="score DESC"; found none')
    _check_single((*per_, *(name for name, _ in order)), schema)
    return groups.top(node, n, order, per_)


def unnest(node: Node, column: str, name: str | None) -> RowStep:
    """A row of each element of an array; see `Stream.unnest`."""
    check_columns((column,), node.schema, "unnest")
    found = node.schema[column]
    if not pa.types.is_list(found.type):
        raise FlowError(f"expected an array to unnest; found {found.name!r}, {found.type}")
    called = found.name if name is None else check_text(name, "name", "name='tag'")
    return rows.unnest(node, found.name, called)


def deduplicate(node: Node, on: tuple[str, ...], within: str | timedelta | None) -> Stateful:
    """Duplicates left out; see `Stream.deduplicate`."""
    names = on or node.schema.names
    check_columns(names, node.schema, "deduplicate")
    _check_single(names, node.schema)
    if retracts(node):
        raise FlowError(
            "expected a stream whose rows stay; found one that late rows correct. Deduplicate it "
            'before its windows, or use late="drop"'
        )
    within_us = None if within is None else check_duration(within, "within", "'1 hour'")
    if within_us is not None and within_us <= 0:
        raise FlowError(f"expected within= longer than nothing; found {within!r}")
    return groups.deduplicate(node, names, within_us)


def process(
    node: Node,
    function: Function,
    *,
    per: str | tuple[str, ...],
    schema: str | Schema,
    time: str,
    state: str | Schema,
    wake: str | None,
    name: str | None,
    broadcast: times.Broadcast | None = None,
) -> Stateful:
    """A function over keyed state; see `Stream.process`."""
    check_function(function, "process' first argument")
    called = name or getattr(function, "__qualname__", None)
    if called is None:
        raise FlowError(f"expected a function with a name, or name=…; found {function!r}")
    if retracts(node):
        raise FlowError(
            "expected a stream whose rows stay; found one that late rows correct. Process it before its "
            'windows, or use late="drop"'
        )
    keys = (per,) if isinstance(per, str) else tuple(per)
    if not keys:
        raise FlowError("expected the key that state is kept for, such as per='user'; found none")
    check_columns(keys, node.schema, "per")
    _check_single(keys, node.schema)
    output, kept = check_schema(schema), check_schema(state)
    taken = [node.schema[one] for one in keys]
    for one in taken:
        if one.name in kept:
            raise FlowError(
                f"expected state=… without the key, which it has anyway; found {one.name!r} in it"
            )
    whole = Schema((*taken, *kept))
    for what, column, columns in (("time", time, output), ("wake", wake, whole)):
        if column is not None and columns[column].type != TIMESTAMP:
            raise FlowError(
                f"expected {what}={column!r} to be a TIMESTAMP; found {columns[column].type}"
            )
    return times.process(
        node,
        function,
        name=called,
        per=keys,
        output=output,
        time=time,
        state=whole,
        wake=wake,
        side=broadcast,
    )


def broadcast_of(table: Node, as_of: AsOf | None) -> times.Broadcast:
    """What `broadcast=` of `Stream.process` comes to."""
    check_as_of(as_of)
    if as_of is None:
        return times.broadcast(table)
    keys = key_of(table, "broadcast", "Filter it in the function, or use as_of=None")
    return times.versions(table, keys)


def paced(node: Node, keys: tuple[str, ...], every: str | timedelta) -> Stateful:
    """A table's changes every so often; see `Table.to`."""
    every_us = check_duration(every, "every", "'10 seconds'")
    if every_us <= 0:
        raise FlowError(f"expected every= longer than nothing; found {every!r}")
    return times.paced(node, keys, every_us)


def union(nodes: Sequence[Node]) -> Union:
    """The rows of all nodes; see `Stream.union`."""
    first, *others = [node.schema for node in nodes]
    for other in others:
        mine, theirs = first.arrow, other.arrow
        if mine.names != theirs.names or mine.types != theirs.types:
            raise FlowError(
                f"expected the columns {first.text}; found {other.text}. Use select(…) first, so that "
                "both have the same columns in one order"
            )
    if len(set(nodes)) < len(nodes):
        raise FlowError("expected streams that differ; found one twice in a union")
    return rows.union(nodes)


def _check_single(names: Iterable[str], schema: Schema) -> None:
    for name in names:
        if pa.types.is_list(schema[name].type):
            raise FlowError(f"expected columns of single values; found the array {name!r}")


def ordered(text: str, schema: Schema) -> tuple[str, bool]:
    """A column, and whether the greatest comes first; `"score DESC"`."""
    check_text(text, "an order", "by='score DESC'")
    name, _, direction = text.strip().rpartition(" ")
    if direction.upper() not in ("ASC", "DESC") or not name:
        name, direction = text.strip(), "ASC"
    check_columns((name.strip(),), schema, "by")
    return schema[name.strip()].name, direction.upper() == "DESC"


def closed(node: Node) -> Node:
    """The same steps over closed rows; see `Table.closed`."""
    found = times.closed(node)
    if found is None:
        raise FlowError(
            "expected a table with windows, whose closing makes rows final; found one without. "
            "Window the stream before you aggregate it"
        ).but_in_sql(
            "expected a query over windows, whose closing makes rows final; found one without. Aggregate "
            "over TUMBLE(…), HOP(…) or SESSION(…) in FROM, or leave EMIT ON CLOSE out"
        )
    return found
