"""Measures: expressions over the rows of matches, computed for all matches at once.

Each reference to a matched row becomes a column of the rows that the output's rows refer to, each aggregate a
column of its values; the expression over these is one of columns, with all functions that expressions have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.kernels import njit, types
from penstock.core.schema import Field, Schema
from penstock.core.vectors import Vector, from_int64
from penstock.expr.duck import EvaluationError, query_tables
from penstock.expr.expression import Expression, compile_expression
from penstock.expr.query import query_columns
from penstock.expr.tried import query_of_failing
from penstock.expr.values import tried
from penstock.patterns.expressions import (
    Aggregate,
    Base,
    Classifier,
    MatchNumber,
    Part,
    Place,
    Variables,
    resolve,
)
from penstock.patterns.leaves import taken

__all__ = ["Mapped", "Measures"]

_READ = types.Array(types.int64, 1, "C", readonly=True)
_F64 = types.Array(types.float64, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_NO_NUMBERS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Mapped:
    """Matches, with the rows that they took.

    Attributes:
        starts: int64[n + 1], the first of each match's rows below, and the end.
        rows: int64[m], the rows, in their order.
        variables: int64[m], which variable each is.
        numbers: int64[n], of the matches in their partitions.
        begins: int64[n], the first row of each one's partition.
        ends: int64[n], and its end.
    """

    starts: Vector
    rows: Vector
    variables: Vector
    numbers: Vector
    begins: Vector
    ends: Vector


@dataclass(frozen=True)
class _Measure:
    name: str
    expression: Expression
    parts: dict[str, Part]
    is_final: bool


@dataclass
class _Asked:
    """What measures are computed of.

    Attributes:
        input: the rows of the input.
        mapped: the matches.
        match: int64[k], of each row of the output its match.
        upto: int64[k], the end of the match's rows that are up to it.
        whole: int64[k], the end of all of them.
        failed: bool[k]: where something couldn't be computed, and is NULL.
    """

    input: pa.Table
    mapped: Mapped
    match: Vector
    upto: Vector
    whole: Vector
    failed: Vector
    _ranges: dict[Any, tuple[Vector, Vector, Vector]] = field(default_factory=dict)

    def range_of(
        self, names: frozenset[int] | None, *, final: bool
    ) -> tuple[Vector, Vector, Vector]:
        """The rows of some variables, and which of these each row of the output sees: from and to."""
        key = names, final
        if key not in self._ranges:
            if names is None:
                places = np.arange(len(self.mapped.rows))
                counts = np.arange(len(self.mapped.rows) + 1)
            else:
                is_one = np.isin(self.mapped.variables, sorted(names))
                places = np.flatnonzero(is_one)
                counts = np.concatenate(([0], np.cumsum(is_one)))
            begin = counts[self.mapped.starts[self.match]]
            self._ranges[key] = places, begin, counts[self.whole if final else self.upto]
        return self._ranges[key]


class Measures:
    """The measures of a pattern.

    Args:
        measures: names, expressions, and whether each is of the whole match where that isn't said.
        schema: of the input.
        variables: of the pattern.

    Raises:
        SchemaError: one can't be compiled.
    """

    def __init__(
        self, measures: Iterable[tuple[str, str, str]], schema: Schema, variables: Variables
    ) -> None:
        self._schema = schema
        self._numbers = {name: i for i, name in enumerate(variables.names)}
        self._names: Any = pa.array(list(variables.names), pa.string())
        self._types: dict[str, pa.DataType] = {}
        self._measures = []
        for name, text, mode in measures:
            found = resolve(text, schema, variables)
            fields = [Field(one, self._type(part)) for one, part in found.parts.items()]
            known = Schema(tuple(fields) or (Field("x", pa.bool_()),))
            made = compile_expression(found.tree.sql(dialect="duckdb", identify=True), known)
            self._measures.append(_Measure(name, made, found.parts, mode == "final"))
        self.schema = pa.schema([(one.name, one.expression.type) for one in self._measures])

    @property
    def back(self) -> int:
        """How many rows before a match measures read."""
        return max([0, *(-one.shift for one in self._places())])

    @property
    def ahead(self) -> int:
        """How many rows behind a match's last one they read."""
        return max([0, *(one.shift for one in self._places())])

    def _places(self) -> Iterable[Place]:
        for measure in self._measures:
            yield from (one for one in measure.parts.values() if isinstance(one, Place))

    def _type(self, part: Part) -> pa.DataType:
        match part:
            case Place(column=column):
                return self._schema[column].type
            case Aggregate(sql):
                if sql not in self._types:
                    query = f"SELECT {sql} AS x FROM rows"
                    self._types[sql] = query_columns(query, {"rows": self._schema})["x"].type
                return self._types[sql]
            case Classifier():
                return pa.string()
            case MatchNumber():
                return pa.int64()

    def compute(
        self, rows: pa.Table, mapped: Mapped, match: Vector, upto: Vector
    ) -> tuple[list[Any], Vector]:
        """The columns of some rows of the output, and where something couldn't be computed.

        Args:
            rows: of the input.
            mapped: the matches.
            match: of each row its match.
            upto: the end of the rows of `mapped` that lie up to it.
        """
        if not len(match):
            return [pa.array([], one.type) for one in self.schema], np.zeros(0, np.bool_)
        asked = _Asked(
            rows, mapped, match, upto, mapped.starts[match + 1], np.zeros(len(match), np.bool_)
        )
        columns = []
        known: dict[tuple[Part, bool], Any] = {}
        for measure in self._measures:
            given = {}
            for name, part in measure.parts.items():
                key = part, measure.is_final
                if key not in known:
                    known[key] = self._column(part, asked, is_final=measure.is_final)
                given[name] = known[key]
            table = pa.table(given) if given else pa.table({"x": pa.nulls(len(match), pa.bool_())})
            found = tried([measure.expression], table)[0]
            if found.failed is not None:
                asked.failed |= found.failed
            columns.append(vectors.contiguous(found.column))
        return columns, asked.failed

    def _column(self, part: Part, asked: _Asked, *, is_final: bool) -> Any:
        match part:
            case Place(base, column, shift):
                return self._place(base, column, shift, asked, is_final=is_final)
            case Classifier(base):
                at = self._matched(base, asked, is_final=is_final)
                variables = np.where(
                    at < 0, -1, asked.mapped.variables[at] if len(asked.mapped.rows) else -1
                )
                return taken(self._names, variables)
            case MatchNumber():
                return from_int64(asked.mapped.numbers[asked.match])
            case Aggregate():
                return self._aggregate(part, asked, is_final=is_final)

    def _range(
        self, part: Base | Aggregate, asked: _Asked, *, is_final: bool
    ) -> tuple[Vector, Vector, Vector]:
        names = None if part.names is None else frozenset(self._numbers[one] for one in part.names)
        return asked.range_of(names, final=is_final if part.final is None else part.final)

    def _matched(self, base: Base, asked: _Asked, *, is_final: bool) -> Vector:
        """The place in `mapped` of the row that each row of the output refers to; -1: there is none."""
        places, begin, end = self._range(base, asked, is_final=is_final)
        at = end - 1 - base.n if base.kind == "last" else begin + base.n
        is_there = (at >= begin) & (at < end)
        if not len(places):
            return np.full(len(at), -1)
        return np.where(is_there, places[np.where(is_there, at, 0)], -1)

    def _place(self, base: Base, column: str, shift: int, asked: _Asked, *, is_final: bool) -> Any:
        at = self._matched(base, asked, is_final=is_final)
        mapped = asked.mapped
        rows = np.where(at < 0, -1, mapped.rows[at] if len(mapped.rows) else -1)
        if shift:
            moved = rows + shift
            inside = (moved >= mapped.begins[asked.match]) & (moved < mapped.ends[asked.match])
            rows = np.where((rows >= 0) & inside, moved, -1)
        return taken(asked.input.column(column), rows)

    def _aggregate(self, part: Aggregate, asked: _Asked, *, is_final: bool) -> Any:
        places, begin, end = self._range(part, asked, is_final=is_final)
        type_ = self._type(part)
        if part.is_plain and part.function == "count" and part.argument is None:
            return from_int64(np.ascontiguousarray(end - begin))
        rows = asked.input.take(from_int64(np.ascontiguousarray(asked.mapped.rows[places])))
        is_new = np.zeros(len(places), np.bool_)
        firsts = np.searchsorted(places, asked.mapped.starts[:-1])
        is_new[firsts[firsts < len(places)]] = True
        # Of each place the aggregate up to it; a row of the output has that of the last one it sees.
        last = np.where(end > begin, end - 1, -1)
        if part.is_plain and part.argument is not None:
            argument = compile_expression(part.argument, self._schema)
            if (vectors.is_fixed(argument.type) or part.function == "count") and not (
                part.function in ("sum", "avg") and not _is_number(argument.type)
            ):
                return self._totals(part.function, argument, rows, is_new, last, type_, asked)
        return self._by_duckdb(part, rows, is_new, last, type_, asked)

    def _totals(
        self,
        function: str,
        argument: Expression,
        rows: pa.Table,
        is_new: Vector,
        last: Vector,
        type_: pa.DataType,
        asked: _Asked,
    ) -> Any:
        found = tried([argument], rows)[0]
        column = vectors.contiguous(found.column)
        valid = vectors.validity(column)
        valid = np.ones(len(column), np.bool_) if valid is None else valid
        counts = np.zeros(len(column) + 1, np.int64)  # the last one is of no rows
        sums = np.zeros(len(column) + 1, np.float64)
        wholes = np.zeros(len(column) + 1, np.int64)
        best = np.full(len(column) + 1, -1)
        codes = vectors.codes(column) if function != "count" else _NO_NUMBERS
        if function in ("sum", "avg"):
            is_float = vectors.is_float(column.type)
            values = (
                vectors.raw(column).astype(np.float64) if is_float else codes.astype(np.float64)
            )
            _running_sums(values, codes, valid, is_new, sums, wholes, counts)
        elif function == "count":
            _running_counts(valid, is_new, counts)
        else:
            _running_best(codes, valid, is_new, 1 if function == "min" else -1, best)
            return taken(column, best[last])
        if function == "count":
            return from_int64(counts[last])
        missing = counts[last] == 0
        scale = 10.0**column.type.scale if pa.types.is_decimal(column.type) else 1.0
        if function == "avg":
            totals = sums if vectors.is_float(column.type) else wholes.astype(np.float64) / scale
            return pa.array(totals[last] / np.where(missing, 1, counts[last]), mask=missing)
        if vectors.is_float(column.type):
            return pa.array(sums[last], mask=missing).cast(type_)
        too_great = np.abs(sums[last]) > 2.0**63
        asked.failed |= too_great
        missing = missing | too_great
        if pa.types.is_decimal(type_):
            return vectors.decimals(wholes[last], type_, ~missing)
        return pa.array(wholes[last], mask=missing).cast(type_)

    def _by_duckdb(
        self,
        part: Aggregate,
        rows: pa.Table,
        is_new: Vector,
        last: Vector,
        type_: pa.DataType,
        asked: _Asked,
    ) -> Any:
        known = rows.append_column("$match", from_int64(np.cumsum(is_new)))
        known = known.append_column("$at", from_int64(np.arange(len(rows))))
        frame = 'PARTITION BY "$match" ORDER BY "$at" ROWS UNBOUNDED PRECEDING'
        query = f'SELECT {part.sql} OVER ({frame}) AS x FROM rows ORDER BY "$at"'
        each, has_failed = _of_rows(query, known, type_)
        none = query_tables({"rows": rows.slice(0, 0)}, f"SELECT {part.sql} AS x FROM rows")
        chunks: list[Any] = [*each.chunks, *none.column(0).cast(type_).chunks]
        both: Any = pa.chunked_array(chunks)
        found = both.combine_chunks().take(from_int64(np.where(last < 0, len(rows), last)))
        if has_failed:
            asked.failed |= np.asarray(found.is_null().to_numpy(zero_copy_only=False), np.bool_)
        return found


