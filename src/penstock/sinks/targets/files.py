"""Tables of databases in a file: SQLite and DuckDB."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.core.schema import INTERVAL, TIME_OF_DAY, TIMESTAMP, UUID, type_text
from penstock.errors import UserError
from penstock.sinks.targets.contract import Rows
from penstock.sinks.targets.kind import Facts, TargetKind
from penstock.sinks.targets.sql import RENAMED, SqlTarget, WithSavepoints, quoted
from penstock.sinks.targets.texts import json_values

__all__ = ["KINDS", "DuckTarget", "SqliteTarget", "duckdb", "sqlite"]

BUSY_S: Final = 5.0
"""How long a lock of another process is waited for, before it is tried again later."""


def sqlite(path: str | Path, *, table: str, create: bool = True) -> SqliteTarget:
    """A table of a SQLite database. Others may read and write the file meanwhile.

    Instants, dates and times are ISO 8601 text, decimals text, intervals microseconds, arrays and objects
    JSON.

    Args:
        path: of the file, created if it doesn't exist.
        table: its name.
        create: whether to create it if it doesn't exist.
    """
    return SqliteTarget(path, table, create=create)


def duckdb(path: str | Path, *, table: str, create: bool = True) -> DuckTarget:
    """A table of a DuckDB database. While the sink runs, no other process can open the file.

    Args:
        path: of the file, created if it doesn't exist.
        table: its name.
        create: whether to create it if it doesn't exist.
    """
    return DuckTarget(path, table, create=create)


class _FileTarget(SqlTarget):
    """A table of a database in a file."""

    def __init__(self, path: str | Path, table: str, *, create: bool) -> None:
        super().__init__(table, create=create)
        self._path = Path(path)
        self._connection: Any = None

    @property
    def name(self) -> str:
        """The file and the table."""
        return f"{self._path} {self.table}"

    def close(self) -> None:
        """Closes the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _check_key(self, rows: Rows, no_index: type[Exception]) -> None:
        """Looks whether the table has an index over the key, without which nothing can be upserted.

        Raises:
            UserError: it hasn't.
        """
        if not rows.key:
            return
        try:
            self.execute("EXPLAIN " + self.upsert_sql(rows).replace("{rows}", self.path))
        except no_index as error:
            if "constraint" not in str(error).lower():
                raise
            raise self._no_index(rows, "CREATE UNIQUE INDEX NAME ON {table}") from None


class SqliteTarget(_FileTarget, WithSavepoints):
    """See `sqlite`."""

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Locks of others; a disk that is full."""
        return (sqlite3.OperationalError,)

    def refuses(self, error: BaseException) -> bool:
        """Of values and constraints."""
        return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError)

    def connect(self) -> None:
        """Opens the file."""
        self.close()
        self._connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )

    def execute(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._connection is None:
            raise sqlite3.OperationalError("the file is closed")
        # A transaction that writes takes the lock when it begins: none is read by two at once.
        if statement == "BEGIN":
            statement = "BEGIN IMMEDIATE"
        found: list[tuple[Any, ...]] = self._connection.execute(statement, tuple(values)).fetchall()
        return found

    def columns(self) -> list[str]:
        """The table's columns."""
        return [row[1] for row in self.execute(f"PRAGMA table_info({quoted(self.table)})")]

    def _check_table(self, rows: Rows) -> None:
        super()._check_table(rows)
        self._check_key(rows, sqlite3.OperationalError)

    @property
    def path(self) -> str:
        """The table's name, quoted: there are no schemas."""
        return quoted(self.table)

    def type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called there."""
        if pa.types.is_integer(type_) or type_ in (pa.bool_(), INTERVAL):
            return "INTEGER"
        if pa.types.is_floating(type_):
            return "REAL"
        return "BLOB" if type_ == pa.binary() else "TEXT"

    def load(self, statements: Sequence[str], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Puts the rows into a temporary table, and runs the statements with it."""
        assert self._connection is not None, "open comes first"
        names = ", ".join(map(quoted, rows.schema.names))
        marks = ", ".join("?" * len(rows.schema.names))
        columns = [
            json_values(column)
            if pa.types.is_nested(field.type)
            else [_plain(value, field.type) for value in column.to_pylist()]
            for field, column in zip(rows.schema, rows.columns, strict=True)
        ]
        self.execute("DROP TABLE IF EXISTS temp.penstock_staged")
        self.execute(f"CREATE TEMPORARY TABLE penstock_staged ({names})")
        insert = f"INSERT INTO temp.penstock_staged VALUES ({marks})"
        self._connection.executemany(insert, zip(*columns, strict=True))
        return self._run(statements, "temp.penstock_staged")


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A value as SQLite keeps it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if type_ == UUID:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return value


