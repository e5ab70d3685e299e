"""What in a text of PostgreSQL's is one: a quoted text or name, a comment, a parameter.

https://www.postgresql.org/docs/16/sql-syntax-lexical.html. A tag between dollars is a name, so that
`$1,$2` are two parameters and not the beginning of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlglot import Dialect, exp

from penstock.errors import QueryError

__all__ = ["COMMENT", "DOLLARS", "ESCAPED", "QUOTED", "parameters", "read", "substituted"]

# What isn't closed goes to the end. So no pattern looks twice at the same text, however long it is.
COMMENT: Final = r"--[^\n]*+|/\*.*?(?:\*/|\Z)"
QUOTED: Final = r"""'(?:[^']|'')*+(?:'|\Z)|"(?:[^"]|"")*+(?:"|\Z)"""
ESCAPED: Final = r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*+(?:'|\Z)"""
DOLLARS: Final = r"(?<![\w$])\$((?:[^\W\d]\w*)?)\$.*?(?:\$\1\$|\Z)"
_PARAMETER: Final = re.compile(
    rf"{ESCAPED}|{QUOTED}|{DOLLARS}|{COMMENT}|(?<![\w$])\$(?P<number>\d+)", re.DOTALL
)


def read(query: str, dialect: str, known: Callable[[str], bool]) -> list[exp.Expr]:
    """The trees of a text's statements; functions that aren't known are calls of a name.

    Args:
        query: the text.
        dialect: of sqlglot.
        known: whether sqlglot may make more of a function of this name, in capital letters.

    Raises:
        SqlglotError: it can't be read.
    """
    reader = Dialect.get_or_raise(dialect)
    parser: Any = reader.parser()
    parser.FUNCTIONS = {name: made for name, made in parser.FUNCTIONS.items() if known(name)}
    trees = parser.parse(reader.tokenize(query), query)
    return [one for one in trees if one is not None]


def parameters(query: str) -> Iterator[tuple[int, int, int]]:
    """Where a query has its parameters: start, end, and the number in `$1`.

    >>> list(parameters("SELECT $1||$2, '$3'"))
    [(7, 9, 1), (11, 13, 2)]
    """
    for found in _PARAMETER.finditer(query):
        if found["number"] is not None:
            yield found.start(), found.end(), int(found["number"][:9])


def substituted(query: str, values: Sequence[str]) -> str:
    """A query with SQL in the places of its parameters.

    Raises:
        QueryError: there is no value for one.

    >>> substituted("SELECT $1,$2, '$1'", ["CAST('7' AS BIGINT)", "NULL"])
    "SELECT CAST('7' AS BIGINT),NULL, '$1'"
    """
    for start, end, number in reversed(list(parameters(query))):
        if not 1 <= number <= len(values):
            raise QueryError(f"expected parameters from $1 to ${len(values)}; found ${number}")
        query = query[:start] + values[number - 1] + query[end:]
    return query
