"""Keys in which NULL equals NULL."""

from __future__ import annotations

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
    return f"CASE WHEN {sql} IS NULL THEN 'n' ELSE 'v' || CAST({sql} AS VARCHAR) END"
