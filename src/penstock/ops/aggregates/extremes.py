"""`min` and `max`. Where rows may be taken back, the group's values are kept."""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa

from penstock.ops.aggregates.function import Function, Kept, Part
from penstock.state.layout import Value, pick

__all__ = ["Max", "Min"]


class Extreme(Function):
    """The least or the greatest of a column's values; NaN is greater than all numbers."""

    takes: ClassVar = "ordered"
    reduce: ClassVar[Literal["min", "max"]]

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return self.of.type

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        column, reduce = self.of, self.reduce
        value = Value(f"${reduce}.{column.name}", column.type, reduce)
        return (
            Part(
                value,
                lambda rows: [pick(rows.columns[column.name], reduce, rows.ids, rows.groups)],
                Kept((column,)) if retracts else None,
                ends=1 if reduce == "min" else -1,
            ),
        )


class Min(Extreme):
    """The least of a column's values."""

    kind: ClassVar[str] = "min"
    reduce: ClassVar[Literal["min", "max"]] = "min"


class Max(Extreme):
    """The greatest of a column's values."""

    kind: ClassVar[str] = "max"
    reduce: ClassVar[Literal["min", "max"]] = "max"
