"""Trees on Arrow columns, by `pyarrow.compute`. The same as DuckDB gives, or `UnfitError`.

What `UnfitError` says is not that a row is bad: an overflow, or a NaN that is compared (DuckDB's NaN equals
itself and is greater than all), is for DuckDB to judge.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.expr.tree import Call, Column, Constant, Tree, is_decimal

__all__ = ["UnfitError", "compute"]


NAMED_MIN: Final = dt.date(1, 1, 1)
NAMED_MAX: Final = dt.date(9999, 12, 31)
"""Dates that Python knows: years before and behind them are counted in other ways."""


class UnfitError(Exception):
    """These rows are not for this evaluator."""


def compute(tree: Tree, rows: pa.Table | pa.RecordBatch) -> Any:
    """The values of a tree, one per row.

    Raises:
        UnfitError: DuckDB has to compute it.
    """
    found = _value(tree, rows)
    if isinstance(found, pa.Scalar):
        return pa.array([found.as_py()] * len(rows), found.type)
    return found


def _value(tree: Tree, rows: pa.Table | pa.RecordBatch) -> Any:
    match tree:
        case Column(name):
            return rows.column(name)
        case Constant(value, type_):
            return pa.scalar(value, type_)
        case Call(function, arguments, type_):
            values = [_value(argument, rows) for argument in arguments]
            if all(isinstance(value, pa.Scalar) for value in values):
                raise UnfitError  # constants only: rare, and DuckDB folds them
            try:
                return _FUNCTIONS[function](type_, *values)
            except (
                pa.ArrowInvalid,
                pa.ArrowNotImplementedError,
                OverflowError,
                ValueError,
            ) as error:
                raise UnfitError from error


def _comparison(name: str) -> Callable[..., Any]:
    def compare(_: pa.DataType, left: Any, right: Any) -> Any:
        if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
            left, right = _doubles(left), _doubles(right)
            for side in (left, right):
                if pc.any(pc.is_nan(side)).as_py():
                    raise UnfitError
        elif left.type != right.type and not is_decimal(left.type):  # INT and BIGINT
            left, right = left.cast(pa.int64()), right.cast(pa.int64())
        return getattr(pc, name)(left, right)

    return compare


def _arithmetic(name: str) -> Callable[..., Any]:
    def calculate(type_: pa.DataType, left: Any, right: Any) -> Any:
        function = getattr(pc, name)
        if is_decimal(type_):
            found = function(left, right)
            return found if found.type == type_ else found.cast(type_)
        if pa.types.is_floating(type_):
            return function(_doubles(left), _doubles(right))
        return function(left.cast(type_), right.cast(type_))

    return calculate


def _doubles(values: Any) -> Any:
    return values if values.type == pa.float64() else values.cast(pa.float64())


def _remainder(type_: pa.DataType, left: Any, right: Any) -> Any:
    left, right = left.cast(type_), right.cast(type_)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _scale(type_: pa.DataType, value: Any, digits: pa.Scalar) -> Any:
    """The decimal fractions whose digits, without the point, are `value * digits`."""
    whole = vectors.contiguous(pc.multiply_checked(value.cast(pa.int64()), digits))
    halves = np.empty((len(whole), 2), np.int64)  # of 128 bits, the lower one first
    halves[:, 0] = vectors.codes(whole)
    halves[:, 1] = halves[:, 0] >> 63
    missing = None
    if whole.null_count:
        there = pc.is_valid(whole).to_numpy(zero_copy_only=False)
        missing = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    data = pa.py_buffer(halves.tobytes())
    return pa.Array.from_buffers(type_, len(whole), [missing, data])


def _choose(type_: pa.DataType, condition: Any, value: Any) -> Any:
    return pc.if_else(condition, value, pa.scalar(None, type_))


def _one_of(_: pa.DataType, condition: Any, value: Any, other: Any) -> Any:
    return pc.if_else(pc.fill_null(condition, False), value, other)  # noqa: FBT003


def _year(_: pa.DataType, days: Any) -> Any:
    low, high = pc.min(days).as_py(), pc.max(days).as_py()
    if low is not None and not NAMED_MIN <= low <= high <= NAMED_MAX:
        raise UnfitError
    return pc.year(days)


def _like(_: pa.DataType, text: Any, pattern: pa.StringScalar) -> Any:
    return pc.match_like(text, pattern.as_py())


# Arrow's functions are named, not looked up: a command reads a program without them
# (`cli.loading`).
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "and": lambda _, left, right: pc.and_kleene(left, right),
    "or": lambda _, left, right: pc.or_kleene(left, right),
    "not": lambda _, value: pc.invert(value),
    "is_null": lambda _, value: pc.is_null(value),
    "eq": _comparison("equal"),
    "ne": _comparison("not_equal"),
    "lt": _comparison("less"),
    "le": _comparison("less_equal"),
    "gt": _comparison("greater"),
    "ge": _comparison("greater_equal"),
    "add": _arithmetic("add_checked"),
    "subtract": _arithmetic("subtract_checked"),
    "multiply": _arithmetic("multiply_checked"),
    "remainder": _remainder,
    "scale": _scale,
    "join": lambda _, left, right: pc.binary_join_element_wise(
        left, right, "", null_handling="emit_null"
    ),
    "like": _like,
    "choose": _choose,
    "one_of": _one_of,
    "year": _year,
    "decimal": lambda type_, value: value.cast(type_),
}
