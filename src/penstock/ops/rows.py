"""Operators on single rows: `Where`, `Select` and `MapBatches`.

They are linear: a row's weight passes through unchanged, so they work on streams and on changes alike.
Columns whose name begins with `$` (weight, event time, offset…) ride along untouched.

A row whose expression fails (a cast that can't be, a division of the wrong kind) is taken out of the
batch and reported; the rest continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import delta, vectors
from penstock.core.names import failed_at
from penstock.core.schema import Schema
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US
from penstock.errors import FlowError
from penstock.expr import EvaluationError, Expression
from penstock.expr.failing import UNEXPLAINED, why
from penstock.expr.typed import cast_given
from penstock.expr.values import tried, values

if TYPE_CHECKING:
    from penstock.searches.fields import Fields

__all__ = [
    "Explanations",
    "MapBatches",
    "Readable",
    "Refused",
    "RowOperator",
    "Select",
    "Unnest",
    "Where",
    "same_function",
]

UNNAMED: Final = "expected an instant of the years 1 to 9999; found another"
REASONS_MAX: Final = 16
"""Rows that a step refuses of one origin, in one batch, whose reason is in DuckDB's words."""
_PLAIN: Final = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True)
class Refused:
    """Rows that an operator could not work on, and why.

    Attributes:
        rows: as dead letters show them.
        reason: a text for all of them, or string[rows].
        kind: likewise what failed, in words that depend on nothing but the row: part of a letter's identity.
        key: the columns that identify the rows; None where nothing is known to.
    """

    rows: pa.Table
    reason: Any
    kind: Any = ""
    key: tuple[str, ...] | None = None


@dataclass
class Explanations:
    """How many refused rows may still be explained in DuckDB's words, each of which costs a query.

    One object counts over all the chunks of an origin in a batch. Counted per chunk, a reason would
    depend on where chunks end, and a batch that is run again would write other dead letters.
    """

    left: int = REASONS_MAX


class RowOperator(Protocol):
    """What every operator of this module does."""

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:
        """The rows that come out, and those that failed."""
        ...


@dataclass(frozen=True)
class Where:
    """Keeps the rows for which a condition is true (false and NULL go)."""

    condition: Expression

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:
        """The rows that fulfil the condition, and those where it failed."""
        kept, [condition], refused = _computed([self.condition], rows, explanations)
        return kept.filter(condition), refused


@dataclass(frozen=True)
class Select:
    """Computes the named columns; the others go, but for those of Penstock's own."""

    columns: tuple[tuple[str, Expression], ...]

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:
        """The computed columns, and the rows where an expression failed, or gave a time without a name."""
        of, arrays, refused = _computed([e for _, e in self.columns], rows, explanations)
        found = self._named(of, arrays)
        named = np.ones(len(found), np.bool_)
        for name, expression in self.columns:
            if expression.text.strip('"') != name:
                here = _named_times(found.column(name))
                if here is not None:
                    bad = of.filter(pa.array(named & ~here))
                    reason = f"{expression.text}: {UNNAMED}"
                    refused.append(Refused(bad, reason, reason))
                    named &= here
        return (found if named.all() else found.filter(pa.array(named))), refused

    def _named(self, rows: pa.Table, arrays: Sequence[Any]) -> pa.Table:
        """What is computed of rows, and Penstock's own columns of them."""
        hidden = [name for name in rows.column_names if name.startswith("$")]
        names = [*(name for name, _ in self.columns), *hidden]
        return pa.table([*arrays, *(rows.column(name) for name in hidden)], names)


@dataclass(frozen=True)
class Unnest:
    """Makes a row from each element of an array. A row with an empty or NULL array is dropped.

    Attributes:
        column: the array.
        name: of the column of elements, which takes its place.
    """

    column: str
    name: str

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:  # noqa: ARG002
        """A row for each element, in their order."""
        arrays = vectors.contiguous(rows.column(self.column))
        parents = pc.list_parent_indices(arrays)
        names = [self.name if name == self.column else name for name in rows.column_names]
        columns = [
            pc.list_flatten(arrays) if name == self.column else rows.column(name).take(parents)
            for name in rows.column_names
        ]
        return pa.table(columns, names), []


@dataclass(frozen=True)
class MapBatches:
    """Calls a function of the user's with each batch.

    Attributes:
        function: takes and gives a `pyarrow.Table`. It sees Penstock's own columns too (`$offset`,
            `$time`…) and should hand on those of the rows that it keeps.
        schema: what it gives, without Penstock's own columns.
        name: what it is known by, over restarts.
    """

    function: Callable[[pa.Table], pa.Table]
    schema: Schema
    name: str

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:  # noqa: ARG002
        """What the function gives, checked against the declared schema."""
        try:
            out = self.function(rows)
        except Exception as error:
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to work; found {type(error).__name__}: "
                f"{error} ({failed_at(error, self.function)})"
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
                "Columns that begin with '$' are Penstock's own: pass them on for the rows you keep"
            )
        hidden = [n for n in out.column_names if n.startswith("$")]
        target = [*self.schema.arrow, *(rows.schema.field(n) for n in hidden)]
        try:
            return cast_given(out.select([one.name for one in target]), pa.schema(target)), []
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise FlowError(
                f"expected map_batches({_title(self.function)}) to give {self.schema.text}; found "
                f"{out.schema.to_string(show_schema_metadata=False)!r}: {error}"
            ) from None


