"""A table of MySQL or MariaDB: rows and offsets in one transaction.

A rename is no part of a transaction there, so a rebuild takes three steps, each of them atomic:

1. a transaction stores what is going to be done (the row `INTENT`), and makes the live sink open again
2. one RENAME TABLE of all tables, and of an empty one from `TABLE__switching` to `TABLE__switched`
3. a transaction renames the sinks of the offsets, and removes the row

A process that opens the sink after a kill finds the row, and by the empty table's name what was done. A lock
of the server, which ends with its connection, holds up everybody else meanwhile.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.core.databases import described
from penstock.core.schema import INTERVAL, TIME_OF_DAY, TIMESTAMP, UUID
from penstock.drivers import mysql_parameters, pymysql_module, tls_error
from penstock.errors import SetupError, UserError
from penstock.sinks.targets.contract import NEW, OLD, Rows
from penstock.sinks.targets.kind import Facts, Rebuilt, TargetKind
from penstock.sinks.targets.sql import APART, HUNG_S, STATE_TABLE, SWITCHED, WithSavepoints, quoted
from penstock.sinks.targets.texts import json_values

__all__ = ["KINDS", "MysqlTarget", "mysql"]

BUSY_S: Final = 10
"""How long a lock or an answer is waited for."""
MODE: Final = "ANSI_QUOTES,STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION"
"""Names in double quotes; values that don't fit are errors."""
_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    TIMESTAMP: "DATETIME(6)",
    pa.date32(): "DATE",
    pa.binary(): "LONGBLOB",
    TIME_OF_DAY: "TIME(6)",
    UUID: "CHAR(36) CHARACTER SET ascii",
    INTERVAL: "BIGINT",
}
_KEY_TYPES: Final[dict[pa.DataType, str]] = {
    pa.string(): "VARCHAR(250) CHARACTER SET utf8mb4 COLLATE {exact}",
    pa.binary(): "VARBINARY(1000)",
}
_EXACT: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "utf8mb4_bin")
"""Collations of MariaDB, MySQL and older ones; the last one ignores spaces at the end."""
_DENIED: Final = frozenset({1044, 1045, 1049, 1698})
"""Error numbers: access denied, no such database."""

INTENT: Final = -3
"""In place of a partition: the row whose epoch says which of `EXCHANGES` has begun."""
EXCHANGES: Final = {
    1: ([("", OLD), (NEW, "")], OLD),
    2: ([("", APART), (OLD, ""), (APART, OLD)], None),
}
"""What is renamed, and what is dropped before: a switch, and the way back."""

_VALUES: Final = (
    1048,
    1062,
    1264,
    1265,
    1292,
    1364,
    1365,
    1366,
    1369,
    1406,
    1451,
    1452,
    1526,
    1690,
)
REFUSED: Final = frozenset({*_VALUES, 1153, 1301, 1644, 3140, 3819, 4025})
"""Error numbers of values, constraints, packets that are too large, and triggers (1644: SIGNAL)."""
NO_TABLE: Final = 1146
LITERAL_BYTES: Final = 8
"""Of a character in a statement, at most: it has up to 4, and quotes are doubled."""


def mysql(url: str, *, table: str, create: bool = True) -> MysqlTarget:
    """A table of a MySQL or MariaDB database. Its engine must have transactions (InnoDB has).

    Args:
        url: `mysql://user:password@host:port/database`; `?ssl_ca=FILE` for TLS with verification. If it
            has no password, MYSQL_PWD or `~/.my.cnf` is used.
        table: its name. It must have the key as its primary key, or a unique index over it.
        create: whether to create it if it doesn't exist.
    """
    return MysqlTarget(url, table, create=create)


