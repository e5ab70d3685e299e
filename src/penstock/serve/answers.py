"""What reading views gives: answers, and what failed meanwhile, counted and with a reason.

The last steps of a view, and queries of groups that nothing but a reader asks for, are computed when the
view is read. What fails there is NULL, and no dead letter: nobody would learn of it. So each reading counts
it, and whoever reads passes it on.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.rows import python_values
from penstock.expr.failing import why
from penstock.ops.keyed.query import QUERY_FAILS
from penstock.ops.rows import Refused

__all__ = ["Answer", "Counting", "Failure", "Once", "Report", "logged"]

TEXT_CHARS_MAX: Final = 200
"""Of an expression or a reason in a message: the reason may contain a whole value."""
SAID_MAX: Final = 1_000
"""Failures that are remembered as said; beyond it, some are said again."""
LOG: Final = logging.getLogger("penstock.views")


@dataclass(frozen=True)
class Failure:
    """What failed in a view when it was read.

    Attributes:
        view: its name.
        kind: `values`, which are NULL; `rows` whose condition failed, which are left out; `groups` whose
            query failed, in which what failed is NULL.
        count: how many.
        reason: the error of the first one.
        expression: that failed, in SQL; empty of groups.
        column: that has its values; empty if no column of the view has.
        first: of groups, the key of the first one.
        is_most: whether there may be fewer, as a search for each would have taken too long.
    """

    view: str
    kind: Literal["values", "rows", "groups"]
    count: int
    reason: str
    expression: str = ""
    column: str = ""
    first: str = ""
    is_most: bool = False

    @property
    def text(self) -> str:
        """A message for people, on one line.

        >>> Failure("v", "values", 2, "Conversion Error: …", 's::INT', "n").text
        '2 values of n in the view v are NULL, because `s::INT` failed. The first error: Conversion Error: …'
        """
        one = self.count == 1 and not self.is_most
        are, s = ("is", "") if one else ("are", "s")
        sql, reason = _short(self.expression), _short(self.reason)
        error = f": {reason}" if one else f". The first error: {reason}"
        match self.kind:
            case "values":
                of = f"of {self.column} in the view {self.view}"
                of = of if self.column else f"that the view {self.view} is computed from"
                said = f"{self.count:,} value{s} {of} {are} NULL, because `{sql}` failed"
            case "rows":
                said = (
                    f"{self.count:,} row{s} {are} missing from the view {self.view}, because its "
                )
                said += f"condition `{sql}` failed"
            case "groups":
                most = "up to " if self.is_most else ""
                groups = f" for {most}{self.count:,} of its groups, such as {_short(self.first)}"
                said = f"The query of the view {self.view} failed{groups if self.first else ''}; values "
                said += "that depend on it are NULL or missing"
        return said + error


class Answer(NamedTuple):
    """The answer to a query, or its beginning.

    Attributes:
        table: its first rows.
        rows_total: how many it has; None where there are more, and nobody counted them.
        parameters: the types of the query's parameters, as DuckDB calls them, where they were asked for.
        types: of its columns, as DuckDB calls them, where the question was PostgreSQL's.
        version: that was read; 0 where nobody said.
        since: of changes, the version that they follow; None where they are all rows.
        failures: what failed in each view that was read.
    """

    table: pa.Table
    rows_total: int | None
    parameters: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    version: int = 0
    since: int | None = None
    failures: Mapping[str, Sequence[Failure]] = MappingProxyType({})

    @property
    def warnings(self) -> list[str]:
        """What is to be said about the failures."""
        return [one.text for some in self.failures.values() for one in some]


Report: TypeAlias = Callable[[str, Sequence[Failure]], None]
"""Takes what failed in a view, each time when it has been read: often nothing."""


class Counting:
    """Counts what fails while a view is read, part by part.

    Args:
        view: its name.
    """

    def __init__(self, view: str) -> None:
        self._view = view
        self._found: dict[tuple[int, int], Failure] = {}  # by the step and the place in it

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All of them, in the order of the view's steps."""
        return tuple(self._found[at] for at in sorted(self._found))

    def take(
        self, at: tuple[int, int], sql: str, column: str | None, rows: pa.Table, failed: np.ndarray
    ) -> None:
        """Takes what an expression gives for some rows.

        Args:
            at: the step of the view, and the place in it.
            sql: the expression.
            column: of the view that has the values; None: it is a condition.
            rows: it was computed for.
            failed: bool[rows].
        """
        count = int(np.count_nonzero(failed))
        if not count:
            return
        known = self._found.get(at)
        if known is None:
            reason = why(sql, rows.slice(int(np.argmax(failed)), 1))
            kind: Literal["values", "rows"] = "rows" if column is None else "values"
            known = Failure(self._view, kind, 0, reason, _as_written(sql), column or "")
        self._found[at] = replace(known, count=known.count + count)

    def take_groups(self, refused: Sequence[Refused]) -> None:
        """Takes the groups of one shard that the view's operator can't compute."""
        if not refused:
            return
        at, count = (-1, 0), sum(max(1, len(one.rows)) for one in refused)
        known = self._found.get(at)
        if known is None:
            text = _reason(refused[0]).removeprefix(QUERY_FAILS)
            known = Failure(self._view, "groups", 0, text, first=_key_text(refused[0].rows))
        is_most = known.is_most or not all(_reason(one).startswith(QUERY_FAILS) for one in refused)
        self._found[at] = replace(known, count=known.count + count, is_most=is_most)


