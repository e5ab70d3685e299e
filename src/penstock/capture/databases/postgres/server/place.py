"""Which server of a cluster a connection leads to, and what its log has in common with another one's.

Each server that takes over begins another timeline of the cluster's log (PostgreSQL's documentation,
"Timelines"). Positions behind the place where it has left the one before are the same numbers in both.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.capture.databases.postgres.pgoutput import lsn_number

__all__ = ["PLACE", "Place", "left_at", "place_of"]

PLACE: Final = (
    "SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN 0 ELSE "
    "('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END "
    "FROM pg_control_system()"
)
"""The query for a `Place`."""


class Place(NamedTuple):
    """A cluster, and the timeline on which the server writes; 0 of one that follows another one."""

    system: str
    timeline: int


def place_of(connection: Any) -> Place:
    """Where a connection leads to."""
    return Place(*connection.execute(PLACE).fetchone())


def left_at(history: bytes, timeline: int) -> int | None:
    r"""Where a timeline was left, by the history of a later one; None: that doesn't come from it.

    >>> left_at(b"1\t0/30000A0\tno recovery target specified\n\n2\t0/5000000\t\n", 1)
    50331808
    """
    for line in history.decode("utf-8", "replace").splitlines():
        number, _, rest = line.partition("\t")
        if number.strip() == str(timeline):
            return lsn_number(rest.partition("\t")[0])
    return None
