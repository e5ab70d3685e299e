"""A MySQL table's columns as Debezium's schemas have them. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock.capture.connect import Avro, decimal, named, optional, record

__all__ = ["avro_of"]

_TIME, _DATA = "io.debezium.time.", "io.debezium.data."
_SPELLED: Final = re.compile(r"([a-z0-9]+)(?:\((\d+)(?:,(\d+))?\))?(.*)", re.DOTALL)
"""A type's name, its length, its digits, and the rest, such as `unsigned`."""
_MILLIS: Final = 3
"""Digits of a second up to which a datetime is in milliseconds."""
_SHORT: Final[dict[str, Any]] = {"type": "int", "connect.type": "int16"}
_PLAIN: Final[dict[str, Avro]] = {
    "tinyint": _SHORT,
    "smallint": _SHORT,
    **dict.fromkeys(("mediumint", "int", "smallint unsigned"), "int"),
    **dict.fromkeys(("int unsigned", "bigint"), "long"),
    "float": "float",
    "double": "double",
    "date": named("int", _TIME + "Date"),
    "time": named("long", _TIME + "MicroTime"),
    "timestamp": named("string", _TIME + "ZonedTimestamp"),
    "year": named("int", _TIME + "Year"),
    "enum": named("string", _DATA + "Enum"),
    "set": named("string", _DATA + "EnumSet"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    "point": record(
        _DATA + "geometry.Point",
        [("x", "double"), ("y", "double"), ("wkb", optional("bytes")), ("srid", optional("int"))],
        "Geometry (POINT)",
    ),
    "geometry": record(
        _DATA + "geometry.Geometry", [("wkb", "bytes"), ("srid", optional("int"))], "Geometry"
    ),
}


def avro_of(spelled: str, bits: int) -> Avro:
    """The type of a column.

    Args:
        spelled: the column's type, as `Shape` has it: `decimal(10,2)`, `int unsigned`.
        bits: of a BIT.

    >>> avro_of("int unsigned", 0), avro_of("bit", 1), avro_of("varchar", 0)
    ('long', 'boolean', 'string')
    """
    found = _SPELLED.match(spelled)
    assert found is not None, "a type has a name"
    name, length, digits, rest = found.groups()
    if name == "decimal":
        return decimal(int(digits or 0), int(length or 10))
    if name == "datetime":
        is_long = int(length or 0) > _MILLIS
        return named("long", _TIME + ("MicroTimestamp" if is_long else "Timestamp"))
    if name == "bit":
        return "boolean" if bits == 1 else named("bytes", _DATA + "Bits", length=str(bits))
    full = f"{name}{rest}" if rest == " unsigned" else name
    return _PLAIN.get(full, _PLAIN.get(name, "string"))
