"""What SQLite's values become in JSON, and its tables' columns in a program. Pure.

A value has the type that it was stored with, whatever its column says: *precise* passes it on. *readable*
makes of it what the column says.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from penstock.capture.envelope import Values
from penstock.core.schema import DECIMAL_DIGITS_MAX

__all__ = ["AS_THEY_ARE", "Convert", "column_type", "converter", "plain"]

AS_THEY_ARE: Final = frozenset({int, str, type(None)})
"""Types of values that are JSON."""
Convert: TypeAlias = Callable[[Any], Any]
_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def column_type(declared: str) -> str:
    """What a column's values are as a column of a program.

    >>> [column_type(one) for one in ("INTEGER", "varchar(9)", "decimal(8, 2)", "BOOLEAN", "datetime", "")]
    ['BIGINT', 'STRING', 'DECIMAL(8, 2)', 'BOOLEAN', 'TIMESTAMP', 'STRING']
    """
    text = declared.upper()
    found = _DECIMAL.match(text)
    if found is not None:
        digits, scale = int(found[1]), int(found[2] or 0)
        if 0 < digits <= DECIMAL_DIGITS_MAX and scale <= digits:
            return f"DECIMAL({digits}, {scale})"
    for words, column in _COLUMNS:
        if any(one in text for one in words):
            return column
    return "STRING"


_COLUMNS: Final = (
    (("BOOL",), "BOOLEAN"),
    (("DATETIME", "TIMESTAMP"), "TIMESTAMP"),
    (("DATE",), "DATE"),
    (("INT",), "BIGINT"),
    (("CHAR", "CLOB", "TEXT", "JSON"), "STRING"),
    (("BLOB",), "BINARY"),
    (("REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL"), "DOUBLE"),
)
"""The first that fits; SQLite's documentation, "Determination Of Column Affinity", and what people write."""


def converter(declared: str, values: Values) -> Convert:
    """What makes JSON of a column's values."""
    if values == "precise":
        return plain
    column = column_type(declared)
    return _READABLE.get(column.partition("(")[0], plain)


def plain(value: Any) -> Any:
    """A value as it was stored."""
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _bool(value: Any) -> Any:
    return bool(value) if isinstance(value, int | float) else plain(value)


def _decimal(value: Any) -> Any:
    return format(Decimal(repr(value)), "f") if isinstance(value, int | float) else plain(value)


def _text(value: Any) -> Any:
    return repr(value) if isinstance(value, int | float) else plain(value)


def _timestamp(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 10 and value[10] == " ":
        value = f"{value[:10]}T{value[11:]}"
        return value if value.endswith("Z") or "+" in value[19:] else value + "Z"
    return plain(value)


_READABLE: Final[dict[str, Convert]] = {
    "BOOLEAN": _bool,
    "DECIMAL": _decimal,
    "STRING": _text,
    "TIMESTAMP": _timestamp,
}
