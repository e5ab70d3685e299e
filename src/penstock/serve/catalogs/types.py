"""Values as PostgreSQL's clients send and read them, in text and in binary.

A column of an answer is Arrow's; its type here is the PostgreSQL type that holds all of its values. Lists
of simple values are arrays; structs, maps and lists of them are `json`, UTINYINT to UBIGINT are the next
larger type. A parameter becomes a literal of DuckDB's with its type, so a query reads it wherever it
stands.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.rows import python_values
from penstock.core.schema import INTERVAL, UUID
from penstock.core.schema import JSON as JSON_TYPE

__all__ = ["PgType", "encode_column", "literal", "oid_of_duck", "type_named", "type_of"]

BINARY: Final = 1
"""The format code of binary values; 0 is text."""
EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01, in UTC."""
EPOCH_DAY: Final = 10_957
"""2000-01-01 in days since 1970, from which PostgreSQL counts days."""
INFINITE_DAY: Final = 2**31 - 1
"""Days of DuckDB's date `infinity`; that of PostgreSQL is the same number."""
INFINITE: Final = 2**63 - 1
"""Microseconds of DuckDB's `infinity`; that of PostgreSQL is the same number."""
NUMERIC_DIGITS: Final = 4  # decimal digits of one of numeric's
DECIMAL_DIGITS_MAX: Final = 38  # of DuckDB's decimals; what has more is a DOUBLE
_NEGATIVE: Final = 0x4000
_NO_NUMBERS: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


@dataclass(frozen=True)
class PgType:
    """A PostgreSQL type.

    Attributes:
        oid: its number.
        size: in bytes; -1 where it varies.
        array: the number of arrays of it.
        duck: what DuckDB calls it.
    """

    oid: int
    size: int
    array: int
    duck: str


BOOL: Final = PgType(16, 1, 1000, "BOOLEAN")
BYTEA: Final = PgType(17, -1, 1001, "BLOB")
INT8: Final = PgType(20, 8, 1016, "BIGINT")
INT2: Final = PgType(21, 2, 1005, "SMALLINT")
INT4: Final = PgType(23, 4, 1007, "INTEGER")
TEXT: Final = PgType(25, -1, 1009, "VARCHAR")
JSON: Final = PgType(114, -1, 199, "JSON")
FLOAT4: Final = PgType(700, 4, 1021, "FLOAT")
FLOAT8: Final = PgType(701, 8, 1022, "DOUBLE")
DATE: Final = PgType(1082, 4, 1182, "DATE")
TIME: Final = PgType(1083, 8, 1183, "TIME")
TIMESTAMP: Final = PgType(1114, 8, 1115, "TIMESTAMP")
TIMESTAMPTZ: Final = PgType(1184, 8, 1185, "TIMESTAMPTZ")
SPAN: Final = PgType(1186, 16, 1187, "INTERVAL")
NUMERIC: Final = PgType(1700, -1, 1231, "DECIMAL(38, 9)")
UUID_: Final = PgType(2950, 16, 2951, "UUID")
TYPES: Final = (
    BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON, FLOAT4, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ,
    SPAN, NUMERIC, UUID_,
)  # fmt: skip
_TEXTS: Final = {18: TEXT, 19: TEXT, 26: INT8, 705: TEXT, 1042: TEXT, 1043: TEXT, 3802: JSON}
_BY_OID: Final = {one.oid: one for one in TYPES} | _TEXTS
_ELEMENT: Final = {one.array: one for one in TYPES} | {1015: TEXT, 1028: INT8, 1003: TEXT}
_BY_ARROW: Final[dict[pa.DataType, PgType]] = {
    pa.bool_(): BOOL,
    pa.int8(): INT2,
    pa.int16(): INT2,
    pa.int32(): INT4,
    pa.int64(): INT8,
    pa.uint8(): INT2,
    pa.uint16(): INT4,
    pa.uint32(): INT8,
    pa.uint64(): NUMERIC,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.string(): TEXT,
    JSON_TYPE: JSON,
    pa.binary(): BYTEA,
    pa.large_binary(): BYTEA,
    pa.date32(): DATE,
    pa.time64("us"): TIME,
    pa.null(): TEXT,
    UUID: UUID_,
    INTERVAL: SPAN,
    pa.month_day_nano_interval(): SPAN,
}


