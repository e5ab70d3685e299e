"""A table's columns: what the catalog says, and what the binary log adds. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.capture._connect import Member
from penstock.capture._mysql._binlog import TableMap
from penstock.capture._mysql._connect import avro_of
from penstock.capture._schemas import Column as SchemaColumn
from penstock.capture._schemas import Shape
from penstock.core.schema import DECIMAL_DIGITS_MAX

__all__ = [
    "BINARY",
    "Charset",
    "Column",
    "Definition",
    "column_type",
    "definition_of",
    "from_catalog",
    "shape_of",
]

BINARY: Final = "binary"
_CODECS: Final = {
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ascii": "ascii",
    "latin1": "cp1252",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "tis620": "tis_620",
    **{one: one for one in ("cp850", "cp852", "cp866", "cp932", "cp1250", "cp1251", "cp1256")},
    **{one: one for one in ("cp1257", "big5", "gbk", "gb2312", "gb18030")},
}
_BYTES: Final = 256
"""How many there are."""
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


@dataclass(frozen=True)
class Charset:
    """A character set.

    Attributes:
        codec: Python's; `binary` where it is bytes.
        characters: of a set with one byte for each: those of all bytes, as the server converts them. Python
            has others here and there, and some of these sets not at all.
    """

    codec: str = "utf-8"
    characters: str = ""

    @staticmethod
    def of(name: str, characters: str = "") -> Charset:
        """That of MySQL's name."""
        known = characters if len(characters) == _BYTES else ""
        return Charset(_CODECS.get(name, BINARY if name == BINARY else "utf-8"), known)

    def text(self, data: bytes) -> str:
        """Bytes as text."""
        if self.characters:
            return codecs.charmap_decode(data, "replace", self.characters)[0]
        return str(data, self.codec, "replace")


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
                labels=tuple(charset.text(x) for x in labels) if labels else one.labels,
            )
        )
    key = tuple(table_map.names[i] for i in table_map.key or ())
    return Definition(tuple(columns), key)


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
    "varchar": {15, 253},
    "varbinary": {15, 253},
    "json": {245},
    "uuid": {254},
    "inet4": {254},
    "inet6": {254},
    **{key: {252} for key in ("tinytext", "text", "mediumtext", "longtext")},
    **{key: {252} for key in ("tinyblob", "blob", "mediumblob", "longblob")},
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
            if type_ in {15, 253, 254} and is_binary:
                kind = {"varchar": "varbinary", "char": "binary"}[kind]
            if type_ == _BLOB:
                size_of = {1: "tiny", 3: "medium", 4: "long"}.get(meta, "")
                kind = size_of + ("blob" if is_binary else "text")
        size, digits = meta >> 8, meta & 0xFF if kind == "decimal" else meta
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


_BLOB: Final = 252
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
