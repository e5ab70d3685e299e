"""A PostgreSQL table's columns as those of a program's table."""

from __future__ import annotations

from typing import Final

from penstock.capture.databases.postgres.copy import parse_tables
from penstock.capture.databases.postgres.rows import key_columns
from penstock.capture.databases.postgres.server import Server
from penstock.capture.databases.postgres.types import Type
from penstock.core.schema import DECIMAL_DIGITS_MAX, Schema
from penstock.errors import UserError

__all__ = ["column_type", "describe"]

_COLUMNS: Final = {
    "bool": "BOOLEAN",
    "int2": "INT",
    "int4": "INT",
    "int8": "BIGINT",
    "oid": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "bytea": "BINARY",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP",
    "uuid": "UUID",
}


def describe(url: str, table_: str) -> tuple[Schema, tuple[str, ...]]:
    """A table's columns and key, asked of the database.

    Raises:
        UserError: there is no such table, or it has no key.
    """
    server = Server(url)
    try:
        [table, *others] = server.tables(parse_tables([table_]))
        if others:
            raise UserError(f"expected one table; found {1 + len(others)} as {table_!r}")
        relation = server.relation(table)
        facts = server.facts(relation.oid)
        columns = [
            (one.name, column_type(server.type(one.oid, one.modifier))) for one in relation.columns
        ]
    finally:
        server.close()
    key = key_columns(relation, facts)
    if not key:
        raise UserError(
            f"expected the table {table_!r} to have a primary key, which identifies its rows; "
            "found none. Add one, or give schema=… and key=…"
        )
    text = ", ".join(
        f'"{name.replace(chr(34), 2 * chr(34))}" {type_}'
        + (" NOT NULL" if name in key or name in facts.required else "")
        for name, type_ in columns
        if type_
    )
    return Schema.parse(text), key


def column_type(type_: Type) -> str:
    """What a type's values are as a column; empty where they can't be one.

    >>> column_type(Type("numeric", modifier=(12 << 16 | 2) + 4)), column_type(Type("public.mood", "e"))
    ('DECIMAL(12, 2)', 'STRING')
    """
    if type_.element is not None:
        return f"ARRAY<{column_type(type_.element)}>"
    if type_.name == "point":
        return ""
    if type_.name == "numeric" and type_.modifier >= 0:
        digits, scale = (type_.modifier - 4) >> 16, (type_.modifier - 4) & 0x7FF
        if digits <= DECIMAL_DIGITS_MAX and scale <= digits:
            return f"DECIMAL({digits}, {scale})"
    if type_.name == "bit" and type_.modifier == 1:
        return "STRING"
    return _COLUMNS.get(type_.name, "STRING")
