"""GROUP BY: which aggregates the engine keeps up change by change; the others are computed group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.flow import AggregateCall, Windowed
from penstock.ops import Window
from penstock.sql.relation import Relation, quoted
from penstock.sql.trees import lowered

__all__ = ["Called", "aggregated", "call_of", "counts", "of_nothing", "with_defaults"]

KINDS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}
"""Aggregates of one argument that mean the same here and in DuckDB."""


@dataclass(frozen=True)
class Called:
    """An aggregate of a query.

    Attributes:
        name: of its column.
        sql: DuckDB's text, over the relation's columns.
        call: the same as the engine keeps it up; None where it doesn't.
        counts: whether it is 0 of no rows, and not NULL.
    """

    name: str
    sql: str
    call: AggregateCall | None
    counts: bool


def call_of(tree: exp.Expr) -> AggregateCall | None:
    """What the engine computes for an aggregate over a relation's columns."""
    where = None
    if isinstance(tree, exp.Filter):
        where = lowered(tree.expression.this)
        tree = tree.this
    if isinstance(tree, exp.Count):
        if tree.expressions:
            return None
        of = tree.this
        if isinstance(of, exp.Star) or of is None:
            return AggregateCall("count", None, where)
        if isinstance(of, exp.Distinct):
            if len(of.expressions) != 1:
                return None
            return AggregateCall("count_distinct", lowered(of.expressions[0]), where)
        if isinstance(of, exp.Literal | exp.Boolean):
            return AggregateCall("count", None, where)
        return AggregateCall("count", lowered(of), where)
    kind = KINDS.get(type(tree))
    if kind is None or tree.expressions or isinstance(tree.this, exp.Distinct | exp.Order):
        return None
    return AggregateCall(kind, lowered(tree.this), where)


def counts(tree: exp.Expr) -> bool:
    """Whether an aggregate of no rows is 0."""
    inside = tree.this if isinstance(tree, exp.Filter) else tree
    return isinstance(inside, exp.Count | exp.CountIf | exp.ApproxDistinct)


def aggregated(
    rows: Relation, keys: Sequence[str], calls: Sequence[Called], window: Window | None
) -> Relation:
    """The groups, with the aggregates as columns of their names.

    Args:
        rows: the relation.
        keys: columns of it.
        calls: what is computed.
        window: cuts the rows into windows first; the groups then have `window_start` and `window_end`.
    """
    kept_up = all(one.call is not None for one in calls)
    if window is not None:
        if not kept_up:
            odd = next(one.sql for one in calls if one.call is None)
            raise SchemaError(
                f"expected COUNT, SUM, AVG, MIN or MAX over windows; found {odd}. Aggregate a second time "
                "over the view, or use Python's window(…).agg(…)"
            )
        computed = {one.name: one.call for one in calls if one.call is not None}
        grouped = Windowed(rows.collection, window).group_by(*keys)
        return Relation(rows.flow, grouped.agg(**computed or {"n": AggregateCall("count")}).node)
    if kept_up:
        computed = {one.name: one.call for one in calls if one.call is not None}
        if not computed:
            return rows.only(keys).distinct()
        return Relation(rows.flow, rows.collection.group_by(*keys).agg(**computed).node)
    named = ", ".join(f"{one.sql} AS {quoted(one.name)}" for one in calls)
    grouped_by = ", ".join(map(quoted, keys))
    query = f"SELECT {grouped_by + ', ' if keys else ''}{named} FROM rows0"
    query += f" GROUP BY {grouped_by}" if keys else ""
    return rows.query((), (keys,), query, placed=keys, always=not keys)


def of_nothing(rows: Relation, calls: Sequence[Called]) -> Relation:
    """The aggregates of all rows, which are there even of none."""
    if any(one.call is None for one in calls):
        return rows  # computed by a query, which is asked of none, too
    names = ", ".join(f"{quoted(name)}" for name in rows.names)
    counted = {one.name for one in calls if one.counts}
    empty = ", ".join("0" if name in counted else "NULL" for name in rows.names)
    return rows.query(
        (),
        ((),),
        f"SELECT {names} FROM rows0 UNION ALL SELECT {empty} WHERE NOT EXISTS (SELECT 1 FROM rows0)",
        always=True,
    )


def with_defaults(rows: Relation, calls: Sequence[Called]) -> Relation:
    """Counts of groups that no row is in, which are NULL after an outer join, as 0."""
    named = {name: quoted(name) for name in rows.names}
    for one in calls:
        if one.counts:
            named[one.name] = f"coalesce({quoted(one.name)}, 0)"
    return rows.project(named)
