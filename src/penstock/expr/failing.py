"""Which rows a SQL expression fails for, in a way that no optimizer can undo.

    guarded(sql, rows) -> values, NULL where it fails; whether it fails, of each row
    why(sql, row)      -> what DuckDB says where it fails

One pass finds them nearly always: `TRY` gives NULL for what fails within it, on a connection whose
optimizer moves nothing out of it. Errors that `TRY` lets through (an unknown time zone) and what it can't
hold (`error(…)`, a subquery) are found by halves: a part of the rows that fails is cut in two until it is
one row. That takes two queries for each row that fails and the logarithm of how many rows there are, so it
comes second.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.duck import EvaluationError, query_tables, types_of

__all__ = ["UNEXPLAINED", "guarded", "why"]

UNEXPLAINED: Final = "fails for this row"
"""Where an expression that failed works when it is asked why."""


def guarded(sql: str, rows: pa.Table) -> tuple[pa.ChunkedArray, np.ndarray]:
    """An expression that fails for some rows.

    Args:
        sql: the expression, over the columns of `rows`.
        rows: any.

    Returns:
        Its values, which are NULL where it fails, and bool[rows]: where that is.
    """
    try:
        # A struct is NULL where its making failed only, not where the value in it is NULL.
        query = f"SELECT TRY({{'v': {sql}}}) AS x FROM rows"
        found = query_tables({"rows": rows}, query, as_written=True).column(0)
        failed = np.asarray(found.is_null().to_numpy(), np.bool_)
        return pc.struct_field(found, 0), failed
    except EvaluationError:
        parts = _halved(f"SELECT {sql} AS x FROM rows", rows)
    type_: Any = next((one.type for one in parts if isinstance(one, pa.ChunkedArray)), None)
    if type_ is None:
        type_ = _type_of(sql, rows.schema)
    chunks: list[Any] = []
    failed = np.zeros(len(rows), np.bool_)
    at = 0
    for one in parts:
        if isinstance(one, pa.ChunkedArray):
            chunks += one.chunks
            at += len(one)
        else:
            chunks.append(pa.nulls(one, type_))
            failed[at : at + one] = True
            at += one
    return pa.chunked_array(chunks, type_), failed


def why(sql: str, row: pa.Table) -> str:
    """Why an expression fails.

    Args:
        sql: the expression, over the columns of `row`.
        row: one row that it fails for.
    """
    for as_written in (False, True):
        try:
            query_tables({"rows": row}, f"SELECT {sql} AS x FROM rows", as_written=as_written)
        except EvaluationError as error:
            return str(error)
    return UNEXPLAINED


def _halved(query: str, rows: pa.Table) -> list[pa.ChunkedArray | int]:
    """What a query gives of parts of the rows, in their order; a number is of rows that it fails for."""
    try:
        return [query_tables({"rows": rows}, query, as_written=True).column(0)]
    except EvaluationError:
        if len(rows) <= 1:
            return [len(rows)]
    half = len(rows) // 2
    return [*_halved(query, rows.slice(0, half)), *_halved(query, rows.slice(half))]


def _type_of(sql: str, schema: pa.Schema) -> pa.DataType:
    """The type of an expression that fails for all rows."""
    try:
        [(_, found, _)] = types_of({"rows": schema}, f"SELECT {sql} AS x FROM rows")
    except EvaluationError:
        return pa.null()  # DuckDB can't even plan it: a constant part fails
    return found
