"""Schemas: the columns of a stream, written as in SQL.

    session STRING NOT NULL, query STRING, results ARRAY<STRING>, at TIMESTAMP

A name is an identifier or anything in double quotes. Names that begin with `$` are Penstock's own.

A DECIMAL(p, s) has p digits, s of them after the point. A UUID is its 16 bytes, an INTERVAL a number of
microseconds (so it has days of 24 hours, and no months).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.errors import SchemaError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIME_OF_DAY: Final = pa.time64("us")
UUID: Final = pa.binary(16)
INTERVAL: Final = pa.duration("us")
DECIMAL_DIGITS_MAX: Final = 38  # of a DECIMAL: as many as 128 bits hold for certain

_SCALARS: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "TEXT": pa.string(),
    "TIMESTAMP": TIMESTAMP,
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    "BYTES": pa.binary(),
    "TIME": TIME_OF_DAY,
    "UUID": UUID,
    "INTERVAL": INTERVAL,
}
_CANONICAL: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    TIMESTAMP: "TIMESTAMP",
    pa.date32(): "DATE",
    pa.binary(): "BINARY",
    TIME_OF_DAY: "TIME",
    UUID: "UUID",
    INTERVAL: "INTERVAL",
}
_DECIMAL: Final = frozenset({"DECIMAL", "NUMERIC", "DEC"})
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ENUM", "SET", "CHAR", "UNION"), "STRING"),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT8", "INT16"), "INT"),
    **dict.fromkeys(("HUGEINT", "UBIGINT"), "DECIMAL(38, 0)"),
    **dict.fromkeys(("JSON", "VARIANT", "OBJECT"), "STRUCT<…> or MAP<STRING, …>"),
    **dict.fromkeys(("DATETIME", "TIMESTAMPTZ"), "TIMESTAMP"),
    **dict.fromkeys(("REAL",), "FLOAT"),
    **dict.fromkeys(("BLOB", "BYTEA", "VARBINARY"), "BINARY"),
}
"""What there is instead of types that other systems have."""
_NESTED: Final = "ARRAY<type> or type[], STRUCT<name type, …>, MAP<STRING, type>"
_TOKEN = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([A-Za-z_][A-Za-z_0-9]*)|([0-9]+)|([<>,:()[\]]))')
NESTING_MAX: Final = 8  # of types within types: deeper is a mistake, and bounds recursion


@dataclass(frozen=True)
class Field:
    """One column: its name, its Arrow type, and whether a row must have it."""

    name: str
    type: pa.DataType
    required: bool = False


@dataclass(frozen=True)
class Schema:
    """The columns of a stream, in order.

    >>> Schema.parse("user BIGINT NOT NULL, at TIMESTAMP").text
    'user BIGINT NOT NULL, at TIMESTAMP'
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names:
            raise SchemaError("expected at least one column; found none")
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"expected each column once; found {name!r} twice")
            if not name or name.startswith("$"):
                raise SchemaError(
                    f"expected a column name that doesn't begin with '$'; found {name!r}"
                )

    @staticmethod
    def parse(text: str) -> Schema:
        """Reads `name TYPE [NOT NULL], ...`.

        Raises:
            SchemaError: the text can't be read; the message shows where.
        """
        return _Parser(text).schema()

    @staticmethod
    def from_arrow(schema: pa.Schema) -> Schema:
        """The schema with the columns of an Arrow schema."""
        return Schema(tuple(Field(f.name, f.type, not f.nullable) for f in schema))

    @cached_property
    def arrow(self) -> pa.Schema:
        """The same as an Arrow schema."""
        return pa.schema([pa.field(f.name, f.type, nullable=not f.required) for f in self.fields])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(field.name for field in self.fields)

    @property
    def text(self) -> str:
        """The same in SQL; `Schema.parse` reads it back."""
        return ", ".join(
            f"{_quoted(f.name)} {type_text(f.type)}{' NOT NULL' if f.required else ''}"
            for f in self.fields
        )

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise SchemaError(
            f"expected one of the columns {known_names(self.names)}; found {name!r}{hint(name, self.names)}"
        )


