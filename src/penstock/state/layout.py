"""Layout: the columns of a trace, and how rows of one identity become one row.

Order of a run: by `$window`, `$hash`, the keys, the order, the tie. A row's identity is all of these; no two
rows of a run share it. Values combine by sum, min or max, so combining is commutative and associative:

    combine(a ++ b) = combine(combine(a) ++ combine(b))

which is what lets runs be merged at any time and in any grouping. Sums of doubles carry the rounding
error in a second column (`~`) and are exact but for the 106th bit.

Two different keys may share window and hash. The kernels work on (window, hash) alone and the keys are then
compared; where they differ, the work is done again with dense ranks of the full keys as tie. With a
64-bit hash that happens about never, but it is as right as the fast way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.sketches import theta
from penstock.core.vectors import Vector
from penstock.state import kernels
from penstock.state.kernels import grouping
from penstock.state.sketches import merged

WINDOW: Final = "$window"  # int64, microseconds: where the window or pane begins
HASH: Final = "$hash"  # int64: of the keys
ERROR_SUFFIX: Final = "~"  # the rounding error of the column before it
TAKEN_ROWS_MIN: Final = 4_096
"""Rows of which a part is taken to be compared; taking it from fewer costs more than comparing all."""
BY_SUFFIX: Final = "^"  # what the column before it is chosen by


@dataclass(frozen=True)
class Value:
    """Columns that are combined.

    A sum is BIGINT (modulo 2**64) or DOUBLE and never NULL; the others may be NULL.

    Args:
        name: of the first column.
        type: of the first column.
        reduce: how: `sum`, `min`, `max`; `first` and `last` take the least or greatest pair of a second
            column (type `by`) and the first; `single` is a value that one row of a group has;
            `registers`, `histogram` and `bits` are sketches (`penstock.state.sketches`), and so is `theta`
            (`penstock.core.sketches.theta`).
        by: type of the second column.
    """

    name: str
    type: pa.DataType
    reduce: Literal[
        "sum", "min", "max", "first", "last", "single", "registers", "histogram", "bits", "theta"
    ]
    by: pa.DataType | None = None

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Its columns in a run."""
        value = pa.field(self.name, self.type)
        if self.precise:
            return (value, pa.field(self.name + ERROR_SUFFIX, pa.float64()))
        if self.by is not None:
            return (value, pa.field(self.name + BY_SUFFIX, self.by))
        return (value,)

    @property
    def precise(self) -> bool:
        """Whether a column of rounding errors stands next to it."""
        return self.reduce == "sum" and vectors.is_float(self.type)


