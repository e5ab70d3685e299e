"""How many rows a node has, as a guess, and whether they grow as long as streams continue.

What both depend on is how an operator's rows follow from its inputs' (`Follow`). An operator that isn't named
here groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from penstock.expr import Expression
from penstock.flow.graph import Node, RowStep, Source, Stateful, Union, ancestors, retracts, row_key
from penstock.ops import Operator, Upserts
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.table_join import TableJoin
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.over.window_functions import WindowFunctions
from penstock.ops.rows import Unnest, Where

__all__ = ["Follow", "follow", "grows", "rows_of"]

CONSTANT_ROWS: Final = 10.0
ELEMENTS: Final = 4.0  # of an array
GROUPS: Final = 0.25  # of the rows that are grouped
MATCHED: Final = 0.5  # of those that have a partner, or have none


class Follow(Enum):
    """How an operator's rows follow from those of its inputs."""

    EACH = auto()
    """There is one at least for each of every input's."""
    FIRST = auto()
    """They are some of the first input's."""
    NEWEST = auto()
    """They are the newest of each key."""
    ANSWER = auto()
    """They are what is found in some of the inputs', which says nothing of how many there are."""
    GROUPS = auto()
    """There is one for each group."""


def follow(operator: Operator) -> Follow:
    """How an operator's rows follow from those of its inputs."""
    match operator:
        case TableJoin(how="semi" | "anti"):
            return Follow.FIRST
        case TableJoin() | WindowFunctions() | GroupQuery(query=""):
            return Follow.EACH
        case GroupQuery() | IntervalJoin():
            return Follow.ANSWER
        case Upserts():
            return Follow.NEWEST
        case _:
            return Follow.GROUPS


def grows(node: Node) -> bool:
    """Whether a node has ever more rows, as long as a stream continues."""
    if not retracts(node):
        return any(isinstance(one, Source) for one in ancestors(node))
    match node:
        case RowStep() | Union():
            return any(map(grows, node.inputs))
        case Stateful(operator=operator) if follow(operator) is Follow.EACH:
            return any(map(grows, node.inputs))
        case Stateful(operator=operator) if follow(operator) is Follow.FIRST:
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
            match follow(operator):
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
