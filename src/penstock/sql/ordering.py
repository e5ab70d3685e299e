"""ORDER BY with LIMIT, OFFSET or DISTINCT ON: the first rows, of all or of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from penstock.errors import SchemaError
from penstock.flow.shaping import TOP_MAX, top
from penstock.sql.relation import Relation, quoted
from penstock.sql.scope import Scope

__all__ = ["first_rows", "limited"]


def limited(scope: Scope, query: exp.Expr, carried: Sequence[str]) -> Relation:
    """The first rows by a query's ORDER BY, of each combination of the carried columns.

    Rows that are equal in the order are distinguished by their other columns.

    Args:
        scope: the rows; `("", label)` are the result's columns.
        query: a SELECT or a set operation.
        carried: columns of the rows.
    """
    distinct = query.args.get("distinct")
    on = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    order = [] if query.args.get("order") is None else query.args["order"].expressions
    labels = [name for alias, name in scope.names if alias == ""]
    scope, by = _ordered(scope, [_named(one, labels) for one in order])
    rows = scope.rows
    if on is not None:
        wide, keys = Scope(rows, scope.names).computed(on.expressions, "on")
        rows = _first(wide.rows, by, 1, [*carried, *keys])
    n, offset = _number(query, "limit"), _number(query, "offset") or 0
    if n is None and not offset:
        return rows
    if n is not None and not offset and n <= TOP_MAX and n > 0:
        return _first(rows, by, n, carried)
    words = [f"{quoted(name)} {'DESC' if down else 'ASC'} NULLS LAST" for name, down in by]
    words += [f"{quoted(name)} NULLS LAST" for name in rows.names]
    per = ", ".join(map(quoted, carried))
    number = scope.fresh("row number")
    over = f"{'PARTITION BY ' + per if per else ''} ORDER BY {', '.join(words)}"
    low, high = offset, "" if n is None else f" AND {quoted(number)} <= {offset + n}"
    return rows.query(
        (),
        (tuple(carried),),
        f"SELECT * EXCLUDE ({quoted(number)}) FROM (SELECT *, row_number() OVER ({over}) AS {quoted(number)} "
        f"FROM rows0) WHERE {quoted(number)} > {low}{high}",
        placed=carried,
    )


def first_rows(
    scope: Scope, order: Sequence[exp.Ordered], n: int, per: Sequence[str]
) -> Scope | None:
    """The first n rows of each group, with the same columns; None where no operator keeps them.

    Args:
        scope: the rows.
        order: of a window.
        n: how many.
        per: columns that make up a group.
    """
    if not 1 <= n <= TOP_MAX or any(isinstance(one.this, exp.Literal) for one in order):
        return None
    columns = scope.rows.names
    trees = [
        (one.this, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))) for one in order
    ]
    wide, by = _ordered(scope, trees)
    if any(pa.types.is_nested(wide.rows.schema[name].type) for name in (*per, *dict(by))):
        return None
    return replace(scope, rows=_first(wide.rows, by, n, per).only(columns))


def _ordered(
    scope: Scope, trees: Sequence[tuple[exp.Expr, bool, bool]]
) -> tuple[Scope, list[tuple[str, bool]]]:
    """The rows with columns that they are ordered by, and these: their names, and whether descending."""
    scope, columns = scope.computed([tree for tree, _, _ in trees], "order")
    added: dict[str, str] = {}
    by: list[tuple[str, bool]] = []
    for name, (_, descending, nulls_first) in zip(columns, trees, strict=True):
        if nulls_first:
            extra = scope.fresh(f"{name} is null", added)
            added[extra] = f"CASE WHEN {quoted(name)} IS NULL THEN 0 ELSE 1 END"
            by.append((extra, False))
        by.append((name, descending))
    return (replace(scope, rows=scope.rows.added(added)) if added else scope), by


def _first(rows: Relation, by: Sequence[tuple[str, bool]], n: int, per: Sequence[str]) -> Relation:
    if not by:
        single = [f.name for f in rows.schema if not pa.types.is_nested(f.type)]
        by = [(single[0], False)]
    texts = tuple(f"{name} {'DESC' if descending else 'ASC'}" for name, descending in by)
    node = top(rows.node, n, texts, tuple(dict.fromkeys(per)))
    return Relation(rows.flow, rows.flow.node(node))


def _named(one: exp.Expr, labels: Sequence[str]) -> tuple[exp.Expr, bool, bool]:
    """What is ordered by, whether descending, and whether NULL comes first."""
    assert isinstance(one, exp.Ordered)
    tree = one.this
    if isinstance(tree, exp.Literal) and not tree.is_string:
        at = int(tree.this)
        if not 1 <= at <= len(labels):
            raise SchemaError(f"expected ORDER BY 1 to {len(labels)}; found {at}")
        tree = exp.column(labels[at - 1])
    return tree, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))


def _number(query: exp.Expr, what: str) -> int | None:
    found = query.args.get(what)
    if found is None:
        return None
    value = found.expression
    if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdecimal():
        raise SchemaError(
            f"expected a whole number in {what.upper()}; found {found.sql(dialect='duckdb')!r}"
        )
    return int(value.this)
