"""`sum` and `avg`: exact for whole numbers, in double-double arithmetic for others.

A sum of whole numbers is kept modulo 2**64, next to the sum of their upper halves, which stays small:

    sum(x) = 2**32 * sum(x >> 32) + l,    0 <= l < 2**32 * rows

so the number modulo 2**64 says which it is, in 96 bits, as long as a group has fewer than 2**32 rows. Where
it doesn't fit a BIGINT, `sum` is NULL; when rows are taken back and it fits again, it is right again.

Decimals are whole numbers of their last digit's unit. Those of more than 18 digits are four parts of 32 bits,
the uppermost with the sign, each summed apart. Their sum is a DECIMAL of 38 digits; where it has more, NULL.

Doubles so large that some of them might make a sum infinite are summed apart, so a sum that is infinite for a
while doesn't stay so, and is the same however rows were batched. Of those that may be taken back, infinities
and NaNs are counted: as soon as they are gone, the sum is right again. A stream's rows stay, so there its sum
simply is infinite, or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.schema import DECIMAL_DIGITS_MAX
from penstock.core.vectors import Vector
from penstock.ops.aggregates.function import (
    Column,
    Function,
    Lift,
    Part,
    Rows,
    count_of,
    counted,
    where_some,
)
from penstock.state.layout import ERROR_SUFFIX, Value, add_floats, add_integers

__all__ = ["Avg", "Sum", "floats", "lift_counts", "lift_floats", "total_name"]

LARGE: Final = 2.0**900
"""Doubles up to here can't make a sum infinite; larger ones are summed apart, divided by it."""
DECIMAL_MOST: Final = 10**DECIMAL_DIGITS_MAX - 1
HALF_BITS: Final = 32
HALF: Final = 2**HALF_BITS


