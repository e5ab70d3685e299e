"""Avro's schemas of columns: what a topic's records are registered as, and whether columns are as fields.

    column           type           column           type
    BOOLEAN          boolean        DATE             int, date
    INT              int            TIMESTAMP        long, timestamp-micros
    BIGINT           long           TIME             long, time-micros
    FLOAT            float          DECIMAL(p, s)    bytes, decimal
    DOUBLE           double         UUID             string, uuid
    STRING           string         ARRAY, MAP       array, map
    BINARY           bytes          STRUCT           record
    JSON             string, of Connect's name io.debezium.data.Json

A column that may be NULL is a union of null and its type, with the default null: so a column that is added
is a compatible change, in both directions. A column NOT NULL is its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from penstock.core.schema import JSON, TIME_OF_DAY, TIMESTAMP, UUID, Field, Schema, type_text
from penstock.errors import SchemaError

__all__ = ["avro_name", "avro_schema", "fitting", "is_wider"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    TIME_OF_DAY: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
    JSON: {"type": "string", "connect.name": "io.debezium.data.Json"},
}
_WIDER: Final = {
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.string(), JSON),
}


def avro_schema(
    schema: Schema, name: str, namespace: str, records: Mapping[str, str] = _NO_NAMES
) -> dict[str, Any]:
    """The schema of rows: a record with a field for each column.

    Args:
        schema: the columns. Members of a STRUCT are NOT NULL where Arrow's field isn't nullable.
        name: of the record, such as `Value`.
        namespace: of its name, such as a topic; what names can't have becomes `_`.
        records: names for the records of STRUCT columns; columns with one name have one type. Others are
            named by their paths.

    Raises:
        SchemaError: a column has a name or a type that Avro doesn't have.

    >>> avro_schema(Schema.parse("id INT NOT NULL"), "Key", "my-shop")["fields"]
    [{'name': 'id', 'type': 'int'}]
    """
    space = avro_name(namespace)
    fields = _fields(schema.fields, name)
    known: set[str] = set()
    for field in fields:
        if (called := records.get(field["name"])) is None:
            continue
        union = field["type"] if isinstance(field["type"], list) else [field["type"]]
        union[-1] = f"{space}.{called}" if called in known else {**union[-1], "name": called}
        field["type"] = union if len(union) > 1 else union[0]
        known.add(called)
    return {"type": "record", "name": name, "namespace": space, "fields": fields}


def avro_name(text: str) -> str:
    """A text as a name with dots: what Avro's names can't have becomes `_`.

    >>> avro_name("my-shop.2nd")
    'my_shop._2nd'
    """
    parts = (re.sub(r"[^A-Za-z0-9_]", "_", part) for part in text.split("."))
    return ".".join(part if _NAME.fullmatch(part) else f"_{part}" for part in parts)


def _fields(columns: Sequence[Field], path: str) -> list[dict[str, Any]]:
    wrong = [one.name for one in columns if not _NAME.fullmatch(one.name)]
    if wrong:
        raise SchemaError(
            f"expected columns that Avro has names for (letters, digits and '_', no digit first); found "
            f"{', '.join(map(repr, wrong))}. Rename them: select(…, name={wrong[0]!r})"
        )
    found = []
    for one in columns:
        type_ = _type(one.type, f"{path}_{one.name}", one.name)
        null = {} if one.required else {"default": None}
        found.append({"name": one.name, "type": type_ if one.required else ["null", type_], **null})
    return found


def _type(type_: pa.DataType, path: str, column: str) -> Any:
    """A type; records within it are named by their paths, which no other record has."""
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_decimal128(type_):
        digits: Any = type_
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": digits.precision,
            "scale": digits.scale,
        }
    if pa.types.is_list(type_):
        return {"type": "array", "items": ["null", _type(type_.value_type, path, column)]}
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": ["null", _type(type_.item_type, path, column)]}
    if pa.types.is_struct(type_):
        members = [Field(one.name, one.type, not one.nullable) for one in type_]
        return {"type": "record", "name": path, "fields": _fields(members, path)}
    raise SchemaError(
        f"expected columns of types that Avro has; found {column!r}, {type_text(type_)}. Convert it, "
        "or omit it"
    )


def fitting(schema: Schema, known: Mapping[str, pa.DataType | None]) -> None:
    """Checks that columns are as the fields of their names.

    Args:
        schema: the columns.
        known: the fields' types; None where no column has it.

    Raises:
        SchemaError: one isn't, or there is a field for none of them.
    """
    for one in schema:
        if one.name not in known:
            continue
        type_ = known[one.name]
        if type_ is None or not is_wider(type_, one.type):
            found = "a type that no column has" if type_ is None else type_text(type_)
            raise SchemaError(
                f"expected column {one.name!r} as its Avro field is; found {type_text(one.type)}, and "
                f"{found} in the field"
            )
    if not any(one.name in known for one in schema):
        raise SchemaError(
            f"expected fields among {', '.join(schema.names)}; found {', '.join(known) or 'none'}"
        )


def is_wider(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a field's type is one of a column's."""
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        more = wanted.scale - found.scale
        return bool(more >= 0 and wanted.precision - found.precision >= more)
    return found == wanted or (found, wanted) in _WIDER