@dataclass(frozen=True)
class Layout:
    """The columns of a trace.

    Args:
        keys: the columns that `$hash` is the hash of.
        values: the columns that are combined.
        tie: a further column of the identity, not hashed; None where keys and window are all of it.
        count: the value whose 0 means that nothing is left of a row.
        carried: further columns of the identity that the tie is a hash of.
        order: a column of int64 that comes before the tie, of rows that are read in some order. There is a
            tie, then. With `carried`, which the tie is a hash of, it follows from these.
        exact: whether different keys always have different hashes, as long as none is NULL. So it is
            for one column of numbers, as `hash_columns` permutes 64-bit numbers.
    """

    keys: tuple[pa.Field, ...]
    values: tuple[Value, ...]
    tie: pa.Field | None = None
    count: str = "$n"
    carried: tuple[pa.Field, ...] = ()
    order: pa.Field | None = None
    exact: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a run, in order."""
        fields = [pa.field(WINDOW, pa.int64()), pa.field(HASH, pa.int64()), *self.identity]
        for value in self.values:
            fields += value.fields
        return pa.schema(fields)

    @cached_property
    def identity(self) -> tuple[pa.Field, ...]:
        """What distinguishes rows of one window and hash."""
        if self.tie is None:
            return self.keys
        order = () if self.order is None else (self.order,)
        return (*self.keys, *order, self.tie, *self.carried)

    def empty(self) -> pa.RecordBatch:
        """No rows."""
        return self._empty

    @cached_property
    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self.schema)

    def ties(self, batch: pa.RecordBatch) -> Vector | None:
        """The tie of each row, as long as no two keys share window and hash."""
        if self.tie is None:
            return None
        if vectors.is_text(self.tie.type):
            return self.ranks(batch)
        return vectors.codes(batch.column(self.tie.name))

    def orders(self, batch: pa.RecordBatch) -> Vector | None:
        """The order of each row, as long as no two keys share window and hash."""
        return None if self.order is None else vectors.raw(batch.column(self.order.name))

    def ranks(self, batch: pa.RecordBatch) -> Vector:
        """Dense ranks of the full identity: the tie where two keys share window and hash."""
        return ranks([batch.column(f.name) for f in self.identity], len(batch))

    def distinct(self, rows: pa.RecordBatch, ids: Vector, first: Vector) -> bool:
        """Whether, in this grouping, window and hash identify all keys, and the tie all else."""
        if self.carried and not alike(rows, [f.name for f in self.carried], ids, first):
            return False
        names = [f.name for f in self.keys]
        if self.exact and not rows.column(names[0]).null_count:
            return True
        if self.tie is not None:
            numbers = np.empty(len(first), np.int32)
            kernels.without_tie(first, windows(rows), hashes(rows), numbers)
            begins = np.ones(len(first), np.bool_)
            begins[1:] = numbers[1:] != numbers[:-1]
            ids, first = numbers[ids], first[begins]
        return alike(rows, names, ids, first)

    def merge(self, batches: Sequence[pa.RecordBatch], *, whole: bool) -> pa.RecordBatch:
        """Merges sorted batches into one.

        Args:
            batches: each sorted, and each identity at most once in each.
            whole: whether the batches hold all there is of these identities; a row whose count is
                0 is then dropped. Otherwise it is dropped only where every sum is 0 too.
        """
        batches = [b for b in batches if len(b)]
        if not batches:
            return self.empty()
        if len(batches) == 1:
            return self.drop_empty(batches[0], whole=whole)
        return self.drop_empty(self.fold(*self.merging(batches)), whole=whole)

    def merging(self, batches: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, Vector, Vector]:
        """All rows of sorted batches, and their grouping by identity: (rows, ids, first)."""
        bounds = np.cumsum([0, *(len(b) for b in batches)], dtype=np.int64)
        rows = concat(batches)
        w, h = windows(rows), hashes(rows)
        ids, first = kernels.merge(w, h, self.orders(rows), self.ties(rows), bounds)
        if not self.distinct(rows, ids, first):
            ids, first = kernels.merge(w, h, None, self.ranks(rows), bounds)
        return rows, ids, first

    def group(self, rows: pa.RecordBatch, *, whole: bool) -> pa.RecordBatch:
        """Sorts rows that are in no order, and combines those of one identity."""
        if not len(rows):
            return rows
        return self.drop_empty(self.fold(rows, *self.grouping(rows)), whole=whole)

    def grouping(self, rows: pa.RecordBatch) -> tuple[Vector, Vector]:
        """The grouping, by identity, of rows that are in no order: (ids, first)."""
        w, h = windows(rows), hashes(rows)
        ids, first = grouping.group(w, h, self.orders(rows), self.ties(rows))
        if not self.distinct(rows, ids, first):
            ids, first = grouping.group(w, h, None, self.ranks(rows))
        return ids, first

    def fold(self, rows: pa.RecordBatch, ids: Vector, first: Vector) -> pa.RecordBatch:
        """One row per group: its identity from the group's first row, its values combined."""
        fixed = rows.select(self._fixed)
        if len(first) == len(rows) and (first == np.arange(len(first))).all():
            columns = fixed.columns
        else:
            columns = taken(fixed, first).columns
        for value in self.values:
            columns += combine(value, rows, ids, len(first))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def padded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with some of the columns, with what says nothing in the others: 0, or NULL."""
        columns = []
        for field in self.schema:
            if field.name in rows.schema.names:
                columns.append(rows.column(field.name))
            elif field.name in self._sums:
                columns.append(pa.array(np.zeros(len(rows), field.type.to_pandas_dtype())))
            else:
                columns.append(pa.nulls(len(rows), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def drop_empty(self, rows: pa.RecordBatch, *, whole: bool) -> pa.RecordBatch:
        """Leaves out what says nothing."""
        names = {v.name for v in self.values}
        if self.count not in names:
            return rows
        keep = vectors.raw(rows.column(self.count)) != 0
        if keep.all():
            return rows
        if not whole:
            for value in self.values:
                column = rows.column(value.name)
                if value.reduce != "sum":
                    keep |= pc.is_valid(column).to_numpy(zero_copy_only=False)
                else:
                    keep |= vectors.raw(column) != 0
        return rows.filter(pa.array(keep))

    @cached_property
    def _sums(self) -> frozenset[str]:
        names = [v.name for v in self.values if v.reduce == "sum"]
        return frozenset([*names, *(name + ERROR_SUFFIX for name in names)])

    @cached_property
    def _fixed(self) -> list[str]:
        return [WINDOW, HASH, *(f.name for f in self.identity)]


def windows(rows: pa.RecordBatch) -> Vector:
    """The `$window` column: int64[n]."""
    return vectors.int64s(rows.column(0))


def hashes(rows: pa.RecordBatch) -> Vector:
    """The `$hash` column: int64[n]."""
    return vectors.int64s(rows.column(1))


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined] # not in stubs


def take(column: pa.Array, rows: pa.Array) -> pa.Array:
    """The column's values at rows; NULL where the row is NULL."""
    return pc.take(column, rows, boundscheck=False)


