"""Division in dialects where its result depends on the types.

In PostgreSQL, SQLite and others, `x / 2` of integers is an integer, without its fraction; in DuckDB, which
computes it, a DOUBLE. So the types of both sides are found, and integers are divided as integers.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp
from sqlglot.optimizer.annotate_types import annotate_types

from penstock.errors import SchemaError

__all__ = ["with_divisions"]

_UNKNOWN: Final = (exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL)


def with_divisions(tree: exp.Expr, schema: dict[str, object]) -> exp.Expr:
    """The query with `//` where a dialect's `/` is of integers.

    Args:
        tree: its names qualified.
        schema: the tables' columns and their types.

    Raises:
        SchemaError: the type of a side isn't known.
    """
    divisions = [one for one in tree.find_all(exp.Div) if one.args.get("typed")]
    if not divisions:
        return tree
    annotate_types(tree, schema=schema, dialect="duckdb")
    for one in reversed(divisions):  # inner ones first
        sides = [_type(one.this), _type(one.expression)]
        if all(side in exp.DataType.INTEGER_TYPES for side in sides):
            one.replace(exp.IntDiv(this=one.this, expression=one.expression))
        elif any(side in _UNKNOWN for side in sides):
            raise SchemaError(
                "expected a division of known types, on which its result depends in this dialect; found "
                f"{one.sql(dialect='duckdb')!r}. Cast both sides, as in CAST(x AS BIGINT)"
            )
        else:
            one.args.pop("typed")
    return tree


def _type(node: exp.Expr) -> object:
    if isinstance(node, exp.Paren):
        return _type(node.this)
    if isinstance(node, exp.IntDiv):
        return exp.DataType.Type.BIGINT
    return exp.DataType.Type.UNKNOWN if node.type is None else node.type.this
