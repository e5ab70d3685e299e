"""A table of PostgreSQL: rows are loaded by COPY, and offsets stored in the same transaction."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.core.databases import described
from penstock.core.schema import INTERVAL, JSON, TIME_OF_DAY, TIMESTAMP, UUID
from penstock.drivers import keepalives, psycopg_module, tls_error
from penstock.errors import SetupError
from penstock.sinks.targets.contract import Rows
from penstock.sinks.targets.kind import Facts, TargetKind
from penstock.sinks.targets.sql import HUNG_S, RENAMED, STATE_TABLE, WithSavepoints, quoted
from penstock.sinks.targets.texts import json_values

__all__ = ["KINDS", "PostgresTarget", "postgres"]

_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    TIMESTAMP: "timestamptz",
    pa.date32(): "date",
    pa.binary(): "bytea",
    TIME_OF_DAY: "time",
    UUID: "uuid",
    INTERVAL: "interval",
}
_ROWS: Final = frozenset({"09", "21", "22", "23", "27", "38", "39", "44", "54", "P0"})
"""Classes of SQLSTATE that say something of a row: of values, constraints, triggers and limits. A trigger may
have called its error otherwise, by a class that is none of PostgreSQL's."""
_TABLE: Final = frozenset({"42P01", "42703", "42P10", "42804", "428C9"})
"""SQLSTATEs of a table that was dropped or altered: no table, no column, no key, another type, generated."""
_REFUSED: Final = ("authentication failed", "no password supplied", "does not exist", "pg_hba.conf")


def postgres(url: str, *, table: str, create: bool = True) -> PostgresTarget:
    """A table of a PostgreSQL database.

    Args:
        url: `postgresql://user@host:port/database`. If it has no password, PGPASSWORD, PGPASSFILE or
            `~/.pgpass` is used.
        table: its name, which may have a schema: `public.users`. It must have the key as its primary key, or
            a unique index over it.
        create: whether to create it if it doesn't exist.
    """
    return PostgresTarget(url, table, create=create)


class PostgresTarget(WithSavepoints):
    """See `postgres`."""

    placeholder = "%s"
    for_share = " FOR SHARE"
    overriding = " OVERRIDING SYSTEM VALUE"

    def __init__(self, url: str, table: str, *, create: bool) -> None:
        super().__init__(table, create=create)
        self._url, self._psycopg = url, psycopg_module()
        self._connection: Any = None
        self._staged: dict[tuple[str, ...], str] = {}
        self._filled: set[str] = set()  # those with rows of this transaction
        self._is_deferrable = False  # the key, so that ON CONFLICT can't take it

    @property
    def name(self) -> str:
        """The address without a password, and the table."""
        return f"{described(self._url)} {self.table}"

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections, deadlocks, servers that restart or take no writes for a while."""
        module = self._psycopg
        return (module.OperationalError, module.InterfaceError, module.InternalError)

    def refuses(self, error: BaseException) -> bool:
        """Of values, constraints, triggers and limits."""
        state = getattr(error, "sqlstate", None)
        if not isinstance(error, self._psycopg.Error) or state is None:
            return False
        return state[:2] in _ROWS or type(error) is self._psycopg.DatabaseError

    def misses(self, error: BaseException) -> bool:
        """Of a table that was dropped or altered."""
        return getattr(error, "sqlstate", None) in _TABLE

    def connect(self) -> None:
        """Opens the connection.

        Raises:
            SetupError: the server refuses it for good.
        """
        self.close()
        try:
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=10,
                client_encoding="UTF8",
                application_name="penstock",
                options="-c timezone=UTC -c datestyle=ISO "
                f"-c idle_in_transaction_session_timeout={HUNG_S * 1_000}",
                **keepalives(self._url, with_timeout=False),
            )
        except self._psycopg.OperationalError as error:
            if (setup_error := tls_error(self._url, error)) is not None:
                raise setup_error from None
            if any(one in str(error) for one in _REFUSED):
                raise SetupError(
                    f"expected to log in at {described(self._url)}; found: {str(error).strip()}"
                ) from None
            raise

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._staged, self._filled = {}, set()

    def execute(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._connection is None:
            raise self._psycopg.OperationalError("the connection is closed")
        cursor = self._connection.execute(statement, tuple(values) or None)
        return cursor.fetchall() if cursor.description else []

    def _ensure(self, statement: str) -> None:
        errors = self._psycopg.errors
        try:
            self.execute(statement)
        except (errors.UniqueViolation, errors.DuplicateTable):
            pass  # another one has created it meanwhile
        except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
            raise SetupError(
                f"expected to create a table at {described(self._url)}; found: {_first_line(error)}. Create "
                f"it as a role that may, and grant SELECT, INSERT, UPDATE, DELETE on it: {statement}"
            ) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of the sink's owner.

        Raises:
            SetupError: the role may not write the table.
        """
        self._filled.clear()
        try:
            with super()._transaction():
                yield
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                f"expected to write {self.name}; found: {_first_line(error)}. Grant SELECT, INSERT, UPDATE, "
                f"DELETE on {self.table} and {STATE_TABLE} to the role"
            ) from None

    def _check_deferred(self) -> None:
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _part_done(self) -> None:
        self.execute("SET CONSTRAINTS ALL DEFERRED")
        for staged in self._filled:
            self.execute(f"DELETE FROM {staged}")
        self._filled.clear()

    def columns(self) -> list[str]:
        """The table's columns, without those that the database computes."""
        found = self.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            (self.path,),
        )
        return [name for (name,) in found]

    def _check_key(self, rows: Rows) -> None:
        found = rows.key and self.execute(
            "SELECT i.indimmediate FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique "
            'AND i.indpred IS NULL AND (SELECT array_agg(a.attname::text ORDER BY a.attname COLLATE "C") '
            "FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY "
            "(i.indkey[0:i.indnkeyatts - 1])) = %s",
            (self.path, sorted(rows.key)),
        )
        self._is_deferrable = bool(found) and (True,) not in found
        if rows.key and not found:
            raise self._no_index(rows)

    def upsert_sql(self, rows: Rows) -> str:
        """What writes the rows of `{rows}`. ON CONFLICT doesn't take a key that is DEFERRABLE: rows that are
        there are updated, and the others are inserted.
        """
        if not (rows.key and self._is_deferrable):
            return super().upsert_sql(rows)
        listed = ", ".join(quoted(name) for name in rows.schema.names)
        keys = ", ".join(f"t.{quoted(name)}" for name in rows.key)
        same = " AND ".join(f"t.{quoted(n)} = r.{quoted(n)}" for n in rows.key)
        others = [quoted(n) for n in rows.schema.names if n not in rows.key]
        change = ", ".join(f"{n} = r.{n}" for n in others)
        there = (
            f"UPDATE {self.path} AS t SET {change} FROM {{rows}} AS r WHERE {same} RETURNING {keys}"
            if others
            else f"SELECT {keys} FROM {self.path} AS t, {{rows}} AS r WHERE {same}"
        )
        return (
            f"WITH there AS ({there}) INSERT INTO {self.path} ({listed}){self.overriding} "
            f"SELECT {listed} FROM {{rows}} AS r WHERE NOT EXISTS (SELECT 1 FROM there AS t WHERE {same})"
        )

    def type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called there."""
        if pa.types.is_decimal(type_):
            return f"numeric({type_.precision}, {type_.scale})"
        if pa.types.is_list(type_) and not pa.types.is_list(type_.value_type):
            return f"{self.type_of(type_.value_type)}[]"
        return _TYPES.get(type_, "jsonb")  # its arrays of arrays are rectangles

    def load(self, statements: Sequence[str], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Copies the rows into a temporary table of the table's types, and runs the statements with it."""
        assert self._rows is not None, "open comes first"
        names = tuple(rows.schema.names)
        staged = self._staged.get(names, self._staged[self._rows.schema.names])
        if staged in self._filled:
            self.execute(f"DELETE FROM {staged}")
        self._filled.add(staged)
        listed = ", ".join(map(quoted, rows.schema.names))
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY {staged} ({listed}) FROM STDIN (FORMAT csv)") as copy,
        ):
            copy.write(_csv(rows))
        return self._run(statements, staged)

    def _check_table(self, rows: Rows) -> None:
        super()._check_table(rows)
        self._check_key(rows)
        for i, names in enumerate({rows.schema.names, rows.key} - {()}):
            listed = ", ".join(map(quoted, names))
            self._staged[names] = f"penstock_staged_{i}"
            self.execute(
                f"CREATE TEMPORARY TABLE penstock_staged_{i} ON COMMIT DELETE ROWS AS "
                f"SELECT {listed} FROM {self.path} WITH NO DATA"
            )


