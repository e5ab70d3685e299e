"""Whole queries some of whose parts fail for rows: they give NULL there.

A part is an expression over one row of what a query reads. `TRY` holds nearly all. Of a few rows, the parts
that it doesn't hold are computed before the query: over the rows of a table, or over pairs of rows where they
are a join's condition.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import from_int64
from penstock.expr.duck import EvaluationError, connection, query_tables
from penstock.expr.failing import guarded
from penstock.expr.purity import names_aggregate

# sqlglot is imported where it is used: lanes need none, unless something fails.
if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["query_of_failing", "row_parts", "tried_query"]

FAILS: Final = "error"
"""The function that fails for each row."""


def query_of_failing(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """What a query gives of a few rows if each part that fails for a row is NULL.

    Args:
        query: over the tables. Where it joins two, their columns' names differ.
        tables: by their names.

    Raises:
        EvaluationError: something else fails, such as an aggregate; or it can't be found what.
    """
    tried = tried_query(query)
    if tried is None:
        return query_tables(tables, query, as_written=True)
    try:
        return query_tables(tables, tried, as_written=True)
    except EvaluationError:
        if (found := _with_computed(query, tables)) is None:
            raise
    return query_tables(found[1], found[0], as_written=True)


def _with_computed(
    query: str, tables: Mapping[str, pa.Table]
) -> tuple[str, dict[str, pa.Table]] | None:
    """The query over tables that have its parts as columns; None where its form isn't known."""
    import sqlglot
    from sqlglot import exp

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is

    tree = sqlglot.parse_one(query, dialect="duckdb")
    selects = [one for one in tree.find_all(exp.Select) if _reads(one) == tuple(tables)]
    if len(selects) != 1 or tree.find(exp.CTE) is not None:
        return None
    known, pairs = dict(tables), []
    for number, part in enumerate(row_parts(selects[0])):
        ports = {_port(column, tables) for column in part.find_all(exp.Column)}
        join = part.find_ancestor(exp.Join)
        if len(ports) == 1 and (port := ports.pop()) is not None:
            name = f"$part {number}"
            known[port] = known[port].append_column(name, guarded(_plain(part), tables[port])[0])
            part.replace(exp.column(name, table=port, quoted=True))
        elif None not in ports and join is not None and not join.args.get("method"):
            pairs.append(part)
        else:
            part.replace(exp.Anonymous(this="TRY", expressions=[part.copy()]))
    if pairs:
        left, right = tables
        known[left], known[right] = _matched(pairs, known[left], known[right])
        held = exp.Anonymous(
            this="list_contains",
            expressions=[
                exp.column("$matches", table=left, quoted=True),
                exp.column("$row", table=right, quoted=True),
            ],
        )
        for part in pairs:
            part.replace(held.copy())
    return tree.sql(dialect="duckdb"), known


def _matched(
    conditions: list[exp.Expr], left: pa.Table, right: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Two tables with columns that say which pairs of their rows fulfil all conditions."""
    n, m = len(left), len(right)
    some, others = from_int64(np.repeat(np.arange(n), m)), from_int64(np.tile(np.arange(m), n))
    pairs = pa.table(
        [*left.take(some).columns, *right.take(others).columns],
        [*left.column_names, *right.column_names],
    )
    true = np.ones(n * m, np.bool_)
    for condition in conditions:
        values: Any = guarded(f"coalesce({_plain(condition)}, FALSE)", pairs)[0]
        true &= np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)  # noqa: FBT003
    matches = [np.flatnonzero(row).tolist() for row in true.reshape(n, m)]
    return (
        left.append_column("$matches", pa.array(matches, pa.list_(pa.int64()))),
        right.append_column("$row", pa.array(range(m), pa.int64())),
    )


def _reads(select: exp.Select) -> tuple[str, ...]:
    """The tables that a SELECT reads itself."""
    from sqlglot import exp

    from_ = select.args.get("from_")
    sources = [from_.this if from_ is not None else None]
    sources += [one.this for one in select.args.get("joins") or []]
    return tuple(one.name if isinstance(one, exp.Table) else "" for one in sources)


def _port(column: exp.Column, tables: Mapping[str, pa.Table]) -> str | None:
    """The table that a column is of."""
    if column.table:
        return column.table if column.table in tables else None
    found = [name for name, table in tables.items() if column.name in table.column_names]
    return found[0] if len(found) == 1 else None


def _plain(part: exp.Expr) -> str:
    """A part over one table's columns."""
    from sqlglot import exp

    part = part.copy()
    for column in part.find_all(exp.Column):
        column.set("table", None)
    return part.sql(dialect="duckdb")


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

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is

    if not query:
        return None
    try:
        tree = sqlglot.parse_one(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    for whole in row_parts(tree):
        for part in _held(whole):
            part.replace(exp.Anonymous(this="TRY", expressions=[part.copy()]))
    return tree.sql(dialect="duckdb")


def _held(part: exp.Expr) -> list[exp.Expr]:
    """The parts of a part that `TRY` takes: it refuses `error(…)`, with which a recursion ends, too."""
    from sqlglot import exp

    if not any(one.name.lower() == FAILS for one in part.find_all(exp.Anonymous)):
        return [part]
    children = (one for child in part.iter_expressions() for one in row_parts(child))
    return [one for child in children for one in _held(child)]


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
