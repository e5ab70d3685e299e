"""Prepared statements and portals of a session, and how clients learn their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.serve.answers import Answer
from penstock.serve.catalogs.types import type_named
from penstock.serve.postgres import messages
from penstock.serve.postgres.commands import words_of
from penstock.serve.postgres.messages import Column, message

__all__ = [
    "Portal",
    "Statement",
    "Status",
    "columns_of",
    "described",
    "is_query",
    "kinds_of",
    "tag_of",
]


class Status(Enum):
    """Of a transaction, as `ReadyForQuery` says it."""

    IDLE = b"I"
    OPEN = b"T"
    FAILED = b"E"


@dataclass
class Statement:
    """A prepared statement."""

    query: str
    oids: list[int]
    answer: Answer | None = None  # without rows


@dataclass
class Portal:
    """A statement with its parameters, and what is left of its answer."""

    query: str
    formats: list[int] = field(default_factory=list)
    answer: Answer | None = None
    sent: int = 0
    described: Answer | None = None  # what the client has received about its columns
    copied: Iterable[bytes] = ()  # of COPY, what is sent

    def format_of(self, column: int) -> int:
        """0 for text, 1 for binary."""
        if len(self.formats) == 1:
            return self.formats[0]
        return self.formats[column] if column < len(self.formats) else 0


def is_query(words: Sequence[str]) -> bool:
    """Whether a statement is answered with rows of views."""
    first = words[0].upper()
    is_listing = first in ("DESCRIBE", "DESC")
    return first in ("SELECT", "WITH", "VALUES", "TABLE", "FROM", "(", "EXPLAIN") or is_listing


def columns_of(answer: Answer, portal: Portal) -> list[Column]:
    """The columns of an answer, in the formats that a portal asks for."""
    found = []
    schema = answer.table.schema
    names = answer.types or [""] * len(schema)
    for i, (one, name) in enumerate(zip(schema, names, strict=True)):
        kind, is_array = type_named(one.type, name)
        oid, size = (kind.array, -1) if is_array else (kind.oid, kind.size)
        found.append(Column(one.name, oid, size, portal.format_of(i)))
    return found


def kinds_of(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Names and types, without formats. What an expression is called depends on its parameters."""
    return [(one.name if one.name.isidentifier() else "", one.oid) for one in columns]


def described(columns: Sequence[Column] | None) -> bytes:
    """The message that describes an answer; None: a command has none."""
    return message(b"n") if columns is None else messages.row_description(columns)


def tag_of(portal: Portal) -> str:
    """What a client learns about an answer that has been sent."""
    word = words_of(portal.query)[0].upper()
    if word in ("SHOW", "EXPLAIN"):
        return word
    return f"{word if word in ('FETCH', 'COPY') else 'SELECT'} {portal.sent}"
