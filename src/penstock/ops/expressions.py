"""SQL expressions over the columns of a delta.

An expression is read by sqlglot (so that a column named `at` or `end` needs no quotes), checked against
the columns that there are, and evaluated by DuckDB on whole Arrow columns: `where("status >= 500")`.
It sees one row at a time: aggregates, windows and subqueries are refused, because their meaning would
depend on how the log was cut into batches.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from penstock.core.schema import TIMESTAMP, Schema, type_text
from penstock.errors import SchemaError

# sqlglot and DuckDB are imported where they are used: most tasks need neither, and start sooner.
if TYPE_CHECKING:
    import duckdb
    from sqlglot import exp

__all__ = [
    "EvaluationError",
    "Expression",
    "compile_expression",
    "confine",
    "connection",
    "evaluate",
]

_SQL_TYPES: Final = {
    "BOOLEAN": "BOOLEAN",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "STRING": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "DATE": "DATE",
}


class EvaluationError(Exception):
    """DuckDB could not compute a row; its message says why."""


@dataclass(frozen=True)
class Expression:
    """One compiled expression.

    Attributes:
        text: as the user wrote it, for messages.
        sql: the same for DuckDB, every name quoted, cast to `type`.
        type: the Arrow type of its values.
    """

    text: str
    sql: str
    type: pa.DataType


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


def compile_expression(text: str, schema: Schema) -> Expression:
    """Reads an expression and finds its type.

    Raises:
        SchemaError: it is not one SQL expression, it names a column that isn't there, its types don't
            fit, or it is more than a function of one row.
    """
    import sqlglot
    from sqlglot import exp

    refused = (
        exp.AggFunc, exp.Window, exp.Query, exp.Subquery, exp.Alias, exp.Block, exp.Star,
    )  # fmt: skip
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise SchemaError(f"expected a SQL expression; found {text!r} ({reason})") from None
    for node in tree.walk():
        if isinstance(node, refused):
            raise SchemaError(
                f"expected an expression over the columns of one row; found {node.sql()!r} in {text!r}. "
                "Aggregate with group_by(…).agg(…)"
            )
    _resolve_columns(tree, text, schema)
    sql = tree.sql(dialect="duckdb", identify=True)
    type_ = _type_of(sql, text, schema)
    return Expression(text, f"CAST({sql} AS {_sql_type(type_)})", type_)


def evaluate(rows: pa.Table, query: str) -> pa.Table:
    """Runs `query` over `rows`, which it knows as the table `rows`; keeps the order of rows.

    Raises:
        EvaluationError: some row can't be computed.
    """
    import duckdb

    con = connection()
    con.register("rows", rows)
    try:
        found: pa.Table = con.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise EvaluationError(str(error).splitlines()[0]) from None
    finally:
        con.unregister("rows")
    return found


def _resolve_columns(tree: exp.Expr, text: str, schema: Schema) -> None:
    from sqlglot import exp

    by_lower = {name.lower(): name for name in schema.names}
    for column in tree.find_all(exp.Column):
        name = column.name
        if name in schema.names:
            continue
        if name.lower() not in by_lower:
            raise SchemaError(
                f"expected one of the columns {', '.join(schema.names)}; found {name!r} in {text!r}"
            )
        column.this.set("this", by_lower[name.lower()])


def _type_of(sql: str, text: str, schema: Schema) -> pa.DataType:
    try:
        found = (
            evaluate(schema.arrow.empty_table(), f"SELECT ({sql}) AS x FROM rows").column(0).type
        )
    except EvaluationError as error:
        raise SchemaError(
            f"expected an expression that DuckDB understands; found {text!r}: {error}"
        ) from None
    type_ = _narrow(found)
    type_text(type_)
    return type_


def _narrow(found: pa.DataType) -> pa.DataType:
    """Penstock's type for one of DuckDB's."""
    types = pa.types
    if types.is_list(found):
        return pa.list_(_narrow(found.value_type))
    if (
        types.is_int8(found)
        or types.is_int16(found)
        or types.is_uint8(found)
        or types.is_uint16(found)
    ):
        return pa.int32()
    if types.is_uint32(found) or types.is_uint64(found):
        return pa.int64()
    if types.is_decimal(found):
        return pa.int64() if found.scale == 0 else pa.float64()
    if types.is_timestamp(found):
        return TIMESTAMP
    if types.is_null(found):
        return pa.string()
    if types.is_large_string(found) or found == pa.string_view():
        return pa.string()
    return found


def _sql_type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return _sql_type(type_.value_type) + "[]"
    return _SQL_TYPES[type_text(type_)]
