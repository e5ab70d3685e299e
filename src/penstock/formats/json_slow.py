"""One row at a time, in Python: the rules of JSON rows in full, and the reasons of bad ones.

What the kernel isn't certain of comes here: escapes of keys, lists, numbers of many digits, unusual
instants, keys that occur twice, and everything that is wrong. The kernel's answers are a subset of
this module's, so a row's fate doesn't depend on which of the two has seen it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import struct
from collections.abc import Callable, Collection
from datetime import date
from decimal import Decimal
from typing import Any, Final, NoReturn, cast

import pyarrow as pa

from penstock.core.literals import decimal_of, interval_of, time_of, time_of_text, uuid_of
from penstock.core.schema import INTERVAL, JSON, TIME_OF_DAY, UUID, Schema, holds_json, type_text
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND_US
from penstock.formats.json_scan import DEPTH_MAX
from penstock.formats.payloads import PLACEHOLDER
from penstock.formats.payloads.spelling import compact, items, members

FOUND_MAX: Final = 60
"""Characters of a wrong value that a reason shows; the row itself is kept elsewhere."""
_EMBEDDED: Final = "JSON (any value, or the text of one)"
_INTEGER_TEXT_MAX: Final = 20
"""Characters of a 64-bit integer; longer ones aren't converted to compare."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r" ?([Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_NESTING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class BadRowError(Exception):
    """A row that doesn't fit; its text is the reason. It never leaves this package."""


class _Integer(str):
    """The spelling of a number without point and exponent."""

    __slots__ = ()


class _Real(str):
    """The spelling of a number with a point or an exponent."""

    __slots__ = ()


def _constant(name: str) -> NoReturn:
    raise BadRowError(f"expected valid JSON; found {name}, which is not a JSON number")


_DECODER = json.JSONDecoder(parse_int=_Integer, parse_float=_Real, parse_constant=_constant)


def shown(value: object) -> str:
    """A value as a reason shows it: JSON, cut to `FOUND_MAX` characters."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case dict():
            text = "an object"
        case list():
            text = "an array"
        case _Integer() | _Real():
            text = str(value)
        case _:
            text = json.dumps(value)
    return text if len(text) <= FOUND_MAX else text[:FOUND_MAX] + "…"


class RowReader:
    """Reads rows of one schema.

    Args:
        schema: that rows must fit.
        embedded: columns of type JSON that may be strings which have it.
    """

    def __init__(self, schema: Schema, embedded: Collection[str] = ()) -> None:
        self._fields = [
            (
                field.name,
                field.required,
                _reader(field.type),
                _EMBEDDED if field.name in embedded else _expectation(field.type),
            )
            for field in schema
        ]
        self._spelled = {
            one.name: _embedded if one.name in embedded else _spelled(one.type)
            for one in schema
            if holds_json(one.type)
        }

    def read(self, row: bytes) -> list[Any]:
        """The row's values, one per field, None for NULL.

        Booleans, ints (instants and intervals as microseconds, dates as days), floats, text, bytes, Decimals,
        times; lists of such, objects as dicts, maps as lists of pairs.

        Raises:
            BadRowError: the row doesn't fit.
        """
        found = parse(row)
        if type(found) is not dict:
            raise BadRowError(f"expected a JSON object; found {shown(found)}")
        values: list[Any] = []
        texts = dict(members(row.decode())) if self._spelled else {}
        for name, required, reader, expectation in self._fields:
            value = found.get(name)
            if value is None:
                if required:
                    what = "null" if name in found else "none"
                    raise BadRowError(f"field {name!r}: expected a value (NOT NULL); found {what}")
                values.append(None)
                continue
            try:
                spelled_reader = self._spelled.get(name)
                values.append(spelled_reader(texts[name]) if spelled_reader else reader(value))
            except ValueError:
                raise BadRowError(
                    f"field {name!r}: expected {expectation}; found {shown(value)}"
                ) from None
        return values


def parse(row: bytes) -> Any:
    """Parses one JSON text; numbers keep their spelling.

    Raises:
        BadRowError: it isn't valid JSON in UTF-8, or is nested deeper than `DEPTH_MAX`.
    """
    if not row:
        raise BadRowError("expected a JSON object; found an empty value")
    try:
        text = row.decode()
    except UnicodeDecodeError as error:
        raise BadRowError(
            f"expected UTF-8; found byte 0x{row[error.start]:02x} at position {error.start}"
        ) from None
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise BadRowError(
            f"expected at most {DEPTH_MAX} objects and arrays within each other; found more"
        )
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        found = "the end" if error.pos >= len(text) else shown(text[error.pos : error.pos + 20])
        raise BadRowError(
            f"expected valid JSON; found {found} at character {error.pos} ({error.msg})"
        ) from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _NESTING.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not _Integer or len(value) > _INTEGER_TEXT_MAX:
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


_NOT_FINITE: Final = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}
"""What JSON has no numbers for, as text: Protobuf's JSON and Debezium write the same."""


