"""Functions of other distributions, in SQL and in expressions: scalar ones, and aggregates."""

from penstock.expr.functions.kinds import AggregateFunction, ScalarFunction, SqlFunction
from penstock.expr.functions.learning import (
    FUNCTIONS,
    add_functions,
    aggregate_named,
    learn,
    learned,
)

__all__ = [
    "FUNCTIONS",
    "AggregateFunction",
    "ScalarFunction",
    "SqlFunction",
    "add_functions",
    "aggregate_named",
    "learn",
    "learned",
]
