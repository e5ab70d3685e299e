"""Tables as JSON for the page and for scripts: columns with types, rows as arrays.

Values are exact: what a JSON number can't carry into a browser (integers beyond 2^53, decimals, NaN and
the infinities) is text, and null is only what is NULL. Instants are ISO 8601 text in UTC; timestamps
without a zone are the same without the `Z`. Bytes are text with replacement marks.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final, TypedDict

import orjson
import pyarrow as pa

from penstock.core.schema import JSON
from penstock.serve.shown.values import is_instant, kind, plain_values, record_values

SAFE_INTEGER_MAX: Final = 2**53 - 1  # JavaScript's numbers are doubles: beyond it they are rounded


class ColumnJson(TypedDict):
    """A column: its name, its type as Arrow calls it, its kind for the page, and the zone of instants."""

    name: str
    type: str
    kind: str
    zone: str | None


class TableJson(TypedDict):
    """A table: its columns, and the values of each row."""

    columns: list[ColumnJson]
    rows: list[list[Any]]


def table_json(table: pa.Table) -> TableJson:
    """A table as JSON."""
    columns = [_page_values(column) for column in table.columns]
    return {
        "columns": [
            {
                "name": field.name,
                "type": "JSON" if field.type == JSON else str(field.type),
                "kind": kind(field.type),
                "zone": "UTC" if is_instant(field.type) else None,
            }
            for field in table.schema
        ],
        "rows": [list(row) for row in zip(*columns, strict=True)] if columns else [],
    }


def page_texts(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[str | None]:
    """A column as the texts that the page shows; None is NULL."""
    return [
        None
        if v is None
        else v
        if isinstance(v, str)
        else str(v).lower()
        if isinstance(v, bool)
        else str(v)
        for v in _page_values(column)
    ]


def dumps(value: Any) -> bytes:
    """JSON bytes; NaN becomes null, and what JSON doesn't know becomes its text."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


def _page_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """A column as values that a browser reads exactly."""
    nested = pa.types.is_nested(column.type)
    values = record_values(column) if nested else plain_values(column)
    return [_page_value(value, nested=nested) for value in values]


def _page_value(value: Any, *, nested: bool) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if nested:
        return dumps(_parts(value)).decode()
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _odd(value)
    return _text(value)


def _parts(value: Any) -> Any:
    """A nested value for JSON text that a person reads: numbers stay as they are, digit by digit."""
    match value:
        case dict():
            return {str(k): _parts(v) for k, v in value.items()}
        case list() | tuple():
            return [_parts(v) for v in value]
        case Decimal():
            return orjson.Fragment(format(value, "f"))
        case float() if not math.isfinite(value):
            return _odd(value)
        case int() if not -(2**63) <= value < 2**64:
            return orjson.Fragment(str(value))
        case bytes():
            return value.decode("utf-8", "replace")
    return value


def _text(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _odd(value: float) -> str:
    """What SQL calls the numbers that JSON lacks."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