def _reason(refused: Refused) -> str:
    reason: Any = refused.reason
    return str(reason if isinstance(reason, str) else reason[0])


class Once:
    """Says what failed, once for each view, expression and kind of reason.

    Args:
        say: gets the message; by default the log `penstock.views`, as a warning.
    """

    def __init__(self, say: Callable[[str], None] = LOG.warning) -> None:
        self._say = say
        self._said: set[tuple[str, ...]] = set()

    def __call__(self, view: str, failures: Sequence[Failure]) -> None:
        """Takes what failed in a view."""
        if not failures:
            return
        from penstock.client.letters.reasons import kind_of

        for one in failures:
            key = (view, one.kind, one.column, one.expression, kind_of(one.reason))
            if key not in self._said:
                if len(self._said) >= SAID_MAX:
                    self._said.clear()
                self._said.add(key)
                self._say(one.text)


@functools.lru_cache(maxsize=64)
def logged(where: str) -> Once:
    """Logs what fails in the views of a pipeline, once in this process, however often they are opened.

    Args:
        where: the pipeline is.
    """
    return Once(lambda text: LOG.warning("%s: %s", where, text))


def _as_written(sql: str) -> str:
    """An expression without the casts to its own type and of conditions, which are Penstock's."""
    import sqlglot
    from sqlglot import exp

    from penstock.expr import dialect  # noqa: F401 - what "duckdb" is

    try:
        tree = sqlglot.parse_one(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        return sql
    if isinstance(tree, exp.Cast):
        is_condition = tree.to.is_type("boolean")
        tree = tree.this
        if is_condition and isinstance(tree, exp.Cast) and tree.to.is_type("boolean"):
            tree = tree.this
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree.sql(dialect="duckdb")


def _key_text(rows: pa.Table) -> str:
    """The key of a group, for people; empty where all rows are one group."""
    values = (python_values(column)[0] for column in rows.columns if len(column))
    return ", ".join(
        f"{name} = {'NULL' if value is None else value}"
        for name, value in zip(rows.column_names, values, strict=False)
    )


def _short(text: str) -> str:
    """Text that may be a user's, on one line and not too long of it."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= TEXT_CHARS_MAX else f"{clean[: TEXT_CHARS_MAX - 1]}…"
