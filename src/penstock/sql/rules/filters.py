"""`theta_sketch_agg(x) FILTER (WHERE c)` as `theta_sketch_agg(CASE WHEN c THEN x END)`.

To DuckDB the aggregates of sketches are macros, which take no FILTER; NULL is no value of theirs.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.core.sketches.functions import AGGREGATES
from penstock.expr.walks import find_all

__all__ = ["with_cases"]


def with_cases(tree: exp.Expr) -> exp.Expr:
    """The query without FILTER after aggregates of sketches."""
    if not any(_is_of_sketches(one.this) for one in find_all(tree, exp.Filter)):
        return tree

    def changed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Filter):
            return node
        call, condition = node.this, node.expression.this
        if not _is_of_sketches(call):
            return node
        value, *rest = call.expressions
        case = exp.Case().when(condition, value)
        return exp.Anonymous(this=call.this, expressions=[case, *rest])

    return tree.transform(changed)


def _is_of_sketches(call: exp.Expr) -> bool:
    return isinstance(call, exp.Anonymous) and call.name.lower() in AGGREGATES