def taken(rows: pa.RecordBatch, at: Vector) -> pa.RecordBatch:
    """Rows by number: int64[n], none of them NULL. One call for all columns, as each call costs 30 us."""
    found: pa.RecordBatch = pc.take(rows, vectors.from_int64(at), boundscheck=False)
    return found


def alike(rows: pa.RecordBatch, names: Sequence[str], ids: Vector, first: Vector) -> bool:
    """Whether all rows of each group agree in some columns.

    A group's first row does so by itself. Of many rows, where few are others, only these are looked at: they
    are taken, and the first ones of their groups, and compared in one call.
    """
    if len(first) == len(rows):
        return True
    columns = rows.select(names)
    if len(rows) >= TAKEN_ROWS_MIN and 4 * (len(rows) - len(first)) <= len(rows):
        its_first = first[ids]
        others = np.flatnonzero(its_first != np.arange(len(rows)))
        if taken(columns, others).equals(taken(columns, its_first[others])):
            return True  # else they differ, or have a NaN, which isn't equal there
    return all(same(ids, first, column) for column in columns.columns)


def same(ids: Vector, first: Vector, column: pa.Array) -> bool:
    """Whether all rows of each group agree in the column."""
    column = _plain(column)
    valid = vectors.validity(column)
    if vectors.is_text(column.type):
        return kernels.same_text(ids, first, *vectors.text(column), valid)
    return kernels.same_codes(ids, first, vectors.codes(column), valid)


def ranks(columns: Iterable[pa.Array], rows: int) -> Vector:
    """Dense ranks, from 0, of rows by all columns: numbers, then NaN, then NULL."""
    columns = [_plain(column) for column in columns]
    if not columns or not rows:
        return np.zeros(rows, np.int64)
    table = pa.table({str(i): column for i, column in enumerate(columns)})
    by: Any = [(name, "ascending", "at_end") for name in table.column_names]
    order = pc.sort_indices(table, sort_keys=by).to_numpy().astype(np.int64)
    changed = np.zeros(rows, np.bool_)
    for column in columns:
        changed[1:] |= ~equal(column, order[:-1], column, order[1:])
    out = np.empty(rows, np.int64)
    out[order] = np.cumsum(changed)
    return out


def equal(left: pa.Array, at: Vector, right: pa.Array, there: Vector) -> Vector:
    """bool[n]: whether left[at[i]] is right[there[i]]; NULL is NULL, NaN is NaN."""
    left, right = _plain(left), _plain(right)
    plain = not (vectors.is_text(left.type) or left.null_count or right.null_count)
    if plain and left.type in (pa.int64(), pa.timestamp("us", "UTC")):
        return np.asarray(vectors.raw(left)[at] == vectors.raw(right)[there])
    a, b = take(left, pa.array(at)), take(right, pa.array(there))
    if vectors.is_text(a.type):
        alike = pc.equal(a, b).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    else:
        alike = vectors.codes(a) == vectors.codes(b)
    va, vb = vectors.validity(a), vectors.validity(b)
    if va is None and vb is None:
        return np.asarray(alike)
    va = np.ones(len(a), np.bool_) if va is None else va
    vb = np.ones(len(b), np.bool_) if vb is None else vb
    return np.asarray((va == vb) & (~va | alike))