def type_of(arrow: pa.DataType) -> tuple[PgType, bool]:
    """The type of a column's values; and whether they are arrays of it."""
    if arrow in _BY_ARROW:
        return _BY_ARROW[arrow], False
    if pa.types.is_timestamp(arrow):
        return (TIMESTAMP if arrow.tz is None else TIMESTAMPTZ), False
    if pa.types.is_decimal(arrow):
        return NUMERIC, False
    if isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name == "arrow.uuid":
        return UUID_, False
    if (
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
    ):
        inner, nested = type_of(arrow.value_type)
        return (JSON, False) if nested or inner is JSON else (inner, True)
    if pa.types.is_struct(arrow) or pa.types.is_map(arrow):
        return JSON, False
    return TEXT, False


def oid_of_duck(name: str) -> int:
    """The number of a type that DuckDB calls so; 25, text, where there is none.

    >>> oid_of_duck("BIGINT"), oid_of_duck("DECIMAL(9,2)"), oid_of_duck("VARCHAR[]")
    (20, 1700, 1009)
    """
    if name == "OID[]":
        return 1028
    is_array = name.endswith("[]")
    name = name.removesuffix("[]")
    aliases = {"HUGEINT": NUMERIC, "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ, "TINYINT": INT2}
    if name.startswith("DECIMAL"):
        found = NUMERIC
    else:
        found = next((one for one in TYPES if one.duck == name), aliases.get(name, TEXT))
    return found.array if is_array else found.oid


def duck_of_oid(oid: int) -> str | None:
    """What DuckDB calls a type; None where it isn't known, or is not to be shown."""
    if oid in _ELEMENT:
        return f"{_ELEMENT[oid].duck}[]"
    found = _BY_OID.get(oid)
    return None if found is None else found.duck


def type_named(arrow: pa.DataType, duck: str) -> tuple[PgType, bool]:
    """As `type_of`, for a column of an answer, whose UUIDs and JSON are text in Arrow.

    DuckDB's 128-bit integers are `numeric` whether or not an answer's happen to fit into 64 bits: what a
    statement is described with is what its rows have.
    """
    if duck in ("HUGEINT", "UHUGEINT"):
        return NUMERIC, False
    if arrow in (pa.string(), JSON_TYPE) and duck in ("UUID", "JSON"):
        return (UUID_ if duck == "UUID" else JSON), False
    return type_of(arrow)


def encode_column(column: pa.ChunkedArray[Any], format_: int, duck: str = "") -> list[bytes | None]:
    """A column's values as they go over the wire; None is NULL.

    Args:
        column: of an answer.
        format_: 0 for text, 1 for binary.
        duck: what DuckDB calls its type, where that is known.
    """
    kind, is_array = type_named(column.type, duck)
    if pa.types.is_timestamp(column.type) and not is_array:
        column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = pc.cast(column, pa.int32())  # days: Python has no dates beyond year 9999
    values = python_values(column) if kind is JSON else column.to_pylist()
    if kind is JSON:
        nested = column.type
        if nested not in (JSON_TYPE, pa.string()):
            values = [v if v is None else json_text(v, nested) for v in values]
    one = _to_binary(kind) if format_ == BINARY else _to_text(kind)
    if is_array:
        values = [None if v is None else [_plain(x) for x in v] for v in values]
        if format_ == BINARY:
            return [None if v is None else _binary_array(v, kind, one) for v in values]
        return [None if v is None else _text_array(v, one) for v in values]
    return [None if v is None else one(v) for v in values]


def _plain(value: Any) -> Any:
    """An instant or a day within an array as a number, as columns of them have it."""
    if isinstance(value, dt.datetime):
        at = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    return value


def _to_text(kind: PgType) -> Callable[[Any], bytes]:
    made: dict[int, Callable[[Any], str]] = {
        BOOL.oid: lambda v: "t" if v else "f",
        BYTEA.oid: lambda v: "\\x" + bytes(v).hex(),
        FLOAT4.oid: lambda v: _float_text(float(str(np.float32(v)))),  # its shortest text
        FLOAT8.oid: _float_text,
        NUMERIC.oid: lambda v: format(v, "f") if isinstance(v, Decimal) else str(v),
        DATE.oid: _date_text,
        TIMESTAMP.oid: _timestamp_text,
        TIMESTAMPTZ.oid: lambda v: _timestamp_text(v, "+00"),
        SPAN.oid: _span_text,
        UUID_.oid: lambda v: str(_uuid(v)),
    }
    text = made.get(kind.oid, str)
    return lambda v: text(v).encode()


def _to_binary(kind: PgType) -> Callable[[Any], bytes]:
    made: dict[int, Callable[[Any], bytes]] = {
        BOOL.oid: lambda v: b"\1" if v else b"\0",
        BYTEA.oid: bytes,
        INT2.oid: struct.Struct("!h").pack,
        INT4.oid: struct.Struct("!i").pack,
        INT8.oid: struct.Struct("!q").pack,
        FLOAT4.oid: struct.Struct("!f").pack,
        FLOAT8.oid: struct.Struct("!d").pack,
        DATE.oid: _binary_date,
        TIME.oid: lambda v: struct.pack("!q", _time_us(v)),
        TIMESTAMP.oid: _binary_instant,
        TIMESTAMPTZ.oid: _binary_instant,
        SPAN.oid: lambda v: struct.pack("!qii", v[2] // 1000, v[1], v[0]),
        NUMERIC.oid: _binary_numeric,
        UUID_.oid: lambda v: _uuid(v).bytes,
    }
    return made.get(kind.oid) or _to_text(kind)


def _uuid(value: Any) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    return uuid.UUID(value) if isinstance(value, str) else uuid.UUID(bytes=bytes(value))


def _float_text(value: float) -> str:
    if math.isfinite(value):
        text = repr(value)
        return text.removesuffix(".0")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _date_text(days: int) -> str:
    """A day as PostgreSQL writes it; before the year 1 it has `BC` behind."""
    if abs(days) >= INFINITE_DAY:
        return "infinity" if days > 0 else "-infinity"
    text = str(np.datetime64(days, "D"))
    if days < -719_162:  # 0001-01-01
        year, month, day = text.rsplit("-", 2)
        return f"{1 - int(year):04}-{month}-{day} BC"
    return text


def _binary_date(days: int) -> bytes:
    if abs(days) >= INFINITE_DAY:
        return struct.pack("!i", INFINITE_DAY if days > 0 else -INFINITE_DAY - 1)
    return struct.pack("!i", days - EPOCH_DAY)


def _timestamp_text(us: int, zone: str = "") -> str:
    if abs(us) >= INFINITE:
        return "infinity" if us > 0 else "-infinity"
    days, rest = divmod(us, 86_400_000_000)
    day, space, era = _date_text(days).partition(" ")
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    clock += f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{day} {clock}{zone}{space}{era}"


def _binary_instant(us: int) -> bytes:
    if us >= INFINITE:
        return struct.pack("!q", INFINITE)
    if us <= -INFINITE:
        return struct.pack("!q", -INFINITE - 1)
    return struct.pack("!q", us - EPOCH_US)


def _time_us(value: dt.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _span_text(value: Any) -> str:
    """An interval as PostgreSQL writes it by default."""
    months, days, us = value[0], value[1], value[2] // 1000
    parts = []
    if abs(months) >= 12:
        years = int(months / 12)
        months -= 12 * years
        parts.append(f"{years} year{'' if years == 1 else 's'}")
    if months:
        parts.append(f"{months} mon{'' if months == 1 else 's'}")
    if days:
        parts.append(f"{days} day{'' if days == 1 else 's'}")
    if us or not parts:
        seconds, fraction = divmod(abs(us), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{fraction:06}".rstrip("0") if fraction else ""
        parts.append(f"-{clock}" if us < 0 else clock)
    return " ".join(parts)


def _binary_numeric(value: Any) -> bytes:
    """A decimal as digits of base 10000: count, weight of the first, sign, digits after the point."""
    number = value if isinstance(value, Decimal) else Decimal(value)
    sign, _, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    whole, _, part = format(number.copy_abs(), "f").partition(".")
    whole = whole.lstrip("0")
    whole = whole.rjust(-(-len(whole) // NUMERIC_DIGITS) * NUMERIC_DIGITS, "0")
    part = part.ljust(-(-len(part) // NUMERIC_DIGITS) * NUMERIC_DIGITS, "0")
    text = whole + part
    digits = [int(text[i : i + NUMERIC_DIGITS]) for i in range(0, len(text), NUMERIC_DIGITS)]
    weight = len(whole) // NUMERIC_DIGITS - 1
    while digits and digits[0] == 0:
        digits.pop(0)
        weight -= 1
    while digits and digits[-1] == 0:
        digits.pop()
    head = struct.pack(
        "!hhHh", len(digits), weight if digits else 0, _NEGATIVE if sign else 0, scale
    )
    return head + struct.pack(f"!{len(digits)}h", *digits)


def _binary_array(values: list[Any], kind: PgType, one: Callable[[Any], bytes]) -> bytes:
    if not values:
        return struct.pack("!iii", 0, 0, kind.oid)
    parts = [struct.pack("!iiiii", 1, int(None in values), kind.oid, len(values), 1)]
    for value in values:
        data = None if value is None else one(value)
        parts.append(struct.pack("!i", -1) if data is None else struct.pack("!i", len(data)) + data)
    return b"".join(parts)


def _text_array(values: list[Any], one: Callable[[Any], bytes]) -> bytes:
    parts = []
    for value in values:
        if value is None:
            parts.append("NULL")
            continue
        text = one(value).decode()
        odd = not text or text.upper() == "NULL" or any(c in '{}",\\ \t\n\r\v\f' for c in text)
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'"{escaped}"' if odd else text)
    return ("{" + ",".join(parts) + "}").encode()


def json_text(value: Any, arrow: pa.DataType) -> str:
    """A nested value as JSON: maps are objects, times ISO 8601 text, decimals numbers.

    Args:
        value: as Arrow gives it to Python, where a map is a list of pairs.
        arrow: its type.
    """
    return orjson.dumps(_jsonable(value, arrow)).decode()


def _jsonable(value: Any, arrow: Any) -> Any:
    match value:
        case str() if arrow == JSON_TYPE:
            return orjson.Fragment(value)
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {name: _jsonable(one, arrow.field(name).type) for name, one in value.items()}
        case list() if pa.types.is_map(arrow):
            return {str(key): _jsonable(one, arrow.item_type) for key, one in value}
        case list():
            return [_jsonable(one, arrow.value_type) for one in value]
        case Decimal():
            return orjson.Fragment(format(value, "f"))
        case bytes():
            return value.hex()
        case tuple():  # an interval
            return list(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
    return str(value)


def literal(data: bytes | None, oid: int, format_: int) -> str:
    """A parameter as DuckDB's literal.

    Args:
        data: as it came; None is NULL.
        oid: of its type; 0 where the client leaves it to the query.
        format_: 0 for text, 1 for binary.

    Raises:
        ValueError: it isn't a value of that type.
    """
    duck = duck_of_oid(oid)
    if data is None:
        return "NULL" if duck is None else f"CAST(NULL AS {duck})"
    if oid in _ELEMENT:
        values = _read_binary_array(data) if format_ == BINARY else _read_text_array(data.decode())
        inner = _ELEMENT[oid].duck
        return (
            f"CAST([{', '.join('NULL' if v is None else _quoted(v) for v in values)}] AS {inner}[])"
        )
    if format_ == BINARY:
        text = _read_binary(data, oid)
    else:
        text = data.decode()
        if oid == BYTEA.oid:
            text = text.removeprefix("\\x") if text.startswith("\\x") else data.hex()
    if oid in (TIMESTAMP.oid, TIMESTAMPTZ.oid, DATE.oid) and text.endswith(" BC"):
        day, space, rest = text.removesuffix(" BC").partition(" ")
        text = f"{day} (BC){space}{rest}"  # as DuckDB reads it
    if oid == BYTEA.oid:
        return f"from_hex({_quoted(text)})"
    if oid == NUMERIC.oid:  # a decimal has the digits that it came with
        return _number(text)
    return _quoted(text) if duck is None or duck == "JSON" else f"CAST({_quoted(text)} AS {duck})"


def _number(text: str) -> str:
    """A decimal with its digits; what no decimal of DuckDB's can hold is a DOUBLE.

    Raises:
        ValueError: it isn't a number.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"expected a number; found {text!r}") from None
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not (
        exponent >= -DECIMAL_DIGITS_MAX and value.adjusted() < DECIMAL_DIGITS_MAX
    ):
        return f"CAST({_quoted(str(value))} AS DOUBLE)"
    if exponent >= 0:  # a whole number alone would be an INTEGER
        return f"CAST({value:f} AS DECIMAL({value.adjusted() + 1}, 0))"
    return f"({value:f})" if value.is_signed() else f"{value:f}"  # `a -$1` is no comment


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without the character 0")
    return "'" + text.replace("'", "''") + "'"


def _read_binary(data: bytes, oid: int) -> str:
    """A value of PostgreSQL's binary format, as text that DuckDB casts.

    Raises:
        ValueError: it can't be read.
    """
    try:
        return _READERS[_BY_OID[oid].oid](data) if oid in _BY_OID else data.decode()
    except (struct.error, OverflowError) as error:
        raise ValueError(f"expected a binary value of type {oid}; found {data!r}") from error


def _read_instant(data: bytes, zone: str = "") -> str:
    (us,) = struct.unpack("!q", data)
    return _timestamp_text(us + EPOCH_US if abs(us) < INFINITE else us, zone)


def _read_date(data: bytes) -> str:
    (days,) = struct.unpack("!i", data)
    return _date_text(days + EPOCH_DAY if abs(days) < INFINITE_DAY else days)


def _read_time(data: bytes) -> str:
    seconds, us = divmod(struct.unpack("!q", data)[0], 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{us:06}"


def _read_span(data: bytes) -> str:
    us, days, months = struct.unpack("!qii", data)
    return f"{months} months {days} days {us} microseconds"


def _read_numeric(data: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from("!hhHh", data)
    if sign in _NO_NUMBERS:
        return _NO_NUMBERS[sign]
    digits = struct.unpack_from(f"!{count}H", data, 8)
    if sign not in (0, _NEGATIVE) or max(digits, default=0) > 9999:
        raise ValueError(f"expected a binary numeric; found {data!r}")
    # As text: sums of decimals are rounded to the digits of their context.
    whole = "".join(f"{one:04}" for one in digits) or "0"
    exponent = NUMERIC_DIGITS * (weight - count + 1)
    return f"{'-' if sign else ''}{Decimal(f'{whole}E{exponent}'):.{scale}f}"


_READERS: Final[dict[int, Callable[[bytes], str]]] = {
    BOOL.oid: lambda d: "true" if d != b"\0" else "false",
    BYTEA.oid: bytes.hex,
    INT2.oid: lambda d: str(struct.unpack("!h", d)[0]),
    INT4.oid: lambda d: str(struct.unpack("!i", d)[0]),
    INT8.oid: lambda d: str(int.from_bytes(d, "big", signed=True)),  # oid has four
    TEXT.oid: bytes.decode,
    JSON.oid: lambda d: d.removeprefix(b"\1").decode(),  # jsonb's version
    FLOAT4.oid: lambda d: repr(struct.unpack("!f", d)[0]),
    FLOAT8.oid: lambda d: repr(struct.unpack("!d", d)[0]),
    DATE.oid: _read_date,
    TIME.oid: _read_time,
    TIMESTAMP.oid: _read_instant,
    TIMESTAMPTZ.oid: lambda d: _read_instant(d, "+00"),
    SPAN.oid: _read_span,
    NUMERIC.oid: _read_numeric,
    UUID_.oid: lambda d: str(uuid.UUID(bytes=d)),
}


def _read_binary_array(data: bytes) -> list[str | None]:
    dimensions, _, oid = struct.unpack_from("!iii", data)
    if dimensions > 1:
        raise ValueError(f"expected an array of one dimension; found {dimensions}")
    values: list[str | None] = []
    at = 12 + 8 * dimensions
    while at < len(data):
        (size,) = struct.unpack_from("!i", data, at)
        at += 4
        values.append(None if size < 0 else _read_binary(data[at : at + size], oid))
        at += max(size, 0)
    return values


def _read_text_array(text: str) -> list[str | None]:
    """The elements of `{1,"a b",NULL}`."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"expected an array such as {{1,2}}; found {text!r}")
    values: list[str | None] = []
    at = 1
    while at < len(text) - 1:
        if text[at] == '"':
            at += 1
            parts = []
            while at < len(text) and text[at] != '"':
                at += text[at] == "\\"
                parts.append(text[at : at + 1])
                at += 1
            values.append("".join(parts))
            at = text.find(",", at) + 1 or len(text)
        else:
            end = text.find(",", at)
            end = len(text) - 1 if end < 0 else end
            one = text[at:end].strip()
            values.append(None if one.upper() == "NULL" else one)
            at = end + 1
    return values
