"""SUBSCRIBE: a view's changes, version by version, until the reader has enough.

    SUBSCRIBE [TO] view [WITH (PROGRESS)] [FROM VERSION 17] [UNTIL VERSION 20]

Without FROM, the first answer contains all rows. The answers up to a version add up to the view of that
version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import QueryError
from penstock.serve.answers import Answer
from penstock.serve.changes import WEIGHT
from penstock.serve.texts.names import IN_SCHEMA
from penstock.serve.views import Views

__all__ = ["PROGRESSED", "VERSION", "Subscription", "follow", "in_front", "subscription_of"]

VERSION: Final = "version"
PROGRESSED: Final = "progressed"
"""A row in which this is true ends a version; its other columns are NULL."""
STOP_S: Final = 0.1
"""Between two looks whether the reader has enough."""
_WORDS: Final = "SUBSCRIBE [TO] view [WITH (PROGRESS)] [FROM VERSION 17] [UNTIL VERSION 20]"
_BEGIN: Final = re.compile(r"\s*SUBSCRIBE\b", re.IGNORECASE)
_WHOLE: Final = re.compile(
    rf"""\s*SUBSCRIBE\s+(?:TO\s+)?(?:{IN_SCHEMA})?(?P<name>"(?:[^"]|"")+"|\w+)
    (?P<progress>\s+WITH\s*\(\s*PROGRESS\s*\))?
    (?:\s+FROM\s+VERSION\s+(?P<since>\d{{1,18}}))?
    (?:\s+UNTIL\s+VERSION\s+(?P<until>\d{{1,18}}))?\s*;?\s*""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class Subscription:
    """What a reader follows.

    Attributes:
        view: its name.
        since: the version that the reader has; None: none.
        until: the stream ends with this version or a later one; None: it doesn't end.
        progress: whether each version ends with a row that says so.
    """

    view: str
    since: int | None = None
    until: int | None = None
    progress: bool = False


def subscription_of(statement: str) -> Subscription | None:
    """Reads a statement; None where it is another one.

    Raises:
        QueryError: it begins with SUBSCRIBE, and makes no sense.

    >>> subscription_of("SUBSCRIBE per_user FROM VERSION 17")
    Subscription(view='per_user', since=17, until=None, progress=False)
    """
    if _BEGIN.match(statement) is None:
        return None
    found = _WHOLE.fullmatch(statement)
    if found is None:
        raise QueryError(f"expected {_WORDS}; found {statement.strip()!r}")
    name, since, until = found["name"], found["since"], found["until"]
    if name.startswith('"'):
        name = name[1:-1].replace('""', '"')
    return Subscription(
        name, int(since or 0) or None, int(until) if until else None, found["progress"] is not None
    )


def follow(
    views: Views,
    what: Subscription,
    ask: Callable[[int | None], Answer],
    stopped: Callable[[], bool],
) -> Iterator[Answer]:
    """The changes of a view from now on. The reader hears of a version when it asks for the next answer.

    Args:
        views: the pipeline's.
        what: is followed.
        ask: gives what has changed since a version; see `changes`.
        stopped: asked often; when it is true, nobody reads any more.
    """
    known = what.since
    with views.arrivals() as arrivals:
        while what.until is None or (known or 0) < what.until:
            newest = views.version
            if newest and newest != known:
                answer = ask(known)
                known = answer.version
                yield answer
                if stopped():
                    return
                continue
            while not arrivals.wait(STOP_S):
                if stopped():
                    return


def in_front(answer: Answer, *, progress: bool) -> pa.Table:
    """The changes with their version and weight in front of the view's columns.

    Args:
        answer: of `changes`.
        progress: whether there is a column `progressed`, and a last row that ends the version.
    """
    rows = answer.table
    count = len(rows) + progress
    if progress:
        nothing = pa.Table.from_arrays(
            [pa.nulls(1, one.type) for one in rows.schema], rows.column_names
        )
        rows = pa.concat_tables([rows.cast(_nullable(rows.schema)), nothing])
    names = [VERSION]
    columns: list[pa.Array] = [pa.array([answer.version] * count, pa.int64())]
    if progress:
        names.append(PROGRESSED)
        columns.append(pa.array([False] * (count - 1) + [True]))
    return pa.Table.from_arrays(
        [*columns, rows.column(rows.num_columns - 1), *rows.columns[:-1]],
        [*names, WEIGHT, *rows.column_names[:-1]],
    )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([one.with_nullable(nullable=True) for one in schema])
