"""Aggregates of other distributions: functions of the list of a group's values, which are kept one by one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.schema import type_text
from penstock.errors import FlowError
from penstock.expr.functions import AggregateFunction
from penstock.ops.aggregates.function import Function, Kept, Part, Rows
from penstock.state.layout import Value, take

__all__ = ["Foreign", "foreign"]


class Foreign(Function):
    """A function that declares itself; see `penstock.expr.functions`."""

    declared: ClassVar[AggregateFunction]

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = self.declared.types[0]
        if self.of.type != expected:
            raise FlowError(
                f"expected a column of {type_text(expected)} for {self.kind}({self.of.name}); found "
                f"{type_text(self.of.type)}. Convert it: CAST({self.of.name} AS {type_text(expected)})"
            )

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return self.declared.types[1]

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002 - values are kept
        """See `Function`."""
        return (Part(Value(self._name, self.type, "single"), self._lift, Kept((self.of,))),)

    @property
    def _name(self) -> str:
        return f"${self.kind}.{self.of.name}"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column = rows.columns[self.of.name]
        counts = np.ones(len(column), np.int64) if rows.weights is None else rows.weights
        order = np.argsort(rows.ids, kind="stable")
        values = take(column, pa.array(np.repeat(order, counts[order])))
        sizes = np.bincount(rows.ids, weights=counts, minlength=rows.groups)
        offsets: Any = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        lists: Any = pa.ListArray.from_arrays(offsets, values, type=pa.list_(self.of.type))
        return [self.declared.of_lists(lists)]


def foreign(declared: AggregateFunction) -> type[Foreign]:
    """The class of a function."""
    return type(declared.name, (Foreign,), {"kind": declared.name, "declared": declared})
