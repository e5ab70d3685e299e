"""What PostgreSQL's values become in JSON: *precise*, as Debezium's defaults have it, or *readable*. Pure.

A value comes as text (bytes) and goes into `orjson`. docs/reference/capture.md has the table.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import orjson

from penstock.capture.databases.postgres import texts
from penstock.capture.envelope import Values
from penstock.core.delta import PLACEHOLDER

__all__ = ["PLACEHOLDER", "Convert", "Type", "Types", "converter", "is_bool", "placeholder", "zero"]

_TIMESTAMP_MAX, _TIMESTAMP_MIN = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
"""`infinity`, `-infinity` as microseconds: Debezium's."""
_DATE_MAX, _DATE_MIN = 2**31 - 1, -(2**31)
_MONTH_US: Final = 30.4375 * texts.DAY_US
"""Of an interval: a twelfth of 365.25 days, Debezium's."""
_UNKNOWN: Final = frozenset(
    {"box", "circle", "line", "lseg", "path", "polygon", "pg_lsn", "pg_snapshot", "txid_snapshot"}
)
"""Base types that Debezium leaves out."""
Convert: TypeAlias = Callable[[bytes], Any]
_WIDE: Final = Context(prec=150_000, Emax=999_999, Emin=-999_999)
"""As many digits as a NUMERIC can have."""


@dataclass(frozen=True)
class Type:
    """A type, domains resolved.

    Attributes:
        name: of a base type: `int4`, `numeric`; of other kinds with its schema: `public.mood`.
        kind: PostgreSQL's typtype: `b`ase, `c`omposite, `e`num, `r`ange, `m`ultirange.
        modifier: of the column, or of the domain; -1 where there is none.
        element: of an array.
        delimiter: between the elements of an array.
    """

    name: str
    kind: str = "b"
    modifier: int = -1
    element: Type | None = None
    delimiter: str = ","


Types: TypeAlias = Callable[[int, int], Type]
"""What a type's oid and modifier mean."""


def converter(type_: Type, values: Values) -> Convert | None:
    """What makes JSON of a type's texts; None where the values leave the column out."""
    if type_.element is not None:
        inner = converter(type_.element, values)
        if inner is None:
            return None
        one: Convert = inner
        between = type_.delimiter
        return lambda text: texts.array(
            text.decode("utf-8", "replace"), lambda item: one(item.encode()), between
        )
    is_precise = values == "precise"
    if type_.name in _DIFFERENT:
        precise, readable = _DIFFERENT[type_.name]
        return precise(type_.modifier) if is_precise else readable(type_.modifier)
    if type_.name in _SAME:
        return _SAME[type_.name]
    if is_precise and (type_.kind in "cm" or type_.name in _UNKNOWN):
        return None
    return bytes.decode


def is_bool(convert: Convert) -> bool:
    """Whether a converter is that of `bool`."""
    return convert is _bool


def placeholder(type_: Type, values: Values) -> Any:
    """What stands for an unchanged large value."""
    if type_.element is not None:
        if type_.element.name in {"int2", "int4", "int8"} and values == "precise":
            return [*PLACEHOLDER.encode()]
        return [PLACEHOLDER]
    if type_.name == "bytea":
        return base64.b64encode(PLACEHOLDER.encode()).decode()
    if type_.name == "numeric" and values == "precise":
        return None
    return PLACEHOLDER


def zero(type_: Type) -> bytes:
    """What stands for a value that is NOT NULL and that a deletion doesn't have, as text."""
    return _ZEROS.get(type_.name, b"") if type_.element is None else b"{}"


# -- single values ------------------------------------------------------------------------------------


def _bool(text: bytes) -> bool:
    return text == b"t"


def _float8(text: bytes) -> Any:
    if text in {b"NaN", b"Infinity", b"-Infinity"}:
        return text.decode()
    return float(text)


def _unscaled(number: Decimal, scale: int) -> str:
    whole = int(number.scaleb(scale, _WIDE))
    # As Java's BigInteger: the fewest bytes of two's complement.
    size = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
    return base64.b64encode(whole.to_bytes(size, "big", signed=True)).decode()


def _numeric(modifier: int) -> Convert:
    if modifier < 0:
        return _numeric_variable
    # NUMERIC(p, s): PostgreSQL 15 has negative scales, in 11 bits.
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024

    def convert(text: bytes) -> Any:
        return _unscaled(_finite(text), scale)

    return convert


def _finite(text: bytes) -> Decimal:
    """A number.

    Raises:
        ValueError: it is NaN or infinite, which has no digits.
    """
    number = Decimal(text.decode())
    if not number.is_finite():
        raise ValueError(f"expected a number with digits; found {number}")
    return number


def _numeric_variable(text: bytes) -> Any:
    number = _finite(text)
    exponent = number.normalize(_WIDE).as_tuple().exponent
    scale = max(0, -int(exponent))
    return {"scale": scale, "value": _unscaled(number, scale)}


def _money(text: bytes) -> Decimal:
    digits = bytes(c for c in text if c in b"0123456789.")
    return Decimal(digits.decode()) * (-1 if b"-" in text or b"(" in text else 1)


def _bytea(text: bytes) -> str:
    return base64.b64encode(bytes.fromhex(text[2:].decode())).decode()


