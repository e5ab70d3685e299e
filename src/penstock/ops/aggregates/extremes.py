"""`min` and `max`. Where rows may be taken back, the group's values are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from penstock.ops.aggregates.function import Function, Kept, Part, check_plain
from penstock.state.layout import Value, pick

__all__ = ["Max", "Min"]


@dataclass(frozen=True)
class Extreme(Function):
    """The least or the greatest of a column's values; NaN is greater than all numbers."""

    reduce: ClassVar[Literal["min", "max"]]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.of, self.kind)

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

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        return full.column(f"${self.reduce}.{self.of.name}")


@dataclass(frozen=True)
class Min(Extreme):
    """The least of a column's values."""

    kind: ClassVar[str] = "min"
    reduce: ClassVar[Literal["min", "max"]] = "min"


@dataclass(frozen=True)
class Max(Extreme):
    """The greatest of a column's values."""

    kind: ClassVar[str] = "max"
    reduce: ClassVar[Literal["min", "max"]] = "max"
