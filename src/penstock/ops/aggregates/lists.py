"""`collect`, `frequent` and `quantile`: of a group's values in order, which are kept one by one."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.errors import FlowError
from penstock.ops.aggregates.function import (
    Function,
    Kept,
    Part,
    Ranks,
    Rows,
    check_number,
    check_plain,
)
from penstock.state.layout import Value, order_codes, take

__all__ = ["Collect", "CollectDescending", "Frequencies", "Frequent", "Quantile"]

COLLECT_MAX: Final = 100_000  # values of a list: a row that changes is written whole


class Collect(Function):
    """The first values of a column as a list, in the order of another column, or their own.

    The parameter is how many at most. NULLs are skipped; without values the list is NULL.
    """

    kind: ClassVar[str] = "collect"
    parametric: ClassVar[bool] = True
    descending: ClassVar[bool] = False

    def __post_init__(self) -> None:
        limit = self.parameter
        if not isinstance(limit, int) or not 1 <= limit <= COLLECT_MAX:
            raise FlowError(f"expected a limit of 1 to {COLLECT_MAX} values; found {limit!r}")
        if self.column is None:
            raise FlowError(f"expected {self.kind} of a column; found none. Name one")
        for column in (self.column, self.by):
            if column is not None:
                check_plain(column, self.kind)

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.list_(self.of.type)

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        kept = Kept((self.of,) if self.by is None else (self.of, self.by))
        value = Value(self._name, self.type, "single")
        return (Part(value, self._lift, kept, ends=self._ends),)

    @property
    def _ends(self) -> int:
        """How many values are looked at; see `Part`."""
        assert isinstance(self.parameter, int), "checked when it was made"
        return -self.parameter if self.descending else self.parameter

    @property
    def _name(self) -> str:
        names = [one and one.name for one in (self.column, self.by)]
        return f"${self.kind}.{names!r}.{self.parameter}"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        assert isinstance(self.parameter, int), "checked when it was made"
        column = rows.columns[self.of.name]
        by = [] if self.by is None else [order_codes(rows.columns[self.by.name])]
        keys = [*by, order_codes(column)]
        order, before, _ = _sorted(rows, [~key for key in keys] if self.descending else keys)
        taken = np.clip(self.parameter - before, 0, _weights(rows)[order])
        values = take(column, pa.array(np.repeat(order, taken)))
        sizes = np.bincount(rows.ids[order], weights=taken, minlength=rows.groups)
        offsets: Any = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        missing: Any = pa.array(sizes == 0)
        return [pa.ListArray.from_arrays(offsets, values, type=self.type, mask=missing)]


class CollectDescending(Collect):
    """The same in descending order."""

    kind: ClassVar[str] = "collect_descending"
    descending: ClassVar[bool] = True


class Frequent(Collect):
    """The most frequent values of a column, the most frequent first; of equally frequent ones the least.

    The parameter is how many at most. NULLs are skipped; without values the list is NULL.
    """

    kind: ClassVar[str] = "frequent"

    def __post_init__(self) -> None:
        if self.by is not None:
            raise FlowError(f"expected {self.kind} of one column; found {self.by.name!r} as well")
        super().__post_init__()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        assert isinstance(self.parameter, int), "checked when it was made"
        value = Value(self._name, self.type, "single")
        return (Part(value, self._lift, Kept((self.of,)), often=self.parameter),)

    def _lift(self, rows: Rows) -> list[pa.Array]:
        assert isinstance(self.parameter, int), "checked when it was made"
        column = rows.columns[self.of.name]
        if not len(column):
            return [pa.array([None] * rows.groups, self.type)]
        keys = order_codes(column)
        order = np.lexsort((keys, rows.ids))
        ids, keys = rows.ids[order], keys[order]
        begins = np.flatnonzero(
            np.concatenate([[True], (ids[1:] != ids[:-1]) | (keys[1:] != keys[:-1])])
        )
        counts = np.add.reduceat(_weights(rows)[order], begins)
        ids, order = ids[begins], order[begins]
        best = np.lexsort((keys[begins], -counts, ids))
        ids = ids[best]
        rank = np.arange(len(ids)) - np.searchsorted(ids, ids)
        best = best[rank < self.parameter]
        sizes = np.bincount(ids[rank < self.parameter], minlength=rows.groups)
        offsets: Any = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        missing: Any = pa.array(sizes == 0)
        values = self._shown(column, order[best], counts[best])
        return [pa.ListArray.from_arrays(offsets, values, type=self.type, mask=missing)]

    @staticmethod
    def _shown(column: pa.Array, rows: Vector, counts: Vector) -> pa.Array:  # noqa: ARG004
        return take(column, pa.array(rows))


class Frequencies(Frequent):
    """How often these values are there, in the same order."""

    kind: ClassVar[str] = "frequencies"

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.list_(pa.int64())

    @staticmethod
    def _shown(column: pa.Array, rows: Vector, counts: Vector) -> pa.Array:  # noqa: ARG004
        return vectors.from_int64(np.ascontiguousarray(counts))


class Quantile(Function):
    """The value below which a share of a column's values lies, between two values if need be.

    The parameter is the share, 0 to 1. As `quantile_cont` in SQL; NULL without values.
    """

    kind: ClassVar[str] = "quantile"
    parametric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        share = self.parameter
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise FlowError(f"expected a share of 0 to 1, such as 0.95; found {share!r}")
        if self.column is None or self.by is not None:
            raise FlowError(f"expected {self.kind} of one column; found {self.by or 'none'}")
        check_number(self.of, self.kind)

    @property
    def type(self) -> pa.DataType:
        """See `Function`."""
        return pa.float64()

    def parts(self, *, retracts: bool) -> tuple[Part, ...]:  # noqa: ARG002
        """See `Function`."""
        value, ranks = Value(self._name, self.type, "single"), Ranks(self._ranks, self._between)
        return (Part(value, self._lift, Kept((self.of,)), ranks=ranks),)

    @property
    def _name(self) -> str:
        return f"$quantile.{self.of.name!r}.{self.parameter}"

    def _lift(self, rows: Rows) -> list[pa.Array]:
        column = rows.columns[self.of.name]
        order, _, ends = _sorted(rows, [order_codes(column)])
        values = vectors.raw(column).astype(np.float64)[order]
        summed = np.bincount(rows.ids, weights=_weights(rows), minlength=rows.groups)
        count = summed.astype(np.int64)
        base = np.cumsum(count) - count
        some = np.flatnonzero(count)
        wanted = base[some, None] + self._ranks(count)[some]
        found = np.zeros((rows.groups, 2))
        found[some] = values[np.searchsorted(ends, wanted, side="right")]
        return self._between(count, found)

    def _ranks(self, count: Vector) -> Vector:
        """The ranks of the two values that the share lies between; of no values, anything."""
        at = self._at(count)
        return np.stack([np.floor(at), np.ceil(at)], axis=1).astype(np.int64)

    def _between(self, count: Vector, values: Vector) -> list[pa.Array]:
        at, (low, high) = self._at(count), values.T
        with np.errstate(invalid="ignore", over="ignore"):
            between = low + (high - low) * (at - np.floor(at))
        return [pa.array(np.where(low == high, low, between), mask=count == 0)]

    def _at(self, count: Vector) -> Vector:
        assert isinstance(self.parameter, int | float), "checked when it was made"
        return np.asarray((np.maximum(count, 1) - 1) * float(self.parameter))


def _weights(rows: Rows) -> Vector:
    return np.ones(len(rows.ids), np.int64) if rows.weights is None else rows.weights


def _sorted(rows: Rows, keys: list[Vector]) -> tuple[Vector, Vector, Vector]:
    """Rows sorted by group and then by keys, each as often as its weight says.

    Returns:
        The order; how many rows of its group come before each; and how many of all, it included.
    """
    order = np.lexsort([*reversed(keys), rows.ids])
    weights, ids = _weights(rows)[order], rows.ids[order]
    ends = np.cumsum(weights)
    count = np.bincount(rows.ids, weights=_weights(rows), minlength=rows.groups)
    base = (np.cumsum(count) - count).astype(np.int64)
    return order, ends - weights - base[ids], ends
