"""A table's columns: what the catalog says, and what the binary log adds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.capture.connect import Member
from penstock.capture.databases.mysql.binlog import TableMap
from penstock.capture.databases.mysql.charsets import BINARY, Charset
from penstock.capture.databases.mysql.connect import avro_of
from penstock.capture.table_schemas import Column as SchemaColumn
from penstock.capture.table_schemas import Shape
from penstock.core.schema import DECIMAL_DIGITS_MAX

__all__ = [
    "Column",
    "Definition",
    "column_type",
    "definition_of",
    "from_catalog",
    "shape_of",
]

_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")
_SPECIAL: Final = {"uuid", "inet4", "inet6", "point"}
_TEXTS: Final = {
    "char",
    "varchar",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "enum",
    "set",
    "json",
}


BYTES: Final = Charset(BINARY)
"""Of what is no text."""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its name.
        kind: its type without what is in brackets: `int`, `varchar`.
        charset: of its text; that of bytes where it is bytes.
        unsigned: whether it has no sign.
        labels: of ENUM and SET.
        size: bits of a BIT, bytes of a BINARY, digits of a DECIMAL.
        digits: of a DECIMAL behind its point, or of a second.
        required: whether it is NOT NULL.
        is_virtual: whether the server makes its values when they are read.
        is_known: whether the catalog has it.
    """

    name: str
    kind: str
    charset: Charset = BYTES
    unsigned: bool = False
    labels: tuple[str, ...] = ()
    size: int = 0
    digits: int = 0
    required: bool = False
    is_virtual: bool = False
    is_known: bool = True


