"""Calls with a constant regular expression: one that RE2 lacks fails for every row, so it is refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from penstock.errors import SchemaError
from penstock.expr.duck import connection

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["check_patterns"]

_PREFIX: Final = "regexp_"
_KINDS: Final = ("RegexpExtract", "RegexpExtractAll", "RegexpReplace", "RegexpLike", "RegexpSplit")


def check_patterns(tree: exp.Expr) -> None:
    """Checks the calls in a tree whose regular expression is a constant.

    Most are refused when DuckDB reads the query; it leaves some functions' until there are rows.

    Raises:
        SchemaError: one can't be used.
    """
    from sqlglot import exp

    from penstock.expr.walks import nodes_of

    for node in nodes_of(tree):
        is_call = type(node).__name__ in _KINDS
        if isinstance(node, exp.Anonymous):
            is_call = node.name.lower().startswith(_PREFIX) and bool(node.expressions)
        failure = _failure(_of_nothing(node)) if is_call else None
        if failure is not None:
            error = SchemaError(
                "expected a regular expression that RE2 knows, which has neither look-ahead nor "
                f"back-references; found {node.sql(dialect='duckdb')!r}: {failure}"
            )
            error.at = node.meta_get("start")
            raise error


def _of_nothing(node: exp.Expr) -> str:
    """The same call of an empty text; a call that has no error where it depends on a row."""
    from sqlglot import exp

    call, nothing = node.copy(), exp.Literal.string("")
    if isinstance(call, exp.Anonymous):
        call.expressions[0].replace(nothing)
    else:
        call.set("this", nothing)
    is_constant = call.find(exp.Column, exp.Query, exp.Placeholder) is None
    return call.sql(dialect="duckdb") if is_constant else "NULL"


@functools.lru_cache(maxsize=1_024)
def _failure(call: str) -> str | None:
    """What DuckDB says about a constant call; None where it has a value."""
    import duckdb

    try:
        connection().execute(f"SELECT {call}").fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None
