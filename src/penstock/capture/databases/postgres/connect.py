"""A PostgreSQL table's columns as Debezium's schemas have them. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.capture.connect import Avro, Member, array, decimal, named, optional, record
from penstock.capture.databases.postgres.pgoutput import Relation
from penstock.capture.databases.postgres.rows import Facts, fragment
from penstock.capture.databases.postgres.types import Type, Types, converter
from penstock.capture.unread import Losses

__all__ = ["members"]

_TIME, _DATA = "io.debezium.time.", "io.debezium.data."
_MILLIS: Final = 3
"""Digits of a second up to which times are milliseconds."""
_VARIABLE: Final = record(
    _DATA + "VariableScaleDecimal",
    [("scale", "int"), ("value", "bytes")],
    "Variable scaled decimal",
)
_POINT: Final = record(
    _DATA + "geometry.Point",
    [
        *(("x", "double"), ("y", "double"), ("wkb", optional("bytes"))),
        ("srid", optional("int")),
    ],
    "Geometry (POINT)",
)
_BITS_MAX: Final = 2**31 - 1
"""What Debezium says about a BIT VARYING without a length."""
_PLAIN: Final[dict[str, Avro]] = {
    "bool": "boolean",
    "int2": {"type": "int", "connect.type": "int16"},
    "int4": "int",
    **dict.fromkeys(("int8", "oid"), "long"),
    "float4": "float",
    "float8": "double",
    "bytea": "bytes",
    "money": decimal(2, None),
    "date": named("int", _TIME + "Date"),
    "timetz": named("string", _TIME + "ZonedTime"),
    "timestamptz": named("string", _TIME + "ZonedTimestamp"),
    "interval": named("long", _TIME + "MicroDuration"),
    "uuid": named("string", _DATA + "Uuid"),
    **dict.fromkeys(("json", "jsonb", "hstore"), named("string", _DATA + "Json")),
    "xml": named("string", _DATA + "Xml"),
    "ltree": named("string", _DATA + "Ltree"),
    "tsvector": named("string", _DATA + "Tsvector"),
}


def members(relation: Relation, facts: Facts, types: Types) -> tuple[Member, ...]:
    """The columns that records have, with the values `precise`."""
    found = []
    for column in relation.columns:
        type_ = types(column.oid, column.modifier)
        convert = converter(type_, "precise")
        if convert is None:
            continue
        is_required = column.name in facts.required
        default = facts.defaults.get(column.name) if is_required else None
        avro = _avro(type_)
        value = None if default is None else orjson.loads(fragment(convert, default, Losses(), ""))
        found.append(Member(column.name, avro, is_required, _fits(avro, value)))
    return tuple(found)


def _avro(type_: Type) -> Avro:
    if type_.element is not None:
        return array(_avro(type_.element))
    if type_.kind == "e":
        return named("string", _DATA + "Enum")
    name, digits = type_.name, type_.modifier
    if name == "numeric":
        if digits < 0:
            return _VARIABLE
        return decimal((((digits - 4) & 0x7FF) ^ 1024) - 1024, (digits - 4) >> 16)
    if name in {"time", "timestamp"}:
        is_short = 0 <= digits <= _MILLIS
        said = f"{_TIME}{'' if is_short else 'Micro'}{name.capitalize()}"
        return named("int" if is_short and name == "time" else "long", said)
    if name in {"bit", "varbit"}:
        if name == "bit" and digits == 1:
            return "boolean"
        return named("bytes", _DATA + "Bits", length=str(digits if digits > 0 else _BITS_MAX))
    if name == "point":
        return _POINT
    return _PLAIN.get(name, "string")


def _fits(avro: Avro, value: Any) -> Any:
    """A default as a schema has it; None where it can't."""
    kind = avro if isinstance(avro, str) else avro["type"]
    match kind, value:
        case ("boolean", bool()) | ("string", str()):
            return value
        case ("int" | "long", int()) if not isinstance(value, bool):
            return value
        case ("float" | "double", int() | float()):
            return float(value)
    return None
