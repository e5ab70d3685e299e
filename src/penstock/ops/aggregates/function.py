"""What an aggregate function is: columns of state, how rows become them, how they become a result.

    result(combine(lift(a), lift(b))) = the aggregate of the rows a ++ b

Partial rows hold its *parts*, each a column (or two) that knows how to combine (`Value.reduce`). A part is
lifted from the rows as they come, if partial columns can be combined and rows can be taken back from
them. A part that can't is lifted from the group's values, which are kept one by one with their weights
(`Kept`), when the view is read.

A new function is a file next to this one and a line in the registry (`penstock.ops.aggregates`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.state import kernels
from penstock.state.layout import Value

__all__ = ["COUNT", "Column", "Function", "Kept", "Lift", "Parameter", "Part", "Ranks", "Rows"]

COUNT: Final = "$n"  # rows of a group: in every partial row


@dataclass(frozen=True)
class Column:
    """A column of the input.

    Args:
        name: of the column.
        type: its Arrow type.
        required: whether no row may have NULL there, which saves counting NULLs.
    """

    listed: ClassVar = True  # in specs

    name: str
    type: pa.DataType
    required: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows of some groups.

    Attributes:
        columns: of the rows, by name.
        weights: int64[rows]; None where each counts once.
        ids: int32[rows], the number of each row's group.
        groups: how many there are.
    """

    columns: Mapping[str, pa.Array]
    weights: Vector | None
    ids: Vector
    groups: int


@dataclass(frozen=True)
class Kept:
    """Columns whose values are kept for each group, with their weights; a row that is NULL in one isn't."""

    columns: tuple[Column, ...]


Lift: TypeAlias = Callable[[Rows], list[pa.Array]]
Parameter: TypeAlias = int | float | tuple[int, ...]


@dataclass(frozen=True)
class Ranks:
    """Of a group's values in their order, those that a part is made of.

    Attributes:
        of: says which, by the number of values: int64[groups] -> int64[groups, ranks], from 0.
        made: makes the part's columns of the numbers of values, and of float64[groups, ranks].
    """

    of: Callable[[Vector], Vector]
    made: Callable[[Vector, Vector], list[pa.Array]]


@dataclass(frozen=True)
class Part:
    """What an aggregate needs of a group.

    Attributes:
        value: its columns in partial rows, and how they combine.
        lift: makes these columns of rows, one row for each group.
        kept: the values that it is lifted from when the view is read; None lifts it from rows as they come.
        ends: how many of these values it needs, in their order: the first ones, or where it is negative the
            last ones; None is all.
        distinct: whether it is the number of values that differ.
        ranks: which values it needs by their ranks, where these are few.
        often: how many of the most frequent values it needs, of equally frequent ones the least.
    """

    value: Value
    lift: Lift
    kept: Kept | None = None
    ends: int | None = None
    distinct: bool = False
    ranks: Ranks | None = None
    often: int | None = None


@dataclass(frozen=True)
class Function(ABC):
    """An aggregate function of a column, or two. Subclasses have no fields of their own.

    Args:
        column: of the input.
        by: the second one.
        parameter: a number, or some, for functions that take one.

    Raises:
        FlowError: on construction, if it can't be computed of these.
    """

    kind: ClassVar[str]
    counts: ClassVar[bool] = False  # its result is never NULL
    parametric: ClassVar[bool] = False  # it takes a parameter
    takes: ClassVar[Literal["ordered", "numbers", "any"]] = "any"  # what the column has

    column: Column | None = None
    by: Column | None = None
    parameter: Parameter | None = None

    def __post_init__(self) -> None:
        if self.column is None:
            raise FlowError(f"expected {self.kind} of a column; found none. Name one")
        if self.by is not None:
            raise FlowError(f"expected {self.kind} of one column; found {self.by.name!r} as well")
        match self.takes:
            case "ordered":
                check_plain(self.of, self.kind)
            case "numbers":
                check_number(self.of, self.kind)
            case "any":
                pass

    @property
    def of(self) -> Column:
        """The column, which most functions must have."""
        assert self.column is not None, "checked when it was made"
        return self.column

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """The type of the result."""

    @abstractmethod
    def parts(self, *, retracts: bool) -> tuple[Part, ...]:
        """What is kept of a group.

        Args:
            retracts: whether rows may be taken back.
        """

    def result(self, full: pa.RecordBatch) -> pa.Array:
        """The result of each group, of rows that have all parts and `COUNT`: by default its only part."""
        [part] = self.parts(retracts=False)
        return full.column(part.value.name)


def check_number(column: Column, kind: str) -> None:
    """Refuses what isn't a number.

    Raises:
        FlowError: the message says what it is.
    """
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_decimal(column.type)
        or vectors.is_float(column.type)
    ):
        raise FlowError(
            f"expected a column of numbers for {kind}({column.name}); found {column.type}"
        )


def check_plain(column: Column, kind: str) -> None:
    """Refuses what has no order.

    Raises:
        FlowError: the message says what it is.
    """
    if not (vectors.is_fixed(column.type) or vectors.is_text(column.type)):
        raise FlowError(
            f"expected a column that can be ordered for {kind}({column.name}); found {column.type}"
        )


def check_kept(
    column: Column,
    kind: str,
    *,
    retracts: bool,
    instead: str = "Take it of the stream, or of closed() windows",
) -> None:
    """Refuses rows that may be taken back, for what can't be un-aggregated.

    Raises:
        FlowError: the message says what to write instead.
    """
    if retracts:
        raise FlowError(
            f"expected rows without retractions for {kind}({column.name}); found a table, or windows "
            f"that are corrected. {instead}"
        )


def count_rows(rows: Rows, column: Column | None = None) -> list[pa.Array]:
    """How many rows, or values of a column, each group has."""
    out = np.empty(rows.groups, np.int64)
    valid = None if column is None else vectors.validity(rows.columns[column.name])
    kernels.count_valid(valid, rows.weights, rows.ids, out)
    return [vectors.from_int64(out)]


def counted(column: Column) -> tuple[Part, ...]:
    """The count of a column's values: none where no row may be NULL, as there is a count of rows."""
    if column.required:
        return ()
    value = Value(f"$count.{column.name}", pa.int64(), "sum")
    return (Part(value, lambda rows: count_rows(rows, column)),)


def count_of(full: pa.RecordBatch, column: Column) -> pa.Array:
    """The count of a column's values in each group."""
    return full.column(COUNT if column.required else f"$count.{column.name}")


def where_some(full: pa.RecordBatch, column: Column, result: pa.Array, least: int = 1) -> pa.Array:
    """A result; NULL where there are too few values for one."""
    if column.required and least == 1:
        return result
    count = count_of(full, column)
    if (count.to_numpy() >= least).all():  # as in most views
        return result
    enough = pc.greater_equal(count, pa.scalar(least))
    chosen: pa.Array = pc.if_else(enough, result, pa.scalar(None, result.type))
    return chosen
