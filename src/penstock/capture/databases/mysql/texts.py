"""Values of a snapshot's rows, which come as text, to the same JSON as those of the binary log. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.capture.databases.mysql import times
from penstock.capture.databases.mysql.charsets import BINARY
from penstock.capture.databases.mysql.columns import Column
from penstock.capture.databases.mysql.rows import bits_of, geometry
from penstock.capture.envelope import Values
from penstock.capture.unread import UNREADABLE, Losses

__all__ = ["Convert", "as_base64", "as_text", "as_wrapped", "converter", "read"]

Convert: TypeAlias = Callable[[Any], Any]
_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}
_GEOMETRIES = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
}


def converter(column: Column, values: Values) -> Convert:
    """What makes JSON of a column's texts, or bytes."""
    kind, digits, precise = column.kind, column.digits, values == "precise"
    if kind == "bigint" and column.unsigned:
        return as_wrapped if precise else as_text
    if kind in _INTEGERS:
        return int
    if kind in {"float", "double"}:
        return float
    if kind == "decimal":
        decimal = times.decimal_of(digits, precise=precise)
        return lambda text: decimal(times.decimal_parse(text, digits))
    if kind == "date":
        return lambda text: times.date_of(*times.text_parts(text)[:3], precise=precise)
    if kind == "datetime":
        return lambda text: times.datetime_of(times.text_parts(text), digits, precise=precise)
    if kind == "timestamp":
        return _instant
    if kind == "time":
        return lambda text: times.time_of(times.text_us(text), digits, precise=precise)
    if kind == "bit":
        bits = bits_of(column.size, is_precise=precise)
        return lambda data: bits(int.from_bytes(data, "big"))
    if kind in _GEOMETRIES:
        return lambda data: geometry(data, is_point=kind == "point")
    return as_base64 if column.charset.codec == BINARY else as_text


def read(convert: Convert, value: Any, losses: Losses, column: str) -> Any:
    """A value for JSON; None, and a loss, where it can't be read."""
    try:
        return convert(value)
    except UNREADABLE as error:
        return losses.note(column, value, error)


def as_wrapped(text: str) -> int:
    """A number of 64 bits without a sign, as one with a sign."""
    number = int(text)
    return number - (1 << 64) if number >= 1 << 63 else number


def as_text(text: Any) -> str:
    """A text, also one that came as bytes."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def as_base64(data: Any) -> str:
    """Bytes as base64; a text as it is."""
    if isinstance(data, str):  # a UUID or an address, which the server sends as text
        return data
    return base64.b64encode(data).decode()


def _instant(text: str) -> str | None:
    return None if text.startswith("0000") else text.replace(" ", "T") + "Z"