@dataclass(frozen=True)
class Definition:
    """A table's columns in order, and the names of its primary key's in that one's order."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]


def from_catalog(row: Mapping[str, Any], charsets: Mapping[str, Charset]) -> Column:
    """A row of information_schema.columns; character sets by their names."""
    kind, full = row["DATA_TYPE"].lower(), row["COLUMN_TYPE"]
    labels = ()
    if kind in {"enum", "set"}:
        labels = tuple(one.replace("''", "'") for one in _LABEL.findall(full))
    size = row["CHARACTER_OCTET_LENGTH"] if kind == "binary" else row["NUMERIC_PRECISION"]
    digits = row["NUMERIC_SCALE"] if kind == "decimal" else row["DATETIME_PRECISION"]
    charset = row["CHARACTER_SET_NAME"]
    return Column(
        row["COLUMN_NAME"],
        kind,
        charsets.get(charset, Charset()) if charset else BYTES,
        unsigned="unsigned" in full or "zerofill" in full,
        labels=labels,
        size=int(size or 0),
        digits=int(digits or 0),
        required=row["IS_NULLABLE"] == "NO",
        is_virtual="VIRTUAL" in (row["EXTRA"] or "").upper(),
    )


def definition_of(
    table_map: TableMap, catalog: Definition, charsets: Mapping[int, Charset]
) -> Definition | None:
    """The columns of a table as its rows have them; None where neither the log nor the catalog knows them.

    The catalog may be ahead of the log: a table may have been altered since. What the log says counts.
    """
    count = len(table_map.types)
    if table_map.names is None:
        fits = len(catalog.columns) == count and all(
            _fits(kind, one) for kind, one in zip(table_map.types, catalog.columns, strict=True)
        )
        return catalog if fits else None
    by_name = {one.name: one for one in catalog.columns}
    columns = []
    for i, name in enumerate(table_map.names):
        one = by_name.get(name, Column(name, "", is_known=False))
        kind = one.kind if one.kind in _SPECIAL and _fits(table_map.types[i], one) else ""
        charset = charsets.get((table_map.collations or {}).get(i, 0), one.charset)
        labels = (table_map.labels or {}).get(i)
        columns.append(
            replace(
                one,
                kind=kind,
                charset=charset,
                unsigned=i in table_map.unsigned
                if table_map.unsigned is not None
                else one.unsigned,
                digits=one.digits if one.kind in _TIMES else 0,
                labels=tuple(charset.text(x) for x in labels) if labels else one.labels,
            )
        )
    key = tuple(table_map.names[i] for i in table_map.key or ())
    return Definition(tuple(columns), key)


_TIMES: Final = {"time", "datetime", "timestamp"}
_OLD_TIMES: Final = {7, 11, 12}
"""Types of the format before MySQL 5.6's. The binary log doesn't have their digits of a second."""
_TYPES: Final[dict[str, set[int]]] = {
    "tinyint": {1},
    "smallint": {2},
    "mediumint": {9},
    "int": {3},
    "bigint": {8},
    "float": {4},
    "double": {5},
    "decimal": {246},
    "year": {13},
    "date": {10, 14},
    "time": {11, 19},
    "bit": {16},
    "datetime": {12, 18},
    "timestamp": {7, 17},
    "char": {254},
    "binary": {254},
    "enum": {247},
    "set": {248},
    "varchar": {15, 253, 141},
    "varbinary": {15, 253, 141},
    "json": {245},
    "uuid": {254},
    "inet4": {254},
    "inet6": {254},
    **{key: {252, 140} for key in ("tinytext", "text", "mediumtext", "longtext")},
    **{key: {252, 140} for key in ("tinyblob", "blob", "mediumblob", "longblob")},
}


def shape_of(definition: Definition, table_map: TableMap | None = None) -> Shape:
    """What a table looks like: what the binary log says about its columns, and else the catalog."""
    columns, members = [], []
    for i, one in enumerate(definition.columns):
        logged = None if table_map is None else (table_map.types[i], table_map.metas[i])
        spelled, required = _spelled(one, logged), one.required if one.is_known else None
        columns.append(SchemaColumn(one.name, spelled, required))
        bits = one.size if logged is None else (logged[1] >> 8) * 8 + (logged[1] & 0xFF)
        members.append(Member(one.name, avro_of(spelled, bits), bool(required)))
    return Shape(tuple(columns), definition.key, tuple(members))


def _spelled(column: Column, logged: tuple[int, int] | None) -> str:
    """A column's type: of its length what makes its values others."""
    kind, size, digits = column.kind, column.size, column.digits
    if logged is not None:
        type_, meta = logged
        is_binary = column.charset.codec == BINARY
        if column.kind not in _SPECIAL:
            kind = _KINDS.get(type_, "geometry")
            if type_ in {15, 253, 254, 141} and is_binary:
                kind = {"varchar": "varbinary", "char": "binary"}[kind]
            if type_ in _BLOBS:
                size_of = {1: "tiny", 3: "medium", 4: "long"}.get(meta, "")
                kind = size_of + ("blob" if is_binary else "text")
        size = meta >> 8
        if type_ not in _OLD_TIMES:
            digits = meta & 0xFF if kind == "decimal" else meta
    elif kind not in _TYPES and kind not in _SPECIAL:
        kind = "geometry"
    if kind == "decimal":
        kind = f"decimal({size},{digits})"
    elif kind in {"datetime", "timestamp", "time"} and 0 < digits <= 6:
        kind = f"{kind}({digits})"
    elif column.labels:
        kind += "(" + ",".join(f"'{one}'" for one in column.labels) + ")"
    return kind + (" unsigned" if column.unsigned else "")


def _fits(type_: int, column: Column) -> bool:
    return type_ in _TYPES.get(column.kind, {255})


_BLOBS: Final = {252, 140}
_KINDS: Final = {
    type_: kind
    for kind, types in _TYPES.items()
    for type_ in types
    if kind not in _SPECIAL and kind not in {"binary", "varbinary"}
}
"""The types of the binary log's numbers; those of text and of bytes are one."""


def column_type(column: Column) -> str:
    """What a column's values are as a column of a program; empty where they can't be one.

    >>> column_type(Column("n", "decimal", size=8, digits=2)), column_type(Column("i", "int", unsigned=True))
    ('DECIMAL(8, 2)', 'BIGINT')
    """
    kind = column.kind
    if kind == "decimal":
        fits = column.size <= DECIMAL_DIGITS_MAX
        return f"DECIMAL({column.size}, {column.digits})" if fits else "STRING"
    if kind == "bigint" and column.unsigned:
        return "DECIMAL(20, 0)"
    if kind == "int" and column.unsigned:
        return "BIGINT"
    if kind in _TEXTS:
        return "STRING"
    return _PROGRAM.get(kind, "")


_PROGRAM: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "year"), "INT"),
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "STRING",
    **dict.fromkeys(("datetime", "timestamp"), "TIMESTAMP"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "BINARY"
    ),
    "bit": "STRING",
    "uuid": "UUID",
    "inet4": "STRING",
    "inet6": "STRING",
}
