"""Constant tables: VALUES, and queries without a FROM."""

from __future__ import annotations

from sqlglot import exp

from penstock.expr.query import fixed_query
from penstock.flow import Flow
from penstock.flow.graph import Stateful
from penstock.ops.keyed.query import GroupQuery
from penstock.sql.relation import Relation, quoted
from penstock.sql.scope import Environment, Named

__all__ = ["constant", "with_values"]


def constant(flow: Flow, query: str) -> Relation:
    """The rows of a query over nothing.

    Raises:
        SchemaError: it reads a table, or depends on the clock or on chance.
    """
    text, schema = fixed_query(query, {})
    operator = GroupQuery((), (), text, schema.arrow, always=True)
    return Relation(flow, flow.node(Stateful((), operator, schema)))


def with_values(tree: exp.Expr, env: Environment) -> tuple[exp.Expr, Environment]:
    """The query with a table's name for each VALUES, and these tables.

    VALUES with columns of a query around it become SELECTs without a FROM, united.
    """
    if tree.find(exp.Values) is None:
        return tree, env
    tree = tree.copy()
    if isinstance(tree, exp.Values):
        tree = _selected(tree)
    for values in list(tree.find_all(exp.Values)):
        if isinstance(values.parent, exp.In):
            values.parent.set("query", exp.Subquery(this=_selected(values)))
            values.parent.set("expressions", [])
        elif isinstance(values.parent, exp.Subquery | exp.Exists):
            values.replace(_selected(values))
    for values in list(tree.find_all(exp.Values)):
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
        rows_of = constant(env.flow, f"SELECT * FROM ({text})")
        columns = alias.args.get("columns") or []
        labels = [one.name for one in columns] + list(rows_of.names[len(columns) :])
        pairs = zip(labels, rows_of.names, strict=False)
        named = rows_of.project({label: quoted(column) for label, column in pairs})
        env = env.with_(name, Named.of(named))
        made = exp.Table(this=exp.to_identifier(name, quoted=True))
        made.set("alias", exp.TableAlias(this=alias.this))
        values.replace(made)
    return tree, env


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
