"""GROUP BY: which aggregates the engine keeps up change by change; the others are computed group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from penstock.core.sketches.functions import AGGREGATES
from penstock.errors import SchemaError
from penstock.expr import compile_expression
from penstock.expr.functions import aggregate_named
from penstock.expr.walks import find_all
from penstock.flow import AggregateCall, bloom_filter_agg
from penstock.flow.algebra.groups import group, sliding
from penstock.flow.graph import Stateful
from penstock.flow.rolling import RowWindow
from penstock.flow.windows import check_window
from penstock.sql.relation import Relation, quoted
from penstock.sql.scope import Scope, Windows, with_parts
from penstock.sql.trees import lowered, replaced

__all__ = ["Called", "aggregated", "call_of", "counts", "of_nothing", "with_defaults"]

KINDS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}
"""Aggregates of one argument that mean the same here and in DuckDB."""
OF_WINDOWS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Variance: "variance",
    exp.Stddev: "stddev",
    exp.StddevSamp: "stddev",
    exp.ApproxDistinct: "approx_count_distinct",
}
"""Others of one argument, which the engine computes where rows are cut into windows."""
_OF_SKETCHES: Final = AGGREGATES - {"bloom_filter_agg"}  # which has a capacity, too


@dataclass(frozen=True)
class Called:
    """An aggregate of a query.

    Attributes:
        name: of its column.
        sql: DuckDB's text, over the relation's columns.
        call: the same as the engine keeps it up; None where it doesn't.
        counts: whether it is 0 of no rows, and not NULL.
        tree: what `sql` is made of; None where nothing else than columns is aggregated.
    """

    name: str
    sql: str
    call: AggregateCall | None
    counts: bool
    tree: exp.Expr | None = None


def call_of(tree: exp.Expr, *, windowed: bool = False) -> AggregateCall | None:
    """What the engine computes for an aggregate over a relation's columns.

    Args:
        tree: its call.
        windowed: whether rows are cut into windows; elsewhere DuckDB computes what isn't kept up by change.
    """
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
    if isinstance(tree, exp.CountIf):
        condition = lowered(tree.this)
        return AggregateCall(
            "count", None, condition if where is None else f"({where}) AND ({condition})"
        )
    if windowed and (found := _of_window(tree, where)) is not None:
        return found
    kind = KINDS.get(type(tree))
    several = tree.args.get("expressions") or tree.args.get(
        "count"
    )  # max(x, 3): the three greatest
    if kind is None or several or isinstance(tree.this, exp.Distinct | exp.Order):
        return None
    return AggregateCall(kind, lowered(tree.this), where)


def _of_window(tree: exp.Expr, where: str | None) -> AggregateCall | None:
    """An aggregate that only windows compute by change."""
    match tree:
        case exp.ArgMax() | exp.ArgMin() if tree.expression and not tree.args.get("count"):
            kind = "arg_max" if isinstance(tree, exp.ArgMax) else "arg_min"
            return AggregateCall(kind, lowered(tree.this), where, lowered(tree.expression))
        case exp.Median():
            return AggregateCall("quantile", lowered(tree.this), where, parameter=0.5)
        case exp.PercentileCont() if isinstance(tree.expression, exp.Literal):
            parameter = float(tree.expression.this)
            return AggregateCall("quantile", lowered(tree.this), where, parameter=parameter)
        case exp.ApproxQuantile() if isinstance(share := tree.args.get("quantile"), exp.Literal):
            column = lowered(tree.this)
            return AggregateCall("approx_quantile", column, where, parameter=float(share.this))
        case exp.Anonymous(
            expressions=[column, exp.Literal() as capacity, exp.Literal() as error]
        ) if tree.name.lower() == "bloom_filter_agg":
            size, share = int(float(capacity.this)), float(error.this)
            found = bloom_filter_agg(lowered(column), capacity=size, error=share)
            return replace(found, where=where)
        case exp.Anonymous(expressions=[column]) if tree.name.lower() in _OF_SKETCHES:
            return AggregateCall(tree.name.lower(), lowered(column), where)
        case exp.Anonymous(expressions=[column]) if aggregate_named(tree.name.lower()) is not None:
            return AggregateCall(tree.name.lower(), lowered(column), where)
        case _ if type(tree) in OF_WINDOWS and not isinstance(tree.this, exp.Distinct):
            return AggregateCall(OF_WINDOWS[type(tree)], lowered(tree.this), where)
        case _:
            return None


def counts(tree: exp.Expr) -> bool:
    """Whether an aggregate of no rows is 0."""
    inside = tree.this if isinstance(tree, exp.Filter) else tree
    return isinstance(inside, exp.Count | exp.CountIf | exp.ApproxDistinct)


def aggregated(
    rows: Relation, keys: Sequence[str], calls: Sequence[Called], window: Windows | None
) -> Relation:
    """The groups, with the aggregates as columns of their names.

    Args:
        rows: the relation.
        keys: columns of it.
        calls: what is computed.
        window: cuts the rows into windows first; the groups then have `window_start` and `window_end`.
    """
    kept_up = all(
        one.call is not None and (window is not None or _is_kept_up(one.call, rows))
        for one in calls
    )
    if window is not None:
        if not kept_up:
            odd = next(one.sql for one in calls if one.call is None)
            raise SchemaError(
                f"expected aggregates over windows that are kept up by change, such as COUNT, SUM, AVG, MIN, "
                f"MAX, max_by, stddev or median; found {odd}. Use Python's window(…).agg(…)"
            )
        computed = {one.name: one.call for one in calls if one.call is not None}
        computed = computed or {"rows of window": AggregateCall("count")}
        if isinstance(window.window, RowWindow):
            return _sliding(rows, keys, computed, window)
        keep_us, correct_us = check_window(rows.node, window.window, window.keep, window.late)
        return rows.over(
            group(rows.node, keys, computed, window.window, keep_us=keep_us, correct_us=correct_us)
        )
    if kept_up:
        computed = {one.name: one.call for one in calls if one.call is not None}
        if not computed:
            return rows.only(keys).distinct()
        return rows.over(group(rows.node, keys, computed))
    rows, calls = _with_arguments(rows, keys, calls)
    named = ", ".join(f"{one.sql} AS {quoted(one.name)}" for one in calls)
    grouped_by = ", ".join(map(quoted, keys))
    query = f"SELECT {grouped_by + ', ' if keys else ''}{named} FROM rows0"
    query += f" GROUP BY {grouped_by}" if keys else ""
    return rows.query(
        (), (keys,), query, placed=keys, row_key=keys, single=not keys, always=not keys
    )


def _with_arguments(
    rows: Relation, keys: Sequence[str], calls: Sequence[Called]
) -> tuple[Relation, Sequence[Called]]:
    """The rows with the aggregates' arguments as columns: a row for which one fails is a dead letter then."""
    trees = [one.tree for one in calls if one.tree is not None]
    scope, made = with_parts(Scope(rows, {}), trees)
    if not made:
        return rows, calls
    calls = [
        one if one.tree is None else replace(one, sql=lowered(replaced(one.tree, made.get)))
        for one in calls
    ]
    named = {column.name for one in calls if one.tree for column in find_all(one.tree, exp.Column)}
    named |= {column.name for one in made.values() for column in find_all(one, exp.Column)}
    named |= set(keys)
    if len(trees) < len(calls):
        return scope.rows, calls
    return scope.rows.only([name for name in scope.rows.names if name in named]), calls


