"""Expressions over the columns of a row: text to something that is computed on whole columns.

    expression  text -> Expression: checked, typed, pure
    tree        the same as a small tree of our own, where it is made of common parts only
    columnar    the tree on Arrow columns: 0.05 ms however few the rows
    duck        any expression, by DuckDB: 0.9 ms however few the rows
    purity      what a repeated batch would compute otherwise is refused

DuckDB's meaning is the reference. `columnar` gives the same for what it takes on, or says that it can't.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.expr.duck import EvaluationError
    from penstock.expr.expression import Expression, compile_expression
    from penstock.expr.functions import AggregateFunction, ScalarFunction
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "duck": ("EvaluationError",),
            "expression": ("Expression", "compile_expression"),
            "functions": ("AggregateFunction", "ScalarFunction"),
        },
    )

__all__ = [
    "AggregateFunction",
    "EvaluationError",
    "Expression",
    "ScalarFunction",
    "compile_expression",
]
