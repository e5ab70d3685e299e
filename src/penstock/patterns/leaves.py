"""The parts of expressions that are functions of one row of the input: they are computed on whole columns.

Such a part may read the rows before and behind its row (PREV, NEXT): those are further columns, shifted
within each partition. What a kernel reads of a part is a vector of 64 bits for each row: a number, a double,
or a code that has the order of the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.schema import Field, Schema
from penstock.core.vectors import Vector, from_int64
from penstock.expr.duck import EvaluationError
from penstock.expr.expression import Expression, compile_expression
from penstock.expr.values import Tried, tried, values

__all__ = ["Computed", "Kind", "Leaves", "computed", "kind_of", "shifted", "taken"]

Kind = Literal[
    "bool", "int", "float", "decimal", "time", "date", "interval", "text", "other", "null"
]
"""What a kernel knows of a value: how it computes and compares it."""


def kind_of(type_: pa.DataType) -> Kind:
    """How a kernel takes values of a type."""
    types = pa.types
    if types.is_boolean(type_):
        return "bool"
    if types.is_integer(type_):
        return "int"
    if vectors.is_float(type_):
        return "float"
    if vectors.is_short_decimal(type_):
        return "decimal"
    if types.is_timestamp(type_):
        return "time"
    if types.is_date(type_):
        return "date"
    if types.is_duration(type_):
        return "interval"
    return "other" if vectors.is_fixed(type_) else "text"


@dataclass(frozen=True)
class Computed:
    """Parts, computed of rows.

    Attributes:
        numbers: int64[parts, rows]; a double is its bits.
        valid: bool[parts, rows]; both have one more for no row, if parts are computed of that.
        failed: bool[rows]: where one couldn't be computed, and is NULL; None: nowhere.
        constants: int64[...]: the codes of constant texts, in the order in which they were added.
    """

    numbers: Vector
    valid: Vector
    failed: Vector | None
    constants: Vector


@dataclass
class Leaves:
    """The parts that a pattern's conditions read.

    Attributes:
        schema: of the input.
        expressions: of the parts, over its columns and shifted ones.
        places: of each column that is shifted, by its name: which column, and how far.
        texts: constant texts that are compared with parts.
        of_nothing: whether parts are computed of a further row as well, which is NULL: what expressions give
            of a variable that no row is.
    """

    schema: Schema
    expressions: list[Expression] = field(default_factory=list)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    of_nothing: bool = False

    def column(self, column: str, shift: int) -> str:
        """The name of a column, shifted."""
        if shift == 0:
            return column
        name = f"{column} ({shift:+d})"
        while name in self.schema.names:
            name += " "
        self.places[name] = column, shift
        return name

    def add(self, sql: str) -> int:
        """The number of a part: SQL over the columns of one row.

        Raises:
            SchemaError: it has no type.
        """
        fields = [
            Field(name, self.schema[column].type) for name, (column, _) in self.places.items()
        ]
        known = Schema((*(Field(one.name, one.type) for one in self.schema), *fields))
        made = compile_expression(sql, known)
        if pa.types.is_decimal(made.type) and not vectors.is_short_decimal(made.type):
            digits = vectors.DECIMAL_CODE_DIGITS_MAX
            scale = min(made.type.scale, digits - 1)
            made = compile_expression(f"CAST(({sql}) AS DECIMAL({digits}, {scale}))", known)
        if made not in self.expressions:
            self.expressions.append(made)
        return self.expressions.index(made)

    def text(self, value: str) -> int:
        """The number of a constant text."""
        if value not in self.texts:
            self.texts.append(value)
        return self.texts.index(value)

    @property
    def back(self) -> int:
        """How many rows before its own a part reads."""
        return max([0, *(-shift for _, shift in self.places.values())])

    def compute(self, rows: pa.Table, starts: Vector) -> Computed:
        """The parts of rows.

        Args:
            rows: sorted by partition.
            starts: the first row of each partition, and the end of the last one.
        """
        used = {name for one in self.expressions for name in one.columns}
        columns = {name: rows.column(name) for name in rows.column_names if name in used}
        for name, (base, shift) in self.places.items():
            columns[name] = shifted(rows.column(base), starts, shift)
        count = len(rows)
        if self.of_nothing:
            count += 1
            columns = {name: _with_null(column) for name, column in columns.items()}
        rows = pa.table(columns) if columns else pa.table({"": pa.nulls(count)})
        numbers = np.zeros((len(self.expressions), count), np.int64)
        valid = np.ones((len(self.expressions), count), np.bool_)
        failed: Vector | None = None
        texts: list[tuple[int, pa.Array]] = []
        for i, found in enumerate(computed(self.expressions, rows)):
            column = vectors.contiguous(found.column)
            if found.failed is not None:
                failed = found.failed if failed is None else failed | found.failed
            there = vectors.validity(column)
            if there is not None:
                valid[i] = there
            kind = kind_of(column.type)
            if kind == "text":
                texts.append((i, column))
            elif kind == "float":
                values = vectors.raw(column).astype(np.float64, copy=False)
                numbers[i] = np.where(valid[i], values, 0.0).view(np.int64)
            else:
                numbers[i] = vectors.codes(column)
        constants = _rank(texts, self.texts, numbers)
        return Computed(numbers, valid, failed, constants)


def computed(expressions: list[Expression], rows: pa.Table) -> list[Tried]:
    """The values of expressions: together, unless one fails for some row."""
    try:
        return [Tried(one, None) for one in values(expressions, rows)]
    except EvaluationError:
        return tried(expressions, rows)


def _with_null(column: Any) -> Any:
    """The column, and NULL behind it."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([*chunks, pa.nulls(1, column.type)], column.type).combine_chunks()


_NO_CONSTANTS: Final = np.zeros(0, np.int64)


def _rank(texts: list[tuple[int, pa.Array]], constants: list[str], numbers: Vector) -> Vector:
    """Writes the places of texts in the order of all of them; of constants, they are returned."""
    if not texts and not constants:
        return _NO_CONSTANTS
    arrays: list[Any] = [_bytes(column) for _, column in texts]
    arrays.append(pa.array([one.encode() for one in constants], pa.binary()))
    encoded: Any = pa.chunked_array(arrays, pa.binary()).combine_chunks().dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    ranks[-1] = 0  # of NULL
    codes = ranks[encoded.indices.fill_null(len(order)).to_numpy()]
    at = 0
    for i, column in texts:
        numbers[i] = codes[at : at + len(column)]
        at += len(column)
    return np.asarray(codes[at:])


def _bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type):
        column = vectors.packed(column)
    return vectors.as_bytes(column)


def shifted(column: Any, starts: Vector, shift: int) -> Any:
    """The column of the row so many behind each row in its partition; NULL where there is none."""
    rows = int(starts[-1]) if len(starts) else 0
    at = np.arange(rows) + shift
    begins = np.repeat(starts[:-1], np.diff(starts))
    ends = np.repeat(starts[1:], np.diff(starts))
    return taken(column, np.where((at >= begins) & (at < ends), at, -1))


def taken(column: Any, at: Vector) -> Any:
    """The values of some rows; NULL for -1."""
    missing = at < 0
    if not missing.any():
        return vectors.contiguous(column).take(from_int64(np.ascontiguousarray(at, np.int64)))
    index: Any = pa.array(np.where(missing, 0, at), mask=missing)
    return vectors.contiguous(column).take(index)
