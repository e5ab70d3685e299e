"""Spark's filters as Arrow's: those whose meaning is the same in both.

Spark keeps a row where a condition is true, Arrow's `Table.filter` likewise. What differs is left to
Spark: NaN, which Spark holds equal to itself and greater than every number, and values that the
column's type can't hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["as_arrow", "window_from_us"]

_COMPARED: Final = {
    "EqualTo": "__eq__",
    "GreaterThan": "__gt__",
    "GreaterThanOrEqual": "__ge__",
    "LessThan": "__lt__",
    "LessThanOrEqual": "__le__",
}
_TEXTS: Final = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}


def as_arrow(filter_: Filter, schema: pa.Schema) -> pc.Expression | None:
    """A filter as an expression over these columns; None where Spark must do it."""
    name, negated = type(filter_).__name__, False
    if name == "Not":
        filter_, negated = filter_.child, True  # type: ignore[attr-defined] # of the class `Not`
        name = type(filter_).__name__
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    field, type_ = pc.field(path[0]), schema.field(path[0]).type
    value = getattr(filter_, "value", None)
    found: pc.Expression | None = _condition(name, field, type_, value, negated=negated)
    if found is None or not negated:
        return found
    if name in {"IsNull", "IsNotNull"}:
        return ~found
    return ~found & field.is_valid()  # what NULL compares as isn't true, nor is its opposite


def _condition(name: str, field: Any, type_: pa.DataType, value: Any, *, negated: bool) -> Any:
    """The expression; None where Spark must do it."""
    if name == "IsNull":
        return field.is_null()
    if name == "IsNotNull":
        return field.is_valid()
    if pa.types.is_floating(type_) or pa.types.is_nested(type_):
        return None
    if name in _TEXTS:
        return _TEXTS[name](field, str(value)) if pa.types.is_string(type_) else None
    if name == "In":
        values = [_scalar(one, type_) for one in value]
        return None if None in values else field.isin(pa.array(values, type_))
    if name == "EqualNullSafe":
        if negated:  # NULL is different from every value here, and Arrow's answer is NULL
            return None
        if value is None:
            return field.is_null()
        scalar = _scalar(value, type_)
        return None if scalar is None else (field == scalar) & field.is_valid()
    scalar = _scalar(value, type_)
    if scalar is None or name not in _COMPARED:
        return None
    return getattr(field, _COMPARED[name])(scalar)


def _scalar(value: Any, type_: pa.DataType) -> pa.Scalar | None:
    """A value in the column's type; None where it has none there, or there may be doubt."""
    if value is None or (isinstance(value, datetime) and value.tzinfo is None):
        return None
    if pa.types.is_boolean(type_) != isinstance(value, bool):
        return None
    try:
        return pa.scalar(value, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None


def window_from_us(filters: Sequence[Filter]) -> int | None:
    """From which `window_start` on rows are asked for, in µs since 1970; None: from the first."""
    least: int | None = None
    for one in filters:
        if type(one).__name__ not in {"EqualTo", "GreaterThan", "GreaterThanOrEqual"}:
            continue
        at = one.value  # type: ignore[attr-defined] # of the three classes
        if one.attribute == ("window_start",) and isinstance(at, datetime) and at.tzinfo:  # type: ignore[attr-defined]
            since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            least = us if least is None else max(least, us)
    return least
