"""Window functions over rows in order: what each keeps of the rows before, and its value.

A function is one of three kinds.

    at an offset       lag and lead: the row so many before or after
    bounded            an aggregate over ROWS between fixed offsets
    running            an aggregate over all rows up to this one (ROWS) or its last peer (RANGE), and ranks

The last kind keeps *totals* with each row: of rows up to it, in order. So the values of later rows are found
from the totals of one row and the rows behind it, whatever lies before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector, from_int64
from penstock.ops.codec import FLAT, Name
from penstock.ops.over import kernels
from penstock.state.layout import ranks, take

__all__ = ["Frame", "Function", "Kind", "Rows", "Total", "totals_of"]

Kind = Literal[
    "row_number", "rank", "dense_rank", "lag", "count", "sum", "avg", "min", "max", "first", "last", "nth"
]  # fmt: skip
KINDS: Final = get_args(Kind)
RANKS: Final = ("row_number", "rank", "dense_rank")
_LOW: Final = np.int64(0xFFFFFFFF)

INTEGER: Final = pa.int64()

TotalKind = Literal["rows", "peers", "valid", "high", "low", "float", "min", "max", "first", "nth"]


@dataclass(frozen=True)
class Frame:
    """The rows that an aggregate is over.

    Attributes:
        bounds: the first and the last row, as offsets from the row itself; None is all rows up to it.
        peers: whether rows that are equal to it in the order are among these.
    """

    bounds: Annotated[tuple[int, int] | None, Name("frame")] = None
    peers: bool = False


@dataclass(frozen=True)
class Total:
    """What is kept with each row of the rows up to it.

    Attributes:
        kind: how many rows or different places in the order there are, how many values, their sum in two
            parts of 32 bits or as a double, or one of the values.
        column: of the values.
        n: which of them.
        type: of the column that keeps it.
    """

    kind: TotalKind
    column: str = ""
    n: int = 0
    type: pa.DataType = INTEGER

    @property
    def name(self) -> str:
        """Of the column that keeps it."""
        return f"$ {self.kind} {self.n or ''} {self.column}"


@dataclass(frozen=True)
class Function:
    """A window function.

    Attributes:
        name: of its column.
        kind: what it computes.
        column: what it is over; empty for `count` of all rows, and for ranks.
        frame: for aggregates.
        n: the offset of `lag`, below 0 for a row behind; which value `nth` takes, from 1.
        default: for `lag`, the column that it gives where there is no such row; empty is NULL.
    """

    name: str
    kind: Kind
    column: str = ""
    frame: Annotated[Frame, FLAT] = Frame(peers=True)
    n: int = 0
    default: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS

    @property
    def before(self) -> int:
        """How many rows before it a value depends on, in addition to totals."""
        if self.kind == "lag":
            return max(self.n, 0)
        return max(-self.frame.bounds[0], 0) if self.frame.bounds is not None else 0

    @property
    def after(self) -> int:
        """How many rows behind it a value depends on."""
        if self.kind == "lag":
            return max(-self.n, 0)
        return max(self.frame.bounds[1], 0) if self.frame.bounds is not None else 0

    def totals(self, schema: pa.Schema) -> list[Total]:
        """What it keeps with each row; `schema` is that of the rows."""
        if self.kind == "lag" or self.frame.bounds is not None:
            return []
        type_ = schema.field(self.column).type if self.column else pa.int64()
        match self.kind:
            case "row_number" | "rank":
                return [Total("rows")]
            case "dense_rank":
                return [Total("peers")]
            case "count":
                return [Total("valid", self.column) if self.column else Total("rows")]
            case "sum" | "avg":
                valid = Total("valid", self.column)
                if vectors.is_float(type_):
                    return [valid, Total("float", self.column, type=pa.float64())]
                return [valid, Total("high", self.column), Total("low", self.column)]
            case "min" | "max" | "first":
                return [Total(self.kind, self.column, type=type_)]
            case "nth":
                return [Total("rows"), Total("nth", self.column, self.n, type_)]
            case _:  # the last value is a row's own, or that of its last peer
                return []


def totals_of(functions: Iterable[Function], schema: pa.Schema) -> tuple[Total, ...]:
    """What functions keep, each once."""
    return tuple(dict.fromkeys(total for one in functions for total in one.totals(schema)))


@dataclass(frozen=True)
class Rows:
    """Rows in order, in stretches that follow one another in their groups.

    Attributes:
        rows: columns of the rows.
        lo: int64[n], the first row of each one's stretch.
        hi: int64[n], the row after its last one.
        peers: bool[n], whether a row differs from the one before in the order; a stretch begins with one
            that does.
        base: int64[n], where totals begin again: the row of `before` whose totals they continue, or -1 at
            the beginning of a group; elsewhere -2.
        kept: int64[n], of rows before these in their stretches: the row of `before` that has their totals;
            elsewhere -1.
        before: columns with totals.
    """

    rows: pa.RecordBatch
    lo: Vector
    hi: Vector
    peers: Vector
    base: Vector
    kept: Vector
    before: pa.RecordBatch

    def totals(self, wanted: Iterable[Total]) -> dict[Total, pa.Array]:
        """What is kept with each row, by its name."""
        found: dict[Total, pa.Array] = {}
        begins = (self.base != -2).any()
        for total in wanted:
            made = self._total(total) if begins else pa.array([None] * len(self.rows), total.type)
            if (self.kept >= 0).any():
                both = pa.concat_arrays([made, self.before.column(total.name)])
                at = np.where(self.kept >= 0, self.kept + len(made), np.arange(len(made)))
                made = take(both, from_int64(at))
            found[total] = made
        return found

    def values(self, function: Function, totals: Mapping[Total, pa.Array]) -> pa.Array:
        """A function's values."""
        if function.kind == "lag":
            return self._lag(function)
        if function.frame.bounds is not None:
            return self._bounded(function, function.frame.bounds)
        column = function.column
        at = self._last_peers if function.frame.peers else np.arange(len(self.rows))

        def total(kind: TotalKind) -> pa.Array:
            [one] = [one for one in function.totals(self.rows.schema) if one.kind == kind]
            return totals[one]

        match function.kind:
            case "row_number":
                return total("rows")
            case "rank":
                return take(total("rows"), from_int64(self._first_peers))
            case "dense_rank":
                return total("peers")
            case "count":
                return take(total("valid" if column else "rows"), from_int64(at))
            case "sum" | "avg":
                valid = vectors.raw(total("valid"))[at]
                if vectors.is_float(self.rows.column(column).type):
                    return _quotient(function, vectors.raw(total("float"))[at], valid)
                high, low = vectors.raw(total("high"))[at], vectors.raw(total("low"))[at]
                return _of_parts(function, high, low, valid)
            case "last":
                return take(self.rows.column(column), from_int64(at))
            case "min" | "max" | "first" | "nth":
                return take(total(function.kind), from_int64(at))
            case _:
                raise AssertionError(function.kind)

    # -- totals -------------------------------------------------------------------------------------

    def _total(self, total: Total) -> pa.Array:
        """Of the rows from `base` on; others have any value."""
        match total.kind:
            case "rows":
                return self._counted(total, np.ones(len(self.rows), np.int64))
            case "peers":
                return self._counted(total, self.peers.astype(np.int64))
            case "valid":
                return self._counted(total, self._valid(total.column).astype(np.int64))
            case "high":
                return self._counted(total, self._integers(total.column) >> 32)
            case "low":
                return self._counted(total, self._integers(total.column) & _LOW)
            case "float":
                x = np.concatenate([self._floats(total.column), vectors.raw(self._kept(total))])
                out = np.empty(len(self.rows))
                kernels.running_sums(x, self._valid(total.column), self._behind, out)
                return pa.array(out)
            case "min" | "max":
                both = pa.concat_arrays([self.rows.column(total.column), self._kept(total)])
                sign = 1 if total.kind == "min" else -1
                at = np.empty(len(self.rows), np.int64)
                kernels.running_extremes(_codes(both), _valid(both), sign, self._behind, at)
                return take(both, _rows(at))
            case "first" | "nth":
                nth = total.n - 1 if total.kind == "nth" else 0
                return self._nth(total, nth)

    def _nth(self, total: Total, nth: int) -> pa.Array:
        """The value of the row of that number in its group, from 0, once it is there."""
        n = len(self.rows)
        base = self.base[self.base != -2][self._begins]
        if total.kind == "first":
            before = np.where(base >= 0, 1, 0)
        else:
            counted = np.append(vectors.raw(self.before.column(Total("rows").name)), 0)
            before = np.where(base >= 0, counted[base], 0)
        first = np.flatnonzero(self.base != -2)[self._begins]
        row = first + nth - before
        at = np.where(before > nth, n + base, np.where(row <= np.arange(n), row, -1))
        both = pa.concat_arrays([self.rows.column(total.column), self._kept(total)])
        return take(both, _rows(at))

    def _counted(self, total: Total, x: Vector) -> pa.Array:
        """Sums that continue those before."""
        base = self.base[self.base != -2]
        start = np.where(base >= 0, np.append(vectors.raw(self._kept(total)), 0)[base], 0)
        sums = np.cumsum(x)
        first = np.flatnonzero(self.base != -2)
        return from_int64(sums + (start - (sums - x)[first])[self._begins])

    def _kept(self, total: Total) -> pa.Array:
        return self.before.column(total.name)

    @cached_property
    def _begins(self) -> Vector:
        """int64[n]: the number of each row's beginning among all; of rows before the first one, 0."""
        return np.asarray(np.maximum(np.cumsum(self.base != -2) - 1, 0))

    @cached_property
    def _behind(self) -> Vector:
        """`base`, where what was before lies behind the rows."""
        return np.where(self.base >= 0, self.base + len(self.rows), self.base)

    # -- frames -------------------------------------------------------------------------------------

    def _lag(self, function: Function) -> pa.Array:
        n = len(self.rows)
        at = np.arange(n) - function.n
        there = (at >= self.lo) & (at < self.hi)
        column = self.rows.column(function.column)
        if not function.default:
            return take(column, _rows(np.where(there, at, -1)))
        both = pa.concat_arrays([column, self.rows.column(function.default)])
        return take(both, from_int64(np.where(there, at, np.arange(n) + n)))

    def _bounded(self, function: Function, bounds: tuple[int, int]) -> pa.Array:
        here = np.arange(len(self.rows))
        lo = np.clip(here + bounds[0], self.lo, self.hi)
        hi = np.maximum(np.clip(here + bounds[1] + 1, self.lo, self.hi), lo)
        column = function.column
        match function.kind:
            case "count":
                return from_int64(self._frame_counts(column, lo, hi))
            case "sum" | "avg":
                valid = self._frame_counts(column, lo, hi)
                if vectors.is_float(self.rows.column(column).type):
                    sums = np.empty(len(here))
                    kernels.frame_sums(self._floats(column), self._valid(column), lo, hi, sums)
                    return _quotient(function, sums, valid)
                x = self._integers(column)
                high, low = (_of_ranges(part, lo, hi) for part in (x >> 32, x & _LOW))
                return _of_parts(function, high, low, valid)
            case "min" | "max":
                values = self.rows.column(column)
                at = np.empty(len(here), np.int64)
                sign = 1 if function.kind == "min" else -1
                kernels.frame_extremes(_codes(values), _valid(values), sign, lo, hi, at)
            case "first":
                at = np.where(lo < hi, lo, -1)
            case "last":
                at = np.where(lo < hi, hi - 1, -1)
            case "nth":
                at = np.where(lo + function.n - 1 < hi, lo + function.n - 1, -1)
            case _:
                raise AssertionError(function.kind)
        return take(self.rows.column(column), _rows(at))

    def _frame_counts(self, column: str, lo: Vector, hi: Vector) -> Vector:
        return _of_ranges(self._valid(column).astype(np.int64), lo, hi) if column else hi - lo

    @cached_property
    def _first_peers(self) -> Vector:
        """int64[n]: the first row that equals each in the order."""
        here = np.arange(len(self.rows))
        return np.maximum.accumulate(np.where(self.peers, here, 0)) if len(here) else here

    @cached_property
    def _last_peers(self) -> Vector:
        """int64[n]: the last one."""
        ends = np.append(np.flatnonzero(self.peers)[1:], len(self.rows)) - 1
        return np.asarray(ends[np.cumsum(self.peers) - 1])

    # -- columns ------------------------------------------------------------------------------------

    def _valid(self, column: str) -> Vector:
        return _valid(self.rows.column(column))

    def _integers(self, column: str) -> Vector:
        """0 where NULL."""
        return np.where(
            self._valid(column), vectors.raw(self.rows.column(column)).astype(np.int64), 0
        )

    def _floats(self, column: str) -> Vector:
        return vectors.raw(self.rows.column(column)).astype(np.float64)