def _is_kept_up(call: AggregateCall, rows: Relation) -> bool:
    """Whether the engine computes it of values of its argument's type."""
    if call.column is None or call.kind == "count":
        return True
    return not pa.types.is_nested(compile_expression(call.column, rows.schema).type)


def _sliding(
    rows: Relation, keys: Sequence[str], calls: Mapping[str, AggregateCall], window: Windows
) -> Relation:
    """The windows that end with a row: a group for each time at which a row of its keys is."""
    assert isinstance(window.window, RowWindow)
    assert rows.is_stream
    assert window.time is not None, "SLIDE is of a stream whose time is a column"
    made = rows.over(sliding(rows.node, keys, calls, window.window.size_us))
    time = quoted(window.time)
    bounds = {
        "window_start": f"{time} - INTERVAL {window.window.size_us} MICROSECONDS",
        "window_end": time,
    }
    named = {name: quoted(name) for name in [*keys, *calls]}
    return made.project({**bounds, **named}).distinct()


def of_nothing(rows: Relation, calls: Sequence[Called]) -> Relation:
    """The aggregates of all rows, which are there even of none."""
    if isinstance(rows.node, Stateful) and getattr(rows.node.operator, "always", False):
        return rows  # computed by a query, which is asked of none, too
    names = ", ".join(f"{quoted(name)}" for name in rows.names)
    counted = {one.name for one in calls if one.counts}
    empty = ", ".join("0" if name in counted else "NULL" for name in rows.names)
    return rows.query(
        (),
        ((),),
        f"SELECT {names} FROM rows0 UNION ALL SELECT {empty} WHERE NOT EXISTS (SELECT 1 FROM rows0)",
        single=True,
        always=True,
        like=rows.schema,
    )


def with_defaults(rows: Relation, calls: Sequence[Called]) -> Relation:
    """Counts of groups that no row is in, which are NULL after an outer join, as 0."""
    named = {name: quoted(name) for name in rows.names}
    for one in calls:
        if one.counts:
            named[one.name] = f"coalesce({quoted(one.name)}, 0)"
    return rows.project(named)
