"""Where in a query the mistake is: the line, and a caret below it, as DuckDB and PostgreSQL show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.errors import QueryError

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["caret", "one_select", "pointed"]

LINE_CHARS_MAX: Final = 120  # of a long line only what surrounds the mistake is shown
_NO_COLUMN: Final = re.compile(r'Referenced column "([^"]+)" not found|column named "([^"]+)"')


def one_select(query: str) -> exp.Query:
    """Reads a query.

    Raises:
        QueryError: it isn't one SELECT.
    """
    import sqlglot
    from sqlglot import exp

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


def caret(query: str, begin: int, length: int = 1) -> str:
    r"""The line of a query that has a character, and carets below, behind an empty line.

    Args:
        query: as it was written.
        begin: the first character, from 0.
        length: how many are marked.

    >>> print(caret("SELECT 1\nFORM v", 9, 4).strip())
    LINE 2: FORM v
            ^^^^
    """
    begin = max(0, min(begin, len(query)))
    number = query.count("\n", 0, begin) + 1
    start = query.rfind("\n", 0, begin) + 1
    line = query[start:].split("\n", 1)[0]
    at = begin - start
    cut = max(0, at - LINE_CHARS_MAX // 2)
    shown = line[cut : cut + LINE_CHARS_MAX]
    head = f"LINE {number}: " + ("…" if cut else "")
    # A tabulator stays one: the caret is below its character then.
    before = "".join("\t" if one == "\t" else " " for one in shown[: at - cut])
    marks = "^" * max(1, min(length, len(shown) - (at - cut)))
    return f"\n\n{head}{shown}\n{' ' * len(head)}{before}{marks}"


def _start_of(query: str, line: int) -> int:
    """Where a line begins; lines count from 1."""
    at = 0
    for _ in range(line - 1):
        at = query.find("\n", at) + 1
    return at
