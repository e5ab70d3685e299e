"""DuckDB as an evaluator of expressions: in memory, one core, no files, no network."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.core.schema import UUID

# DuckDB is imported where it is used: most lanes need none, and start sooner.
if TYPE_CHECKING:
    import duckdb

__all__ = [
    "EvaluationError",
    "confine",
    "connection",
    "evaluate",
    "known",
    "query_tables",
    "types_of",
]


class EvaluationError(Exception):
    """DuckDB could not compute a row; its message says why."""


_thread = threading.local()
_opened: list[duckdb.DuckDBPyConnection] = []


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's in-memory DuckDB: one core, no files, no network, UTC."""
    import duckdb

    if not hasattr(_thread, "connection"):
        con = duckdb.connect(":memory:")
        con.execute("SET threads = 1")
        confine(con)
        _thread.connection = con
        _opened.append(con)
    return cast("duckdb.DuckDBPyConnection", _thread.connection)


@atexit.register
def _close() -> None:
    """DuckDB complains of what is left when the interpreter ends."""
    for con in _opened:
        con.close()
    _opened.clear()
    vars(_thread).clear()


def confine(con: duckdb.DuckDBPyConnection) -> None:
    """Lets a connection see what is registered with it and nothing else: no files, no network."""
    for setting in (
        "TimeZone = 'UTC'",
        "enable_external_access = false",
        "python_enable_replacements = false",
        "lock_configuration = true",
    ):
        con.execute(f"SET {setting}")


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
    with _asked({name: one.empty_table() for name, one in tables.items()}, query) as relation:
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
