"""`count_distinct`: exact, of values that are kept one by one.

Counts of panes can't be added up, as a value may be in several panes of a window; nor can a count show
whether a value that comes is new. So each value is kept, and the view counts them where it is read. A batch
whose changes are asked for looks at the values that it brings (`penstock.ops.reading.values`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.ops.aggregates.function import Function, Kept, Part, Rows
from penstock.state.layout import Value

__all__ = ["CountDistinct"]


class CountDistinct(Function):
    """How many different values a column has; NULL is none."""

    kind: ClassVar[str] = "count_distinct"
    counts: ClassVar[bool] = True
    takes: ClassVar = "ordered"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.int64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        column = self.of
        value = Value(f"$distinct.{column.name}", pa.int64(), "sum")
        lift = lambda rows: [_distinct(rows, rows.columns[column.name])]  # noqa: E731
        return (Part(value, lift, Kept((column,)), distinct=True),)


def _distinct(rows: Rows, column: pa.Array) -> pa.Array:
    """The values of each group, none of which is NULL; Arrow's hash table is faster than a sort."""
    table = pa.table({"group": pa.array(rows.ids), "value": column})
    counted = table.group_by("group", use_threads=False).aggregate([("value", "count_distinct")])
    found = np.zeros(rows.groups, np.int64)
    found[counted["group"].to_numpy()] = counted["value_count_distinct"].to_numpy()
    return vectors.from_int64(found)
