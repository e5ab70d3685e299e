"""Which version a query reads (`AS OF …`).

    SELECT … FROM view AS OF VERSION 17
    SELECT … FROM view AS OF TIMESTAMP '2026-01-01T12:00:00Z'
    SELECT … FROM view AS OF TIMESTAMP '2 hours ago'
    SELECT … FROM view AS OF SAVEPOINT nightly

All views of a query are of one version, so the clause is said once, behind a view's name or at the end.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.time import moment_us
from penstock.errors import QueryError, UserError

# sqlglot is imported where it is used: most queries name no version.
if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

__all__ = ["AsOf", "parted"]

_KINDS: Final = ("VERSION", "TIMESTAMP", "SAVEPOINT")


@dataclass(frozen=True)
class AsOf:
    """A version of the past; one of these is not None.

    Attributes:
        version: its number.
        at_us: the last one that was committed until then, in microseconds since 1970.
        savepoint: the one that was kept under this name.
    """

    version: int | None = None
    at_us: int | None = None
    savepoint: str | None = None

    def __str__(self) -> str:
        """As it is written in a query."""
        if self.savepoint is not None:
            return f"AS OF SAVEPOINT {self.savepoint}"
        if self.at_us is not None:
            return f"AS OF TIMESTAMP {self.at_us} µs"
        return f"AS OF VERSION {self.version}"


def parted(query: str) -> tuple[str, AsOf | None]:
    """A query without its AS OF, and which version that names.

    Raises:
        QueryError: it names two, or none that makes sense.

    >>> parted("SELECT * FROM v AS OF VERSION 3 WHERE n > 1")
    ('SELECT * FROM v WHERE n > 1', AsOf(version=3, at_us=None, savepoint=None))
    """
    if not re.search(r"\bas\s+of\b", query, re.IGNORECASE):
        return query, None
    import sqlglot

    try:
        tokens = sqlglot.tokenize(query, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return query, None  # the parser will say what is wrong
    found: list[AsOf] = []
    cuts: list[tuple[int, int]] = []
    now_us = time.time_ns() // 1_000  # once: two clauses with the same text name one version
    for i, token in enumerate(tokens[:-3]):
        words = [one.text.upper() for one in tokens[i : i + 3]]
        if words[:2] == ["AS", "OF"] and words[2] in _KINDS and not _is_quoted(tokens[i + 1]):
            found.append(_as_of(words[2], tokens[i + 3], now_us))
            cuts.append((token.start, tokens[i + 3].end + 1))
    if len(set(found)) > 1:
        raise QueryError(
            f"expected one version for all views of a query; found {', '.join(map(str, found))}"
        )
    for start, end in reversed(cuts):
        gap = " " if re.match(r'[\w"]', query[end:]) else ""  # `VERSION 3w`: w is another word
        query = query[:start].rstrip() + gap + query[end:]
    return query, found[0] if found else None


def _is_quoted(token: Token) -> bool:
    from sqlglot.tokenizer_core import TokenType

    return token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)


def _as_of(kind: str, token: Token, now_us: int) -> AsOf:
    from sqlglot.tokenizer_core import TokenType

    text = token.text
    if kind == "VERSION" and token.token_type is TokenType.NUMBER and text.isdecimal():
        return AsOf(version=int(text))
    if kind == "SAVEPOINT" and (_is_quoted(token) or token.token_type is TokenType.VAR):
        return AsOf(savepoint=text)
    if kind == "TIMESTAMP" and token.token_type is TokenType.STRING:
        try:
            return AsOf(at_us=moment_us(text, now_us))
        except UserError as error:
            raise QueryError(f"expected AS OF TIMESTAMP of an instant; {error}") from None
    raise QueryError(
        "expected AS OF VERSION 17, AS OF TIMESTAMP '2026-01-01T12:00:00Z' or AS OF SAVEPOINT name; "
        f"found AS OF {kind} {text!r}"
    )
