"""`variance` and `stddev` of a sample, of sums and sums of squares.

    variance = (sum(x * x) - sum(x) * sum(x) / n) / (n - 1)

This form can be combined, and rows can be taken back from it, as from any sum. But it subtracts what is
almost equal: with doubles, a mean of 1e9 and a deviation of 1 leave no digit. So each square is exact, as
a double and a rest (Dekker, *A floating-point technique for extending the available precision*, 1971);
squares and rests are summed apart, each in double-double arithmetic; and so is the rest of the formula.

The sums are exact as long as the values' magnitudes lie within some 1e6 of each other, so however rows
were batched, the result is the same to the last bit. It has a double's precision up to means 1e8 times the
deviation, and fewer digits beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.aggregates.function import (
    Column,
    Function,
    Part,
    Rows,
    check_number,
    count_of,
    counted,
    where_some,
)
from penstock.state.layout import ERROR_SUFFIX, Value, add_floats

__all__ = ["Stddev", "Variance"]


@dataclass(frozen=True)
class Variance(Function):
    """The variance of a sample; NULL below two values, NaN where a value or a square isn't finite."""

    kind: ClassVar[str] = "variance"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.of, self.kind)

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        column = self.of
        total = Value(_total(column), pa.float64(), "sum")
        squares = Value(f"$square.{column.name}", pa.float64(), "sum")
        rests = Value(f"$rest.{column.name}", pa.float64(), "sum")
        return (
            *counted(column),
            Part(total, lambda rows: _lift(rows, column, lambda x: x)),
            Part(squares, lambda rows: _lift(rows, column, lambda x: _product(x, x)[0])),
            Part(rests, lambda rows: _lift(rows, column, _rest_of_square)),
        )

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        names = (_total(self.of), f"$square.{self.of.name}", f"$rest.{self.of.name}")
        total, squares, rests = (
            (vectors.raw(full.column(name)), vectors.raw(full.column(name + ERROR_SUFFIX)))
            for name in names
        )
        count = vectors.raw(count_of(full, self.of)).astype(np.float64)
        found = _variance(total, squares, rests, count)
        return where_some(full, self.of, pa.array(found), least=2)


@dataclass(frozen=True)
class Stddev(Variance):
    """The standard deviation of a sample: the root of its variance."""

    kind: ClassVar[str] = "stddev"

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        variance = super().result(full)
        root = pa.array(np.sqrt(vectors.raw(variance.fill_null(0.0))))
        return where_some(full, self.of, root, least=2)


def _total(column: Column) -> str:
    """The name of the sum of doubles: that of the sum, unless it is one of whole numbers."""
    return f"${'sum' if vectors.is_float(column.type) else 'real'}.{column.name}"


def _lift(rows: Rows, column: Column, term: Callable[[Vector], Vector]) -> list[pa.Array]:
    values = rows.columns[column.name]
    x, valid = vectors.raw(values).astype(np.float64, copy=False), vectors.validity(values)
    with np.errstate(all="ignore"):  # what isn't finite, and what lies under a NULL
        terms = term(x)
    return add_floats(terms, None, valid, rows.weights, rows.ids, rows.groups)


def _rest_of_square(x: Vector) -> Vector:
    rest = _product(x, x)[1]
    return np.where(np.isfinite(rest), rest, 0.0)


Pair: TypeAlias = tuple[Vector, Vector]  # a double, and what it lacks


def _variance(total: Pair, squares: Pair, rests: Pair, n: Vector) -> Vector:
    (s, s_rest), (q, q_rest) = total, squares
    with np.errstate(all="ignore"):  # groups of one value, and what isn't finite
        mean = s / n
        p, p_rest = _product(mean, n)
        mean_rest = ((s - p) - p_rest + s_rest) / n
        p, p_rest = _product(s, mean)
        p_rest = p_rest + (s * mean_rest + s_rest * mean)
        d = q - p
        z = d - q
        d_rest = (q - (d - z)) + (-p - z) + (q_rest + rests[0] - p_rest)
        found = np.maximum(d + d_rest, 0.0) / (n - 1.0)
        plain = np.maximum(q - s * mean, 0.0) / (n - 1.0)  # where splitting has overflowed
        found = np.where(np.isnan(found), plain, found)
        return np.where(np.isfinite(s) & np.isfinite(q), found, np.nan)


def _product(a: Vector, b: Vector) -> Pair:
    """The product, and its rounding error."""
    p = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Vector) -> Pair:
    t = 134217729.0 * a  # 2**27 + 1
    high = t - (t - a)
    return high, a - high
