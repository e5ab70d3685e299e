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
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.ops.aggregates.function import (
    Column,
    Function,
    Part,
    count_of,
    counted,
    where_some,
)
from penstock.ops.aggregates.sums import floats, lift_counts, lift_floats, total_name
from penstock.state.layout import ERROR_SUFFIX, Value

__all__ = ["Stddev", "Variance"]

WILD: Final = 2.0**500
"""Values from here on have squares whose sum may be infinite."""


class Variance(Function):
    """The variance of a sample; NULL below two values, NaN where a value or a square isn't finite."""

    kind: ClassVar[str] = "variance"
    takes: ClassVar = "numbers"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        column = self.of
        squares = Value(f"$square.{column.name}", pa.float64(), "sum")
        rests = Value(f"$rest.{column.name}", pa.float64(), "sum")
        if not vectors.is_float(column.type):
            total = Value(_total(column), pa.float64(), "sum")
            totals: tuple[Part, ...] = (Part(total, lift_floats(column, lambda x: x)),)
        else:
            totals = floats(column, retracts=retracts)
        if not retracts or not vectors.is_float(column.type):
            return (
                *counted(column),
                *totals,
                Part(squares, lift_floats(column, _square)),
                Part(rests, lift_floats(column, _rest_of_square)),
            )
        return (
            *counted(column),
            *totals,
            Part(squares, lift_floats(column, _tame(_square))),
            Part(rests, lift_floats(column, _tame(_rest_of_square))),
            Part(Value(_wild(column), pa.int64(), "sum"), lift_counts(column, _is_wild)),
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
        if _wild(self.of) in full.schema.names:
            found = np.where(vectors.raw(full.column(_wild(self.of))) > 0, np.nan, found)
        return where_some(full, self.of, pa.array(found), least=2)


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
    return total_name(column) if vectors.is_float(column.type) else f"$real.{column.name}"


def _wild(column: Column) -> str:
    """The name of the count of values whose squares aren't summed, where values may be taken back."""
    return f"$wild.{column.name}"


def _is_wild(x: Vector) -> Vector:
    return np.asarray(~(np.abs(x) < WILD))


def _tame(term: Callable[[Vector], Vector]) -> Callable[[Vector], Vector]:
    return lambda x: np.where(_is_wild(x), 0.0, term(x))


def _square(x: Vector) -> Vector:
    return _product(x, x)[0]


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
