"""A table's rows as JSON: a reader that is generated for the table's columns. Pure.

    a row of a message, or of COPY  ->  fragments, one of each column  ->  JSON of the row and of its key

A fragment is a value as JSON. Numbers are the server's bytes; nothing is made of them but a copy. So a
row costs one call, and no object per value but its fragment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, TypeAlias

import orjson

from penstock.capture.database import spelled
from penstock.capture.databases.postgres.pgoutput import Relation
from penstock.capture.databases.postgres.types import Type, Types, converter, placeholder, zero
from penstock.capture.envelope import members
from penstock.capture.unread import UNREADABLE, Losses, as_json

__all__ = ["NULL", "Facts", "Fragments", "Table", "Texts", "fragment", "key_columns"]

NULL: Final = b"null"
Fragments: TypeAlias = tuple[bytes, ...]
"""A row's values as JSON, of the columns that records have."""
Texts: TypeAlias = Sequence[bytes | None]
"""A row's values as texts, of all columns."""
_LENGTH: Final = struct.Struct(">i").unpack_from
_TEXT: Final = 116
"""The kind of a value that is sent as text."""
_PLAIN: Final = (int,)
"""Converters of types whose texts are JSON as they are."""


@dataclass(frozen=True)
class Facts:
    """What the catalog knows of a table, and the server's messages don't.

    Attributes:
        primary_key: its columns in the key's order; empty where there is none.
        required: the columns that are NOT NULL.
        defaults: of columns with a constant as their default, its text.
        columns: all there are.
    """

    primary_key: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    defaults: dict[str, bytes] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()


class Table:
    """How the rows of one table, as it is now, become JSON.

    Args:
        relation: it, as the server describes it.
        facts: what the catalog knows.
        types: what types mean.
        values: how they are written.

    Attributes:
        key: the columns that records are keyed by.
        missing: the places of values that the server sent as unchanged in the row that was parsed last, and
            that have placeholders. Who parses updates empties it.
        losses: the values of the row that was read last that can't be written. Who reads rows takes them.
        place: where the table is, as the envelope says it; the encoder makes it.
    """

    def __init__(self, relation: Relation, facts: Facts, types: Types, values: Any) -> None:
        self.relation = relation
        self.key = key_columns(relation, facts)
        #: Whether records are keyed by the primary key.
        self.has_primary_key = bool(self.key) and self.key == facts.primary_key
        self.missing: list[int] = []
        self.losses = Losses(spelled((relation.schema, relation.name)), self.key)
        self.place = b""
        self._unknown: list[bytes] = []
        makers: list[Callable[[bytes], Any] | None] = []
        names: list[str] = []
        fill: list[bytes] = []
        for column in relation.columns:
            type_: Type = types(column.oid, column.modifier)
            convert = converter(type_, values)
            makers.append(convert)
            if convert is None:
                continue
            names.append(column.name)
            self._unknown.append(orjson.dumps(placeholder(type_, values)))
            default = facts.defaults.get(column.name)
            if default is None and column.name in facts.required:
                default = zero(type_)
            fill.append(NULL if default is None else fragment(convert, default, Losses(), ""))
        #: The columns of fragments.
        self.names = names
        #: A row as a JSON object.
        self.row: Callable[[Fragments], bytes] = _joiner(names)
        self._key = _template(self.key)
        self._key_of = itemgetter(*(names.index(n) for n in self.key)) if self.key else None
        identity = [column.is_identity for column in relation.columns]
        #: Reads the row that begins there: its fragments, and where it ends. Of an update, the fragments
        #: of the former row, where they are known, stand for what it didn't touch.
        self.parse: Callable[..., tuple[Fragments, int]] = _reader(
            makers, self._unchanged, [None] * len(makers), fill, (names, self.losses)
        )
        #: Reads a row of which only the replica identity is known; what is NOT NULL is its default, or zero.
        self.parse_key: Callable[..., tuple[Fragments, int]] = _reader(
            *(makers, self._unchanged, [None if one else True for one in identity], fill),
            (names, self.losses),
        )
        converted = [(i, one) for i, one in enumerate(makers) if one is not None]
        #: Of each column that records have: its place among all columns, its name, and what makes a value of
        #: its text.
        self.converters = [(i, name, one) for (i, one), name in zip(converted, names, strict=True)]

    def of_texts(self, texts: Texts) -> Fragments:
        """The fragments of a row of COPY."""
        losses = self.losses
        return tuple(
            _fragment(convert, texts[i], losses, name) for i, name, convert in self.converters
        )

    def completed(self, row: Fragments, texts: Mapping[int, bytes | None]) -> Fragments:
        """A row with other values at some places, given as the server's texts."""
        values = list(row)
        for place, text in texts.items():
            _, name, convert = self.converters[place]
            values[place] = _fragment(convert, text, self.losses, name)
        return tuple(values)

    def key_texts(self, data: bytes, at: int) -> dict[str, str] | None:
        """The key's columns, as the server wrote them, of the row that begins there; None where it has no
        key, or the key isn't sent.
        """
        found: dict[str, str] = {}
        at += 2
        for column in self.relation.columns:
            kind, at = data[at], at + 1
            if kind == _TEXT:
                begin = at + 4
                at = begin + _LENGTH(data, at)[0]
                if column.name in self.key:
                    try:
                        found[column.name] = data[begin:at].decode()
                    except UnicodeDecodeError:  # a database in SQL_ASCII: no query can have it
                        return None
        return found if found.keys() == set(self.key) and found else None

    def key_of(self, values: Fragments) -> bytes | None:
        """The key of a row's records; None where the table has none."""
        return None if self._key_of is None else self._key % self._key_of(values)

    def _unchanged(self, i: int) -> bytes:
        self.missing.append(i)
        return self._unknown[i]