def _valid(column: pa.Array) -> Vector:
    valid = vectors.validity(column)
    return np.ones(len(column), np.bool_) if valid is None else valid


def _codes(column: pa.Array) -> Vector:
    """int64[n] of the order of the values."""
    if vectors.is_fixed(column.type):
        return vectors.codes(column)
    return ranks([column], len(column))


def _of_ranges(x: Vector, lo: Vector, hi: Vector) -> Vector:
    """Sums of ranges."""
    sums = np.concatenate([[0], np.cumsum(x)])
    return np.asarray(sums[hi] - sums[lo])


def _of_parts(function: Function, high: Vector, low: Vector, valid: Vector) -> pa.Array:
    """A sum or an average of integers, from the sums of their upper and lower 32 bits."""
    high, low = high + (low >> 32), low & _LOW
    if function.kind == "avg":
        return _quotient(function, high * 2.0**32 + low, valid)
    fits = (high >= -(2**31)) & (high < 2**31) & (valid > 0)
    sums = (np.where(fits, high, 0) << 32) | low
    out: pa.Array = pa.array(sums, mask=~fits)
    return out


def _quotient(function: Function, sums: Vector, valid: Vector) -> pa.Array:
    """A sum or an average of doubles."""
    if function.kind == "avg":
        sums = sums / np.maximum(valid, 1)
    out: pa.Array = pa.array(sums, mask=valid == 0)
    return out


def _rows(at: Vector) -> pa.Array:
    """Numbers of rows; NULL where they are below 0."""
    out: pa.Array = pa.array(at, mask=at < 0)
    return out
