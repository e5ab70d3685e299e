"""What captures of SQLite are made of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.capture.database import Condition, Kind
from penstock.capture.databases.sqlite.database import SqliteDatabase, connect, path_of, table_names
from penstock.capture.databases.sqlite.triggers import Triggers
from penstock.capture.databases.sqlite.values import column_type
from penstock.capture.progress import State
from penstock.core.databases import described
from penstock.core.schema import Schema
from penstock.errors import UserError

__all__ = ["SQLITE"]


_PASSING: Final = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_SCHEMA),
}


def _patterns(_: str, tables: Iterable[str]) -> tuple[str, ...]:
    found = [part.strip() for one in tables for part in one.split(",") if part.strip()]
    if not found:
        raise UserError("expected at least one table, such as 'users'; found none")
    return tuple(one.removeprefix("main.") for one in found)


def _address(path: str) -> str:
    """The address of a file."""
    return path if path.startswith("sqlite://") else f"sqlite:///{Path(path).absolute()}"


def _passes(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.OperationalError) and (code & 0xFF) in _PASSING


def _look(url: str, state: State) -> Condition:
    sql = connect(path_of(url))
    try:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if sql.execute(query, (state.details["log"],)).fetchone() is None:
            return Condition("stopped", slot="missing")
        return Condition("unknown")
    finally:
        sql.close()


def _forget(url: str, name: str, _: State) -> None:
    sql = connect(path_of(url))
    try:
        sql.execute("BEGIN IMMEDIATE")
        Triggers(sql, name).drop()
        sql.execute("COMMIT")
    finally:
        sql.close()


def describe(url: str, table: str) -> tuple[Schema, tuple[str, ...]]:
    """A table's columns and key.

    Raises:
        UserError: there is no such table, or it has no key.
    """
    sql = connect(path_of(url))
    try:
        if table not in (known := table_names(sql)):
            raise UserError(f"expected a table among {', '.join(known) or 'none'}; found {table!r}")
        layout = Triggers(sql, "").look(table)
    finally:
        sql.close()
    if not layout.key:
        raise UserError(
            f"expected the table {table!r} to have a primary key, which identifies its rows; "
            "found none. Add one, or give schema=… and key=…"
        )
    return Schema.parse(
        ", ".join(
            f'"{one.name.replace(chr(34), 2 * chr(34))}" {column_type(one.declared)}'
            + (" NOT NULL" if one.required else "")
            for one in layout.columns
        )
    ), layout.key


SQLITE: Final = Kind(
    name="sqlite",
    schemes=("sqlite",),
    options=frozenset(),
    open=SqliteDatabase,
    patterns=_patterns,
    position=lambda number, _: str(number),
    number=lambda text, _: int(text),
    refuses=lambda *_: "",
    setup=lambda url, _tables, _name: (
        f"-- {described(url)} needs nothing but the right to write to the file.\n"
    ),
    passes=_passes,
    look=_look,
    forget=_forget,
    describe=describe,
    words=("SQLITE",),
    address=_address,
)
KINDS: Final = (SQLITE,)
