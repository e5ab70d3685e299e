"""Large values that an update didn't touch: the server doesn't send them, so they are read again. Effects."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.capture.database import TableName, spelled
from penstock.capture.databases.postgres.copy import quoted
from penstock.capture.databases.postgres.server import Server

__all__ = ["LargeValues"]

VISIBLE_S: Final = 20.0
"""How long a transaction that has committed is waited for, until others see it."""
PAUSES_S: Final = (0.001, 0.1)
"""Between looks, the first and the longest."""
_log = logging.getLogger(__name__)
# A transaction's number is the end of the one that snapshots have: the nearest to the newest one is meant.
_VISIBLE: Final = """
SELECT pg_visible_in_snapshot((x + CASE WHEN x - m > 2147483648 THEN -4294967296
    WHEN x - m < -2147483648 THEN 4294967296 ELSE 0 END)::text::xid8, s)
FROM (SELECT pg_current_snapshot() AS s) AS newest,
    LATERAL (SELECT pg_snapshot_xmax(s)::text::bigint AS m) AS bound,
    LATERAL (SELECT (m & ~4294967295::bigint) | %s::bigint AS x) AS one"""


class LargeValues:
    """Reads values of rows as they are now.

    That is the value of the change, or one that a later change has set; that change's record follows, so
    readers end with the row. A row that is gone, or has another key by now, isn't found; the record that
    says so follows, too.

    Args:
        server: where the tables are.
        capture: its name.
    """

    def __init__(self, server: Server, capture: str) -> None:
        self._server, self._capture = server, capture
        self._visible: int | None = None
        self._refused: set[TableName] = set()

    def read(
        self, table: TableName, key: Mapping[str, str], columns: Sequence[str], xid: int
    ) -> tuple[bytes | None, ...] | None:
        """Values of a row, as the server writes them.

        Args:
            table: whose row.
            key: its columns, as the server writes them.
            columns: whose values.
            xid: the transaction that has changed the row.

        Returns:
            The values; None where there is no such row, or it can't be read.

        Raises:
            ConnectionError: others don't see the transaction yet, for long.
        """
        self._wait_for(xid)
        own = self._server.own_rows(table).replace("%", "%%")
        some = ", ".join(quoted(one).replace("%", "%%") for one in columns)
        where = " AND ".join(f"{quoted(one).replace('%', '%%')} = %s" for one in key)
        query = f"SELECT {some} FROM {own} WHERE {where}"
        import psycopg

        try:
            found = self._server.ask(query, *key.values(), read=_texts)
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            self._report(table, error)  # such as a column that was dropped meanwhile
            return None
        return found[0] if found else None

    def _wait_for(self, xid: int) -> None:
        """Waits until a transaction is seen: the server sends it shortly before that, or long before where
        it waits for a synchronous standby.
        """
        deadline, (pause_s, pause_max_s) = time.monotonic() + VISIBLE_S, PAUSES_S
        while self._visible != xid:
            [(is_visible,)] = self._server.ask(_VISIBLE, xid)
            if is_visible:
                self._visible = xid
            elif time.monotonic() > deadline:
                raise ConnectionError(
                    f"expected transaction {xid} of {self._server.name} to be visible within "
                    f"{VISIBLE_S:g} s; found that it isn't. It may wait for a synchronous standby"
                )
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_max_s)

    def _report(self, table: TableName, error: Exception) -> None:
        """Says once of each table that it can't be read."""
        if table not in self._refused:
            self._refused.add(table)
            _log.warning(
                "%s: expected to read large values of %s that an update didn't change; found: %s",
                *(self._capture, spelled(table), str(error).strip()),
            )


def _texts(cursor: Any) -> list[tuple[bytes | None, ...]]:
    """The rows of an answer as the server writes them."""
    found = cursor.pgresult
    columns = range(found.nfields)
    return [tuple(found.get_value(i, j) for j in columns) for i in range(found.ntuples)]
