"""UNION BY NAME as UNION: a column that one side doesn't have is NULL there.

SELECT a FROM t UNION ALL BY NAME SELECT b, a FROM u
->  SELECT a, CAST(NULL AS BIGINT) AS b FROM (SELECT a FROM t)
    UNION ALL SELECT a, b FROM (SELECT b, a FROM u)
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.expr.expression import sql_type
from penstock.sql.rules.names import columns_at
from penstock.sql.scope import Environment

__all__ = ["by_position"]


def by_position(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query without BY NAME.

    Raises:
        SchemaError: a side has columns that can't be determined.
    """
    found = [one for one in tree.find_all(exp.SetOperation) if one.args.get("by_name")]
    for one in reversed(found):  # those inside of others first
        if not isinstance(one, exp.Union):
            raise SchemaError(f"expected BY NAME after UNION; found it after {one.key.upper()}")
        sides = one.this, one.expression
        left, right = (columns_at(_rows(side), side, env) for side in sides)
        known = {field.name.lower() for field in left}
        fields = [*left, *(field for field in right if field.name.lower() not in known)]
        one.set("this", _with_all(sides[0], left, fields))
        one.set("expression", _with_all(sides[1], right, fields))
        one.args.pop("by_name")
    return tree


def _rows(side: exp.Expr) -> exp.Select:
    """`SELECT * FROM (…)`."""
    inner = side.copy()
    return exp.select("*").from_(
        inner if isinstance(inner, exp.Subquery) else exp.Subquery(this=inner)
    )


def _with_all(side: exp.Expr, mine: Schema, fields: Sequence[Field]) -> exp.Select:
    """A side with a column for each field, in their order."""
    names = {field.name.lower(): field.name for field in mine}
    items: list[exp.Expr] = []
    for field in fields:
        name = exp.to_identifier(field.name, quoted=True)
        if field.name.lower() in names:
            items.append(
                exp.column(exp.to_identifier(names[field.name.lower()], quoted=True)).as_(name)
            )
        else:
            null = exp.cast(exp.null(), sql_type(field.type), dialect="duckdb")
            items.append(exp.alias_(null, name))
    return _rows(side).select(*items, append=False)
