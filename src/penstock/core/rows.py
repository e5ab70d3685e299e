"""Rows as people look at them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.schema import JSON, holds_json
from penstock.core.time import instant_us
from penstock.errors import UserError

__all__ = ["python_rows", "python_values", "sent_value", "sorted_rows"]

_DIGITS_MAX: Final = 4_000
"""Of an integer within JSON: Python makes no int of more than 4,300."""


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as dictionaries, in the order of their columns' values; NULL comes last.

    >>> sorted_rows(pa.table({"n": [None, 2, 1]}))
    [{'n': 1}, {'n': 2}, {'n': None}]
    """
    return sorted(python_rows(table), key=lambda row: [_place(value) for value in row.values()])


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


def sent_value(value: Any, type_: pa.DataType, *, json_is_text: bool = False) -> Any:
    """A value of a test as its record has it: a time of day is one of 2000-01-01."""
    if json_is_text and type_ == JSON and value is not None:
        return json.dumps(value)
    if not pa.types.is_timestamp(type_) or not isinstance(value, str):
        return value
    try:
        instant_us(value)
    except UserError:
        return f"2000-01-01T{value}Z"
    return value if "T" in value or " " in value or "-" in value else f"2000-01-01T{value}Z"


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as dictionaries of Python's values, which those of JSON are as well.

    >>> python_rows(pa.table({"p": pa.array(['{"a":[1,null]}'], JSON)}))
    [{'p': {'a': [1, None]}}]
    """
    columns = [python_values(column) for column in table.columns]
    names = table.column_names
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for field in table.schema:
        if holds_json(field.type):
            for row in rows:
                row[field.name] = _loaded(row[field.name], field.type)
    return rows


def _loaded(value: Any, type_: Any) -> Any:
    if value is None or not holds_json(type_):
        return value
    if type_ == JSON:
        return json.loads(value, parse_int=_integer)
    if pa.types.is_struct(type_):
        return {one.name: _loaded(value[one.name], one.type) for one in type_}
    if pa.types.is_map(type_):
        return [(name, _loaded(one, type_.item_type)) for name, one in value]
    return [_loaded(one, type_.value_type) for one in value]


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _DIGITS_MAX else Decimal(digits)


def _place(value: Any) -> tuple[bool, str, Any]:
    """What has members stands by its text, as they needn't compare."""
    text = isinstance(value, dict | list)
    return value is None, str(type(value)), str(value) if text else value