def _date(text: bytes) -> int:
    if text.endswith(b"infinity"):
        return _DATE_MIN if text.startswith(b"-") else _DATE_MAX
    return texts.date_days(text.decode())


def _time(modifier: int) -> Convert:
    unit = 1000 if 0 <= modifier <= 3 else 1
    return lambda text: texts.time_us(text.decode()) // unit


def _timestamp(modifier: int) -> Convert:
    unit = 1000 if 0 <= modifier <= 3 else 1

    def convert(text: bytes) -> int:
        if (plain := texts.plain_timestamp_us(text)) is not None:
            return plain // unit
        if text.endswith(b"infinity"):
            return (_TIMESTAMP_MIN if text.startswith(b"-") else _TIMESTAMP_MAX) // unit
        return texts.timestamp_parts(text.decode())[0] // unit

    return convert


def _instant(digits: int) -> Convert:
    """A timestamp as ISO 8601 in UTC; with these digits of a second, or -1 with those it has."""

    def convert(text: bytes) -> str:
        if text.endswith(b"infinity"):
            return text.decode()
        _, day, clock = texts.timestamp_parts(text.decode())
        whole, _, part = clock.partition(".")
        if digits >= 0:
            part = part.ljust(digits, "0")
        if day.endswith(" BC"):
            year, rest = day[:-3].split("-", 1)
            day = f"-{int(year) - 1:04d}-{rest}"
        return f"{day}T{whole}{'.' if part else ''}{part}Z"

    return convert


def _timetz(text: bytes) -> str:
    value = text.decode()
    at = max(value.rfind("+"), value.rfind("-"))
    parts = [int(one) for one in value[at + 1 :].split(":")] + [0, 0]
    offset = (parts[0] * 3600 + parts[1] * 60 + parts[2]) * 1_000_000
    us = (texts.time_us(value[:at]) - (offset if value[at] == "+" else -offset)) % texts.DAY_US
    seconds, part = divmod(us, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return clock + (f".{part:06d}".rstrip("0") if part else "") + "Z"


def _interval_us(text: bytes) -> int:
    months, days, us = texts.interval_parts(text.decode())
    whole = int(months * _MONTH_US) + days * texts.DAY_US + us
    if not -(2**63) <= whole < 2**63:
        raise OverflowError(
            f"expected an interval of at most 292,471 years, in microseconds; found {text.decode()}"
        )
    return whole


def _interval_iso(text: bytes) -> str:
    months, days, us = texts.interval_parts(text.decode())
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, part = divmod(us, 1_000_000)
    rest = f"{sign}{seconds % 60}" + (f".{part:06d}".rstrip("0") if part else "")
    dated = [(months // 12 if months >= 0 else -(-months // 12), "Y")]
    dated += [(months - 12 * dated[0][0], "M"), (days, "D")]
    whole = "".join(f"{count}{unit}" for count, unit in dated if count)
    clock = [(seconds // 3600, "H"), (seconds // 60 % 60, "M")]
    timed = "".join(f"{sign}{count}{unit}" for count, unit in clock if count)
    if seconds % 60 or part or not (whole or timed):
        timed += f"{rest}S"
    return f"P{whole}{'T' if timed else ''}{timed}"


def _bits(modifier: int) -> Convert:
    if modifier == 1:
        return lambda text: text == b"1"
    return lambda text: base64.b64encode(
        int(text or b"0", 2).to_bytes((len(text) + 7) // 8, "little")
    ).decode()


def _point(text: bytes) -> dict[str, Any]:
    x, y = (float(one) for one in text[1:-1].split(b","))
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    return {"x": x, "y": y, "wkb": wkb, "srid": None}


def _hstore(text: bytes) -> str:
    return orjson.dumps(texts.hstore(text.decode())).decode()


def _of(convert: Convert) -> Callable[[int], Convert]:
    return lambda _: convert


_TEXT: Final = _of(bytes.decode)
_SAME: Final[dict[str, Convert]] = {
    "bool": _bool,
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _float8,
    "float8": _float8,
    "bytea": _bytea,
    "timetz": _timetz,
    "point": _point,
    "hstore": _hstore,
}
_DIFFERENT: Final[dict[str, tuple[Callable[[int], Convert], Callable[[int], Convert]]]] = {
    "numeric": (_numeric, _TEXT),
    "money": (
        _of(lambda text: _unscaled(_money(text), 2)),
        _of(lambda text: str(_money(text))),
    ),
    "date": (_of(_date), _TEXT),
    "time": (_time, _TEXT),
    "timestamp": (_timestamp, _of(_instant(-1))),
    "timestamptz": (lambda digits: _instant(6 if digits < 0 else digits), _of(_instant(-1))),
    "interval": (_of(_interval_us), _of(_interval_iso)),
    "bit": (_bits, _TEXT),
    "varbit": (_of(_bits(-1)), _TEXT),
}
_ZEROS: Final[dict[str, bytes]] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bit"), b"0"),
    "bool": b"f",
    "money": b"$0.00",
    "bytea": b"\\x",
    "date": b"1970-01-01",
    "time": b"00:00:00",
    "timetz": b"00:00:00+00",
    "timestamp": b"1970-01-01 00:00:00",
    "timestamptz": b"1970-01-01 00:00:00+00",
    "interval": b"00:00:00",
    "point": b"(0,0)",
}