@dataclass(frozen=True)
class Readable:
    """Keeps the rows whose search can be read, and those that have none.

    Attributes:
        column: the search.
        fields: of documents, which it may name.
        meaning: see `penstock.searches.fields.MEANING`.
    """

    column: str
    fields: Fields
    meaning: int

    def apply(self, rows: pa.Table, explanations: Explanations) -> tuple[pa.Table, list[Refused]]:  # noqa: ARG002
        """The rows that are kept, and the others with what can't be read and where."""
        from penstock.searches.stored import Stored  # by programs that have searches alone

        texts = vectors.contiguous(rows.column(self.column))
        there = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        _, refused = Stored(self.fields).add(texts.drop_null().to_pylist())
        if not refused:
            return rows, []
        at = there[[one.row for one in refused]]
        keep = np.ones(len(rows), np.bool_)
        keep[at] = False
        reasons = pa.array([f"{self.column}: {one.reason}" for one in refused], pa.string())
        bad = Refused(rows.take(vectors.from_int64(at)), reasons, reasons)
        return rows.filter(pa.array(keep)), [bad]


def _named_times(column: Any) -> np.ndarray | None:
    """Which instants, or dates, lie in the years 1 to 9999, as NULL does; None where all do."""
    if pa.types.is_timestamp(column.type):
        whole, unit_us = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1
    elif pa.types.is_date(column.type):
        whole, unit_us = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), DAY_US
    else:
        return None
    values = np.asarray(whole.fill_null(0).to_numpy())
    fits = (values >= INSTANT_MIN_US // unit_us) & (values <= INSTANT_MAX_US // unit_us)
    return None if fits.all() else fits


def _computed(
    expressions: Sequence[Expression], rows: pa.Table, explanations: Explanations
) -> tuple[pa.Table, list[Any], list[Refused]]:
    """The rows that all expressions work for, a column of each, and the rows where one fails."""
    with contextlib.suppress(EvaluationError):
        return rows, values(expressions, rows), []
    found = tried(expressions, rows)
    failing = np.zeros(len(rows), np.bool_)
    blamed = np.zeros(len(rows), np.int64)  # the first expression that fails
    for i, one in reversed(list(enumerate(found))):
        if one.failed is not None:
            failing |= one.failed
            blamed[one.failed] = i
    if not failing.any():
        return rows, [one.column for one in found], []
    works = pa.array(~failing)
    bad = rows.filter(pa.array(failing))
    texts = [expressions[which].text for which in blamed[failing].tolist()]
    weights = delta.weights(bad)
    come = [True] * len(bad) if weights is None else (weights > 0).tolist()
    reasons = [
        _reason(bad, at, expressions[which], explanations, is_read=come[at])
        for at, which in enumerate(blamed[failing].tolist())
    ]
    kept = [one.column.filter(works) for one in found]
    refused = Refused(bad, pa.array(reasons, pa.string()), pa.array(texts, pa.string()))
    return rows.filter(works), kept, [refused]


def _reason(
    rows: pa.Table, at: int, failing: Expression, explanations: Explanations, *, is_read: bool
) -> str:
    """Why a row is refused; of one that is taken back, nobody reads it."""
    if is_read and explanations.left > 0:
        explanations.left -= 1
        return f"{failing.text}: {why(failing.sql, rows.slice(at, 1))}"
    return f"{failing.text}: {UNEXPLAINED}"


def same_function(mine: Any, theirs: Any) -> bool:
    """Whether two functions of the user's do the same, as far as can be known.

    A function that is defined in another one is a new object at each call of it: the code is the
    same, and what it took along decides.
    """
    if mine is theirs:
        return True
    code = getattr(mine, "__code__", None)
    return (
        code is not None
        and code == getattr(theirs, "__code__", None)
        and _taken_along(mine) == _taken_along(theirs)
    )


def _taken_along(function: Any) -> list[tuple[str, object]]:
    """What a function has besides its code: defaults and enclosed values, such that `==` is safe."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return [
        (type(value).__name__, value if isinstance(value, _PLAIN) else id(value))
        for value in cells + defaults
    ]


def _title(function: Callable[[pa.Table], pa.Table]) -> str:
    return getattr(function, "__name__", repr(function))
