"""DuckDB as an evaluator of expressions: in memory, one core, no files, no network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.duck import confine, connection
from penstock.core.schema import UUID
from penstock.core.sketches.functions import add_functions

# DuckDB is imported where it is used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = [
    "EvaluationError",
    "add_functions",
    "confine",
    "connection",
    "evaluate",
    "known",
    "query_tables",
    "types_of",
]


class EvaluationError(Exception):
    """DuckDB could not compute a row; its message says why."""


def evaluate(rows: pa.Table, query: str) -> pa.Table:
    """Runs `query` over `rows`, which it knows as the table `rows`; keeps the order of rows.

    Raises:
        EvaluationError: some row can't be computed.
    """
    return query_tables({"rows": rows}, query)


def query_tables(tables: Mapping[str, pa.Table], query: str) -> pa.Table:
    """Runs `query` over some tables, which it knows by their names.

    Raises:
        EvaluationError: it can't be computed.
    """
    with _asked(tables, query) as relation:
        found: pa.Table = relation.to_arrow_table()
        return found


def types_of(tables: Mapping[str, pa.Schema], query: str) -> list[tuple[str, pa.DataType, str]]:
    """The columns that a query gives over some tables: names, types in Arrow, and as DuckDB calls them.

    Raises:
        EvaluationError: it can't be computed of such rows.
    """
    empty = {name: pa.Table.from_batches([], one) for name, one in tables.items()}
    with _asked(empty, query) as relation:
        names = [str(one) for one in relation.types]
        types = relation.to_arrow_table().schema.types
        return list(zip(relation.columns, types, names, strict=True))


@contextlib.contextmanager
def _asked(tables: Mapping[str, pa.Table], query: str) -> Iterator[duckdb.DuckDBPyRelation]:
    import duckdb

    con = connection()
    for name, rows in tables.items():
        con.register(name, known(rows))
    try:
        yield con.sql(query)
    except duckdb.Error as error:
        raise EvaluationError(str(error).splitlines()[0]) from None
    finally:
        for name in tables:
            con.unregister(name)


def known(rows: pa.Table) -> pa.Table:
    """Rows whose UUIDs are known as such: by their Arrow type they are bytes."""
    for i, field in enumerate(rows.schema):
        if field.type == UUID:
            kind: Any = pa.uuid()
            chunks: list[Any] = [
                pa.ExtensionArray.from_storage(kind, c) for c in rows.column(i).chunks
            ]
            column = pa.chunked_array(chunks, kind)
            rows = rows.set_column(i, field.name, column)
    return rows