class Sum(Function):
    """The sum of a column's values; NULL if it is of whole numbers or decimals and has too many digits."""

    kind: ClassVar[str] = "sum"
    takes: ClassVar = "numbers"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        if pa.types.is_decimal(self.of.type):
            return pa.decimal128(DECIMAL_DIGITS_MAX, self.of.type.scale)
        return pa.float64() if vectors.is_float(self.of.type) else pa.int64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        column = self.of
        if vectors.is_float(column.type):
            return (*counted(column), *floats(column, retracts=retracts))
        if is_long_decimal(column):
            return (*counted(column), *_parts(column))
        return (*counted(column), *_integers(column))

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        if vectors.is_float(self.of.type):
            return where_some(full, self.of, pa.array(_float_total(full, self.of)))
        if pa.types.is_decimal(self.of.type):
            return where_some(full, self.of, _decimal(_limbs(full, self.of), self.type))
        total, upper, _ = _integer_total(full, self.of)
        fits = (upper >= -(HALF // 2)) & (upper < HALF // 2)
        found = vectors.from_int64(total) if fits.all() else pa.array(total, mask=~fits)
        return where_some(full, self.of, found)


class Avg(Sum):
    """The mean of a column's values."""

    kind: ClassVar[str] = "avg"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        if vectors.is_float(self.of.type):
            total = _float_total(full, self.of)
        elif pa.types.is_decimal(self.of.type):
            limbs = _limbs(full, self.of)
            total = np.ldexp(limbs.astype(np.float64), HALF_BITS * np.arange(4)[:, None])
            total = total[::-1].sum(axis=0) / 10.0**self.of.type.scale
        else:
            _, upper, lower = _integer_total(full, self.of)
            total = upper.astype(np.float64) * HALF + lower
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = pa.array(total / vectors.raw(count_of(full, self.of)))
        return where_some(full, self.of, mean)


def total_name(column: Column) -> str:
    """The name of a column's sum."""
    return f"$sum.{column.name}"


def floats(column: Column, *, retracts: bool) -> tuple[Part, ...]:
    """What the sum of a column's doubles is made of."""
    total = Value(total_name(column), pa.float64(), "sum")
    large = Value(f"$large.{column.name}", pa.float64(), "sum")
    if not retracts:
        return (
            Part(total, lift_floats(column, lambda x: np.where(_is_large(x), 0.0, x))),
            Part(large, _lift_large(column)),
        )
    infinite = Value(f"$infinite.{column.name}", pa.int64(), "sum")
    no_number = Value(f"$nan.{column.name}", pa.int64(), "sum")
    return (
        Part(total, lift_floats(column, lambda x: np.where(np.abs(x) <= LARGE, x, 0.0))),
        Part(large, _lift_large(column)),
        Part(infinite, lift_counts(column, lambda x: (x == np.inf) + HALF * (x == -np.inf))),
        Part(no_number, lift_counts(column, np.isnan)),
    )


def lift_floats(column: Column, term: Callable[[Vector], Vector]) -> Lift:
    """The sums of doubles that are made of a column's values."""

    def lift(rows: Rows) -> list[pa.Array]:
        values = rows.columns[column.name]
        x, valid = vectors.raw(values).astype(np.float64, copy=False), vectors.validity(values)
        with np.errstate(all="ignore"):  # what isn't finite, and what lies under a NULL
            terms = term(x)
        return add_floats(terms, None, valid, rows.weights, rows.ids, rows.groups)

    return lift


def _lift_large(column: Column) -> Lift:
    """The sums of the large doubles among a column's values; mostly there are none, and nothing is summed."""
    lift = lift_floats(column, lambda x: np.where(_is_large(x), x / LARGE, 0.0))

    def lift_some(rows: Rows) -> list[pa.Array]:
        x = vectors.raw(rows.columns[column.name])
        if x.dtype == np.float64 and _is_large(x).any():
            return lift(rows)
        zeros = pa.array(np.zeros(rows.groups))
        return [zeros, zeros]

    return lift_some


def lift_counts(column: Column, count: Callable[[Vector], Vector]) -> Lift:
    """The sums of whole numbers that are made of a column's values."""

    def lift(rows: Rows) -> list[pa.Array]:
        values = rows.columns[column.name]
        counts = count(vectors.raw(values)).astype(np.int64, copy=False)
        valid = vectors.validity(values)
        return [add_integers(counts, valid, rows.weights, rows.ids, rows.groups)]

    return lift


def _integers(column: Column) -> tuple[Part, ...]:
    """What the sum of a column's whole numbers is made of."""
    total = Part(Value(total_name(column), pa.int64(), "sum"), lift_counts(column, lambda x: x))
    if column.type.bit_width <= HALF_BITS:  # of decimals it is that of their 128 bits
        return (total,)
    upper = Value(_upper_name(column), pa.int64(), "sum")
    return (total, Part(upper, lift_counts(column, lambda x: x >> HALF_BITS)))


def _upper_name(column: Column) -> str:
    return f"$upper.{column.name}"


def is_long_decimal(column: Column) -> bool:
    """Whether a column is of decimals without codes."""
    return pa.types.is_decimal(column.type) and not vectors.is_short_decimal(column.type)


def _parts(column: Column) -> tuple[Part, ...]:
    """What the sum of a column's long decimals is made of."""

    def of(part: int) -> Lift:
        def lift(rows: Rows) -> list[pa.Array]:
            values = rows.columns[column.name]
            digits = _words(values)[:, part].astype(np.int64)
            if part < 3:
                digits &= HALF - 1
            valid = vectors.validity(values)
            return [add_integers(digits, valid, rows.weights, rows.ids, rows.groups)]

        return lift

    return tuple(Part(Value(_part_name(column, i), pa.int64(), "sum"), of(i)) for i in range(4))


def _part_name(column: Column, part: int) -> str:
    return f"$part{part}.{column.name}"


def _words(column: pa.Array) -> Vector:
    """Decimals in 128 bits as int32[n, 4], the least significant first."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros((0, 4), np.int32)
    words = np.frombuffer(data, np.int32, 4 * len(column), column.offset * 16)  # type: ignore[call-overload] # stubs lack Arrow's
    return np.asarray(words.reshape(-1, 4))


def _limbs(full: pa.RecordBatch, column: Column) -> Vector:
    """The sum of a column's decimals: int64[4, groups], digits of 2**32; only the last may be negative."""
    if is_long_decimal(column):
        parts = [vectors.raw(full.column(_part_name(column, i))) for i in range(4)]
    else:
        _, upper, lower = _integer_total(full, column)
        parts = [lower, upper, np.zeros_like(upper), np.zeros_like(upper)]
    found: list[Vector] = []
    carry = np.zeros_like(parts[0])
    for part in parts[:3]:
        whole = part + carry
        found.append(whole & (HALF - 1))
        carry = whole >> HALF_BITS
    return np.stack([*found, parts[3] + carry])


def _decimal(limbs: Vector, type_: pa.DataType) -> pa.Array:
    """Numbers as decimals; NULL where they have more than 38 digits."""
    words = np.ascontiguousarray(limbs.T.astype(np.int32))
    fits = (limbs[3] >= -(HALF // 2)) & (limbs[3] < HALF // 2)
    negative = limbs[3] < 0
    low = limbs[0] + (limbs[1] << HALF_BITS)
    high = limbs[2] + (np.where(fits, limbs[3], 0) << HALF_BITS)
    most_low, most_high = np.uint64(DECIMAL_MOST & (2**64 - 1)), np.int64(DECIMAL_MOST >> 64)
    # -(high, low) is (~high, -low), or (-high, 0).
    size_low = np.where(negative, -low, low).view(np.uint64)
    size_high = np.where(negative, np.where(low == 0, -high, ~high), high)
    fits &= (size_high < most_high) | ((size_high == most_high) & (size_low <= most_low))
    bitmap: Any = None
    if not fits.all():
        words[~fits] = 0
        bitmap = pa.py_buffer(np.packbits(fits, bitorder="little").tobytes())
    return pa.Array.from_buffers(type_, len(words), [bitmap, pa.py_buffer(words.tobytes())])


def _is_large(x: Vector) -> Vector:
    return np.asarray((np.abs(x) > LARGE) & np.isfinite(x))


def _integer_total(full: pa.RecordBatch, column: Column) -> tuple[Vector, Vector, Vector]:
    """The sum modulo 2**64, and itself as `upper` * 2**32 + `lower`."""
    total = vectors.raw(full.column(total_name(column)))
    if _upper_name(column) not in full.schema.names:
        return total, total >> HALF_BITS, total & (HALF - 1)
    upper = vectors.raw(full.column(_upper_name(column)))
    rest = (total - (upper << HALF_BITS)).view(np.uint64)
    upper = upper + (rest >> np.uint64(HALF_BITS)).astype(np.int64)
    return total, upper, (rest & np.uint64(HALF - 1)).astype(np.int64)


def _float_total(full: pa.RecordBatch, column: Column) -> Vector:
    def state(name: str) -> Vector:
        return vectors.raw(full.column(name))

    total, large = state(total_name(column)), state(f"$large.{column.name}")
    if large.any():
        errors = [state(f"{name}.{column.name}{ERROR_SUFFIX}") for name in ("$sum", "$large")]
        with np.errstate(over="ignore"):
            whole = (large + (total / LARGE + (errors[0] / LARGE + errors[1]))) * LARGE
        total = np.where((large == 0) | ~np.isfinite(total), total, whole)
    if f"$nan.{column.name}" not in full.schema.names:
        return np.asarray(total)
    infinite, no_number = state(f"$infinite.{column.name}"), state(f"$nan.{column.name}")
    if infinite.any() or no_number.any():
        positive, negative = infinite & (HALF - 1), infinite >> HALF_BITS
        total = np.where(positive > 0, np.inf, np.where(negative > 0, -np.inf, total))
        total = np.where((no_number > 0) | ((positive > 0) & (negative > 0)), np.nan, total)
    return np.asarray(total)