class DuckTarget(_FileTarget):
    """See `duckdb`."""

    def __init__(self, path: str | Path, table: str, *, create: bool) -> None:
        import duckdb as module

        super().__init__(path, table, create=create)
        self._module = module

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """A file that another process has open; conflicts; a disk that is full."""
        return (self._module.IOException, self._module.TransactionException)

    def refuses(self, error: BaseException) -> bool:
        """Of values and constraints."""
        module = self._module
        refused = (module.ConstraintException, module.ConversionException)
        return isinstance(error, (*refused, module.OutOfRangeException))

    def connect(self) -> None:
        """Opens the file."""
        self.close()
        self._connection = self._module.connect(str(self._path))

    def execute(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._connection is None:
            raise self._module.IOException("the file is closed")
        found: list[tuple[Any, ...]] = self._connection.execute(
            statement, tuple(values) or None
        ).fetchall()
        return found

    def columns(self) -> list[str]:
        """The table's columns."""
        *schema, name = self.table.split(".")
        found = self.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND schema_name = ? "
            "AND database_name = current_database() ORDER BY column_index",
            (name, schema[-1] if schema else "main"),
        )
        return [column for (column,) in found]

    def type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called there."""
        if type_ == TIMESTAMP:
            return "TIMESTAMPTZ"
        if type_ in (UUID, TIME_OF_DAY, INTERVAL, pa.binary()):
            return {UUID: "UUID", TIME_OF_DAY: "TIME", INTERVAL: "INTERVAL"}.get(type_, "BLOB")
        if pa.types.is_list(type_):
            return f"{self.type_of(type_.value_type)}[]"
        if pa.types.is_nested(type_):
            return "JSON"
        return type_text(type_)

    def _check_table(self, rows: Rows) -> None:
        for one in rows.schema:
            if one.name in rows.key and (one.type == INTERVAL or pa.types.is_list(one.type)):
                raise UserError(
                    "expected a key of columns that DuckDB can index; found "
                    f"{one.name} {type_text(one.type)}. Choose another key, or write the column as STRING"
                )
        super()._check_table(rows)
        self._check_key(rows, self._module.BinderException)

    def load(self, statements: Sequence[str], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Runs the statements on the Arrow columns themselves."""
        columns = [
            pa.array(json_values(column), pa.string())
            if pa.types.is_struct(field.type) or pa.types.is_map(field.type)
            else pa.array([_plain(value, UUID) for value in column.to_pylist()], pa.string())
            if field.type == UUID
            else column
            for field, column in zip(rows.schema, rows.columns, strict=True)
        ]
        table = pa.Table.from_arrays(columns, names=rows.schema.names)
        self._connection.register("penstock_staged", table)
        try:
            return self._run(statements, "penstock_staged")
        finally:
            with contextlib.suppress(self._module.Error):  # what went wrong is reported already
                self._connection.unregister("penstock_staged")


KINDS: Final = (
    TargetKind(
        name="sqlite",
        title="SQLite",
        make=sqlite,
        arguments="path, table=…",
        examples=("FILE.sqlite", "FILE.db"),
        suffixes=(".sqlite", ".sqlite3", ".db"),
        facts=Facts(
            guarantee="yes",
            exactly_once="rows and offsets are one transaction",
            older_process="is refused: each transaction checks its epoch; transactions that write exclude "
            "each other",
            loading="a temporary table",
            others="can read; can write between its transactions",
            left_out="isn't written",
            rebuilt=RENAMED,
        ),
    ),
    TargetKind(
        name="duckdb",
        title="DuckDB",
        make=duckdb,
        arguments="path, table=…",
        examples=("FILE.duckdb",),
        suffixes=(".duckdb",),
        facts=Facts(
            guarantee="yes",
            exactly_once="rows and offsets are one transaction",
            older_process="the file belongs to one process",
            loading="Arrow columns",
            others="can't open the file",
            left_out="isn't written",
            rebuilt=RENAMED,
        ),
    ),
)
