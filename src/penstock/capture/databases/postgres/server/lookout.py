"""Looks whether the changes of all captured tables still come, while a capture runs.

The server doesn't say that a table was taken out of the publication, or that another one has its name by now.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.capture.database import spelled, unspelled
from penstock.capture.databases.postgres.server.publication import Publication
from penstock.capture.databases.postgres.server.server import Server
from penstock.capture.progress import State
from penstock.errors import SetupError

__all__ = ["Lookout", "ReplacedError"]

_log = logging.getLogger(__name__)
_NUMBERS: Final = (
    "SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND "
    "(n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
)


class ReplacedError(OSError):
    """A captured table's name is another table's now; the next session reads that one."""


class Lookout:
    """Looks at what the catalog says.

    Args:
        server: whose.
        capture: the capture's name.
    """

    def __init__(self, server: Server, capture: str) -> None:
        self._server, self._capture = server, capture
        self._dropped: set[str] = set()  # tables of which that was said

    def look(self, state: State) -> None:
        """Looks.

        Raises:
            SetupError: the publication is gone, or was changed.
            ReplacedError: a table was created again, or another one has taken its name.
        """
        details = state.details
        if details.get("published_as") is None:  # an earlier version has stored it
            return
        publication = Publication(self._server, details["publication"], self._capture)
        if publication.number != details["published_as"]:
            raise SetupError(publication.gone)
        publication.check(state.tables, is_read=True)
        names = [unspelled(one) for one in state.tables]
        parts = [schema for schema, _ in names], [table for _, table in names]
        found = self._server.ask(_NUMBERS, *parts)
        numbers = {spelled((schema, table)): number for schema, table, number in found}
        has = {spelled(one) for one in publication.tables}
        for name, watched in state.tables.items():
            number = numbers.get(name)
            if number is None:
                self._report(name, watched.topic)
            elif number != watched.identity:
                raise ReplacedError(f"{name} is another table now, which is read")
            elif name not in has:
                raise SetupError(publication.lacks(name))

    def _report(self, name: str, topic: str) -> None:
        """Says once of a table that it is gone, or has another name."""
        if name not in self._dropped:
            self._dropped.add(name)
            _log.warning(
                "%s: expected the table %s; found that it was dropped, or renamed without a change since. "
                "Its records stay in the topic %s",
                *(self._capture, name, topic),
            )
