"""`arg_min` and `arg_max`: the value of the row that is least or greatest by another column.

Of rows that are equal in that, `arg_min` takes the least value and `arg_max` the greatest, so that the
result doesn't depend on the order of rows. Rows that are NULL in either column are skipped.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa

from penstock.errors import FlowError
from penstock.ops.aggregates.function import Column, Function, Kept, Part, check_plain
from penstock.state.layout import Value, pick_pair

__all__ = ["ArgMax", "ArgMin"]


class Arg(Function):
    """The value of the least or the greatest pair (by, value)."""

    reduce: ClassVar[Literal["first", "last"]]

    def __post_init__(self) -> None:
        if self.column is None or self.by is None:
            raise FlowError(f"expected {self.kind} of a column by another; found one alone")
        check_plain(self.column, self.kind)
        check_plain(self.by, self.kind)

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return self.of.type

    @property
    def order(self) -> Column:
        """What it is least or greatest by."""
        assert self.by is not None, "checked when it was made"
        return self.by

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """See `Function`."""
        column, by, reduce = self.of, self.order, self.reduce
        value = Value(self._name, column.type, reduce, by=by.type)
        return (
            Part(
                value,
                lambda rows: pick_pair(
                    rows.columns[column.name], rows.columns[by.name], reduce, rows.ids, rows.groups
                ),
                Kept((column, by)) if retracts else None,
                ends=1 if reduce == "first" else -1,
            ),
        )

    @property
    def _name(self) -> str:
        return f"${self.kind}.{self.of.name!r}.{self.order.name!r}"


class ArgMin(Arg):
    """The value of the row that is least by another column."""

    kind: ClassVar[str] = "arg_min"
    reduce: ClassVar[Literal["first", "last"]] = "first"


class ArgMax(Arg):
    """The value of the row that is greatest by another column."""

    kind: ClassVar[str] = "arg_max"
    reduce: ClassVar[Literal["first", "last"]] = "last"
