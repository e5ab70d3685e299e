"""Tables as JSON for the page and for scripts: columns with types, rows as arrays.

Instants are ISO 8601 text in UTC, bytes are text with replacement marks, and what JSON can't say
(NaN, infinity) is null.
"""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.time import instant_text


def table_json(table: pa.Table) -> dict[str, Any]:
    """A table as `{"columns": [{"name", "type"}…], "rows": [[…]…]}`."""
    columns = [plain_values(column) for column in table.columns]
    return {
        "columns": [
            {"name": field.name, "type": str(field.type), "kind": kind(field.type)}
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
    """A column as values that JSON has."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        micros = pc.cast(pc.cast(column, pa.timestamp("us", type_.tz), safe=False), pa.int64())
        return [None if us is None else instant_text(us) for us in micros.to_pylist()]
    if pa.types.is_decimal(type_):
        return list(pc.cast(column, pa.float64()).to_pylist())
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return [None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()]
    return list(column.to_pylist())


def dumps(value: Any) -> bytes:
    """JSON bytes; NaN becomes null, and what JSON doesn't know becomes its text."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
