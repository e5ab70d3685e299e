"""Tables as JSON for the page and for scripts: columns with types, rows as arrays.

Values are exact: what a JSON number can't carry into a browser (integers beyond 2^53, decimals, NaN and
the infinities) is text, and null is only what is NULL. Instants are ISO 8601 text in UTC; timestamps
without a zone are the same without the `Z`. Bytes are text with replacement marks.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, instant_text

SAFE_INTEGER_MAX: Final = 2**53 - 1  # JavaScript's numbers are doubles: beyond it they are rounded


def table_json(table: pa.Table) -> dict[str, Any]:
    """A table as `{"columns": [{"name", "type", "kind", "zone"}…], "rows": [[…]…]}`."""
    columns = [_page_values(column) for column in table.columns]
    return {
        "columns": [
            {
                "name": field.name,
                "type": str(field.type),
                "kind": kind(field.type),
                "zone": "UTC" if _is_instant(field.type) else None,
            }
            for field in table.schema
        ],
        "rows": [list(row) for row in zip(*columns, strict=True)] if columns else [],
    }


def kind(type_: pa.DataType) -> str:
    """What the page does with a column: `time`, `number`, or `text`."""
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    return "text"


def plain_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """A column as plain Python values, exactly: times as text, decimals as `Decimal`."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        return _times(column)
    if pa.types.is_float32(type_):
        # By their shortest text: 0.1 as a FLOAT is 0.1, not 0.10000000149011612.
        return [None if v is None else float(v) for v in pc.cast(column, pa.string()).to_pylist()]
    if pa.types.is_date(type_) or pa.types.is_time(type_):
        return list(pc.cast(column, pa.string()).to_pylist())
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return [None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()]
    return list(column.to_pylist())


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
    return [_page_value(value, nested=nested) for value in plain_values(column)]


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


def _is_instant(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def _times(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Timestamps as ISO 8601 text with all their digits; `Z` where they are instants."""
    end = "Z" if _is_instant(column.type) else ""
    if column.type.unit == "ns":
        whole = pc.cast(column, pa.int64()).to_pylist()
        return [None if ns is None else _instant(*divmod(ns, 1_000), end) for ns in whole]
    micros = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64()).to_pylist()
    return [None if us is None else _instant(us, 0, end) for us in micros]


def _instant(us: int, ns: int, end: str) -> str:
    if not INSTANT_MIN_US <= us <= INSTANT_MAX_US:
        return instant_text(us)
    text = instant_text(us).removesuffix("Z")
    if ns:
        text = f"{text if '.' in text else text + '.000000'}{ns:03d}"
    return text + end
