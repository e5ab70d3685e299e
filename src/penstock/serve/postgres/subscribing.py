"""`COPY (SUBSCRIBE view) TO STDOUT`: a view's changes, for as long as the client reads them; no I/O here.

The rows of all versions up to one add up to the view of that version: each has a version and a weight, 1
for a row that came and -1 for one that went. There is no message to begin again with, so a version that is
lost meanwhile is an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.serve.answers import Answer, Once
from penstock.serve.following import Subscription, in_front
from penstock.serve.postgres import messages
from penstock.serve.postgres.commands import Refused
from penstock.serve.postgres.copying import Copying, Writing
from penstock.serve.postgres.portals import Portal
from penstock.serve.questions import Question

__all__ = ["columns_question", "subscribed"]


def columns_question(what: Subscription) -> Question:
    """Asks for the columns of a view, and whether there is one."""
    name = what.view.replace('"', '""')
    return Question(f'SELECT * FROM "{name}"', 0, kind="columns")


def subscribed(
    what: Subscription, how: Copying, portal: Portal, head: Answer, changes: Iterator[Answer]
) -> Iterator[bytes]:
    """The messages of a copy, but for the last one, which has the number of rows.

    Args:
        what: is followed.
        how: rows are written.
        portal: takes note of how many rows were sent.
        head: the view's columns.
        changes: version by version, until nobody reads them.

    Raises:
        Refused: a version from which the client has read is lost.
        PenstockError: nobody reads any more.
    """
    nothing = head.table.append_column("", pa.array([], pa.int64()))
    types = ["BIGINT", *(["BOOLEAN"] if what.progress else []), "BIGINT", *head.types]
    writing = Writing(how, types)
    yield writing.begin(in_front(Answer(nothing, 0), progress=what.progress))
    known = what.since
    said: list[str] = []
    once = Once(said.append)
    for found in changes:
        if known is not None and found.since != known:
            raise Refused(
                "72000",
                f"expected version {known}, up to which the changes are known, to be kept; found that it "
                "isn't. Subscribe again without FROM VERSION",
            )
        known = found.version
        for view, failures in found.failures.items():
            once(view, failures)
        yield from map(messages.warning, said)
        said.clear()
        rows = in_front(found, progress=what.progress)
        portal.sent += len(rows)
        yield from writing.rows(rows)
    if what.until is None or (known or 0) < what.until:
        raise PenstockError("expected a client that reads the changes; found none")
    yield writing.end()
