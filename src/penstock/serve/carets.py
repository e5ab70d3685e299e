"""Where in a query the mistake is: the line, and a caret below it, as DuckDB and PostgreSQL show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core.text.carets import caret
from penstock.errors import QueryError

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["caret", "one_select", "pointed"]

_NO_COLUMN: Final = re.compile(r'Referenced column "([^"]+)" not found|column named "([^"]+)"')


def one_select(query: str) -> exp.Query:
    """Reads a query.

    Raises:
        QueryError: it isn't one SELECT.
    """
    import sqlglot
    from sqlglot import exp

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is

    try:
        statements = [s for s in sqlglot.parse(query, "duckdb") if type(s) is not exp.Semicolon]
    except sqlglot.errors.ParseError as error:
        first = error.errors[0]
        reason = str(first["description"]).rstrip(".")
        shown, line, end = str(first.get("highlight") or ""), first.get("line"), first.get("col")
        where = ""
        if line and end:
            begin = _start_of(query, int(line)) + int(end) - len(shown)
            where = caret(query, begin, len(shown))
        raise QueryError(f"expected a SELECT; found: {reason}{where}") from None
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise QueryError(f"expected a SELECT; found {query!r}: {reason}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError(f"expected one SELECT; found {query!r}")
    return statements[0]


def pointed(query: str, message: str) -> str:
    """DuckDB's message with the place in the query, where it names a column and no place."""
    named = _NO_COLUMN.search(message)
    if named is None or "\nLINE " in message:
        return message
    name = named[1] or named[2]
    found = re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", query, re.IGNORECASE)
    found = found or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query, re.IGNORECASE)
    return message if found is None else message.rstrip() + caret(query, found.start(), len(name))


def _start_of(query: str, line: int) -> int:
    """Where a line begins; lines count from 1."""
    at = 0
    for _ in range(line - 1):
        at = query.find("\n", at) + 1
    return at