def _csv(rows: pa.RecordBatch) -> bytes:
    """Rows as PostgreSQL's CSV: NULL is nothing, everything else is in quotes."""
    texts = [_text(column) for column in rows.columns]
    table = pa.Table.from_arrays(texts, names=[f"c{i}" for i in range(len(texts))])
    out = io.BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(table, out, options)
    return out.getvalue()


def _text(column: pa.Array) -> pa.Array:
    """A column's values as PostgreSQL reads them."""
    type_ = column.type
    if type_ in (pa.string(), JSON):
        return column.cast(pa.string())
    simple = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
    simple = simple or pa.types.is_decimal(type_) or pa.types.is_timestamp(type_)
    if simple or pa.types.is_date(type_) or pa.types.is_time(type_):
        return pc.cast(column, pa.string())
    if pa.types.is_list(type_) and not pa.types.is_list(type_.value_type):
        items = iter(_text(pc.list_flatten(column)).to_pylist())
        literals = [
            None if n is None else "{" + ",".join(_item(next(items)) for _ in range(n)) + "}"
            for n in pc.list_value_length(column).to_pylist()
        ]
        return pa.array(literals, pa.string())
    if pa.types.is_nested(type_):
        return pa.array(json_values(column), pa.string())
    return pa.array([_one(value, type_) for value in column.to_pylist()], pa.string())


def _one(value: Any, type_: pa.DataType) -> str | None:
    """A single value."""
    if value is None:
        return None
    if type_ == UUID:
        return str(uuid.UUID(bytes=value))
    if pa.types.is_binary(type_):
        return "\\x" + bytes(value).hex()
    if pa.types.is_duration(type_):
        us = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        return f"{us} microseconds"
    return str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _item(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


KINDS: Final = (
    TargetKind(
        name="postgres",
        title="PostgreSQL",
        make=postgres,
        arguments="url, table=…",
        examples=("postgresql://user@host/database",),
        schemes=("postgresql", "postgres"),
        extra="postgres",
        facts=Facts(
            guarantee="yes",
            exactly_once="rows and offsets are one transaction",
            older_process="is refused: each transaction checks its epoch under a row lock",
            loading="COPY into a temporary table, then one `DELETE` and one `INSERT … ON CONFLICT`",
            others="can read and write",
            left_out="isn't written",
            rebuilt=RENAMED,
        ),
    ),
)
