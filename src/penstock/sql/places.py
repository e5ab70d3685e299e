"""Where in a query's text a mistake is.

sqlglot notes where names and functions are written, and DuckDB at which word it stopped. A query is compiled
without these notes, as they are most of what copies of its tree cost; one that is refused is compiled again
with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from penstock.core.text.carets import line_and_column
from penstock.errors import FlowError, SchemaError
from penstock.expr.walks import nodes_of
from penstock.sql.text.matches import without_clauses
from penstock.sql.text.wording import marked

__all__ = ["PlacedQueryError", "placed", "unplaced", "within"]

NOTES = ("line", "col", "start", "end")


class PlacedQueryError(SchemaError):
    """A query is wrong at a place that is known.

    Args:
        message: what is wrong.
        text: the query.
        at: the place, from 0.

    Attributes:
        message: without the place.
        place: line and column, from 1.
    """

    def __init__(self, message: str, text: str, at: int) -> None:
        self.message, self.place = message, line_and_column(text, at)
        line, column = self.place
        super().__init__(f"line {line}, column {column}: {message}{marked(text, self.place)}")


@contextlib.contextmanager
def within(tree: exp.Expr) -> Iterator[None]:
    """What is wrong here is wrong with a part of a query, unless a smaller part is known.

    Raises:
        SchemaError: also for what a function of `flow` refuses, in its words for SQL.
    """
    try:
        yield
    except SchemaError as error:
        if error.at is None:
            error.at = _begin(tree)
        raise
    except FlowError as error:
        failure = SchemaError(error.in_sql or str(error))
        failure.at = _begin(tree)
        raise failure from None


def placed(error: SchemaError, text: str, dialect: str) -> SchemaError:
    """An error with line and column, where its place is known.

    Args:
        error: of a query that was compiled with places.
        text: the query's.
        dialect: of the text.
    """
    at = error.at
    if error.near is not None:
        found = _nth(text, dialect, *error.near)
        at = at if found is None else found
    if at is None:
        return error
    return PlacedQueryError(str(error), text, at)


def unplaced(tree: exp.Expr) -> exp.Expr:
    """The tree without notes of where its names are written."""
    for node in nodes_of(tree):
        if node.meta_get("line") is not None or node.meta_get("dot_parts") is not None:
            for what in (*NOTES, "dot_parts"):
                node.meta.pop(what, None)
    return tree


def _begin(tree: exp.Expr) -> int | None:
    """The first character of a tree's names and functions; None: it has none from the text."""
    found = (node.meta_get("start") for node in nodes_of(tree))
    return min((at for at in found if at is not None), default=None)


def _nth(text: str, dialect: str, word: str, before: int) -> int | None:
    """Where a word of the text is that has so many like it before it; the first, where there are fewer."""
    try:
        rest, _ = without_clauses(text, dialect)  # a pattern is no part of what was refused
        tokens = Dialect.get_or_raise(dialect).tokenize(rest)
    except (SqlglotError, SchemaError):
        return None
    found = [token.start for token in tokens if token.text.lower() == word.lower()]
    if not found:
        return None
    return int(found[before] if before < len(found) else found[0])
