"""The PostgreSQL server that is captured: connections, its catalog, its slot.

Values come as texts of one form, whatever the database's settings are.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final, TypeAlias

from penstock.capture.database import TableName, unspelled
from penstock.capture.databases.postgres.connect import members
from penstock.capture.databases.postgres.pgoutput import Column, Relation, lsn_number, lsn_text
from penstock.capture.databases.postgres.rows import Facts
from penstock.capture.databases.postgres.server.place import PLACE, Place, left_at, place_of
from penstock.capture.databases.postgres.server.waits import Waits
from penstock.capture.databases.postgres.types import Type
from penstock.capture.table_schemas import Column as SchemaColumn
from penstock.capture.table_schemas import Shape
from penstock.core.databases import described
from penstock.drivers import keepalives, psycopg_module, tls_error
from penstock.errors import SetupError, UserError

__all__ = ["Server", "has_no_room"]

ANSWER_S: Final = 120.0
"""How long the catalog's answer may take. A server that has vanished is noticed by TCP, before."""
CANCEL_S: Final = 2.0
"""How long the server may take to hear that a query is cancelled."""
Read: TypeAlias = Callable[[Any], list[tuple[Any, ...]]]
SETTINGS: Final = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 "
    "-c bytea_output=hex -c lc_monetary=C -c statement_timeout=0 -c lock_timeout=0 "
    "-c idle_in_transaction_session_timeout=0 -c default_transaction_read_only=off"
)
"""Of sessions: values as texts of one form, no timeouts, and transactions that write (a publication),
whatever the database's defaults are."""
VERSION_MIN: Final = 130_000
FAILOVER_MIN: Final = 170_000
"""From this version on slots can be synchronized to standbys."""
STREAMING_MIN: Final = 140_000
"""From this version on the server sends large transactions before they end."""
MESSAGES_MIN: Final = 140_000
"""From this version on the server sends logical messages."""
_LITERAL: Final = re.compile(
    r"'((?:[^']|'')*)'(?:::.*)?|\(?(-?[0-9][0-9.]*)\)?(?:::.*)?|(true|false)"
)


@dataclass(frozen=True)
class Slot:
    """What the server says about a replication slot; bytes of its log that aren't confirmed, that may be
    written before it is lost, and that are kept for it; why it can't be used, where the server says so.
    """

    confirmed: int
    is_active: bool
    pid: int | None
    wal_status: str
    lag_bytes: int
    safe_bytes: int | None
    kept_bytes: int
    reason: str