class MysqlTarget(WithSavepoints):
    """See `mysql`."""

    placeholder = "%s"
    for_share = " LOCK IN SHARE MODE"
    state_options = " ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

    def __init__(self, url: str, table: str, *, create: bool) -> None:
        super().__init__(table, create=create)
        self._url, self._module = url, pymysql_module()
        self._parameters = mysql_parameters(url)
        self._connection: Any = None
        self._staged: dict[tuple[str, ...], str] = {}  # of this connection, by their columns

    @property
    def name(self) -> str:
        """The address without a password, and the table."""
        return f"{described(self._url)} {self.table}"

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections, deadlocks, servers that restart."""
        return (self._module.err.OperationalError, self._module.err.InterfaceError)

    def refuses(self, error: BaseException) -> bool:
        """Of values, constraints and triggers: the driver calls some of them operational."""
        errors = self._module.err
        if isinstance(error, errors.DataError | errors.IntegrityError | _RefusedValueError):
            return True
        return (
            isinstance(error, errors.MySQLError) and bool(error.args) and error.args[0] in REFUSED
        )

    def misses(self, error: BaseException) -> bool:
        """Of a table that was dropped or altered."""
        return isinstance(error, self._module.err.ProgrammingError) and error.args[0] == NO_TABLE

    def connect(self) -> None:
        """Opens the connection.

        Raises:
            SetupError: the server refuses it for good.
        """
        self.close()
        try:
            self._connection = self._module.connect(
                **self._parameters,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=BUSY_S,
                read_timeout=6 * BUSY_S,
                write_timeout=6 * BUSY_S,
                init_command=f"SET sql_mode='{MODE}', time_zone='+00:00', "
                f"innodb_lock_wait_timeout={BUSY_S}, lock_wait_timeout={BUSY_S}",
            )
        except (self._module.err.OperationalError, FileNotFoundError) as error:
            if (setup_error := tls_error(self._url, error)) is not None:
                raise setup_error from None
            if error.args[0] in _DENIED:
                raise SetupError(
                    f"expected to log in at {described(self._url)}; found: {error.args[-1]}"
                ) from None
            raise
        [(self._packet_bytes,)] = self.execute("SELECT @@max_allowed_packet")
        with contextlib.suppress(self._module.err.OperationalError):  # MariaDB's alone
            self.execute(f"SET idle_transaction_timeout = {HUNG_S}")

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection, self._staged = None, {}

    def execute(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._connection is None:
            raise self._module.err.OperationalError("the connection is closed")
        with self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall())

    def columns(self) -> list[str]:
        """The table's columns, without those that the database computes."""
        *schema, name = self.table.split(".")
        found = self.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND table_schema = "
            "coalesce(%s, database()) AND coalesce(generation_expression, '') = '' ORDER BY ordinal_position",
            (name, schema[-1] if schema else None),
        )
        if not found:  # nothing is said of a table that may not be read, either: that is an error
            with contextlib.suppress(self._module.err.ProgrammingError):
                self.execute(f"SELECT 1 FROM {self.path} LIMIT 0")
        return [column for (column,) in found]

    def _check_table(self, rows: Rows) -> None:
        super()._check_table(rows)
        *schema, name = self.table.split(".")
        of_table = (name, schema[-1] if schema else None)
        where = "WHERE table_name = %s AND table_schema = coalesce(%s, database())"
        found = self.execute(
            f"SELECT index_name, column_name FROM information_schema.statistics {where} "
            "AND non_unique = 0",
            of_table,
        )
        unique = [{c for i, c in found if i == one} for one, _ in found]
        if rows.key and set(rows.key) not in unique:
            raise self._no_index(rows)
        [(engine,)] = self.execute(
            f"SELECT engine FROM information_schema.tables {where}", of_table
        )
        if engine != "InnoDB":
            raise UserError(
                f"expected {self.table!r} to be a table with transactions (InnoDB); found {engine}. "
                f"Change it: ALTER TABLE {self.path} ENGINE = InnoDB"
            )
        for names in {rows.schema.names, rows.key} - {()}:
            self._stage(names)

    def _stage(self, names: tuple[str, ...]) -> str:
        """The temporary table with some columns of the table; its creation ends no transaction."""
        if (staged := self._staged.get(names)) is None:
            staged = f"penstock_staged_{len(self._staged)}"
            listed = ", ".join(map(quoted, names))
            self.execute(
                f"CREATE TEMPORARY TABLE {staged} ENGINE = InnoDB AS "
                f"SELECT {listed} FROM {self.path} LIMIT 0"
            )
            self._staged[names] = staged
        return staged

    def _next_epoch(self) -> int:
        assert self._rows is not None, "open comes first"
        own = (self._sink, self._rows.topic)
        self.execute(
            f"INSERT INTO {STATE_TABLE} (sink, topic, part, next, epoch) VALUES (%s, %s, -1, 0, 1) "
            "ON DUPLICATE KEY UPDATE epoch = epoch + 1",
            own,
        )
        [(epoch,)] = self.execute(
            f"SELECT epoch FROM {STATE_TABLE} WHERE sink = %s AND topic = %s AND part = -1", own
        )
        return int(epoch)

    def _store(self, partition: int, offset: int) -> None:
        assert self._rows is not None, "open comes first"
        self.execute(
            f"REPLACE INTO {STATE_TABLE} (sink, topic, part, next, epoch) VALUES (%s, %s, %s, %s, 0)",
            (self._sink, self._rows.topic, partition, offset),
        )

    def type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called there."""
        if pa.types.is_decimal(type_):
            return f"DECIMAL({type_.precision}, {type_.scale})"
        return _TYPES.get(type_, "JSON")

    def key_type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called that is a part of the key: indexes need a length."""
        if type_ not in _KEY_TYPES:
            return self.type_of(type_)
        known = self.execute("SELECT collation_name FROM information_schema.collations")
        return _KEY_TYPES[type_].format(exact=next(one for one in _EXACT if (one,) in known))

    def load(self, statements: Sequence[str], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Puts the rows into a temporary table of the table's types, and runs the statements with it."""
        names = tuple(rows.schema.names)
        staged = self._stage(names)
        columns = [
            json_values(column)
            if pa.types.is_nested(field.type)
            else [_plain(value, field.type) for value in column.to_pylist()]
            for field, column in zip(rows.schema, rows.columns, strict=True)
        ]
        self.execute(f"DELETE FROM {staged}")
        listed, marks = ", ".join(map(quoted, names)), ", ".join(["%s"] * len(names))
        insert = f"INSERT INTO {staged} ({listed.replace('%', '%%')}) VALUES ({marks})"
        with self._connection.cursor() as cursor:
            cursor.max_stmt_length = min(cursor.max_stmt_length, self._packet_bytes // 2)
            some = list(zip(*columns, strict=True))
            if rows.nbytes > self._packet_bytes // LITERAL_BYTES:
                self._check_packets(cursor, insert, some)
            cursor.executemany(insert, some)
        return self._run((one for each in statements for one in each.split(";\n")), staged)

    def _check_packets(self, cursor: Any, insert: str, rows: list[tuple[Any, ...]]) -> None:
        """Whether the server takes each row's statement: with a larger one, it ends the connection."""
        for row in rows:
            texts = sum(len(value) for value in row if isinstance(value, str | bytes))
            if texts * LITERAL_BYTES < self._packet_bytes // 2:
                continue
            size = len(cursor.mogrify(insert, row).encode(errors="surrogatepass"))
            if size >= self._packet_bytes:
                raise _RefusedValueError(
                    f"expected a row of less than {self._packet_bytes:,} bytes (max_allowed_packet of the "
                    f"server); found {size:,}"
                )

    def _delete_sql(self, rows: Rows) -> str:
        return f"DELETE t FROM {self.path} AS t JOIN {{rows}} AS r ON {self._same(rows)}"

    def upsert_sql(self, rows: Rows) -> str:
        """Two statements, as `ON DUPLICATE KEY` would change rows that have another unique column alike."""
        names = [quoted(name) for name in rows.schema.names]
        listed = ", ".join(names)
        if not rows.key:
            return f"INSERT INTO {self.path} ({listed}) SELECT {listed} FROM {{rows}}"
        others = [quoted(n) for n in rows.schema.names if n not in rows.key]
        change = ", ".join(f"t.{n} = r.{n}" for n in others)
        update = f"UPDATE {self.path} AS t JOIN {{rows}} AS r ON {self._same(rows)} SET {change};\n"
        first = quoted(rows.key[0])
        return (update if others else "") + (
            f"INSERT INTO {self.path} ({listed}) SELECT {', '.join(f'r.{n}' for n in names)} FROM {{rows}} "
            f"AS r LEFT JOIN {self.path} AS t ON {self._same(rows)} WHERE t.{first} IS NULL"
        )

    def _update_sql(self, rows: Rows, names: Sequence[str]) -> str:
        change = ", ".join(f"t.{quoted(n)} = r.{quoted(n)}" for n in names)
        return f"UPDATE {self.path} AS t JOIN {{rows}} AS r ON {self._same(rows)} SET {change}"

    # -- tables that are rebuilt ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self, sink: str, topic: str) -> Iterator[None]:
        own = f"{self._parameters.get('database')}/{sink}/{topic}"
        lock = f"penstock.{hashlib.sha1(own.encode(), usedforsecurity=False).hexdigest()}"
        if self.execute("SELECT GET_LOCK(%s, %s)", (lock, BUSY_S)) != [(1,)]:
            raise self._module.err.OperationalError(0, "another process switches the sink's tables")
        try:
            self._settle(sink, topic)
            yield
        finally:
            with contextlib.suppress(self._module.err.MySQLError):  # it ends with the connection
                self.execute("SELECT RELEASE_LOCK(%s)", (lock,))

    def _settle(self, sink: str, topic: str) -> None:
        """Completes a switch that was killed behind its RENAME TABLE, forgets one before it."""
        where = f"WHERE sink = %s AND topic = %s AND part = {INTENT}"
        found = self.execute(f"SELECT epoch FROM {STATE_TABLE} {where}", (sink, topic))
        if not found:
            return
        moves, dropped = EXCHANGES[found[0][0]]
        self.execute("BEGIN")
        self.execute(f"DELETE FROM {STATE_TABLE} {where}", (sink, topic))
        if self.columns_of(f"{self.table}__switched"):
            self._move_state(sink, topic, moves, dropped)
        self.execute("COMMIT")
        self.execute(f"DROP TABLE IF EXISTS {', '.join(self._marks)}")

    @property
    def _marks(self) -> tuple[str, str]:
        """The empty table's name, before and after a switch."""
        return self.named(f"{self.table}__switching").path, self.named(
            f"{self.table}__switched"
        ).path

    def _move(
        self, sink: str, topic: str, moves: list[tuple[str, str]], *, dropped: str | None = None
    ) -> None:
        assert (moves, dropped) in EXCHANGES.values()
        before, after = self._marks
        with self._alone(sink, topic):
            self._require(dropped)
            self.execute(f"DROP TABLE IF EXISTS {before}, {after}")
            self.execute(f"CREATE TABLE {before} (nothing INT)")
            if dropped is not None:
                self.execute(f"DROP TABLE IF EXISTS {self.named(self.table + dropped).path}")
            self._intend(
                sink, topic, next(k for k, v in EXCHANGES.items() if v == (moves, dropped))
            )
            there = {one for one, _ in moves if one == APART or self.columns_of(self.table + one)}
            renames = [
                (self.named(self.table + one).path, self.named(self.table + to).path)
                for one, to in moves
                if one in there
            ]
            clauses = ", ".join(f"{one} TO {to}" for one, to in [*renames, (before, after)])
            self.execute(f"RENAME TABLE {clauses}")
            self._settle(sink, topic)

    def _intend(self, sink: str, topic: str, kind: int) -> None:
        """Stores what is going to be done; the live sink writes nothing more before it was opened again."""
        self.execute("BEGIN")
        self._fence(sink, topic)
        [(epoch,)] = self.execute(
            f"SELECT coalesce(max(epoch), 0) + 1 FROM {STATE_TABLE} WHERE topic = %s", (topic,)
        )
        for part, number in ((-1, epoch), (SWITCHED, epoch), (INTENT, kind)):
            self.execute(
                f"REPLACE INTO {STATE_TABLE} (sink, topic, part, next, epoch) VALUES (%s, %s, %s, 0, %s)",
                (sink, topic, part, number),
            )
        self.execute("COMMIT")


class _RefusedValueError(Exception):
    """A value that the driver can't write."""


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A value as the driver writes it."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if value - value != 0:
            raise _RefusedValueError(f"expected a finite number; found {value!r}")
        return value
    if type_ == UUID:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, dt.timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return value


KINDS: Final = (
    TargetKind(
        name="mysql",
        title="MySQL, MariaDB",
        make=mysql,
        arguments="url, table=…",
        examples=("mysql://user@host/database",),
        schemes=("mysql", "mariadb"),
        extra="mysql",
        facts=Facts(
            guarantee="yes",
            exactly_once="rows and offsets are one transaction",
            older_process="is refused: each transaction checks its epoch under a row lock",
            loading="a temporary table, then one `DELETE`, one `UPDATE` and one `INSERT`",
            others="can read and write",
            left_out="isn't written",
            rebuilt=Rebuilt(
                new="`TABLE__new`",
                replaced="one `RENAME TABLE`, between two transactions; after a kill in between, the next "
                "process that opens the sink completes it",
                old="`TABLE__old`",
            ),
        ),
    ),
)
