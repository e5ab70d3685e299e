"""Groups: aggregates, windows, distinct rows, the first rows of each group, duplicates left out.

What aggregates are of, and isn't a plain column, is computed by a step before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from penstock.core.delta import TIME
from penstock.expr import compile_expression
from penstock.flow.aggregates import AggregateCall, Inputs, column_of, inputs_of
from penstock.flow.algebra.rows import project
from penstock.flow.algebra.stateful import stateful
from penstock.flow.graph import Node, Stateful, may_be_late, retracts, row_key
from penstock.ops import AggregateSpec, SessionAggregate, Window, WindowedAggregate
from penstock.ops.keyed.deduplicate import Deduplicate
from penstock.ops.keyed.top import Top
from penstock.ops.rolling.count_windows import CountWindows
from penstock.ops.rolling.revised_sessions import RevisedSessions
from penstock.ops.rolling.sliding import Sliding

__all__ = ["counted", "deduplicate", "distinct", "group", "sliding", "top"]

Calls = Mapping[str, AggregateCall]
"""Aggregates by the names of their columns."""
ALL: Final = Window("none")


def group(
    node: Node,
    keys: Sequence[str],
    calls: Calls,
    window: Window = ALL,
    *,
    keep_us: int | None = None,
    correct_us: int = 0,
) -> Stateful:
    """A row for each group, with its aggregates.

    Args:
        node: the rows; they have an event time where they are cut into windows.
        keys: columns that make up a group.
        calls: what is computed.
        window: cuts the rows first; the groups then have `window_start` and `window_end`.
        keep_us: how long a closed window stays; None: without limit.
        correct_us: how long late rows change it.
    """
    inputs = inputs_of(node.schema, calls)
    read = (*keys, *inputs.plain)
    if inputs.computed or (read and any(pa.types.is_nested(f.type) for f in node.schema)):
        node = _reading(node, read, inputs)
    spec = AggregateSpec(
        keys=tuple(column_of(node.schema, key) for key in keys),
        window=window,
        aggregates=inputs.aggregates(node.schema, calls),
        time=None if window.kind == "none" else TIME,
        retracts=retracts(node),
        keep_us=keep_us,
        correct_us=correct_us,
        mixed=window.paned and retracts(node) and may_be_late(node),
    )
    made: type[WindowedAggregate | SessionAggregate | RevisedSessions] = WindowedAggregate
    if window.kind == "session":
        revised = spec.retracts or spec.correct_us or spec.kept
        made = RevisedSessions if revised else SessionAggregate
    return stateful(made(spec), node)


def distinct(node: Node) -> Stateful:
    """Each row once."""
    return group(node, node.schema.names, {})


def sliding(node: Node, keys: Sequence[str], calls: Calls, size_us: int) -> Stateful:
    """Each row of a stream with aggregates of it and its group's rows less than `size_us` before it."""
    given, inputs = node.schema.names, inputs_of(node.schema, calls)
    if inputs.computed:
        node = _reading(node, given, inputs)
    made = inputs.aggregates(node.schema, calls)
    return stateful(Sliding(node.schema.arrow, tuple(keys), made, given, size_us), node)


def counted(node: Node, keys: Sequence[str], calls: Calls, rows: int, every: int) -> Stateful:
    """Aggregates of so many rows of a group of a stream's, every so many."""
    inputs = inputs_of(node.schema, calls)
    read = (*keys, *inputs.plain)
    if inputs.computed or (read and set(read) < set(node.schema.names)):
        node = _reading(node, read, inputs)
    made = inputs.aggregates(node.schema, calls)
    return stateful(CountWindows(node.schema.arrow, tuple(keys), made, rows, every), node)


def _reading(node: Node, names: Sequence[str], inputs: Inputs) -> Node:
    """Columns of the rows, and what aggregates need computed."""
    computed = {
        name: compile_expression(text, node.schema) for name, text in inputs.computed.items()
    }
    return project(node, {**{name: name for name in names}, **computed})


def top(node: Node, n: int, by: Sequence[tuple[str, bool]], per: Sequence[str] = ()) -> Stateful:
    """The first rows of each group in an order.

    Args:
        node: the rows.
        n: how many.
        by: columns of single values, and whether the greatest comes first. Ties are broken by the others.
        per: columns that make up a group.
    """
    is_table = retracts(node)
    operator = Top(
        node.schema.arrow,
        tuple(per),
        tuple(by),
        n,
        takes_back=is_table,
        row_key=row_key(node) if is_table else (),
    )
    return stateful(operator, node)


def deduplicate(node: Node, on: Sequence[str], within_us: int | None) -> Stateful:
    """A stream's rows without those of which one with the same values was there before, so long ago."""
    return stateful(Deduplicate(node.schema.arrow, tuple(on), within_us), node)
