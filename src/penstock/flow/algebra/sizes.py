"""How many rows a node has, as a guess, and whether they grow as long as streams continue.

What both depend on is how an operator's rows follow from its inputs' (`Follow`), which its traits say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.expr import Expression
from penstock.flow.graph import Node, RowStep, Source, Stateful, Union, ancestors, retracts, row_key
from penstock.ops.operator import Follow
from penstock.ops.rows import Unnest, Where

__all__ = ["grows", "rows_of"]

CONSTANT_ROWS: Final = 10.0
ELEMENTS: Final = 4.0  # of an array
GROUPS: Final = 0.25  # of the rows that are grouped
MATCHED: Final = 0.5  # of those that have a partner, or have none


def grows(node: Node) -> bool:
    """Whether a node has ever more rows, as long as a stream continues."""
    if not retracts(node):
        return any(isinstance(one, Source) for one in ancestors(node))
    match node:
        case RowStep() | Union():
            return any(map(grows, node.inputs))
        case Stateful(operator=operator) if operator.traits.follow is Follow.EACH:
            return any(map(grows, node.inputs))
        case Stateful(operator=operator) if operator.traits.follow is Follow.FIRST:
            return grows(node.inputs[0])
        case _:
            return False


def rows_of(
    node: Node, records: Mapping[str, int], left: Callable[[Expression], float] | None
) -> float | None:
    """How many rows a node has, as a guess from the sizes of topics; None where one isn't known.

    Args:
        node: the rows.
        records: by topic.
        left: which part of the rows a condition leaves; None: it, and a partner, leave all.
    """
    known: dict[int, float | None] = {}
    for one in ancestors(node):
        above = [known[id(before)] for before in one.inputs]
        rows = [n for n in above if n is not None]
        known[id(one)] = _rows(one, rows, records, left) if len(rows) == len(above) else None
    return known[id(node)]


def _rows(
    node: Node,
    rows: Sequence[float],
    records: Mapping[str, int],
    left: Callable[[Expression], float] | None,
) -> float | None:
    """The same from the rows of its inputs."""
    match node:
        case Source(topic=topic):
            return float(records[topic]) if records.get(topic) else None
        case RowStep(operator=Where(condition=condition)):
            return rows[0] * (1 if left is None else left(condition))
        case RowStep(operator=Unnest()):
            return rows[0] * ELEMENTS
        case Union():
            return sum(rows)
        case Stateful() if not rows:
            return CONSTANT_ROWS
        case Stateful(operator=operator):
            match operator.traits.follow:
                case Follow.FIRST:
                    return rows[0] * (1 if left is None else MATCHED)
                case Follow.NEWEST:
                    return rows[0]
                case Follow.EACH | Follow.ANSWER:
                    return max(rows)
                case Follow.GROUPS:
                    return max(1.0, sum(rows) * GROUPS) if row_key(node) else 1.0
        case _:
            return rows[0]
