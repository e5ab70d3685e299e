"""ORDER BY with LIMIT, OFFSET or DISTINCT ON: the first rows, of all or of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.duck import borrowed
from penstock.flow.algebra.groups import top
from penstock.flow.shaping import TOP_MAX
from penstock.sql.places import within
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
    scope, by = _ordered(scope, _each(order, labels))
    rows = scope.rows
    if on is not None:
        wide, keys = Scope(rows, scope.names).computed(on.expressions, "on")
        rows = _numbered(wide.rows, by, 1, 0, [*carried, *keys])
    n, offset = _number(query, "limit"), _number(query, "offset") or 0
    if n is None and not offset:
        return rows
    return _numbered(rows, by, n, offset, carried)


def _numbered(
    rows: Relation, by: Sequence[tuple[str, bool]], n: int | None, offset: int, per: Sequence[str]
) -> Relation:
    """Some rows of each group, in an order: n, or all, behind the first `offset` ones."""
    is_plain = not any(pa.types.is_nested(rows.schema[name].type) for name, _ in by)
    if n is not None and not offset and 0 < n <= TOP_MAX and is_plain:
        return _first(rows, by, n, per)
    words = [f"{quoted(name)} {'DESC' if down else 'ASC'} NULLS LAST" for name, down in by]
    words += [f"{quoted(name)} NULLS LAST" for name in rows.names]
    keys = ", ".join(map(quoted, per))
    number = Scope(rows, {}).fresh("row number")
    over = f"{'PARTITION BY ' + keys if keys else ''} ORDER BY {', '.join(words)}"
    low, high = offset, "" if n is None else f" AND {quoted(number)} <= {offset + n}"
    return rows.query(
        (),
        (tuple(per),),
        f"SELECT * EXCLUDE ({quoted(number)}) FROM (SELECT *, row_number() OVER ({over}) AS {quoted(number)} "
        f"FROM rows0) WHERE {quoted(number)} > {low}{high}",
        placed=tuple(per),
        row_key=rows.row_key,
        like=rows.schema,
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
        by = [(rows.plain_names[0], False)]
    return rows.over(top(rows.node, n, by, tuple(dict.fromkeys(per))))


def _each(order: Sequence[exp.Expr], labels: Sequence[str]) -> list[tuple[exp.Expr, bool, bool]]:
    """See `_named`, of each; ORDER BY ALL is by all columns."""
    if len(order) == 1 and isinstance(order[0].this, exp.Var) and order[0].name.upper() == "ALL":
        _, *how = _named(order[0], labels)
        return [(exp.column(label), how[0], how[1]) for label in labels]
    return [_named(one, labels) for one in order]


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
    value = found.args.get("count") if isinstance(found, exp.Fetch) else found.expression
    if isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdecimal():
        return int(value.this)
    number = None if value is None else _constant(value)
    if number is None or number < 0:
        with within(found):
            raise SchemaError(
                f"expected a whole number in {what.upper()}; found {found.sql(dialect='duckdb')!r}"
            )
    return number


def _constant(tree: exp.Expr) -> int | None:
    """The whole number that an expression without columns is; None: it is none."""
    if tree.find(exp.Column, exp.Query, exp.Placeholder, exp.Parameter) is not None:
        return None
    text = f"SELECT TRY_CAST(({tree.sql(dialect='duckdb')}) AS BIGINT)"
    with borrowed() as con:
        [(found,)] = con.execute(text).fetchall()
    return None if found is None else int(found)
