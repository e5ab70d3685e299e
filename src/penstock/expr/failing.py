"""Which rows a SQL expression fails for, in a way that no optimizer can undo.

    guarded(sql, rows) -> values, NULL where it fails; whether it fails, of each row

One pass finds them nearly always: `TRY` gives NULL for what fails within it, on a connection whose
optimizer moves nothing out of it. Errors that `TRY` lets through (an unknown time zone) and what it can't
hold (`error(…)`, a subquery) are found by halves: a part of the rows that fails is cut in two until it is
one row. That takes two queries for each row that fails and the logarithm of how many rows there are, so it
comes second.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.duck import EvaluationError, connection, query_tables, types_of
from penstock.expr.purity import names_aggregate

# sqlglot is imported where it is used: lanes need none, unless something fails.
if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["guarded", "row_parts", "tried_query"]


def guarded(sql: str, rows: pa.Table) -> tuple[pa.ChunkedArray, np.ndarray]:
    """An expression that fails for some rows.

    Args:
        sql: the expression, over the columns of `rows`.
        rows: any.

    Returns:
        Its values, which are NULL where it fails, and bool[rows]: where that is.
    """
    try:
        # A struct is NULL where its making failed only, not where the value in it is NULL.
        query = f"SELECT TRY({{'v': {sql}}}) AS x FROM rows"
        found = query_tables({"rows": rows}, query, as_written=True).column(0)
        failed = np.asarray(found.is_null().to_numpy(), np.bool_)
        return pc.struct_field(found, 0), failed
    except EvaluationError:
        parts = _halved(f"SELECT {sql} AS x FROM rows", rows)
    type_: Any = next((one.type for one in parts if isinstance(one, pa.ChunkedArray)), None)
    if type_ is None:
        type_ = _type_of(sql, rows.schema)
    chunks: list[Any] = []
    failed = np.zeros(len(rows), np.bool_)
    at = 0
    for one in parts:
        if isinstance(one, pa.ChunkedArray):
            chunks += one.chunks
            at += len(one)
        else:
            chunks.append(pa.nulls(one, type_))
            failed[at : at + one] = True
            at += one
    return pa.chunked_array(chunks, type_), failed


def _halved(query: str, rows: pa.Table) -> list[pa.ChunkedArray | int]:
    """What a query gives of parts of the rows, in their order; a number is of rows that it fails for."""
    try:
        return [query_tables({"rows": rows}, query, as_written=True).column(0)]
    except EvaluationError:
        if len(rows) <= 1:
            return [len(rows)]
    half = len(rows) // 2
    return [*_halved(query, rows.slice(0, half)), *_halved(query, rows.slice(half))]


def _type_of(sql: str, schema: pa.Schema) -> pa.DataType:
    """The type of an expression that fails for all rows."""
    try:
        [(_, found, _)] = types_of({"rows": schema}, f"SELECT {sql} AS x FROM rows")
    except EvaluationError:
        return pa.null()  # DuckDB can't even plan it: a constant part fails
    return found


@functools.lru_cache(maxsize=256)
def tried_query(query: str) -> str | None:
    """The query with NULL for each part that fails and is a function of one row of what it reads.

    Aggregates see NULL for a row whose argument fails, and a join's condition that fails isn't true. It is to
    be computed as it is written (`query_tables`). What an aggregate itself refuses still fails.

    Returns:
        None where sqlglot can't read the query.
    """
    import sqlglot
    from sqlglot import exp

    if not query:
        return None
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    for part in row_parts(tree):
        part.replace(exp.Anonymous(this="TRY", expressions=[part.copy()]))
    return tree.sql(dialect="duckdb")


def row_parts(tree: exp.Expr) -> list[exp.Expr]:
    """The largest parts of a query, or of an expression in one, that are of one row of what it reads.

    What is called by a window or has a FILTER is no part, of whatever class sqlglot makes it: its arguments
    are. Of a condition of ASOF the comparisons' sides are parts, as DuckDB reads these.
    """
    from sqlglot import exp

    if isinstance(tree, exp.Column):
        return []
    beyond = (exp.Query, exp.Window, exp.Star, exp.Alias, exp.Ordered, exp.Unnest)
    inside = any(isinstance(one, beyond) or _is_aggregate(one) for one in tree.walk())
    if not inside and isinstance(tree, exp.Condition) and tree.find(exp.Column) is not None:
        return [tree]
    found: list[exp.Expr] = []
    if isinstance(tree, exp.Join):
        through = (exp.And, exp.Paren, exp.Predicate) if tree.args.get("method") else exp.And
        on = tree.args.get("on")
        for part in tree.iter_expressions():
            found += _parts_below(part, through) if part is on else row_parts(part)
        return found
    called: exp.Expr | None = None
    calling = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
    if isinstance(tree, calling):
        called = tree.this
    for child in tree.iter_expressions():
        for one in child.iter_expressions() if child is called else [child]:
            found += row_parts(one)
    return found


def _parts_below(condition: exp.Expr, through: type | tuple[type, ...]) -> list[exp.Expr]:
    """The parts of a join's condition, each below some nodes; columns that are equal join, and don't fail."""
    from sqlglot import exp

    if isinstance(condition, exp.EQ) and all(
        isinstance(one, exp.Column) for one in (condition.this, condition.expression)
    ):
        return []
    if isinstance(condition, through):
        children = condition.iter_expressions()
        return [part for child in children for part in _parts_below(child, through)]
    return row_parts(condition)


def _is_aggregate(tree: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(tree, exp.Anonymous):
        return names_aggregate(connection(), tree.name)
    return isinstance(tree, exp.AggFunc)
