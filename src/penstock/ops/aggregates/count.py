"""`count`: of rows, or of a column's values."""

from __future__ import annotations

from typing import ClassVar, Final

import pyarrow as pa

from penstock.errors import FlowError
from penstock.ops.aggregates.function import COUNT, Function, Part, count_of, count_rows, counted
from penstock.state.layout import Value

__all__ = ["ROWS", "Count"]

ROWS: Final = Part(Value(COUNT, pa.int64(), "sum"), count_rows)
"""Every partial row has it: a group without rows is none."""


class Count(Function):
    """The number of rows, or of a column's values that aren't NULL."""

    kind: ClassVar[str] = "count"
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.by is not None:
            raise FlowError(f"expected count of one column; found {self.by.name!r} as well")

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.int64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        return () if self.column is None else counted(self.column)

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """See `Function`."""
        return full.column(COUNT) if self.column is None else count_of(full, self.column)