def _double(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is not _Integer and type(value) is not _Real:
        raise ValueError
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _float(value: Any) -> float:
    try:
        number: float = struct.unpack("<f", struct.pack("<f", _double(value)))[0]
    except OverflowError:
        raise ValueError from None
    return number


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    value.encode()  # half of a surrogate pair is JSON, but no text: raises a kind of ValueError
    return value


def _days(text: str) -> int:
    return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH_DAY


def _date(value: Any) -> int:
    if type(value) is _Integer:
        return _day_number(value)
    match = _INSTANT.fullmatch(value) if type(value) is str else None
    if match is None or match.end(1) != len(value):
        raise ValueError
    return _days(value)


_day_number = _integer(INSTANT_MIN_US // DAY_US, INSTANT_MAX_US // DAY_US)
_milliseconds = _integer(INSTANT_MIN_US // 1000, INSTANT_MAX_US // 1000)


def _timestamp(value: Any) -> int:
    if type(value) is _Integer:
        return _milliseconds(value) * 1000
    match = _INSTANT.fullmatch(value) if type(value) is str else None
    if match is None:
        raise ValueError
    day, hour, minute, second, fraction, _, sign, zone_hour, zone_minute = match.groups("0")
    clock = (int(hour), int(minute), int(second), int(zone_hour), int(zone_minute))
    if clock[0] > 23 or clock[3] > 23 or max(clock[1], clock[2], clock[4]) > 59:
        raise ValueError
    zone = (clock[3] * 3600 + clock[4] * 60) * (-1 if sign == "-" else 1)
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2] - zone
    micros = _days(day) * DAY_US + seconds * SECOND_US + int(fraction.ljust(6, "0")[:6])
    if not INSTANT_MIN_US <= micros <= INSTANT_MAX_US:
        raise ValueError
    return micros


def _list(reader: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError
        return [None if item is None else reader(item) for item in value]

    return read


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise ValueError
    return base64.b64decode(value, validate=True)  # its error is a ValueError


def _time(value: Any) -> dt.time:
    if type(value) is _Integer:
        return time_of(_BIGINT(value) * 1000)
    return time_of_text(_string(value))


def _interval(value: Any) -> int:
    if type(value) is _Integer:
        return int(_BIGINT(value))  # a timedelta near the ends of 64 bits is none of Arrow's
    return interval_of(_string(value))


def _uuid(value: Any) -> bytes:
    return uuid_of(_string(value))


def _decimal(type_: Any) -> Callable[[Any], Decimal]:
    def read(value: Any) -> Decimal:
        if type(value) not in (_Integer, _Real, str):
            raise ValueError
        return decimal_of(str(value), type_.precision, type_.scale)

    return read


def _struct(readers: dict[str, Callable[[Any], Any]]) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError
        found = ((name, value.get(name), reader) for name, reader in readers.items())
        return {name: None if one is None else reader(one) for name, one, reader in found}

    return read


def _map(reader: Callable[[Any], Any]) -> Callable[[Any], list[tuple[str, Any]]]:
    def read(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise ValueError
        pairs = value.items()
        return [(_string(name), None if one is None else reader(one)) for name, one in pairs]

    return read


def _json(text: str) -> str:
    """A valid text as a value of type JSON."""
    json.dumps(json.loads(text, parse_int=str, parse_float=str), ensure_ascii=False).encode()
    return compact(text)  # the line above raises where there is half of a surrogate pair


def _embedded(text: str) -> str:
    """The text of a value, or what a string has; `_json` of it."""
    if not text.startswith('"'):
        return _json(text)
    inner: str = json.loads(text)
    if inner == PLACEHOLDER:
        return text
    try:
        parse(inner.encode())
    except BadRowError:
        raise ValueError from None
    if _depth(inner) >= DEPTH_MAX:  # as in a row
        raise ValueError
    return _json(inner)


def _spelled(type_: pa.DataType) -> Callable[[str], Any]:
    """Reads a value with JSON in it from its text, which is valid."""
    if type_ == JSON:
        return _json
    if not holds_json(type_):
        reader = _reader(type_)
        return lambda text: reader(_DECODER.decode(text))
    mark, inner = "{", cast("Any", type_)
    if pa.types.is_list(type_):
        mark, item = "[", _spelled(inner.value_type)
    elif pa.types.is_map(type_):
        item = _spelled(inner.item_type)
    else:
        readers = {one.name: _spelled(one.type) for one in inner}

    def read(text: str) -> Any:
        if not text.startswith(mark):
            raise ValueError
        if pa.types.is_list(type_):
            return [None if one == "null" else item(one) for one in items(text)]
        found = dict(members(text))
        if pa.types.is_map(type_):
            return [(_string(n), None if one == "null" else item(one)) for n, one in found.items()]
        return {
            name: None if found.get(name, "null") == "null" else one(found[name])
            for name, one in readers.items()
        }

    return read


_BIGINT: Final = _integer(-(2**63), 2**63 - 1)
_READERS: Final[dict[pa.DataType, Callable[[Any], Any]]] = {
    pa.bool_(): _boolean,
    pa.int32(): _integer(-(2**31), 2**31 - 1),
    pa.int64(): _integer(-(2**63), 2**63 - 1),
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _string,
    pa.timestamp("us", "UTC"): _timestamp,
    pa.date32(): _date,
    pa.binary(): _binary,
    TIME_OF_DAY: _time,
    UUID: _uuid,
    INTERVAL: _interval,
    JSON: str,  # see `_spelled`
}
_EXPECTATIONS: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "true or false",
    pa.int32(): "an integer from -2147483648 to 2147483647",
    pa.int64(): "an integer of 64 bits",
    pa.float32(): "a number within single precision",
    pa.float64(): "a number within double precision",
    pa.string(): "text",
    pa.timestamp(
        "us", "UTC"
    ): "ISO 8601 or integer milliseconds since 1970, in the years 1 to 9999",
    pa.date32(): "a date as YYYY-MM-DD, or integer days since 1970, in the years 1 to 9999",
    pa.binary(): "bytes as text in base64",
    TIME_OF_DAY: "a time as HH:MM:SS, or integer milliseconds since midnight",
    UUID: "a UUID as text",
    INTERVAL: "ISO 8601 such as P1DT2H30M, or integer microseconds",
    JSON: "any value, but for halves of surrogate pairs",
}


def _reader(type_: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_list(type_):
        return _list(_reader(type_.value_type))
    if pa.types.is_struct(type_):
        return _struct({one.name: _reader(one.type) for one in type_})
    if pa.types.is_map(type_):
        return _map(_reader(type_.item_type))
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    return _READERS[type_]


def _expectation(type_: pa.DataType) -> str:
    inner = type_
    while pa.types.is_list(inner):
        inner = inner.value_type
    prefix = "" if inner is type_ else "an array, each item "
    if pa.types.is_struct(inner) or pa.types.is_map(inner):
        return f"{type_text(type_)} ({prefix}an object whose members fit)"
    if pa.types.is_decimal(inner):
        before = inner.precision - inner.scale
        digits = f"{before} digits before the point and {inner.scale} after it"
        return f"{type_text(type_)} ({prefix}a number with at most {digits})"
    return f"{type_text(type_)} ({prefix}{_EXPECTATIONS[inner]})"


def spelled(value: object) -> str:
    """What `parse` gave, as JSON again; numbers keep their spelling."""
    match value:
        case dict():
            members = (f"{json.dumps(name)}:{spelled(one)}" for name, one in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(spelled, value)) + "]"
        case _Integer() | _Real():
            return str(value)
        case _:
            return json.dumps(value)