class Server:
    """Connections to a server, and what they ask of it; belongs to one thread.

    Args:
        url: `postgresql://user@host:port/database`, or libpq's `key=value` text. What it doesn't say libpq
            takes from the environment (PGPASSWORD, PGPASSFILE, …) and from `~/.pgpass`.
        place: the server that the address must lead to; None: whichever it leads to.
    """

    def __init__(self, url: str, place: Place | None = None) -> None:
        self._psycopg, self._place = psycopg_module(), place
        self.url, self.name = url, described(url)
        self._sql: Any = None
        self._replication: Any = None
        self._known: dict[tuple[int, int], Type] = {}
        self._sources: dict[TableName, str] = {}
        #: Watches statements that may wait for others; None: nothing does.
        self.waits: Waits | None = None

    def another(self) -> Server:
        """Other connections, to the same server only."""
        other = Server(self.url, self._place)
        other.waits = self.waits
        return other

    def watch(self, connection: Any, what: str) -> contextlib.AbstractContextManager[None]:
        """See `Waits.watch`."""
        return (
            contextlib.nullcontext() if self.waits is None else self.waits.watch(connection, what)
        )

    def close(self) -> None:
        """Closes the connections."""
        for one in (self._sql, self._replication):
            if one is not None:
                one.close()
        self._sql = self._replication = None

    def cancel(self) -> None:
        """Cancels the query that runs on the connection for questions; from any thread."""
        if (one := self._sql) is not None:
            with contextlib.suppress(self._psycopg.Error):
                one.cancel_safe(timeout=CANCEL_S)

    def sever(self) -> None:
        """Ends the connection for questions, also if the server doesn't answer; from any thread."""
        if (one := self._sql) is not None:
            with contextlib.suppress(self._psycopg.Error, OSError):
                file = socket.socket(fileno=os.dup(one.fileno()))
                with file:
                    file.shutdown(socket.SHUT_RDWR)

    def connect(self, *, replication: bool = False) -> Any:
        """A new connection; SETTINGS say how it writes values.

        Raises:
            SetupError: the server refuses it; what passes, such as a server that starts, is left as it is.
            ConnectionError: the address leads to another server than the one that was checked.
        """
        extra: dict[str, Any] = {"replication": "database"} if replication else {}
        try:
            made = self._psycopg.connect(
                self.url,
                autocommit=True,
                options=SETTINGS,
                client_encoding="UTF8",
                connect_timeout=10,
                application_name="penstock",
                **extra,
                **keepalives(self.url),
            )
        except self._psycopg.OperationalError as error:
            text = str(error).strip()
            if (setup_error := tls_error(self.url, error)) is not None:
                raise setup_error from None
            if refused(text):
                raise SetupError(
                    f"expected to log in at {self.name}; found: {text}. A password is taken from the "
                    "address, PGPASSWORD, PGPASSFILE or ~/.pgpass"
                ) from None
            if "replication" in text and "permission denied" in text:
                raise SetupError(self._no_replication()) from None
            raise
        if self._place is not None and (found := place_of(made)) != self._place:
            made.close()
            raise ConnectionError(
                f"{self.name} leads to another server: expected timeline {self._place.timeline} of "
                f"{self._place.system}; found {found.timeline} of {found.system}"
            )
        return made

    @property
    def sql(self) -> Any:
        """The connection for questions."""
        if self._sql is None or self._sql.closed:
            self._sql = self.connect()
        return self._sql

    @property
    def replication(self) -> Any:
        """The connection that changes come from."""
        if self._replication is None or self._replication.closed:
            self._replication = self.connect(replication=True)
        return self._replication

    def ask(
        self, query: str, *arguments: Any, read: Read = methodcaller("fetchall")
    ) -> list[tuple[Any, ...]]:
        """The rows of a query, which `read` makes of psycopg's cursor.

        Raises:
            ConnectionError: the server doesn't answer in time.
        """
        sql, is_late = self.sql, threading.Event()

        def give_up() -> None:
            is_late.set()
            self.sever()

        timer = threading.Timer(ANSWER_S, give_up)
        timer.daemon = True
        timer.start()
        try:
            found = read(sql.execute(query, arguments or None))
        except self._psycopg.OperationalError:
            if not is_late.is_set():
                raise
            raise ConnectionError(
                f"expected {self.name} to answer within {ANSWER_S:g} s; found no answer"
            ) from None
        finally:
            timer.cancel()
        return found

    # -- what is expected of the server -----------------------------------------------------------------

    def check(self) -> None:
        """Whether it can be captured.

        Raises:
            SetupError: it can't; the message has the SQL that changes that.
            ConnectionError: it is a standby, which may take over soon.
        """
        place = Place(*self.ask(PLACE)[0])
        if not place.timeline:
            raise ConnectionError(
                f"expected a server that takes writes at {self.name}; found a standby. The capture continues "
                "once it is promoted, or when the address leads to the primary"
            )
        self._place = place
        version = self.version
        if version < VERSION_MIN:
            raise SetupError(
                f"expected PostgreSQL {VERSION_MIN // 10_000} or newer at {self.name}; found {version}"
            )
        [(level,)] = self.ask("SHOW wal_level")
        if level != "logical":
            raise SetupError(
                f"expected wal_level = logical at {self.name}; found {level!r}. As a superuser: "
                "ALTER SYSTEM SET wal_level = logical; and restart the server"
            )
        [(is_allowed,)] = self.ask(
            "SELECT rolsuper OR rolreplication OR pg_has_role(rolname, 'rds_replication', 'MEMBER') "
            "FROM pg_roles WHERE rolname = current_user"
            if self.ask("SELECT 1 FROM pg_roles WHERE rolname = 'rds_replication'")
            else "SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user"
        )
        if not is_allowed:
            raise SetupError(self._no_replication())

    def _no_replication(self) -> str:
        user = self.ask("SELECT quote_ident(current_user)")[0][0]
        return (
            f"expected the role {user} to be allowed to replicate at {self.name}; found that it isn't. "
            f"As a superuser: ALTER ROLE {user} REPLICATION;"
        )

    @property
    def place(self) -> Place:
        """Which server it is, once it was checked; all connections lead there."""
        assert self._place is not None, "a server that wasn't checked"
        return self._place

    @property
    def system(self) -> str:
        """Which cluster and database it is: the same after a restart or a failover, another one elsewhere."""
        return f"{self.place.system}/{self.database}"

    def end_of(self, timeline: int) -> int | None:
        """Up to where the server has the log of a timeline; None: it comes from another one."""
        if timeline == self.place.timeline:
            [(end,)] = self.ask("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
            return int(end)
        if self.place.timeline < timeline:
            return None  # it was left before; the first timeline has no history
        history = self.replication.execute(f"TIMELINE_HISTORY {self.place.timeline}")
        return left_at(history.pgresult.get_value(0, 1), timeline)

    @property
    def database(self) -> str:
        """The database's name."""
        return str(self.sql.info.dbname)

    @property
    def version(self) -> int:
        """The server's version: 180_004 is 18.4."""
        return int(self.sql.info.server_version)

    @property
    def errors(self) -> Any:
        """Psycopg's classes of the server's errors."""
        return self._psycopg.errors

    @property
    def has_messages(self) -> bool:
        """Whether it sends logical messages."""
        return self.version >= MESSAGES_MIN

    # -- tables -----------------------------------------------------------------------------------------

    def tables(self, patterns: Iterable[str]) -> list[TableName]:
        """The tables that some patterns name, in their names' order; partitions are their tables'.

        Raises:
            UserError: a pattern names none.
            SetupError: the role may not read one.
        """
        found: set[TableName] = set()
        for pattern in patterns:
            schema, name = unspelled(pattern)
            rows = self.ask(
                "SELECT n.nspname, c.relname, has_table_privilege(c.oid, 'SELECT'), "
                "quote_ident(n.nspname), quote_ident(c.relname), quote_ident(current_user), "
                "row_security_active(c.oid) "
                "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
                "AND n.nspname LIKE %s AND c.relname LIKE %s "
                "AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'",
                _like(schema),
                _like(name),
            )
            if not rows:
                raise UserError(
                    f"expected a table {pattern!r} at {self.name}; found none. (Views, temporary and "
                    "unlogged tables, and single partitions can't be captured)"
                )
            for one in rows:
                if not one[2]:
                    raise SetupError(
                        f"expected the role {one[5]} to read {one[0]}.{one[1]}; found that it may not. "
                        f"As its owner: GRANT USAGE ON SCHEMA {one[3]} TO {one[5]}; "
                        f"GRANT SELECT ON {one[3]}.{one[4]} TO {one[5]};"
                    )
                if one[6]:  # changes aren't filtered by them
                    raise SetupError(
                        f"expected the role {one[5]} to read all rows of {one[0]}.{one[1]}; found that "
                        "policies (row-level security) hide some from it. As a superuser: "
                        f"ALTER ROLE {one[5]} BYPASSRLS;"
                    )
                found.add((one[0], one[1]))
        return sorted(found)

    def unidentified(self, tables: Iterable[TableName]) -> list[TableName]:
        """Of some tables those whose rows can't be updated or deleted while they are in a publication."""
        names = [self.quoted(one) for one in tables]
        return self.ask(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = ANY (%s::text[]::regclass[]) AND c.relreplident <> 'f' AND NOT EXISTS ("
            "SELECT FROM pg_index i WHERE i.indrelid = c.oid AND CASE c.relreplident "
            "WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)",
            names,
        )

    def own_rows(self, table: TableName) -> str:
        """What a table's own rows are read from: those of tables that inherit from it are not its own, but a
        partitioned one has no others.
        """
        if table not in self._sources:
            query = "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass"
            [(is_partitioned,)] = self.ask(query, self.quoted(table))
            self._sources[table] = ("" if is_partitioned else "ONLY ") + self.quoted(table)
        return self._sources[table]

    def oid(self, table: TableName) -> int:
        """A table's number."""
        [(found,)] = self.ask(
            "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            *table,
        )
        return int(found)

    def estimated_rows(self, table: TableName) -> int:
        """How many rows a table has, as ANALYZE has estimated, its partitions' included; -1: it never has."""
        [(found,)] = self.ask(
            "SELECT coalesce(sum(c.reltuples) FILTER (WHERE c.reltuples > 0), -1)::bigint "
            "FROM pg_partition_tree(%s::regclass) t JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf "
            "UNION ALL SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass AND relkind = 'r'"
            " ORDER BY 1 DESC LIMIT 1",
            *(self.quoted(table),) * 2,
        )
        return int(found)

    def literal(self, text: str) -> str:
        """A text for SQL, of whatever type is wanted there."""
        quoted: str = self._psycopg.sql.Literal(text).as_string(self.sql)
        return quoted

    def relation(self, table: TableName) -> Relation:
        """A table as its changes would describe it now; generated columns are left out, as there."""
        oid, identity = self.ask(
            "SELECT c.oid, c.relreplident::text FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            *table,
        )[0]
        rows = self.ask(
            "SELECT a.attname, a.atttypid, a.atttypmod, coalesce(i.indisprimary AND %s, false) "
            "OR coalesce(i.indisreplident AND %s, false) OR %s "
            "FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND "
            "a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) AND (i.indisprimary AND %s "
            "OR i.indisreplident AND %s) "
            "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
            "ORDER BY a.attnum",
            *(identity == "d", identity == "i", identity == "f", identity == "d", identity == "i"),
            oid,
        )
        return Relation(oid, *table, identity, tuple(Column(*row) for row in rows))

    def facts(self, oid: int) -> Facts:
        """What the catalog says about a table; nothing where it is gone."""
        keys = self.ask(
            "SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY "
            "AS k(num, place) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num "
            "WHERE i.indrelid = %s AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place",
            oid,
        )
        columns = self.ask(
            # A default names no columns: with the table's number, the server would look at all for each.
            "SELECT a.attname, a.attnotnull, CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, 0) END "
            "FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
            "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
            oid,
        )
        defaults = {name: _literal(text) for name, _, text in columns if text}
        return Facts(
            tuple(name for (name,) in keys),
            frozenset(name for name, required, _ in columns if required),
            {name: text for name, text in defaults.items() if text is not None},
            frozenset(name for name, _, _ in columns),
        )

    def shape(self, relation: Relation, facts: Facts, key: tuple[str, ...]) -> Shape:
        """What a table looks like, as the server describes it; of columns that are gone by now the catalog
        doesn't know whether they were NOT NULL.
        """
        columns = relation.columns
        types = self.ask(
            "SELECT format_type(t.oid, t.modifier) FROM unnest(%s::oid[], %s::int[]) "
            "WITH ORDINALITY AS t(oid, modifier, place) ORDER BY place",
            [one.oid for one in columns],
            [one.modifier for one in columns],
        )
        made = (
            SchemaColumn(
                *(one.name, text),
                one.name in facts.required if one.name in facts.columns else None,
            )
            for one, (text,) in zip(columns, types, strict=True)
        )
        return Shape(tuple(made), key, members(relation, facts, self.type))

    def type(self, oid: int, modifier: int) -> Type:
        """What a type is; asked once of each."""
        known = self._known.get((oid, modifier))
        if known is None:
            known = self._known[oid, modifier] = self._ask_type(oid, modifier)
        return known

    def _ask_type(self, oid: int, modifier: int) -> Type:
        found = self.ask(
            # Others than base types may have the names of these, in other schemas.
            "SELECT CASE WHEN t.typtype IN ('b', 'd') THEN '' ELSE n.nspname || '.' END || t.typname, "
            "t.typtype::text, t.typbasetype, t.typtypmod, t.typelem, t.typdelim::text, "
            + (
                "t.typsubscript = 'array_subscript_handler'::regproc "
                if self.version >= MESSAGES_MIN
                else "t.typlen = -1 AND t.typcategory = 'A' "
            )
            + "FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = %s",
            oid,
        )
        if not found:  # it was dropped meanwhile
            return Type("text")
        name, kind, base, base_modifier, element, delimiter, is_array = found[0]
        if kind == "d":
            return self.type(base, base_modifier)
        if is_array and element:
            return Type(name, kind, modifier, self.type(element, modifier), delimiter)
        # The lengths of bits and the digits of times are modifiers as they are, those of texts 4 more.
        return Type(name, kind, modifier)

    # -- slot ------------------------------------------------------------------------------------------

    def slot(self, name: str) -> Slot | None:
        """A slot; None where there is none.

        Raises:
            SetupError: it is no logical one of this database, with pgoutput.
        """
        reason = "''"
        if self.version >= FAILOVER_MIN:
            reason = "coalesce(invalidation_reason, '')"
        found = self.ask(
            "SELECT confirmed_flush_lsn::text, active, active_pid, coalesce(wal_status, ''), "
            "pg_wal_lsn_diff(here, confirmed_flush_lsn)::bigint, safe_wal_size, "
            f"pg_wal_lsn_diff(here, restart_lsn)::bigint, {reason}, plugin, database, current_database() "
            "FROM pg_replication_slots, (SELECT CASE WHEN pg_is_in_recovery() THEN "
            "pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS here) now "
            "WHERE slot_name = %s",
            name,
        )
        if not found:
            return None
        confirmed, active, pid, status, lag, safe, kept, why, plugin, database, here = found[0]
        if (plugin, database) != ("pgoutput", here):
            raise SetupError(
                f"expected the slot {name!r} to be of pgoutput and of the database {here!r}; found "
                f"{plugin!r} and {database!r}. Name another slot"
            )
        at = lsn_number(confirmed or "0/0")
        return Slot(at, active, pid, status, lag or 0, safe, kept or 0, why)

    def create_slot(self, name: str) -> int:
        """Creates a slot, which then keeps the server's log for us; its position."""
        # Where the server has standbys, they take a failover slot along.
        more = ", failover => true" if self.version >= FAILOVER_MIN else ""
        with self.watch(self.sql, "to create the slot"):
            row = self.sql.execute(
                f"SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput'{more})",
                (name,),
            ).fetchone()
        return lsn_number(row[0])

    def drop_slot(self, name: str) -> None:
        """Drops a slot, if it exists and is not in use."""
        self.sql.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s AND NOT active",
            (name,),
        )

    def disconnect(self, pid: int) -> None:
        """Ends another connection of the same role: that of a capture that we have taken over."""
        self.sql.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def start(self, slot: str, publication: str, lsn: int, *, messages: bool) -> Any:
        """Lets changes come, of transactions that committed there or later; libpq's connection."""
        is_old = self.version < STREAMING_MIN
        protocol = "proto_version '1'" if is_old else "proto_version '2', streaming 'on'"
        options = f"{protocol}, publication_names '{self._quote(publication)}'"
        if messages and self.has_messages:
            options += ", messages 'true'"
        self.replication.execute(
            f"START_REPLICATION SLOT {self._quote(slot)} LOGICAL {lsn_text(lsn)} ({options})"
        )
        return self.replication.pgconn

    def why(self, pg: Any) -> Exception | None:
        """The error with which the server has ended a connection that replicates; None where it said none."""
        pq = self._psycopg.pq
        copying = (
            pq.ExecStatus.COPY_IN,
            pq.ExecStatus.COPY_BOTH,
        )  # it waits for our end, and has no error
        while (result := pg.get_result()) is not None and result.status not in copying:
            if result.error_field(pq.DiagnosticField.SQLSTATE):
                error: Exception = self._psycopg.errors.error_from_result(result)
                return error
        return None

    def quoted(self, table: TableName) -> str:
        """A table's name as statements have it."""
        return f"{self._quote(table[0])}.{self._quote(table[1])}"

    def _quote(self, name: str) -> str:
        quoted: str = self._psycopg.sql.Identifier(name).as_string(self.sql)
        return quoted

    @property
    def types(self) -> Callable[[int, int], Type]:
        """`type`, to be passed on."""
        return self.type


def has_no_room(error: Exception) -> bool:
    """Whether a server has refused a connection because there are as many as it allows."""
    from psycopg import OperationalError

    text = str(error)
    is_full = "too many" in text or "remaining connection slots" in text
    return is_full and isinstance(error, OperationalError)


def refused(text: str) -> bool:
    """Whether a server's refusal is for good: who, where or with what password."""
    return any(
        one in text
        for one in (
            "authentication failed",
            "no password supplied",
            "does not exist",
            "pg_hba.conf",
        )
    )


def _like(pattern: str) -> str:
    return pattern.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%").replace("*", "%")


def _literal(expression: str) -> bytes | None:
    """The text of a constant; None for other expressions."""
    found = _LITERAL.fullmatch(expression)
    if found is None:
        return None
    if found[1] is not None:
        return found[1].replace("''", "'").encode()
    return (found[2] or found[3][0]).encode()
