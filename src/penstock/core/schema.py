"""Schemas: the columns of a stream, written as in SQL.

    session STRING NOT NULL, query STRING, results ARRAY<STRING>, at TIMESTAMP

A name is an identifier or anything in double quotes. Names that begin with `$` are Penstock's own.

A DECIMAL(p, s) has p digits, s of them after the point. A UUID is its 16 bytes, an INTERVAL a number of
microseconds (so it has days of 24 hours, and no months). JSON is the text of any JSON value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.core.text.carets import caret
from penstock.core.text.types import (
    ALIASES,
    CONSTRAINTS,
    FLOAT_DIGITS_MAX,
    INSTEAD,
    LENGTHS,
    PHRASES,
    PRECISIONS,
    REAL_DIGITS_MAX,
    SUBSECOND_DIGITS_MAX,
)
from penstock.errors import SchemaError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIME_OF_DAY: Final = pa.time64("us")
UUID: Final = pa.binary(16)
INTERVAL: Final = pa.duration("us")
JSON: Final = pa.large_string()
"""A type of Arrow's that nothing else here has: kernels take it as text, expressions know it as JSON."""
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
    "JSON": JSON,
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
    JSON: "JSON",
}
_DECIMAL: Final = frozenset({"DECIMAL", "NUMERIC", "DEC"})
_NESTED: Final = "ARRAY<type> or type[], STRUCT<name type, …>, MAP<STRING, type>"
_BLANK: Final = re.compile(r"(?:\s|\ufeff|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
"""What may stand between words: comments too, and the mark with which some editors begin a file."""
_TOKEN: Final = re.compile(
    r'"(?P<name>(?:[^"]|"")*)"|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<number>[0-9]{1,9})|(?P<mark>[<>,:()[\]])'
    r"|(?P<other>'(?:[^']|'')*'|.)",
    re.DOTALL,
)
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
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"expected each column once; found {twice!r} twice")
        for name in names:
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
        try:
            return Schema.of_columns(text)
        except SchemaError as error:
            if error.at is None:
                raise
            raise error.reworded(f"{error}{caret(text, error.at)}") from None

    @staticmethod
    def of_columns(text: str) -> Schema:
        """The same for columns that are a part of another text.

        Raises:
            SchemaError: they can't be read; the error says at which character.
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

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def _by_name(self) -> Mapping[str, Field]:
        return {field.name: field for field in self.fields}

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
        found = self._by_name.get(name)
        if found is not None:
            return found
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


def holds_json(type_: pa.DataType) -> bool:
    """Whether values of the type are JSON, or have JSON within them."""
    found: Any = type_
    if pa.types.is_list(found):
        return holds_json(found.value_type)
    if pa.types.is_struct(found):
        return any(holds_json(one.type) for one in found)
    if pa.types.is_map(found):
        return holds_json(found.item_type)
    return bool(found == JSON)


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
        return name
    return '"' + name.replace('"', '""') + '"'


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        position = _after_blanks(text, 0)
        while match := _TOKEN.match(text, position):
            kind = str(match.lastgroup)
            value = match[kind].replace('""', '"') if kind == "name" else match[kind]
            self.tokens.append((kind, value, match.start()))
            position = _after_blanks(text, match.end())
        self.next = 0

    def error(self, expected: str, position: int) -> SchemaError:
        found = " ".join(self.text[position : position + 20].split()) or "the end"
        error = SchemaError(
            f"expected {expected}; found {found!r}. Write columns as 'name TYPE [NOT NULL], …'"
        )
        error.at = position
        return error

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
        while self.accept(",") and self.peek()[0] != "end":
            fields.append(self.field())
        if self.peek()[0] != "end":
            raise self.error("',' or the end", self.peek()[2])
        return Schema(tuple(fields))

    def field(self) -> Field:
        name = self.take("a column name", "name", "word")
        type_ = self.type(0)
        required: bool | None = None
        while (found := self.peek())[0] == "word":
            if (word := found[1].upper()) in CONSTRAINTS:
                raise self.error(CONSTRAINTS[word], found[2])
            if word not in ("NOT", "NULL") or required is not None:
                break
            required = self.accept("NOT")
            if not self.accept("NULL"):
                raise self.error("NULL after NOT", self.peek()[2])
        return Field(name, type_, bool(required))

    def type(self, depth: int) -> pa.DataType:
        position = self.peek()[2]
        found = self.one_type(depth)
        while (is_word := self.accept("ARRAY")) or self.accept("["):
            depth += 1
            if depth > NESTING_MAX or not (is_word or self.accept("]")):
                raise self.error(f"type[] without a length, at most {NESTING_MAX} deep", position)
            found = pa.list_(found)
        return found

    def one_type(self, depth: int) -> pa.DataType:
        """A type, without the brackets of arrays behind it."""
        position = self.peek()[2]
        word = self.take("a type", "word").upper()
        if word in _DECIMAL:
            return self.decimal(position)
        plain = ALIASES.get(word, word)
        if plain in _SCALARS:
            return self.scalar(word, plain)
        if plain not in {"ARRAY", "STRUCT", "MAP"}:
            known = f"a type among {', '.join(sorted(_SCALARS))}, DECIMAL(p, s), {_NESTED}"
            instead = f"{INSTEAD.get(word)} instead of {word}, which there is not"
            error = self.error(instead if word in INSTEAD else known, position)
            like = hint(word, (*_SCALARS, *_DECIMAL, *ALIASES))
            raise error if word in INSTEAD or not like else self.error(f"a type{like}", position)
        brackets = next((pair for pair in ("<>", "()") if self.accept(pair[0])), None)
        if depth == NESTING_MAX or brackets is None:
            raise self.error(f"{_NESTED}, nested at most {NESTING_MAX} deep", position)
        found = self.nested(plain, depth + 1)
        if not self.accept(brackets[1]):
            raise self.error(f"'{brackets[1]}'", self.peek()[2])
        return found

    def scalar(self, word: str, plain: str) -> pa.DataType:
        """What a type's name means with the words and the number that follow it."""
        phrases = PHRASES.get(word, ())
        any(self.accept_all(phrase) for phrase in phrases)
        position = self.peek()[2]
        if self.accept("("):
            digits = int(self.take("a number", "number"))
            if not self.accept(")"):
                raise self.error("')'", self.peek()[2])
            if word in PRECISIONS and digits > SUBSECOND_DIGITS_MAX:
                raise self.error(f"{word} of at most {SUBSECOND_DIGITS_MAX} digits", position)
            if word == "FLOAT" and 1 <= digits <= FLOAT_DIGITS_MAX:
                plain = "FLOAT" if digits <= REAL_DIGITS_MAX else "DOUBLE"
            elif word not in LENGTHS | PRECISIONS:
                raise self.error(f"{word} without a number", position)
            any(self.accept_all(phrase) for phrase in phrases)
        return _SCALARS[plain]

    def accept_all(self, words: tuple[str, ...]) -> bool:
        """Takes several words, if all of them are next."""
        there = [one[1].upper() for one in self.tokens[self.next : self.next + len(words)]]
        if there != list(words):
            return False
        self.next += len(words)
        return True

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


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()
