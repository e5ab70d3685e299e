"""What happens at a time: closed windows, changes that wait, functions with state and timers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.schema import Schema
from penstock.flow.algebra.joins import changes_of
from penstock.flow.algebra.stateful import stateful
from penstock.flow.graph import Closed, Node, RowStep, Stateful, is_one_row, origins, timed
from penstock.ops.keyed.paced import Paced
from penstock.ops.keyed.process import Function, Process
from penstock.ops.keyed.rules import Rules

__all__ = ["Broadcast", "broadcast", "closed", "closes", "paced", "process", "versions"]


def closed(node: Node) -> Closed | RowStep | None:
    """The same steps over the rows of closed windows; None where there are no windows."""
    match node:
        case Stateful() if node.operator.traits.closes:
            return Closed(node)
        case RowStep():
            parent = closed(node.parent)
            return None if parent is None else replace(node, parent=parent)
        case _:
            return None


def closes(node: Node) -> bool:
    """Whether a node's rows are those of windows, which close."""
    return all(isinstance(one, Stateful) and one.operator.traits.closes for one in origins(node))


def paced(node: Node, keys: tuple[str, ...], every_us: int) -> Stateful:
    """A table's changes every so often.

    Args:
        node: the table.
        keys: what identifies its rows.
        every_us: the shortest time between two changes of a row, by the wall clock.
    """
    operator = Paced(node.schema.arrow, keys, every_us, timed(node))
    return stateful(operator, node, single=is_one_row(node))


@dataclass(frozen=True)
class Broadcast:
    """A table that a function is given: its rows, or their changes, and what they are."""

    node: Node
    rules: Rules


def broadcast(table: Node) -> Broadcast:
    """A table as it is when a batch is computed."""
    return Broadcast(table, Rules(table.schema.arrow, (), timed=False))


def versions(table: Node, keys: tuple[str, ...]) -> Broadcast:
    """A table of a topic, or steps over one, as it was at the rows' times."""
    return Broadcast(changes_of(table), Rules(table.schema.arrow, keys, timed=True))


def process(
    node: Node,
    function: Function,
    *,
    name: str,
    per: tuple[str, ...],
    output: Schema,
    time: str,
    state: Schema,
    wake: str | None,
    side: Broadcast | None,
) -> Stateful:
    """What a function makes of a stream's rows, with state for each key.

    Args:
        node: the stream.
        function: see `Stream.process`.
        name: under which its state is kept.
        per: the key.
        output: the columns that it gives.
        time: their event-time column.
        state: what it keeps, with the key.
        wake: when it is called without a row: a column of the state.
        side: a table that it is given as well.
    """
    operator = Process(
        input=node.schema.arrow,
        per=per,
        output=output.arrow,
        time=time,
        state=state.arrow,
        wake=wake,
        name=name,
        function=function,
        rules=None if side is None else side.rules,
    )
    return stateful(operator, node, *(() if side is None else (side.node,)))
