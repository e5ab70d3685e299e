"""Rows by their number in a partition: a bound on `row_number()` moves into the query that numbers them.

    FROM (SELECT …, row_number() OVER w AS n FROM …) WHERE n <= 3
    ->  FROM (SELECT …, row_number() OVER w AS n FROM … QUALIFY row_number() OVER w <= 3) WHERE n <= 3

Likewise of a table in WITH that is read once. The condition stays where it was: in an outer join, rows whose
partner has another number then have none, and NULL isn't below the bound.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.expr.walks import find_all
from penstock.sql.trees import conjuncts, cuts

__all__ = ["at_most", "with_first_rows"]


def with_first_rows(tree: exp.Expr) -> exp.Expr:
    """The query, whose names are qualified, with bounds where rows are numbered."""
    for select in find_all(tree, exp.Select):
        where = select.args.get("where")
        for condition in conjuncts(None if where is None else where.this):
            column = condition.this
            if not isinstance(column, exp.Column) or not _bounds(condition):
                continue
            numbered = _source(select, column.table, tree)
            window = None if numbered is None else _item(numbered, column.name)
            bounded = condition.copy()
            if numbered is None or window is None:
                continue
            bounded.set("this", window.copy())
            if at_most(bounded) is None:
                continue
            before = numbered.args.get("qualify")
            both = bounded if before is None else exp.and_(before.this, bounded)
            numbered.set("qualify", exp.Qualify(this=both))
    return tree


def at_most(condition: exp.Expr) -> int | None:
    """How many rows of a partition a condition on `row_number()` leaves; None where it is another."""
    window = condition.this
    if not _bounds(condition) or not isinstance(window, exp.Window):
        return None
    if not isinstance(window.this, exp.RowNumber):
        return None
    n = int(condition.expression.this) - (type(condition) is exp.LT)
    return n if n == 1 or not isinstance(condition, exp.EQ) else None


def _bounds(condition: exp.Expr) -> bool:
    """Whether something is compared with a whole number."""
    if not isinstance(condition, exp.LTE | exp.LT | exp.EQ):
        return False
    bound = condition.expression
    return isinstance(bound, exp.Literal) and not bound.is_string and str(bound.this).isdecimal()


def _source(select: exp.Select, alias: str, tree: exp.Expr) -> exp.Select | None:
    """The SELECT that a table of a FROM is, if nothing else reads it."""
    from_ = select.args.get("from_")
    joins = select.args.get("joins") or []
    if any(join.args.get("method") for join in joins):  # ASOF chooses among all rows
        return None
    for one in [] if from_ is None else [from_.this, *(join.this for join in joins)]:
        if one.alias_or_name != alias:
            continue
        if isinstance(one, exp.Subquery):
            return _plain(one.this) if not cuts(one) else None
        named = [cte for cte in find_all(tree, exp.CTE) if cte.alias == one.name]
        read = [table for table in find_all(tree, exp.Table) if table.name == one.name]
        if isinstance(one, exp.Table) and len(named) == 1 and len(read) == 1:
            return _plain(named[0].this)
    return None


def _plain(query: exp.Expr) -> exp.Select | None:
    """A SELECT all of whose rows are numbered, and of which all are there."""
    if not isinstance(query, exp.Select) or cuts(query) or query.args.get("distinct") is not None:
        return None
    return query


def _item(select: exp.Select, name: str) -> exp.Expr | None:
    """What a column of a SELECT is."""
    found = [item for item in select.expressions if item.alias_or_name == name]
    return found[0].this if len(found) == 1 and isinstance(found[0], exp.Alias) else None
