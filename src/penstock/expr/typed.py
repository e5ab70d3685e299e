"""Types that DuckDB knows and Arrow, as Penstock has it, doesn't: JSON and UUID are text and bytes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.schema import JSON, UUID, holds_json, type_text
from penstock.formats.payloads import column_of, normalised

__all__ = ["cast_given", "cast_rows", "extended", "fitting", "sql_type", "with_json"]

_SQL_TYPES: Final = {
    "BOOLEAN": "BOOLEAN",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "STRING": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "DATE": "DATE",
    "BINARY": "BLOB",
    "TIME": "TIME",
    "UUID": "UUID",
    "INTERVAL": "INTERVAL",
    "JSON": "JSON",
}
SHOWN_CHARACTERS_MAX: Final = 60
"""Of a text that isn't JSON, in a message."""


def sql_type(type_: pa.DataType) -> str:
    """DuckDB's name of one of Penstock's types."""
    if pa.types.is_decimal(type_):
        return type_text(type_).replace(" ", "")
    if pa.types.is_list(type_):
        return sql_type(type_.value_type) + "[]"
    if pa.types.is_struct(type_):
        names = ['"' + one.name.replace('"', '""') + '"' for one in type_]
        members = (f"{name} {sql_type(one.type)}" for name, one in zip(names, type_, strict=True))
        return f"STRUCT({', '.join(members)})"
    if pa.types.is_map(type_):
        return f"MAP(VARCHAR, {sql_type(type_.item_type)})"
    return _SQL_TYPES[type_text(type_)]


def extended(column: Any) -> Any:
    """A column as DuckDB knows its type: JSON and UUIDs as such, also JSON within lists, structs and maps."""
    if column.type != UUID and not holds_json(column.type):
        return column
    if isinstance(column, pa.ChunkedArray):
        chunks: list[Any] = [_extended(one) for one in column.chunks]
        return pa.chunked_array(chunks, _extended_type(column.type))
    return _extended(column)


def _extended(array: Any) -> Any:
    type_: Any = array.type
    made: Any = pa
    if type_ in (UUID, JSON):
        return made.ExtensionArray.from_storage(_extended_type(type_), array)
    if not holds_json(type_):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        members = [_extended(one) for one in array.flatten()]
        return made.StructArray.from_arrays(members, [one.name for one in type_], mask=mask)
    offsets = _offsets(array)
    if pa.types.is_map(type_):
        return made.MapArray.from_arrays(offsets, array.keys, _extended(array.items), mask=mask)
    return made.ListArray.from_arrays(offsets, _extended(array.values), mask=mask)


def _offsets(array: Any) -> Any:
    """Of lists or maps; a slice of them takes no mask."""
    return pa.array(np.array(array.offsets.to_numpy()))


def _extended_type(type_: pa.DataType) -> Any:
    found: Any = type_
    if found == UUID:
        return pa.uuid()
    if found == JSON:
        return pa.json_(pa.large_string())
    if not holds_json(found):
        return found
    if pa.types.is_struct(found):
        return pa.struct([(one.name, _extended_type(one.type)) for one in found])
    if pa.types.is_map(found):
        return pa.map_(found.key_type, _extended_type(found.item_type))
    return pa.list_(_extended_type(found.value_type))


def with_json(arrow: Any, duck: Any) -> pa.DataType:
    """A type of Arrow's, with JSON where DuckDB has it."""
    plain: pa.DataType = arrow
    if str(duck) == "JSON":
        return JSON
    if "JSON" not in str(duck):
        return plain
    if duck.id == "struct":
        kinds = dict(duck.children)
        return pa.struct([(one.name, with_json(one.type, kinds[one.name])) for one in arrow])
    if duck.id == "map":
        return pa.map_(arrow.key_type, with_json(arrow.item_type, duck.children[1][1]))
    if duck.id in ("list", "array"):
        return pa.list_(with_json(arrow.value_type, duck.children[0][1]))
    return plain


def fitting(column: Any, type_: pa.DataType) -> Any:
    """What DuckDB gave as a column of a type that has JSON: texts are normalised, here and within."""
    if not holds_json(type_) or pa.types.is_null(column.type):
        return column.cast(type_) if pa.types.is_null(column.type) else column
    return _fitting(vectors.contiguous(column), type_, column_of)


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """What DuckDB gave, as rows of a schema: `Table.cast`, and `fitting`."""
    columns = [
        fitting(column, field.type) if holds_json(field.type) else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def cast_given(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """What a function of the user's gave, as rows of a schema: `Table.cast`, but texts must be JSON.

    Raises:
        ArrowInvalid: they aren't.
    """
    if not any(holds_json(one.type) for one in schema):
        return rows.cast(schema)
    columns = [
        _fitting(vectors.contiguous(column), field.type, _checked)
        if holds_json(field.type)
        else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _checked(texts: Any) -> pa.Array:
    found, wrong = normalised(texts.cast(pa.string()))
    if wrong.any():
        shown = texts[int(np.argmax(wrong))].as_py()[:SHOWN_CHARACTERS_MAX]
        raise pa.ArrowInvalid(f"expected the text of a JSON value; found {shown!r}. Use json.dumps")
    return found


def _fitting(array: Any, type_: Any, leaf: Callable[[Any], Any]) -> Any:
    made: Any = pa
    if type_ == JSON:
        return leaf(array)
    if not holds_json(type_):
        return array if array.type == type_ else array.cast(type_)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        pairs = zip(array.flatten(), type_, strict=True)
        members = [_fitting(one, field.type, leaf) for one, field in pairs]
        return made.StructArray.from_arrays(members, [one.name for one in type_], mask=mask)
    offsets = _offsets(array)
    if pa.types.is_map(type_):
        items = _fitting(array.items, type_.item_type, leaf)
        return made.MapArray.from_arrays(offsets, array.keys, items, mask=mask)
    items = _fitting(array.values, type_.value_type, leaf)
    return made.ListArray.from_arrays(offsets, items, mask=mask)
