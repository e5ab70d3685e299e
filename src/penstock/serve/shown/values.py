"""Columns as plain Python values, exactly."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.rows import python_values
from penstock.core.schema import JSON, holds_json
from penstock.core.time import INSTANT_MAX_US, INSTANT_MIN_US, instant_text


def kind(type_: pa.DataType) -> str:
    """What the page does with a column: `time`, `number`, or `text`."""
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    return "text"


def is_instant(type_: pa.DataType) -> bool:
    """Whether a column has instants: timestamps with a zone."""
    return pa.types.is_timestamp(type_) and type_.tz is not None


def plain_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """A column as plain Python values, exactly: times as text, decimals as `Decimal`."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        return _times(column)
    if pa.types.is_float32(type_):
        # By their shortest text: 0.1 as a FLOAT is 0.1, not 0.10000000149011612.
        return [None if v is None else float(v) for v in pc.cast(column, pa.string()).to_pylist()]
    if pa.types.is_date(type_):
        return [None if v is None else str(v) for v in python_values(column)]
    if pa.types.is_time(type_):
        return list(pc.cast(column, pa.string()).to_pylist())
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return [None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()]
    return python_values(column)


def record_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """A column as `orjson` writes it: plain values, and JSON as it is, not as text."""
    values = plain_values(column)
    return [_fragment(one, column.type) for one in values] if holds_json(column.type) else values


def _fragment(value: Any, type_: Any) -> Any:
    if value is None or not holds_json(type_):
        return value
    if type_ == JSON:
        return orjson.Fragment(value)
    if pa.types.is_struct(type_):
        return {one.name: _fragment(value[one.name], one.type) for one in type_}
    if pa.types.is_map(type_):
        return [(name, _fragment(one, type_.item_type)) for name, one in value]
    return [_fragment(one, type_.value_type) for one in value]


def _times(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Timestamps as ISO 8601 text with all their digits; `Z` where they are instants."""
    end = "Z" if is_instant(column.type) else ""
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