def _plain(column: pa.Array) -> pa.Array:
    """A column that can be compared."""
    return vectors.packed(column) if pa.types.is_nested(column.type) else column


def combine(value: Value, rows: pa.RecordBatch, ids: Vector, groups: int) -> list[pa.Array]:
    """The value's columns, one row per group."""
    column = rows.column(value.name)
    if value.reduce == "first" or value.reduce == "last":
        by = rows.column(value.name + BY_SUFFIX)
        return pick_pair(column, by, value.reduce, ids, groups)
    if value.reduce == "single":
        out = np.empty(groups, np.int64)
        kernels.extreme(np.zeros(len(rows), np.int64), vectors.validity(column), 1, ids, out)
        return [take(column, _rows(out))]
    if value.reduce == "registers" or value.reduce == "histogram" or value.reduce == "bits":
        return [merged(value.reduce, column, ids, groups)]
    if value.reduce == "theta":
        return [theta.merged(column, ids, groups)]
    if value.reduce != "sum":
        return [pick(column, value.reduce, ids, groups)]
    x = vectors.raw(column)
    if not value.precise:
        return [add_integers(x, None, None, ids, groups)]
    error = vectors.raw(rows.column(value.name + ERROR_SUFFIX))
    return add_floats(x, error, None, None, ids, groups)


def add_integers(
    x: Vector, valid: Vector | None, weights: Vector | None, ids: Vector, groups: int
) -> pa.Array:
    """Sums per group, modulo 2**64."""
    out = np.empty(groups, np.int64)
    kernels.sum_integers(x, valid, weights, ids, out)
    return vectors.from_int64(out)


def add_floats(
    x: Vector,
    error: Vector | None,
    valid: Vector | None,
    weights: Vector | None,
    ids: Vector,
    groups: int,
) -> list[pa.Array]:
    """Sums per group, and their rounding errors."""
    out, rest = np.empty(groups), np.empty(groups)
    kernels.sum_floats(x, error, valid, weights, ids, out, rest)
    return [pa.array(out), pa.array(rest)]


def pick(column: pa.Array, reduce: Literal["min", "max"], ids: Vector, groups: int) -> pa.Array:
    """The least or greatest value per group, NULL where all are."""
    out = np.empty(groups, np.int64)
    sign = 1 if reduce == "min" else -1
    kernels.extreme(order_codes(column), vectors.validity(column), sign, ids, out)
    return take(column, _rows(out))


def pick_pair(
    column: pa.Array, by: pa.Array, reduce: Literal["first", "last"], ids: Vector, groups: int
) -> list[pa.Array]:
    """The value and `by` of the least or greatest pair (by, value) per group.

    Rows that are NULL in either don't count; both are NULL where all are so.
    """
    valid: Vector | None = None
    if column.null_count or by.null_count:
        valid = pc.and_(pc.is_valid(column), pc.is_valid(by)).to_numpy(zero_copy_only=False)
    out = np.empty(groups, np.int64)
    sign = 1 if reduce == "first" else -1
    kernels.extreme_pair(order_codes(by), order_codes(column), valid, sign, ids, out)
    at = _rows(out)
    return [take(column, at), take(by, at)]


def order_codes(column: pa.Array) -> Vector:
    """int64[n] of the same order as the values."""
    if vectors.is_text(column.type) or pa.types.is_nested(column.type):
        return ranks([column], len(column))
    return vectors.codes(column)


def _rows(numbers: Vector) -> pa.Array:
    """Numbers of rows; NULL where they are below 0."""
    missing = numbers < 0
    return pa.array(numbers, mask=missing) if missing.any() else pa.array(numbers)


__all__ = ["ERROR_SUFFIX", "HASH", "WINDOW", "Layout", "Value"]
