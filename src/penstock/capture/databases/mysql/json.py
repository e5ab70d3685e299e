"""MySQL's binary JSON to text. Source: MySQL's sql-common/json_binary.h.

value    type (1 byte), then what the type has
object   count, size, count key entries (offset, length), count value entries (type, offset or value),
         keys, values; numbers of 2 bytes where it is small, of 4 where it is large
array    the same without keys
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any, Final

import orjson

from penstock.capture.databases.mysql import times
from penstock.errors import CorruptError

__all__ = ["json_text"]

_LITERALS: Final = {0: None, 1: True, 2: False}
_NUMBERS: Final = {
    5: struct.Struct("<h"),
    6: struct.Struct("<H"),
    7: struct.Struct("<i"),
    8: struct.Struct("<I"),
    9: struct.Struct("<q"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<d"),
}
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL, _STRING = 0, 1, 2, 3, 4, 12
_OPAQUE: Final = 15


def json_text(data: bytes) -> str:
    """A column's value; nothing is `null`.

    Raises:
        CorruptError: it is cut, or of a type that there isn't.
    """
    if not data:
        return "null"
    try:
        return orjson.dumps(_value(data[0], data, 1), default=str).decode()
    except (IndexError, KeyError, struct.error) as error:
        raise CorruptError(f"expected MySQL's JSON; found {data[:40]!r} ({error})") from None


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, at)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack_from(data, at)[0]
    if kind == _STRING:
        size, at = _size(data, at)
        return data[at : at + size].decode("utf-8", "replace")
    if kind == _OPAQUE:
        field = data[at]
        size, at = _size(data, at + 1)
        return _opaque(field, data[at : at + size])
    raise KeyError(kind)


def _size(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size, at


def _container(kind: int, data: bytes, begin: int) -> Any:
    is_object = kind in {_SMALL_OBJECT, _LARGE_OBJECT}
    width = 4 if kind in {_LARGE_OBJECT, _LARGE_ARRAY} else 2

    def number(at: int) -> int:
        return int.from_bytes(data[at : at + width], "little")

    count, at = number(begin), begin + 2 * width
    keys = []
    if is_object:
        for _ in range(count):
            offset = begin + number(at)
            size = int.from_bytes(data[at + width : at + width + 2], "little")
            keys.append(data[offset : offset + size].decode("utf-8", "replace"))
            at += width + 2
    values = []
    for _ in range(count):
        inner = data[at]
        is_inline = inner in {4, 5, 6} or (width == 4 and inner in {7, 8})
        values.append(_value(inner, data, at + 1 if is_inline else begin + number(at + 1)))
        at += 1 + width
    return dict(zip(keys, values, strict=True)) if is_object else values


def _opaque(field: int, data: bytes) -> Any:
    if field == 246:
        text = times.decimal_text(data, 2, data[0], data[1])
        return orjson.Fragment(str(Decimal(text)))
    if field in {7, 10, 12, 11}:
        packed = int.from_bytes(data[:8], "little", signed=True)
        return times.packed_text(field, packed)
    import base64

    return f"base64:type{field}:{base64.b64encode(data).decode()}"
