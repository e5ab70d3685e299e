"""Rows as people look at them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["sorted_rows"]


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as dictionaries, in the order of their columns' values; NULL comes last.

    >>> sorted_rows(pa.table({"n": [None, 2, 1]}))
    [{'n': 1}, {'n': 2}, {'n': None}]
    """
    return sorted(table.to_pylist(), key=lambda row: [_place(value) for value in row.values()])


def _place(value: Any) -> tuple[bool, str, Any]:
    """What has members stands by its text, as they needn't compare."""
    text = isinstance(value, dict | list)
    return value is None, str(type(value)), str(value) if text else value
