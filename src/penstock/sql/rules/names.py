"""The columns of a query, as DuckDB says: their names and types, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from penstock.core.schema import TIMESTAMP, Field, Schema
from penstock.errors import SchemaError
from penstock.expr.duck import stopped_at
from penstock.expr.query import query_columns
from penstock.expr.walks import find_all
from penstock.sql.scope import Environment
from penstock.sql.text.groups import ordered

__all__ = ["columns_at", "columns_of", "tables_of", "with_merged", "with_merging"]

_MERGES: Final = "merges"
"""The note of a join by USING, or a NATURAL one."""


def columns_of(text: str, named: Iterable[str], env: Environment) -> Schema:
    """The columns of a query.

    Args:
        text: of it.
        named: the tables that it reads, or more.
        env: these tables, and others.

    Raises:
        SchemaError: DuckDB finds something wrong with it: in its words, but for groups and windows.
    """
    schemas = {}
    for name in named:
        table = env.tables.get(name)
        if table is None:
            continue
        there = table.rows.schema
        fields = [there[c] if c in there else Field(c, TIMESTAMP) for c in table.columns.values()]
        schemas[name] = Schema(tuple(fields))  # a window's bounds aren't in the rows yet
    try:
        return query_columns(text, schemas)
    except SchemaError as error:
        near = stopped_at({name: one.arrow for name, one in schemas.items()}, text) or error.near
        if (own := ordered(str(error), text)) is not None:
            message, word = own
            near = near or (None if word is None else (word, 0))
            error = error.reworded(message)
        error.near = near
        raise error from None


def tables_of(tree: exp.Expr) -> list[str]:
    """The names of the tables that a query reads, each once, in small letters."""
    return list(dict.fromkeys(table.name.lower() for table in find_all(tree, exp.Table)))


def columns_at(query: exp.Expr, place: exp.Expr, env: Environment) -> Schema:
    """The columns of a query as if it stood at some place of a tree: WITH of what is around it counts.

    Raises:
        SchemaError: as `columns_of`.
    """
    levels: list[exp.With] = []
    upper: dict[str, exp.CTE] = {}
    below, node = place, place.parent
    while node is not None:
        with_ = node.args.get("with_")
        if with_ is not None and below is not with_:
            levels.append(with_)
        elif isinstance(node, exp.With):
            before = node.expressions[
                : next(i for i, c in enumerate(node.expressions) if c is below)
            ]
            levels.append(exp.With(expressions=before, recursive=node.args.get("recursive")))
        below, node = node, node.parent
    for level in reversed(levels):
        for cte in level.expressions:
            upper.pop(cte.alias.lower(), None)  # the inner one of two of a name
            upper[cte.alias.lower()] = cte
    text = query.sql(dialect="duckdb")
    if upper:
        recursive = "RECURSIVE " if any(one.args.get("recursive") for one in levels) else ""
        parts = ", ".join(cte.sql(dialect="duckdb") for cte in upper.values())
        text = f"WITH {recursive}{parts} {text}"
    return columns_of(text, tables_of(place.root()), env)


def with_merging(tree: exp.Expr) -> exp.Expr:
    """The query with a note at joins by USING: once names are qualified, these have ON instead."""
    for join in find_all(tree, exp.Join):
        if join.args.get("using") or (join.method or "").upper() == "NATURAL":
            join.meta[_MERGES] = True
    return tree


def with_merged(tree: exp.Expr) -> exp.Expr:
    """The qualified query whose joins by USING see the columns that those before them have merged.

    After a RIGHT JOIN, a merged column is the right side's, after a FULL JOIN that of either; sqlglot takes
    the first table's, which is NULL in a row without a partner.
    """
    for select in find_all(tree, exp.Select):
        merged: dict[str, list[str]] = {}  # the tables of a column's value, by its name
        for join in select.args.get("joins") or ():
            on = join.args.get("on") if join.meta.pop(_MERGES, False) else None
            side = (join.side or "").upper()
            for one in [] if on is None else on.find_all(exp.EQ):
                column, first = one.expression, one.this.find(exp.Column)
                tables = merged.setdefault(column.name, [first.table])
                if tables != [first.table]:
                    columns = [exp.column(column.this.copy(), table=table) for table in tables]
                    one.set(
                        "this", columns[0] if len(columns) == 1 else exp.func("coalesce", *columns)
                    )
                if side == "RIGHT":
                    merged[column.name] = [column.table]
                elif side == "FULL":
                    tables.append(column.table)
    return tree
