"""Lists that are made in an expression, as functions: after IN, list comprehensions, and ARRAY of a subquery.

k IN [1, NULL]                  ->  list_contains([1, NULL], k)
[x + 1 FOR x IN l IF x > 0]     ->  list_transform(list_filter(l, lambda x: x > 0), lambda x: x + 1)
ARRAY(SELECT w FROM u ORDER BY id)  ->  (SELECT coalesce(list(w ORDER BY id), []) FROM u)
"""

from __future__ import annotations

from sqlglot import exp, parse_one

from penstock.errors import SchemaError
from penstock.sql.places import within
from penstock.sql.trees import aggregates, cuts

__all__ = ["with_lists"]


def with_lists(tree: exp.Expr) -> exp.Expr:
    """The query without comprehensions, without lists after IN, and without subqueries in ARRAY.

    Raises:
        SchemaError: such a subquery is more than rows in an order.
    """
    if tree.find(exp.Comprehension, exp.Array) is None:
        return tree
    for array in reversed(list(tree.find_all(exp.Array))):  # inner ones first
        only = array.expressions[0] if len(array.expressions) == 1 else None
        made: exp.Expr = array
        if isinstance(only, exp.Comprehension):
            made = _called(only)
        elif isinstance(only, exp.Query) and not isinstance(only, exp.Subquery):
            made = _listed(only)
        if array.arg_key == "field" and isinstance(array.parent, exp.In):
            # sqlglot reads its own `k IN [1, NULL]` as `k IN (1, NULL)`, which is never false.
            key = array.parent.this
            array.parent.replace(exp.func("list_contains", made, key, dialect="duckdb"))
        else:
            array.replace(made)
    return tree


def _called(one: exp.Comprehension) -> exp.Expr:
    name, of = one.expression.sql(dialect="duckdb"), one.args["iterator"].sql(dialect="duckdb")
    if one.args.get("position") is not None:
        with within(one):
            raise SchemaError(
                "expected [x FOR x IN list]; found one with a number for each element. Write "
                "list_transform(list, lambda x, i: …)"
            )
    if (condition := one.args.get("condition")) is not None:
        of = f"list_filter({of}, lambda {name}: {condition.sql(dialect='duckdb')})"
    item = one.this.sql(dialect="duckdb")
    return parse_one(f"list_transform({of}, lambda {name}: {item})", dialect="duckdb")


def _listed(query: exp.Query) -> exp.Expr:
    grouped = any(query.args.get(what) for what in ("group", "distinct", "having", "qualify"))
    is_plain = isinstance(query, exp.Select) and not (grouped or cuts(query))
    order = query.args.get("order")
    if not is_plain and order is not None:
        with within(query):
            raise SchemaError(
                "expected rows in an order in ARRAY(SELECT …); found groups or a LIMIT as well. Write "
                "(SELECT list(x ORDER BY x) FROM (SELECT …))"
            )
    if not is_plain or any(aggregates(item) for item in query.expressions):
        inner = exp.Subquery(
            this=query, alias=exp.TableAlias(this=exp.to_identifier("rows of array"))
        )
        inner.args["alias"].set("columns", [exp.to_identifier("item")])
        query, item = exp.select().from_(inner), exp.column("item")
    else:
        query, item = query.copy(), query.expressions[0].copy()
        query.set("order", None)
        item = item.this if isinstance(item, exp.Alias) else item
    if order is not None:
        ordered: exp.Expr = exp.Order(
            this=item, expressions=[one.copy() for one in order.expressions]
        )
    else:
        ordered = item
    found = exp.Coalesce(this=exp.ArrayAgg(this=ordered), expressions=[exp.Array(expressions=[])])
    query.set("expressions", [found])
    return exp.Subquery(this=query)
