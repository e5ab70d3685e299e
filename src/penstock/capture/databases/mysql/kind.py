"""What captures of MySQL and MariaDB are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.capture.database import Condition, Kind, spelled, unspelled
from penstock.capture.databases.mysql.binlog import Places
from penstock.capture.databases.mysql.columns import column_type
from penstock.capture.databases.mysql.database import MysqlDatabase
from penstock.capture.databases.mysql.server import DENIED, Server, lag_bytes, replica_of
from penstock.capture.progress import State
from penstock.core.databases import described
from penstock.core.schema import Schema
from penstock.drivers import mysql_parameters
from penstock.errors import UserError

__all__ = ["MYSQL"]


_QUOTES: Final = '"`'
"""What a database's name may be in."""


def _patterns(url: str, tables: Iterable[str]) -> tuple[str, ...]:
    own, made = mysql_parameters(url)["database"], []
    for text in (part.strip() for one in tables for part in one.split(",")):
        if text.count(".") > 1 and text[0] not in _QUOTES:
            raise UserError(
                f"expected tables such as 'users' or 'shop.users'; found {text!r}. Quote a database whose "
                "name has a '.': '\"my.shop\".users'"
            )
        if text:
            made.append(spelled(unspelled(text, own)))
    if not made:
        raise UserError("expected at least one table, such as 'users'; found none")
    return tuple(made)


def _passes(error: Exception) -> bool:
    import pymysql

    # PyMySQL calls packets that were cut by a server's end internal errors.
    passing = pymysql.err.OperationalError | pymysql.err.InterfaceError | pymysql.err.InternalError
    return isinstance(error, passing)


def _refuses(error: Exception, _: str) -> str:
    code = error.args[0] if error.args else 0
    if not (isinstance(error, _errors()) and code in DENIED):
        return ""
    return "Grant the user this privilege (docs/capture-databases.md lists all), and start it again"


def _setup(url: str, tables: Sequence[str], name: str) -> str:
    """The settings and the SQL of what a capture needs, and no more."""
    user = str(mysql_parameters(url).get("user", "ann"))
    databases = sorted({unspelled(one)[0] for one in _patterns(url, tables)})
    to = f"'{user}'@'%'"
    selects = [
        f"GRANT SELECT ON {'*' if '*' in one else '`' + one.replace('`', '``') + '`'}.* TO {to};"
        for one in databases
    ]
    return "\n".join(
        [
            f"-- What the capture {name!r} of {described(url)} needs. In [mysqld], then restart the server:",
            "--   server_id = 1",
            "--   log_bin = mysql-bin",
            "--   binlog_format = ROW",
            "--   binlog_row_image = FULL",
            "--   binlog_row_metadata = FULL",
            "--   binlog_expire_logs_seconds = 604800   # longer than a capture is stopped",
            f"CREATE USER IF NOT EXISTS {to};   -- and a password",
            *selects,
            f"GRANT REPLICATION SLAVE ON *.* TO {to};",
            f"GRANT BINLOG MONITOR ON *.* TO {to};   -- MariaDB",
            f"-- GRANT REPLICATION CLIENT, RELOAD, LOCK TABLES ON *.* TO {to};   -- MySQL, instead",
            "",
        ]
    )


def _errors() -> tuple[type[Exception], ...]:
    import pymysql

    return (pymysql.err.Error,)


def _look(url: str, state: State) -> Condition:
    server = Server(url)
    try:
        if server.system != state.system:  # whose places say nothing here
            return Condition("unknown", None, "another server")
        files = server.files()
        is_dumping = server.is_dumping(replica_of(state.details))
    finally:
        server.close()
    places = Places.of(state.details)
    is_kept = places.file(state.position) in files
    lag = lag_bytes(files, places, state.position)
    slot = "reserved" if is_kept else "lost"
    if is_dumping is None:
        return Condition("unknown", lag, slot)
    return Condition("running" if is_dumping else "stopped", lag, slot)


def _forget(url: str, name: str, state: State) -> None:
    """The server keeps nothing for a capture."""


def describe(url: str, table: str) -> tuple[Schema, tuple[str, ...]]:
    """A table's columns and key, asked of the database.

    Raises:
        UserError: there is no such table, or it has no key.
    """
    server = Server(url)
    try:
        [found, *others] = server.tables([table])
        if others:
            raise UserError(f"expected one table; found {1 + len(others)} as {table!r}")
        definition = server.definition(found)
    finally:
        server.close()
    if not definition.key:
        raise UserError(
            f"expected the table {table!r} to have a primary key, which identifies its rows; "
            "found none. Add one, or give schema=… and key=…"
        )
    columns = [(one, column_type(one)) for one in definition.columns]
    text = ", ".join(
        f'"{one.name.replace(chr(34), 2 * chr(34))}" {type_}'
        + (" NOT NULL" if one.required else "")
        for one, type_ in columns
        if type_
    )
    return Schema.parse(text), definition.key


MYSQL: Final = Kind(
    name="mysql",
    schemes=("mysql", "mariadb"),
    options=frozenset({"registry", "snapshot_connections", "cascades"}),
    open=MysqlDatabase,
    patterns=_patterns,
    position=lambda number, details: Places.of(details).text(number),
    number=lambda text, details: Places.of(details).read(text),
    passes=_passes,
    refuses=_refuses,
    setup=_setup,
    look=_look,
    forget=_forget,
    describe=describe,
    words=("MYSQL", "MARIADB"),
)
KINDS: Final = (MYSQL,)
