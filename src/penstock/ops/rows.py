"""Operators on single rows: `Where`, `Select` and `MapBatches`.

They are linear: a row's weight passes through unchanged, so they work on streams and on changes alike.
Columns whose name begins with `$` (weight, event time, offset…) ride along untouched.

A row whose expression fails (a cast that can't be, a division of the wrong kind) is taken out of the
batch and reported; the rest goes on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import FlowError
from penstock.ops.expressions import EvaluationError, Expression, evaluate

__all__ = ["MapBatches", "Refused", "RowOperator", "Select", "Where"]


@dataclass(frozen=True)
class Refused:
    """Rows that an operator could not work on, and why."""

    rows: pa.Table
    reason: str


class RowOperator(Protocol):
    """What every operator of this module does."""

    def apply(self, rows: pa.Table) -> tuple[pa.Table, list[Refused]]:
        """The rows that come out, and those that failed."""
        ...


@dataclass(frozen=True)
class Where:
    """Keeps the rows for which a condition is true (false and NULL go)."""

    condition: Expression

    def apply(self, rows: pa.Table) -> tuple[pa.Table, list[Refused]]:
        """The rows that fulfil the condition, and those where it failed."""
        return _run(rows, f"SELECT * FROM rows WHERE {self.condition.sql}", self.condition.text)


@dataclass(frozen=True)
class Select:
    """Computes the named columns; the others go, but for those of Penstock's own."""

    columns: tuple[tuple[str, Expression], ...]

    def apply(self, rows: pa.Table) -> tuple[pa.Table, list[Refused]]:
        """The computed columns, and the rows where an expression failed."""
        computed = [f"{e.sql} AS {_name(name)}" for name, e in self.columns]
        hidden = [_name(name) for name in rows.column_names if name.startswith("$")]
        texts = ", ".join(e.text for _, e in self.columns)
        return _run(rows, f"SELECT {', '.join(computed + hidden)} FROM rows", texts)


@dataclass(frozen=True)
class MapBatches:
    """Calls a function of the user's with each batch.

    Attributes:
        function: takes and gives a `pyarrow.Table`. It sees Penstock's own columns too (`$offset`,
            `$time`…) and should hand on those of the rows that it keeps.
        schema: what it gives, without Penstock's own columns.
    """

    function: Callable[[pa.Table], pa.Table]
    schema: Schema

    def apply(self, rows: pa.Table) -> tuple[pa.Table, list[Refused]]:
        """What the function gives, checked against the declared schema."""
        try:
            out = self.function(rows)
        except Exception as error:
            code = getattr(self.function, "__code__", None)
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if code and frame.filename == code.co_filename]
            place = (own or frames)[-1]
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to work; found {type(error).__name__}: "
                f"{error} ({place.filename}, line {place.lineno})"
            ) from error
        if not isinstance(out, pa.Table):
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to give a pyarrow.Table; found {type(out)}"
            )
        missing = [name for name in self.schema.names if name not in out.column_names]
        lost = [n for n in rows.column_names if n.startswith("$") and n not in out.column_names]
        if missing or lost:
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to give the columns "
                f"{', '.join((*self.schema.names, *lost))}; found {', '.join(out.column_names)}. "
                "Columns that begin with '$' are Penstock's own: hand them on for the rows you keep"
            )
        hidden = [n for n in out.column_names if n.startswith("$")]
        target = [*self.schema.arrow, *(rows.schema.field(n) for n in hidden)]
        try:
            return out.select([field.name for field in target]).cast(pa.schema(target)), []
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to give {self.schema.text}; found "
                f"{out.schema.to_string(show_schema_metadata=False)!r}: {error}"
            ) from None


def _run(rows: pa.Table, query: str, text: str) -> tuple[pa.Table, list[Refused]]:
    try:
        return evaluate(rows, query), []
    except EvaluationError as error:
        if len(rows) == 1:
            reason = f"{text}: {error}"
            return evaluate(rows.slice(0, 0), query), [Refused(rows, reason)]
    # Some row fails: halve until it is alone. The cost is logarithmic for each row that fails.
    half = len(rows) // 2
    left, refused_left = _run(rows.slice(0, half), query, text)
    right, refused_right = _run(rows.slice(half), query, text)
    return pa.concat_tables([left, right]), refused_left + refused_right


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _title(function: Callable[[pa.Table], pa.Table]) -> str:
    return getattr(function, "__name__", repr(function))
