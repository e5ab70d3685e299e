"""A database's table as the source of a program's table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.capture.database import Kind
from penstock.capture.envelope import Format
from penstock.capture.kinds import kind_named, kind_of
from penstock.core.databases import described
from penstock.core.schema import Schema
from penstock.errors import UserError

__all__ = ["TableSource", "from_address", "mysql", "postgres", "source_of", "sqlite"]


@dataclass(frozen=True)
class TableSource:
    """See `postgres`, `mysql`, `sqlite` and `from_address`."""

    url: str
    table: str
    name: str | None = None
    format: Format = "flat"

    def __repr__(self) -> str:
        scheme = kind_of(self.url).name.removesuffix("ql")
        return f"{scheme}({described(self.url)!r}, table={self.table!r})"

    def describe(self) -> tuple[Schema, tuple[str, ...]]:
        """The table's columns and key, asked of the database.

        Raises:
            UserError: there is no such table, or it has no key.
        """
        return kind_of(self.url).describe(self.url, self.table)


def postgres(
    url: str,
    *,
    table: str,
    name: str | None = None,
    format: Format = "flat",  # noqa: A002
) -> TableSource:
    """A table of a PostgreSQL database, as the source of `App.table`.

    While the program runs, it captures the table into the topic. All tables of one database are one capture,
    with one slot.

    Args:
        url: the database's address, `postgresql://user@host:port/database`. If it has no password,
            PGPASSWORD, PGPASSFILE or `~/.pgpass` is used.
        table: `schema.table`.
        name: of the capture; by default the program's.
        format: of the topic's records: `flat`, rows, or `debezium`, envelopes.
    """
    return source_of(kind_named("postgresql"), url, table=table, name=name, format=format)


def mysql(
    url: str,
    *,
    table: str,
    name: str | None = None,
    format: Format = "flat",  # noqa: A002
) -> TableSource:
    """A table of a MySQL or MariaDB database, as the source of `App.table`.

    While the program runs, it captures the table into the topic. All tables of one database are one capture.

    Args:
        url: the database's address, `mysql://user@host:port/database`. If it has no password, MYSQL_PWD or
            `~/.my.cnf` is used.
        table: its name, or `database.table`.
        name: of the capture; by default the program's.
        format: of the topic's records: `flat`, rows, or `debezium`, envelopes.
    """
    return source_of(kind_named("mysql"), url, table=table, name=name, format=format)


def sqlite(
    path: str | Path,
    *,
    table: str,
    name: str | None = None,
    format: Format = "flat",  # noqa: A002
) -> TableSource:
    """A table of a SQLite file, as the source of `App.table`.

    While the program runs, it captures the table into the topic. Triggers are made in the file, so writes of
    other processes are captured as well.

    Args:
        path: of the file, which exists, or `sqlite:///shop.db`.
        table: its name.
        name: of the capture; by default the program's.
        format: of the topic's records: `flat`, rows, or `debezium`, envelopes.
    """
    return source_of(kind_named("sqlite"), str(path), table=table, name=name, format=format)


def from_address(
    url: str,
    *,
    table: str,
    name: str | None = None,
    format: Format = "flat",  # noqa: A002
) -> TableSource:
    """A table of a database of any kind, also of another distribution, as the source of `App.table`.

    Args:
        url: the database's address; its scheme says the kind.
        table: its name, as of the kind.
        name: of the capture; by default the program's.
        format: of the topic's records: `flat`, rows, or `debezium`, envelopes.

    Raises:
        UserError: there is no such kind.
    """
    return source_of(kind_of(url), url, table=table, name=name, format=format)


def source_of(
    kind: Kind,
    url: str,
    *,
    table: str,
    name: str | None = None,
    format: Format = "flat",  # noqa: A002
) -> TableSource:
    """A table of a database of a kind. Arguments as for `from_address`.

    Raises:
        UserError: the address is of another kind.
    """
    url = kind.address(url)
    found = kind_of(url)
    if found.name != kind.name:
        raise UserError(f"expected the address of a {kind.name} database; found {described(url)!r}")
    [one] = found.patterns(url, [table])
    return TableSource(url, one, name, format)