def type_text(type_: pa.DataType) -> str:
    """The SQL name of an Arrow type.

    Raises:
        SchemaError: Penstock has no such type.
    """
    if pa.types.is_list(type_):
        return f"ARRAY<{type_text(type_.value_type)}>"
    if pa.types.is_struct(type_):
        members = ", ".join(f"{_quoted(one.name)} {type_text(one.type)}" for one in type_)
        return f"STRUCT<{members}>"
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return f"MAP<STRING, {type_text(type_.item_type)}>"
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if type_ not in _CANONICAL:
        raise SchemaError(
            f"expected a type among {', '.join(sorted(_CANONICAL.values()))}, DECIMAL(p, s), {_NESTED}; "
            f"found {type_}"
        )
    return _CANONICAL[type_]


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
        return name
    return '"' + name.replace('"', '""') + '"'


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error("a column name or a type", position)
            quoted, word, number, mark = match.groups()
            if quoted is not None:
                self.tokens.append(("name", quoted.replace('""', '"'), match.start(1)))
            elif word is not None:
                self.tokens.append(("word", word, match.start(2)))
            elif number is not None:
                self.tokens.append(("number", number, match.start(3)))
            else:
                self.tokens.append(("mark", mark, match.start(4)))
            position = match.end()
        self.next = 0

    def error(self, expected: str, position: int) -> SchemaError:
        found = self.text[position : position + 20].strip() or "the end"
        return SchemaError(
            f"expected {expected}; found {found!r} in the schema {self.text!r}. "
            "Write columns as 'name TYPE [NOT NULL], …'"
        )

    def peek(self) -> tuple[str, str, int]:
        if self.next < len(self.tokens):
            return self.tokens[self.next]
        return ("end", "", len(self.text))

    def take(self, expected: str, *kinds: str) -> str:
        kind, value, position = self.peek()
        if kind not in kinds:
            raise self.error(expected, position)
        self.next += 1
        return value

    def accept(self, value: str) -> bool:
        if self.peek()[1].upper() == value and self.peek()[0] != "name":
            self.next += 1
            return True
        return False

    def schema(self) -> Schema:
        fields = [self.field()]
        while self.accept(","):
            fields.append(self.field())
        if self.peek()[0] != "end":
            raise self.error("',' or the end", self.peek()[2])
        return Schema(tuple(fields))

    def field(self) -> Field:
        name = self.take("a column name", "name", "word")
        type_ = self.type(0)
        required = self.accept("NOT")
        if required and not self.accept("NULL"):
            raise self.error("NULL after NOT", self.peek()[2])
        return Field(name, type_, required)

    def type(self, depth: int) -> pa.DataType:
        position = self.peek()[2]
        found = self.one_type(depth)
        while self.accept("["):
            depth += 1
            if depth > NESTING_MAX or not self.accept("]"):
                raise self.error(f"type[] without a length, at most {NESTING_MAX} deep", position)
            found = pa.list_(found)
        return found

    def one_type(self, depth: int) -> pa.DataType:
        """A type, without the brackets of arrays behind it."""
        position = self.peek()[2]
        word = self.take("a type", "word").upper()
        if word in _SCALARS:
            return _SCALARS[word]
        if word in _DECIMAL:
            return self.decimal(position)
        if word not in {"ARRAY", "STRUCT", "MAP"}:
            known = f"a type among {', '.join(sorted(_SCALARS))}, DECIMAL(p, s), {_NESTED}"
            if word in _INSTEAD:
                known = f"{_INSTEAD[word]} instead of {word}, which there is not; {known}"
            raise self.error(known, position)
        if depth == NESTING_MAX or not self.accept("<"):
            raise self.error(f"{_NESTED}, nested at most {NESTING_MAX} deep", position)
        found = self.nested(word, depth + 1)
        if not self.accept(">"):
            raise self.error("'>'", self.peek()[2])
        return found

    def decimal(self, position: int) -> pa.DataType:
        """What follows DECIMAL."""
        expected = f"DECIMAL(p, s) with 1 <= p <= {DECIMAL_DIGITS_MAX} and 0 <= s <= p"
        if not self.accept("("):
            raise self.error(expected, position)
        digits = int(self.take(expected, "number"))
        places = int(self.take(expected, "number")) if self.accept(",") else 0
        if not self.accept(")") or not 1 <= digits <= DECIMAL_DIGITS_MAX or places > digits:
            raise self.error(expected, position)
        return pa.decimal128(digits, places)

    def nested(self, word: str, depth: int) -> pa.DataType:
        """What stands between the brackets."""
        if word == "ARRAY":
            return pa.list_(self.type(depth))
        if word == "MAP":
            position = self.peek()[2]
            if self.type(depth) != pa.string() or not self.accept(","):
                raise self.error("MAP<STRING, type>", position)
            return pa.map_(pa.string(), self.type(depth))
        members: dict[str, pa.DataType] = {}
        while not members or self.accept(","):
            position = self.peek()[2]
            name = self.take("a member's name", "name", "word")
            if name in members:
                raise self.error("each member once", position)
            self.accept(":")
            members[name] = self.type(depth)
        return pa.struct(list(members.items()))