def key_columns(relation: Relation, facts: Facts) -> tuple[str, ...]:
    """The columns that records are keyed by.

    The server's messages say them, as they were when the row changed: the replica identity's. The catalog,
    which may have changed meanwhile, says their order, and the primary key where the identity is the
    whole row or nothing.
    """
    identity = tuple(one.name for one in relation.columns if one.is_identity)
    if relation.identity in "di":
        return facts.primary_key if set(facts.primary_key) == set(identity) else identity
    names = {one.name for one in relation.columns}
    return facts.primary_key if names.issuperset(facts.primary_key) else ()


def fragment(convert: Callable[[bytes], Any], text: bytes, losses: Losses, column: str) -> bytes:
    """A value as JSON; null, and a loss, where it can't be read as its type, or not be written."""
    try:
        return as_json(convert(text))
    except UNREADABLE as error:
        if convert is bytes.decode:  # a database in SQL_ASCII
            return orjson.dumps(text.decode("utf-8", "replace"))
        return as_json(losses.note(column, text, error))


def _fragment(
    convert: Callable[[bytes], Any], text: bytes | None, losses: Losses, column: str
) -> bytes:
    if text is None:
        return NULL
    return text if convert in _PLAIN else fragment(convert, text, losses, column)


def _template(names: Sequence[str]) -> bytes:
    """JSON of an object whose values are filled in."""
    return b"".join(one.replace(b"%", b"%%") + b"%b" for one in members(names)) + b"}"


def _joiner(names: Sequence[str]) -> Callable[[Fragments], bytes]:
    """A function that makes an object of its values."""
    parts, places = [], []
    known: dict[str, Any] = {}
    for i, begin in enumerate(members(names)):
        known[f"n{i}"] = begin
        parts.append(f"n{i}, v{i}")
        places.append(f"v{i}, ")
    if not names:
        return lambda _: b"{}"
    text = (
        f"def join(values):\n    {''.join(places)} = values\n"
        f"    return b''.join(({', '.join(parts)}, b'}}'))"
    )
    exec(text, known)  # noqa: S102 - of numbers alone
    made: Callable[[Fragments], bytes] = known["join"]
    return made


def _reader(
    makers: Sequence[Callable[[bytes], Any] | None],
    unchanged: Callable[[int], bytes],
    left_out: Sequence[bool | None],
    fill: Sequence[bytes],
    losses: tuple[Sequence[str], Losses],
) -> Callable[..., tuple[Fragments, int]]:
    """A function `(message, where the row begins, fragments of the former row or None)`.

    Args:
        makers: of each column what makes a value of its text; None: records don't have it.
        unchanged: says what stands for the nth value of records, where it isn't sent.
        left_out: whether a column's value is the one of `fill`, whatever is sent.
        fill: these.
        losses: the names of records' columns, and what takes the values that can't be read.
    """
    columns, taken = losses
    names: dict[str, Any] = {"LENGTH": _LENGTH, "NULL": NULL, "unchanged": unchanged, "str_": str}
    names |= {"fragment": fragment, "dumps": orjson.dumps, "losses": taken}
    lines = [
        "def read(data, at, old=None):",
        f"    if (data[at] << 8 | data[at + 1]) != {len(makers)}:",
        f"        raise ValueError('expected {len(makers)} columns')",
        "    at += 2",
    ]
    places: list[str] = []
    for i, convert in enumerate(makers):
        place = len(places)
        text = "data[begin:at]"
        if convert is None:
            value, other, none = None, "pass", "pass"
        elif left_out[i]:
            names[f"fill{i}"] = fill[place]
            value, other, none = f"fill{i}", f"v{place} = fill{i}", f"v{place} = fill{i}"
        else:
            names[f"make{i}"], names[f"name{i}"] = convert, columns[place]
            none = f"v{place} = NULL"
            other = f"v{place} = unchanged({place}) if old is None else old[{place}]"
            if convert in _PLAIN:
                value = text
            elif convert is bytes.decode:
                value = f"dumps(str_({text}, 'utf-8', 'replace'))"
            else:
                value = f"fragment(make{i}, {text}, losses, name{i})"
        if convert is not None:
            places.append(f"v{place}")
        lines += [
            "    kind = data[at]",
            "    if kind == 116:",  # text
            "        begin = at + 5",
            "        at = begin + LENGTH(data, at + 1)[0]",
            f"        v{place} = {value}" if value else "        pass",
            "    else:",
            "        at += 1",
            "        if kind == 110:",  # null
            f"            {none}",
            "        elif kind == 117:",  # unchanged, large
            f"            {other}",
            "        else:",
            "            raise ValueError(f'unknown kind of value {kind}')",
        ]
    lines.append(f"    return ({''.join(one + ', ' for one in places)}), at")
    # Only numbers are put into the text: no name or value of the database is.
    exec("\n".join(lines), names)  # noqa: S102
    made: Callable[..., tuple[Fragments, int]] = names["read"]
    return made
