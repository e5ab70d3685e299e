"""The values of expressions over rows: by Arrow what has a tree, else by DuckDB, each different input once.

An expression is a function of the columns that it names. So where few different values of these occur, as
in columns of channels, paths or instants of a second, it is computed of them alone, and looked up for rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.expr.columnar import UnfitError, compute
from penstock.expr.duck import EvaluationError, evaluate
from penstock.expr.expression import Expression
from penstock.expr.failing import guarded

__all__ = ["Tried", "tried", "values"]

ROWS_MIN: Final = 4_096
"""Rows below which looking for different values costs more than it can save."""
SAMPLE_ROWS: Final = 1_024
SAMPLE_SHARE_MAX: Final = 0.75
"""Of different values among so many rows: where there are more, columns are taken as they are."""
SHARE_MAX: Final = 0.5
"""Of different values among all rows: likewise."""


@dataclass(frozen=True)
class Tried:
    """What an expression gives of rows.

    Attributes:
        column: a value for each row; NULL where it fails.
        failed: bool[rows]; None where it fails for none.
    """

    column: Any
    failed: np.ndarray | None


def tried(expressions: Sequence[Expression], rows: pa.Table) -> list[Tried]:
    """The values of each expression, and the rows for which it fails.

    Whether an expression fails for a row depends on that row alone, not on those that come with it.
    """
    return [_tried(one, rows) for one in expressions]


def _tried(expression: Expression, rows: pa.Table) -> Tried:
    with contextlib.suppress(EvaluationError):
        return Tried(values([expression], rows)[0], None)
    some, at = _inputs(expression.columns, rows)
    column, failed = guarded(expression.sql, some)
    column = expression.typed(column)
    if column.type != expression.type:  # of a constant that fails no type is known
        column = column.cast(expression.type)
    if at is None:
        return Tried(column, failed)
    return Tried(_looked_up(column, at), failed[at])


def values(expressions: Sequence[Expression], rows: pa.Table) -> list[Any]:
    """A column of each expression.

    Raises:
        EvaluationError: an expression can't be computed of some row.
    """
    found: dict[int, Any] = {}
    left: dict[frozenset[str], list[int]] = {}
    for i, one in enumerate(expressions):
        with contextlib.suppress(UnfitError):
            if one.tree is not None:
                found[i] = compute(one.tree, rows)
        if i not in found:
            left.setdefault(one.columns, []).append(i)
    for columns, some in left.items():
        asked = [expressions[i] for i in some]
        found |= dict(zip(some, _evaluated(asked, columns, rows), strict=True))
    return [found[i] for i in range(len(expressions))]


def _evaluated(
    expressions: Sequence[Expression], names: Iterable[str], rows: pa.Table
) -> list[Any]:
    """Expressions over the same columns, by DuckDB."""
    asked = ", ".join(f"{one.sql} AS c{i}" for i, one in enumerate(expressions))
    some, at = _inputs(names, rows)
    made = zip(expressions, evaluate(some, f"SELECT {asked} FROM rows").columns, strict=True)
    found = [one.typed(column) for one, column in made]
    return found if at is None else [_looked_up(column, at) for column in found]


def _inputs(names: Iterable[str], rows: pa.Table) -> tuple[pa.Table, Vector | None]:
    """The rows of some columns, each different one once where they are few, and which one each row is."""
    named = sorted(names)
    if not named:
        return rows, None
    some = rows.select(
        named
    )  # DuckDB looks at every column that it gets, however few it is asked for
    different = _different(some) if len(rows) >= ROWS_MIN else None
    return (some, None) if different is None else different


def _looked_up(column: Any, at: Vector) -> Any:
    """The values of rows, from those of the different inputs."""
    return vectors.contiguous(column).take(vectors.from_int64(at))


def _different(rows: pa.Table) -> tuple[pa.Table, Vector] | None:
    """The different rows, and the one that each row is: int64[rows]. None where they are too many."""
    columns = [vectors.contiguous(column) for column in rows.columns]
    if not all(map(_is_plain, columns)):
        return None
    sample = [column.slice(0, SAMPLE_ROWS) for column in columns]
    if any(pc.count_distinct(c, mode="all").as_py() > SAMPLE_SHARE_MAX * len(c) for c in sample):
        return None
    encoded: list[Any] = [pc.dictionary_encode(c, null_encoding="encode") for c in columns]
    number = np.zeros(len(rows), np.int64)
    for one in encoded:
        if len(one.dictionary) > SHARE_MAX * len(rows):
            return None
        number = number * len(one.dictionary) + one.indices.to_numpy()
        if one is not encoded[0]:  # numbers stay below the square of how many rows there are
            number = np.asarray(pc.dictionary_encode(pa.array(number)).indices).astype(np.int64)
    if len(encoded) == 1:
        return pa.table([encoded[0].dictionary], rows.column_names), number
    count = int(number.max(initial=-1)) + 1
    if count > SHARE_MAX * len(rows):
        return None
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(rows) - 1, -1, -1)
    return rows.take(vectors.from_int64(first)), number


def _is_plain(column: pa.Array) -> bool:
    """Whether equal values are the same; of a double, 0 and -0 are not."""
    type_ = column.type
    return (vectors.is_fixed(type_) or vectors.is_text(type_)) and not vectors.is_float(type_)
