"""The values of expressions over rows: by Arrow what has a tree, else by DuckDB, each different input once.

An expression is a function of the columns that it names. So where few different values of these occur, as
in columns of channels, paths or instants of a second, it is computed of them alone, and looked up for rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.vectors import Vector
from penstock.expr.columnar import UnfitError, compute
from penstock.expr.duck import evaluate
from penstock.expr.expression import Expression

__all__ = ["values"]

ROWS_MIN: Final = 4_096
"""Rows below which looking for different values costs more than it can save."""
SAMPLE_ROWS: Final = 1_024
SAMPLE_SHARE_MAX: Final = 0.75
"""Of different values among so many rows: where there are more, columns are taken as they are."""
SHARE_MAX: Final = 0.5
"""Of different values among all rows: likewise."""


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
        found |= dict(zip(some, _evaluated(asked, sorted(columns), rows), strict=True))
    return [found[i] for i in range(len(expressions))]


def _evaluated(expressions: Sequence[Expression], names: list[str], rows: pa.Table) -> list[Any]:
    """Expressions over the same columns, by DuckDB."""
    asked = ", ".join(f"{one.sql} AS c{i}" for i, one in enumerate(expressions))
    query = f"SELECT {asked} FROM rows"
    different = _different(rows.select(names)) if names and len(rows) >= ROWS_MIN else None
    # DuckDB looks at every column that it gets, however few it is asked for.
    some, at = (rows.select(names) if names else rows, None) if different is None else different
    made = zip(expressions, evaluate(some, query).columns, strict=True)
    found = [one.typed(column) for one, column in made]
    if at is None:
        return found
    return [vectors.contiguous(column).take(vectors.from_int64(at)) for column in found]


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
