"""Keys in which NULL equals NULL."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.schema import Field

__all__ = ["null_safe"]


def null_safe(sql: str, of: Field) -> str:
    """An expression that is equal exactly where the given one is, NULL being a value like others.

    Args:
        sql: the expression.
        of: its type, and whether it may be NULL.
    """
    if of.required:
        return sql
    if pa.types.is_nested(of.type):
        return f"[{sql}]"  # a NULL inside of a value is equal to others
    if pa.types.is_floating(of.type):
        sql = f"CASE WHEN {sql} = 0 THEN 0 ELSE {sql} END"  # -0.0 is 0.0, but not as text
    return f"CASE WHEN {sql} IS NULL THEN 'n' ELSE 'v' || CAST({sql} AS VARCHAR) END"
