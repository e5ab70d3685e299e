"""Tables that InnoDB changes by itself: its foreign keys' actions aren't in the binary log.

    a row of the parent is deleted, or its referenced columns change  ->  its children, and theirs, are stale

Which rows of a child are changed isn't known: those that were deleted are gone. A stale table is read again
in chunks, and keys that it lacks are deleted. That it is stale is stored with the change that made it so.

    invariant: a table that an action may have changed behind what was read of it is stale, or is being read
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.capture.chunked import Incremental
from penstock.capture.database import TableName, spelled
from penstock.capture.databases.mysql.binlog import DELETES, UPDATES
from penstock.capture.databases.mysql.rows import Decoder
from penstock.capture.databases.mysql.server import Server
from penstock.capture.output import Output
from penstock.capture.unread import UNREADABLE

__all__ = ["ACTIONS", "Cascades", "Link", "links_of", "stored"]

ACTIONS: Final = "actions"
"""Where the foreign keys are in `State.details`."""
STALE: Final = "stale"
"""Where the tables that are to be read again are there."""
SHARE: Final = 0.1
"""The part of the time that stale tables may be read for, where actions never end."""
_UNCHECKED: Final = 2
"""The flag of rows that a session without foreign_key_checks has changed: nothing follows from them."""
_log = logging.getLogger(__name__)


class Link(NamedTuple):
    """A foreign key with actions: of which table, whose rows they change, by which of its columns.

    Attributes:
        parent: `schema.table`.
        child: likewise.
        columns: of the parent.
        on_delete: whether a deletion of the parent's row changes the child's.
        on_update: likewise, where the columns change.
    """

    parent: str
    child: str
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


def links_of(server: Server) -> frozenset[Link]:
    """The foreign keys with actions that the catalog has; none where the server writes their changes."""
    if server.variables().get("innodb_native_foreign_keys") == "OFF":  # MySQL 9.6
        return frozenset()
    rows = server.ask(
        "SELECT k.REFERENCED_TABLE_SCHEMA AS ps, k.REFERENCED_TABLE_NAME AS pt, k.TABLE_SCHEMA AS cs, "
        "k.TABLE_NAME AS ct, k.CONSTRAINT_NAME AS n, k.REFERENCED_COLUMN_NAME AS c, r.DELETE_RULE AS d, "
        "r.UPDATE_RULE AS u FROM information_schema.REFERENTIAL_CONSTRAINTS r "
        "JOIN information_schema.KEY_COLUMN_USAGE k ON k.CONSTRAINT_SCHEMA = r.CONSTRAINT_SCHEMA "
        "AND k.CONSTRAINT_NAME = r.CONSTRAINT_NAME AND k.TABLE_NAME = r.TABLE_NAME "
        "WHERE r.DELETE_RULE IN ('CASCADE', 'SET NULL') OR r.UPDATE_RULE IN ('CASCADE', 'SET NULL')"
    )
    acts = {"CASCADE", "SET NULL"}
    columns: dict[tuple[Any, ...], list[str]] = {}
    for one in rows:
        ends = spelled((one["ps"], one["pt"])), spelled((one["cs"], one["ct"]))
        columns.setdefault((*ends, one["n"], one["d"] in acts, one["u"] in acts), []).append(
            one["c"]
        )
    return frozenset(
        Link(parent, child, tuple(some), on_delete, on_update)
        for (parent, child, _, on_delete, on_update), some in columns.items()
    )


def stored(links: Iterable[Link]) -> list[tuple[Any, ...]]:
    """Foreign keys as a state has them."""
    return [tuple(one) for one in sorted(links)]


class Cascades:
    """Notices which captured tables are stale, and lets them be read.

    Args:
        server: whose catalog has the foreign keys.
        output: whose state has those of before, and the tables.
        incremental: reads tables.
        end: the place that the binary log has come to.
    """

    def __init__(
        self, server: Server, output: Output, incremental: Incremental, end: Callable[[], int]
    ) -> None:
        self._server, self._output, self._incremental, self._end = server, output, incremental, end
        details = output.state.details
        known = details.get(ACTIONS, [])
        self._links = frozenset(Link(p, c, tuple(s), d, u) for p, c, s, d, u in known)
        self._stale = set(details.get(STALE, ()))
        #: What open groups make stale, by their XA transaction; empty: it is none.
        self._noted: dict[str, set[str]] = {}
        self._reading: set[str] = set()
        self._began = self._rests_until = float("-inf")
        self._is_altered = True  # the catalog is to be asked
        self._newest: tuple[int, frozenset[Link]] | None = None

    # -- foreign keys -----------------------------------------------------------------------------------

    def altered(self) -> None:
        """A statement may have added or dropped foreign keys."""
        self._is_altered = True

    def _refresh(self) -> None:
        """Asks the catalog. It may be ahead of the log: up to where it is, the ones before count, too."""
        if self._is_altered:
            self._is_altered = False
            found = links_of(self._server)
            self._newest = self._end(), found
            self._links |= found
        elif self._newest is not None and self._output.received >= self._newest[0]:
            self._links, self._newest = self._newest[1], None

    def _children(self, parent: str, *, deleted: bool) -> list[Link]:
        self._refresh()
        return [
            one
            for one in self._links
            if one.parent == parent and (one.on_delete if deleted else one.on_update)
        ]

    def _behind(self, tables: Iterable[str]) -> set[str]:
        """The captured ones of some tables, and of those that their changes change."""
        found: set[str] = set()
        todo = [*tables]
        while todo:
            if (one := todo.pop()) not in found:
                found.add(one)
                todo += [link.child for link in self._links if link.parent == one]
        return found & self._output.tables.keys()

    # -- changes ----------------------------------------------------------------------------------------

    def needs(self, table: TableName) -> bool:
        """Whether a table that isn't captured is one from whose rows something follows."""
        self._refresh()
        return any(one.parent == spelled(table) for one in self._links)

    def note(
        self,
        kind: int,
        table: TableName,
        data: bytes,
        xa: str,
        decoders: Callable[[], tuple[int, Decoder, Decoder]],
    ) -> None:
        """Rows of a table have changed, in a group.

        Args:
            kind: of the event.
            table: whose.
            data: the event.
            xa: the XA transaction of the group; empty: it is none.
            decoders: where rows begin, and what reads the old and the new ones.
        """
        is_deletion = kind in DELETES
        if not (is_deletion or kind in UPDATES) or data[6] & _UNCHECKED:
            return
        links = self._children(spelled(table), deleted=is_deletion)
        if links and not is_deletion:
            with contextlib.suppress(*UNREADABLE):  # what can't be read may have touched all
                links = _touched(links, data, *decoders())
        if tables := self._behind(one.child for one in links):
            self._noted.setdefault(xa, set()).update(tables)

    def finished(self, xa: str, *, is_rolled_back: bool) -> None:
        """An XA transaction has committed, or not: what it has noted counts in this group."""
        noted = self._noted.pop(xa, set())
        if not is_rolled_back:
            self._noted.setdefault("", set()).update(noted)

    def details(self) -> Mapping[str, Any]:
        """Of a state, at the end of a group."""
        self._stale |= self._noted.pop("", set())
        return {STALE: sorted(self._stale), ACTIONS: stored(self._links)}

    # -- tables that are read ---------------------------------------------------------------------------

    def read(self) -> bool:
        """Between groups: lets stale tables be read, if it is time. Whether some are stale, or are read."""
        self._refresh()
        now = time.monotonic()
        if self._reading:
            if not self._reading.isdisjoint(self._incremental.progress.tables):
                return True
            self._reading = set()
            self._rests_until = now + (now - self._began) * (1 / SHARE - 1)
        if not self._stale or self._incremental.progress.is_paused or now < self._rests_until:
            return bool(self._stale)
        tables = self._stale & self._output.tables.keys()
        self._stale, self._reading, self._began = set(), tables, now
        _log.info(
            "%s: reading %s again, which foreign keys' actions may have changed",
            *(self._output.state.details["name"], ", ".join(sorted(tables))),
        )
        self._incremental.read_again(dict.fromkeys(sorted(tables), ""), self.details())
        return True


def _touched(links: list[Link], data: bytes, p: int, old: Decoder, new: Decoder) -> list[Link]:
    """Of some foreign keys those whose columns a row has other values of than before."""
    found: set[Link] = set()
    while p < len(data) and len(found) < len(links):
        before, p = old(data, p)
        after, p = new(data, p)
        changed = {name.casefold() for name, value in before.items() if after.get(name) != value}
        found |= {one for one in links if not changed.isdisjoint(map(str.casefold, one.columns))}
    return [*found]
