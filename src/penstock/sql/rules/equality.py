"""EXISTS whose query knows the rows around it by equalities alone, as values that are looked for.

    EXISTS (SELECT … FROM u WHERE u.k = t.k AND u.w > 3)   ->   t.k among (SELECT u.k FROM u WHERE u.w > 3)

The query is then compiled by itself, and rows are joined to it at once. In general a subquery is compiled for
all combinations of the outer columns, which are kept, and joined to its tables first.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.sql.trees import (
    aggregates,
    aliases_of,
    conjuncts,
    cuts,
    free,
    own_columns,
    subqueries,
)

__all__ = ["by_equality"]

CLAUSES = ("group", "having", "qualify", "with_", "distinct", "windows")
"""What makes a query more than rows for which conditions are true."""


def by_equality(query: exp.Expr) -> tuple[exp.Select, list[exp.Expr]] | None:
    """The query's values, and what the rows around it must equal; None where it isn't of this form.

    Args:
        query: of EXISTS, its names qualified.
    """
    while isinstance(query, exp.Subquery) and not cuts(query):
        query = query.this
    if not isinstance(query, exp.Select) or cuts(query) or any(query.args.get(w) for w in CLAUSES):
        return None
    if any(aggregates(item) or item.find(exp.Explode, exp.Unnest) for item in query.expressions):
        return None
    where = query.args.get("where")
    known = aliases_of(query)
    outer: list[exp.Expr] = []
    inner: list[exp.Expr] = []
    rest: list[exp.Expr] = []
    for condition in conjuncts(None if where is None else where.this):
        if all(column.table in known for column in own_columns(condition)):
            rest.append(condition)
            continue
        if not isinstance(condition, exp.EQ) or subqueries(condition):
            return None
        sides = [condition.this, condition.expression]
        inside = [_inside(side, known) for side in sides]
        if sorted(inside, key=str) != [False, True]:
            return None
        inner.append(sides[inside.index(True)])
        outer.append(sides[inside.index(False)])
    made = query.copy()
    made.set("order", None)
    made.set("where", exp.Where(this=exp.and_(*rest, copy=True)) if rest else None)
    made.set("expressions", [exp.alias_(one.copy(), f"k{i}") for i, one in enumerate(inner)])
    if not outer or free(made):  # none, or in a FROM or ON as well
        return None
    return made, outer


def _inside(side: exp.Expr, known: set[str]) -> bool | None:
    """Whether an expression is over these tables alone; None: it is over others as well, or over none."""
    found = {column.table in known for column in own_columns(side)}
    return found.pop() if len(found) == 1 else None
