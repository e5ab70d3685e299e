"""The publication of a capture: it says which changes of which tables the server sends.

The server passes over all others without a word. So a publication that somebody else has made, or changed, is
looked at: all changes of all captured tables must be in it, whole.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any, Final

from penstock.capture.database import TableName, spelled
from penstock.capture.databases.postgres.copy import quoted
from penstock.capture.databases.postgres.server.server import Server
from penstock.errors import SetupError

__all__ = ["Publication"]

PARTS_MIN: Final = 150_000
"""From this version on a publication can leave out rows and columns."""
_log = logging.getLogger(__name__)
# Tables that have partitions, and those of which a publication leaves something out.
_PARTITIONED: Final = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'p'"
)
_PARTS: Final = """
SELECT schemaname, tablename, 'rows only WHERE ' || rowfilter FROM pg_publication_tables
WHERE pubname = %s AND rowfilter IS NOT NULL
UNION ALL
SELECT n.nspname, c.relname, 'only the columns ' || (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs))
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s AND r.prattrs IS NOT NULL"""


class Publication:
    """A publication, whether it is there or not.

    Args:
        server: where.
        name: its name.
        capture: the capture's, for messages.
    """

    def __init__(self, server: Server, name: str, capture: str) -> None:
        self._server, self.name, self._capture = server, name, capture

    @property
    def number(self) -> int | None:
        """Another one where it was created again; None where there is none."""
        query = "SELECT oid::bigint FROM pg_publication WHERE pubname = %s"
        found = self._server.ask(query, self.name)
        return int(found[0][0]) if found else None

    @property
    def tables(self) -> set[tuple[Any, ...]]:
        """Those that it has."""
        query = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
        return set(self._server.ask(query, self.name))

    def make(self, tables: Iterable[TableName]) -> None:
        """Makes it have the tables.

        Raises:
            SetupError: it may not, or changes of them would be missing; the message has the SQL.
        """
        some, name = [*tables], quoted(self.name)
        if self.number is None:
            names = ", ".join(self._server.own_rows(one) for one in some)
            command = (
                f"CREATE PUBLICATION {name} FOR TABLE {names} "
                "WITH (publish_via_partition_root = true)"
            )
        else:
            self.check([spelled(one) for one in some])
            has = self.tables
            missing = [self._server.own_rows(one) for one in some if one not in has]
            if not missing:
                return
            command = f"ALTER PUBLICATION {name} ADD TABLE {', '.join(missing)}"
        errors = self._server.errors
        try:
            with self._server.watch(self._server.sql, "to publish the tables"):
                self._server.sql.execute(command)
        except errors.InsufficientPrivilege as error:
            raise SetupError(
                f"expected the publication {self.name!r} to have the tables, or to be allowed to change "
                f"it; found: {str(error).strip()}. As the tables' owner: {command};"
            ) from None

    def check(self, tables: Collection[str], *, is_read: bool = False) -> None:
        """Makes sure that all changes of the tables that it has are sent, whole.

        Args:
            tables: the names of those that are captured.
            is_read: whether changes of them were read from it before.

        Raises:
            SetupError: something is left out.
        """
        for found, command in self._left_out(tables):
            lost = (
                f" Changes between were lost. After that, start again with a new snapshot: penstock capture "
                f"drop {self._capture}"
                if is_read
                else ""
            )
            raise SetupError(
                f"expected the publication {self.name!r} at {self._server.name} to have all changes of the "
                f"captured tables; found {found}. As its owner: {command}; or name another publication."
                f"{lost}"
            )

    def _left_out(self, tables: Collection[str]) -> Iterable[tuple[str, str]]:
        """What is left out, and the SQL that changes that."""
        server, name = self._server, quoted(self.name)
        facts = server.ask(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
            "FROM pg_publication WHERE pubname = %s",
            self.name,
        )
        for is_whole, is_via_root in facts:
            if not is_whole:
                all_ = "insert, update, delete, truncate"
                yield (
                    "only some kinds of them",
                    f"ALTER PUBLICATION {name} SET (publish = '{all_}')",
                )
            for one in [] if is_via_root else server.ask(_PARTITIONED):
                if spelled(one) in tables:
                    yield (
                        f"those of {spelled(one)} under its partitions' names",
                        f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)",
                    )
        if server.version >= PARTS_MIN:
            for schema, table, what in server.ask(_PARTS, self.name, self.name):
                if spelled((schema, table)) in tables:
                    own = server.quoted((schema, table))
                    again = f"DROP TABLE {own}; ALTER PUBLICATION {name} ADD TABLE {own}"
                    yield f"of {schema}.{table} {what}", f"ALTER PUBLICATION {name} {again}"

    @property
    def gone(self) -> str:
        """What to do where it is gone."""
        return (
            f"expected the publication {self.name!r} at {self._server.name}, which this capture has read; "
            "found that it was dropped. Changes between were lost. Start again with a new snapshot: "
            f"penstock capture drop {self._capture}"
        )

    def lacks(self, table: str) -> str:
        """What to do where a table was taken out."""
        return (
            f"expected the publication {self.name!r} to have {table}; found that it was taken out. Changes "
            f"between were lost. Start again with a new snapshot: penstock capture drop {self._capture}"
        )

    def drop(self) -> None:
        """Drops it; one that belongs to another role stays, and keeps nothing."""
        command = f"DROP PUBLICATION IF EXISTS {quoted(self.name)}"
        try:
            self._server.sql.execute(command)
        except self._server.errors.InsufficientPrivilege as error:
            _log.warning(
                "the publication %r stays: %s. As its owner: %s;",
                *(self.name, str(error).strip(), command),
            )
