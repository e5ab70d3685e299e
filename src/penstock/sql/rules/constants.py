"""Constant tables: VALUES, and queries without a FROM."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.duck import connection
from penstock.expr.walks import find_all
from penstock.flow import Flow
from penstock.flow.algebra.queries import constant as constant_node
from penstock.sql.places import within
from penstock.sql.relation import Relation, quoted
from penstock.sql.scope import Environment, Named

__all__ = ["constant", "with_values"]

_MANY: Final = re.compile(r"\b(generate_series|range|unnest|recursive|repeat)\b", re.IGNORECASE)
"""What may make many rows of few words: not computed to see whether it works."""


def constant(flow: Flow, query: str) -> Relation:
    """The rows of a query over nothing.

    Raises:
        SchemaError: it reads a table, depends on the clock or on chance, or fails, as it then would in each
            batch.
    """
    node = constant_node(query)
    failure = None if _MANY.search(query) else _failure(query)
    if failure is not None:
        raise SchemaError(f"expected constants that have values; found {query!r}: {failure}")
    return Relation(flow, flow.node(node))


def with_values(tree: exp.Expr, env: Environment) -> tuple[exp.Expr, Environment]:
    """The query with a table's name for each VALUES, and these tables.

    VALUES with columns of a query around it become SELECTs without a FROM, united.
    """
    if tree.find(exp.Values) is None:
        return tree, env
    tree = tree.copy()
    if isinstance(tree, exp.Values):
        tree = _selected(tree)
    for values in find_all(tree, exp.Values):
        if isinstance(values.parent, exp.In):
            values.parent.set("query", exp.Subquery(this=_selected(values)))
            values.parent.set("expressions", [])
        elif isinstance(values.parent, exp.Subquery | exp.Exists):
            values.replace(_selected(values))
    for values in find_all(tree, exp.Values):
        alias = values.args.get("alias") or exp.TableAlias(this=exp.to_identifier("values"))
        if values.find(exp.Column, exp.Query):
            rows = exp.Subquery(this=_united(values))
            rows.set("alias", _with_columns(alias, values))
            if isinstance(values.parent, exp.Join):  # it sees the tables before it
                named = rows.args.pop("alias")
                values.replace(exp.Lateral(this=rows, alias=named))
            else:
                values.replace(rows)
            continue
        plain = exp.Values(expressions=values.expressions)
        text = plain.sql(dialect="duckdb")
        name = f"values {len(env.tables)}"
        try:
            rows_of = constant(env.flow, f"SELECT * FROM ({text})")
        except SchemaError:
            _check_values(values)
            raise
        columns = alias.args.get("columns") or []
        labels = [one.name for one in columns] + list(rows_of.names[len(columns) :])
        pairs = zip(labels, rows_of.names, strict=False)
        named = rows_of.project({label: quoted(column) for label, column in pairs})
        env = env.with_(name, Named.of(named))
        made = exp.Table(this=exp.to_identifier(name, quoted=True))
        made.set("alias", exp.TableAlias(this=alias.this))
        values.replace(made)
    return tree, env


def _check_values(values: exp.Values) -> None:
    """Checks that constants have values.

    Raises:
        SchemaError: one fails.
    """
    for cell in [cell for row in values.expressions for cell in row.expressions or [row]]:
        failure = _failure(f"SELECT {cell.sql(dialect='duckdb')}")
        if failure is not None:
            with within(values), within(cell):
                raise SchemaError(
                    f"expected constants that have values; found {cell.sql(dialect='duckdb')!r}: {failure}"
                )


def _failure(query: str) -> str | None:
    """What DuckDB says about a query over nothing; None where it has rows."""
    import duckdb

    try:
        connection().execute(query).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def _selected(values: exp.Values) -> exp.Select:
    """`SELECT * FROM (VALUES …)`."""
    plain = exp.Values(expressions=values.expressions)
    plain.set("alias", exp.TableAlias(this=exp.to_identifier("values")))
    return exp.select("*").from_(plain)


def _united(values: exp.Values) -> exp.Query:
    """A SELECT for each row."""
    first, *others = [exp.select(*row.expressions) for row in values.expressions]
    found: exp.Query = first
    for other in others:
        found = exp.union(found, other, distinct=False)
    return found


def _with_columns(alias: exp.TableAlias, values: exp.Values) -> exp.TableAlias:
    """The alias with a name for each column: `col0`, … where it has none."""
    made = alias.copy()
    known = list(made.args.get("columns") or [])
    width = len(values.expressions[0].expressions)
    made.set("columns", known + [exp.to_identifier(f"col{i}") for i in range(len(known), width)])
    return made
