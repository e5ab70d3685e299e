"""`sum` and `avg`: exact for whole numbers, in double-double arithmetic for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
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
from penstock.state.layout import Value, add_floats, add_integers

__all__ = ["Avg", "Sum"]


@dataclass(frozen=True)
class Sum(Function):
    """The sum of a column's values.

    Raises:
        LimitError: when it is lifted or combined, if a sum of whole numbers does not fit a BIGINT.
    """

    kind: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.of, self.kind)

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return _sum_type(self.of)

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        column = self.of
        value = Value(f"$sum.{column.name}", _sum_type(column), "sum", f"sum({column.name})")
        return (*counted(column), Part(value, lambda rows: _lift(rows, column, value)))

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        return where_some(full, self.of, full.column(f"$sum.{self.of.name}"))


@dataclass(frozen=True)
class Avg(Sum):
    """The mean of a column's values."""

    kind: ClassVar[str] = "avg"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        total = vectors.raw(full.column(f"$sum.{self.of.name}")).astype(np.float64, copy=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = pa.array(total / vectors.raw(count_of(full, self.of)))
        return where_some(full, self.of, mean)


def _sum_type(column: Column) -> pa.DataType:
    return pa.float64() if vectors.is_float(column.type) else pa.int64()


def _lift(rows: Rows, column: Column, value: Value) -> list[pa.Array]:
    values = rows.columns[column.name]
    x, valid = vectors.raw(values), vectors.validity(values)
    if value.precise:
        floats = x.astype(np.float64, copy=False)
        return add_floats(floats, None, valid, rows.weights, rows.ids, rows.groups)
    integers = x.astype(np.int64, copy=False)
    return [add_integers(integers, valid, rows.weights, rows.ids, rows.groups, value.label)]
