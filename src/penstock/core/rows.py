"""Rows as people look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["python_values", "sorted_rows"]


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as dictionaries, in the order of their columns' values; NULL comes last.

    >>> sorted_rows(pa.table({"n": [None, 2, 1]}))
    [{'n': 1}, {'n': 2}, {'n': None}]
    """
    columns = [python_values(column) for column in table.columns]
    names = table.column_names
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return sorted(rows, key=lambda row: [_place(value) for value in row.values()])


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column as Python's values; days and instants beyond Python's years, 1 to 9999, as text.

    >>> python_values(pa.array([0, 10**8], pa.int32()).cast(pa.date32()))
    [datetime.date(1970, 1, 1), '275760-09-13']
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(one) for one in column]
    return found


def _value(one: Any) -> Any:
    """A value, the parts of a nested one each by itself."""
    if not one.is_valid:
        return None
    if pa.types.is_struct(one.type):
        return {field.name: _value(one[field.name]) for field in one.type}
    if pa.types.is_map(one.type):
        return [(_value(key), _value(value)) for key, value in map(_pair, one.values)]
    if pa.types.is_list(one.type):
        return [_value(part) for part in one.values]
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        unit: Any = "D" if pa.types.is_date(one.type) else one.type.unit
        end = "Z" if pa.types.is_timestamp(one.type) and one.type.tz else ""
        return f"{np.datetime64(one.value, unit)}{end}"


def _pair(entry: Any) -> tuple[Any, Any]:
    key, value = entry.values()
    return key, value


def _place(value: Any) -> tuple[bool, str, Any]:
    """What has members stands by its text, as they needn't compare."""
    text = isinstance(value, dict | list)
    return value is None, str(type(value)), str(value) if text else value