def _of_rows(query: str, rows: pa.Table, type_: pa.DataType) -> tuple[pa.ChunkedArray, bool]:
    """What a query gives of rows, NULL for parts that fail; and whether some do."""
    tables = {"rows": rows}
    try:
        return query_tables(tables, query).column(0).cast(type_), False
    except EvaluationError:
        pass
    try:
        return query_of_failing(query, tables).column(0).cast(type_), True
    except EvaluationError:  # of the aggregate itself, such as a sum that is too great
        nothing: Any = pa.nulls(len(rows)).cast(type_)
        return pa.chunked_array([nothing]), True


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or vectors.is_float(type_) or vectors.is_short_decimal(type_)
    )


@njit(
    types.void(_F64, _READ, _BOOL, _BOOL, types.float64[::1], types.int64[::1], types.int64[::1]),
    cache=True,
    nogil=True,
)
def _running_sums(
    values: Any, codes: Any, valid: Any, is_new: Any, sums: Any, wholes: Any, counts: Any
) -> None:
    """Sums, as doubles and as whole numbers, and counts of the valid values from where one is new."""
    total, whole, count = 0.0, 0, 0
    for i in range(len(values)):
        if is_new[i]:
            total, whole, count = 0.0, 0, 0
        if valid[i]:
            total = total + values[i] if count else values[i]
            whole += codes[i]
            count += 1
        sums[i], wholes[i], counts[i] = total, whole, count


@njit(types.void(_BOOL, _BOOL, types.int64[::1]), cache=True, nogil=True)
def _running_counts(valid: Any, is_new: Any, counts: Any) -> None:
    """How many values are valid from where one is new."""
    count = 0
    for i in range(len(valid)):
        if is_new[i]:
            count = 0
        if valid[i]:
            count += 1
        counts[i] = count


@njit(types.void(_READ, _BOOL, _BOOL, types.int64, types.int64[::1]), cache=True, nogil=True)
def _running_best(codes: Any, valid: Any, is_new: Any, sign: Any, best: Any) -> None:
    """Where the least (sign 1) or greatest (-1) value is from where one is new; -1: there is none."""
    found = -1
    for i in range(len(codes)):
        if is_new[i]:
            found = -1
        if valid[i]:
            less = found < 0 or (codes[i] < codes[found] if sign > 0 else codes[i] > codes[found])
            if less:
                found = i
        best[i] = found
