"""Targets by their addresses."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.sinks._files import duckdb, sqlite
from penstock.sinks._postgres import postgres
from penstock.sinks._target import Target

__all__ = ["from_address"]


def from_address(address: str, table: str) -> Target:
    """A target: `postgresql://…`, or a file that ends in `.sqlite`, `.sqlite3`, `.db` or `.duckdb`.

    Raises:
        UserError: it is neither.
    """
    if address.startswith(("postgresql://", "postgres://")):
        return postgres(address, table=table)
    if address.endswith((".sqlite", ".sqlite3", ".db")):
        return sqlite(address, table=table)
    if address.endswith(".duckdb"):
        return duckdb(address, table=table)
    raise UserError(
        "expected a target such as postgresql://user@host/database, FILE.sqlite or FILE.duckdb; found "
        f"{address.rpartition('@')[2]!r}"
    )
