"""Notices that a captured table's rows have come or gone with its partitions.

The server sends nothing of the rows of a partition that is attached, detached, dropped or emptied by itself.
A partition has an identity, which is stored with the capture's position: the file of its rows, and the
transaction that attached it. Another one means other rows, or a rewritten file of the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.capture.database import TableName
from penstock.capture.databases.postgres.server.server import Server
from penstock.capture.progress import State

__all__ = ["PARTITIONS", "partitions_of", "to_be_read"]

PARTITIONS: Final = "partitions"
"""Where they are in `State.details`."""
LOCK_S: Final = 1.0
"""How long a lock of a new partition is waited for; then it is looked at again later."""
_log = logging.getLogger(__name__)
# Only the catalog: pg_partition_tree waits while a table is altered.
_TREES: Final = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, i.inhrelid AS part, i.xmin::text AS since FROM pg_class c
    LEFT JOIN pg_inherits i ON i.inhparent = c.oid WHERE c.oid = ANY (%s) AND c.relkind = 'p'
    UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin::text FROM tree JOIN pg_inherits i ON i.inhparent = tree.part
)
SELECT root::bigint, part::bigint, relfilenode || '/' || since
FROM tree LEFT JOIN pg_class ON oid = part"""
_NEW: Final = """
SELECT pg_get_partition_constraintdef(oid) FROM pg_class
WHERE oid = ANY (%s) AND relkind = 'r' AND pg_relation_size(oid) > 0"""


def partitions_of(server: Server, tables: Iterable[TableName]) -> dict[str, dict[str, str]]:
    """See `partitions`; by the tables' names."""
    names = [server.quoted(one) for one in tables]
    oids = server.ask("SELECT unnest(%s::text[]::regclass[]::oid[])::bigint", names)
    return partitions(server, [oid for (oid,) in oids])


def partitions(server: Server, oids: Iterable[int]) -> dict[str, dict[str, str]]:
    """Of those of some tables that are partitioned the partitions, each with its identity; by their oids."""
    found: dict[str, dict[str, str]] = {}
    for root, part, identity in server.ask(_TREES, [*oids]):
        of_one = found.setdefault(str(root), {})
        if part is not None:
            of_one[str(part)] = identity
    return found


def to_be_read(server: Server, state: State, capture: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The tables that have other partitions than a state knows; for each the condition of the rows to read.

    Returns: the conditions, empty for all rows, of which some may be gone; and the details that then hold.
    """
    known: Mapping[str, Mapping[str, str]] = state.details.get(PARTITIONS, {})
    if not known:
        return {}, {}
    names = {str(one.identity): name for name, one in state.tables.items()}
    now = partitions(server, map(int, known.keys() & names.keys()))
    found: dict[str, str] = {}
    for root in [one for one, parts in now.items() if parts != known[one]]:
        parts, before = now[root], known[root]
        if any(parts.get(one) != identity for one, identity in before.items()):
            where: str | None = ""
            what = "was attached again, detached, dropped, emptied or rewritten"
        else:
            try:
                where, what = _rows_of(server, parts.keys() - before.keys()), "was added with rows"
            except server.errors.LockNotAvailable:
                now[root] = dict(before)
                continue
        if where is not None:
            found[names[root]] = where
            _log.warning(
                "%s: found that a partition of %s %s, of which the database sends no changes. %s read in "
                "chunks now",
                *(capture, names[root], what),
                "Its rows are" if where else "The table is",
            )
    changed = {root: parts for root, parts in now.items() if parts != known[root]}
    return found, {PARTITIONS: {**known, **changed}} if changed else {}


def _rows_of(server: Server, parts: Iterable[str]) -> str | None:
    """The condition of the rows that new partitions have; None: they have none.

    Raises:
        psycopg.errors.LockNotAvailable: one is being altered.
    """
    with server.sql.transaction():
        server.ask(f"SET LOCAL lock_timeout = '{LOCK_S}s'", read=lambda _: [])
        rows = server.ask(_NEW, [int(one) for one in parts])
    return " OR ".join(f"({one})" for (one,) in rows if one) or None
