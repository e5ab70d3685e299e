"""`theta_sketch_agg(x) FILTER (WHERE c)` as `theta_sketch_agg(CASE WHEN c THEN x END)`.

To DuckDB the aggregates of sketches and of other distributions are macros, which take no FILTER; NULL is no
value of theirs.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.core.sketches.functions import AGGREGATES
from penstock.expr.functions import aggregate_named
from penstock.expr.walks import find_all

__all__ = ["with_cases"]


def with_cases(tree: exp.Expr) -> exp.Expr:
    """The query without FILTER after such aggregates."""
    if not any(_is_macro(one.this) for one in find_all(tree, exp.Filter)):
        return tree

    def changed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Filter):
            return node
        call, condition = node.this, node.expression.this
        if not _is_macro(call):
            return node
        value, *rest = call.expressions
        case = exp.Case().when(condition, value)
        return exp.Anonymous(this=call.this, expressions=[case, *rest])

    return tree.transform(changed)


def _is_macro(call: exp.Expr) -> bool:
    if not isinstance(call, exp.Anonymous):
        return False
    return call.name.lower() in AGGREGATES or aggregate_named(call.name.lower()) is not None
