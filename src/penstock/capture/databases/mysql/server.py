"""A MySQL or MariaDB server: connections, its catalog, its binary log."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import secrets
import socket
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.capture.database import TableName, unspelled
from penstock.capture.databases.mysql.binlog import Places
from penstock.capture.databases.mysql.charsets import Charset, asked
from penstock.capture.databases.mysql.columns import Definition, from_catalog
from penstock.capture.databases.mysql.gtid import Gtids
from penstock.core.databases import described
from penstock.drivers import (
    ALIVE_EACH_S,
    ALIVE_IDLE_S,
    ALIVE_TRIES,
    UNHEARD_MS,
    mysql_parameters,
    pymysql_module,
    tls_error,
)
from penstock.errors import SetupError, UserError

__all__ = ["DENIED", "Server", "new_replica", "replica_details", "replica_of"]

_log = logging.getLogger(__name__)
CONNECT_S: Final = 10
CANCEL_S: Final = 2.0
"""How long the server may take to hear that a query is cancelled."""
ANSWER_S: Final = 120.0
"""How long an answer may take; more than a catalog of many tables needs."""
READ_S: Final = 3600.0
"""Likewise that of a read of rows: one with a condition may look through a whole table first, and wait for
its lock. A server that has vanished is noticed by TCP, before."""
HEARTBEAT_S: Final = 5
"""How often the server says that it is there, while nothing happens."""
SILENCE_S: Final = 60.0
"""After how long without a word the connection is given up."""
_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
_BY_GTID: Final = 4
_FIRST: Final = 4
"""The place of a file's first event."""
_SYSTEM: Final = ("mysql", "information_schema", "performance_schema", "sys")
DENIED: Final = {1044, 1045, 1049, 1142, 1143, 1227, 1370}
"""Errors that need a change by a person: of privileges, or of what exists."""


class Server:
    """Connections to a server, and what they ask of it; belongs to one thread.

    Args:
        url: `mysql://user@host:port/database`. A password that it doesn't have is taken from MYSQL_PWD, or
            from `~/.my.cnf`.
        answer_s: how long the answer to a question may take.
    """

    def __init__(self, url: str, answer_s: float = ANSWER_S) -> None:
        self._pymysql, self._answer_s = pymysql_module(), answer_s
        self._parameters = mysql_parameters(url)
        self.url, self.name = url, described(url)
        self.database: str = self._parameters["database"]
        self._sql: Any = None
        self._dump: Any = None

    def close(self) -> None:
        """Closes the connections."""
        for one in (self._sql, self._dump):
            if one is not None:
                one._force_close()  # noqa: SLF001 - without a word, as it may be broken
        self._sql = self._dump = None

    def connect(self, answer_s: float | None = None) -> Any:
        """A new connection, which returns numbers, dates and times as text.

        Args:
            answer_s: how long an answer may take there; by default as for questions.

        Raises:
            SetupError: the server refuses it.
        """
        answer_s = self._answer_s if answer_s is None else answer_s
        try:
            one = self._pymysql.connect(
                **self._parameters,
                charset="utf8mb4",
                conv={},
                autocommit=True,
                connect_timeout=CONNECT_S,
                read_timeout=min(answer_s, ANSWER_S),
                write_timeout=ANSWER_S,
                init_command="SET time_zone = '+00:00', sql_mode = ''",
                program_name="penstock",
            )
        except (self._pymysql.err.OperationalError, FileNotFoundError) as error:
            if (setup_error := tls_error(self.url, error)) is not None:
                raise setup_error from None
            if error.args and error.args[0] in DENIED:
                raise SetupError(
                    f"expected to log in at {self.name}; found: {error.args[-1]}. A password is taken from "
                    "the address, MYSQL_PWD or ~/.my.cnf"
                ) from None
            raise
        _keep_alive(one._sock)  # noqa: SLF001 - PyMySQL has no other way
        one._read_timeout = answer_s  # noqa: SLF001 - the log-in is over
        return one

    @property
    def sql(self) -> Any:
        """The connection for questions."""
        if self._sql is None:
            self._sql = self.connect()
        return self._sql

    def another(self, answer_s: float = ANSWER_S) -> Any:
        """A new connection, to the server that the questions go to.

        Args:
            answer_s: how long an answer may take there.

        Raises:
            ConnectionError: the address leads to another one by now.
        """
        return self._connected(self.system, answer_s)

    def _connected(self, system: str, answer_s: float) -> Any:
        one = self.connect(answer_s)
        try:
            if (found := self._system_of(_variables(one))) != system:
                raise ConnectionError(
                    f"{self.name} leads to another server: expected {system}; found {found}"
                )
        except BaseException:
            one._force_close()  # noqa: SLF001
            raise
        return one

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection for questions."""
        return self._sql is not None and self._sql.open

    def kill_query(self, thread: int, system: str) -> None:
        """Cancels what a connection does, by another one; from any thread.

        Args:
            thread: the connection's number.
            system: which server has it: at another one a stranger's has that number.
        """
        with contextlib.suppress(self._pymysql.err.Error, SetupError, OSError):
            one = self._connected(system, CANCEL_S)
            try:
                ask(one, f"KILL QUERY {thread:d}")
            finally:
                one._force_close()  # noqa: SLF001

    def sever(self) -> None:
        """Ends the connection for questions, also if the server doesn't answer; from any thread."""
        if (one := self._sql) is not None and (found := one._sock) is not None:  # noqa: SLF001
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def ask(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        """The rows of a query, by their columns."""
        return ask(self.sql, query, *arguments)

    def variables(self) -> dict[str, str]:
        """The server's settings."""
        return _variables(self.sql)

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB."""
        return "mariadb" in self.sql.server_version.lower()

    def check(self) -> str:
        """Whether it can be captured; which server and database it is.

        Raises:
            SetupError: it can't; the message has the SQL that changes that.
        """
        variables = self.variables()
        if variables.get("log_bin") != "ON":
            raise SetupError(
                f"expected a binary log at {self.name}; found log_bin = {variables.get('log_bin')}. Write "
                "log_bin = mysql-bin, server_id = 1 and binlog_format = ROW into [mysqld] of the server's "
                "configuration, and restart it"
            )
        for setting, expected in (("binlog_format", "ROW"), ("binlog_row_image", "FULL")):
            if variables.get(setting, expected) != expected:
                raise SetupError(
                    f"expected {setting} = {expected} at {self.name}; found {variables[setting]}. "
                    f"SET GLOBAL {setting} = '{expected}'; sessions that are open keep what they have"
                )
        for setting, refused in (
            ("binlog_row_value_options", "PARTIAL_JSON"),
            ("log_bin_compress", "ON"),
            ("binlog_transaction_compression", "ON"),
        ):
            if variables.get(setting) == refused:
                off = "''" if refused == "PARTIAL_JSON" else "OFF"
                raise SetupError(
                    f"expected {setting} = {off} at {self.name}; found {refused}, which can't be read. "
                    f"SET GLOBAL {setting} = {off}"
                )
        return self._system_of(variables)

    @property
    def system(self) -> str:
        """Which server and database it is."""
        return self._system_of(self.variables())

    def _system_of(self, variables: Mapping[str, str]) -> str:
        return f"{variables.get('server_uuid') or variables['server_id']}/{self.database}"

    def position(self, sql: Any = None) -> tuple[str, int]:
        """The end of the binary log: file and position in it.

        Raises:
            SetupError: the user may not ask.
        """
        found = self.status(sql)
        return found["File"], int(found["Position"])

    def status(self, sql: Any = None) -> dict[str, Any]:
        """What the server says about the end of the binary log.

        Raises:
            SetupError: the user may not ask.
        """
        new = not self.is_mariadb and self._version >= (8, 2)
        command = "SHOW BINARY LOG STATUS" if new else "SHOW MASTER STATUS"
        [found] = self._privileged(command, sql)
        return found

    @property
    def _version(self) -> tuple[int, ...]:
        found = re.match(r"(\d+)\.(\d+)", self.sql.server_version)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def files(self) -> dict[str, int]:
        """The files of the binary log, with their bytes."""
        return {
            one["Log_name"]: int(one["File_size"]) for one in self._privileged("SHOW BINARY LOGS")
        }

    def _privileged(self, command: str, sql: Any = None) -> list[dict[str, Any]]:
        try:
            return ask(sql or self.sql, command)
        except self._pymysql.err.OperationalError as error:
            if error.args[0] not in DENIED:
                raise
            raise SetupError(self.no_replication(error.args[-1])) from None

    def no_replication(self, why: str) -> str:
        """What to do where the server refuses to be replicated."""
        user, _, host = str(self.ask("SELECT CURRENT_USER() AS u")[0]["u"]).rpartition("@")
        also = "BINLOG MONITOR" if self.is_mariadb else "RELOAD, REPLICATION CLIENT"
        return (
            f"expected {user}@{host} to be allowed to replicate at {self.name}; found: {why}. As an "
            f"administrator: GRANT SELECT, REPLICATION SLAVE, {also} ON *.* TO '{user}'@'{host}';"
        )

    # -- tables -----------------------------------------------------------------------------------------

    def tables(self, patterns: Iterable[str]) -> dict[TableName, int]:
        """The tables that patterns name. The binary log has whether one was created again.

        Raises:
            UserError: a pattern names none.
        """
        found: set[TableName] = set()
        for pattern in patterns:
            schema, name = unspelled(pattern)
            rows = self.ask(
                "SELECT TABLE_SCHEMA AS s, TABLE_NAME AS t, TABLE_TYPE = 'BASE TABLE' AS p "
                "FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') "
                "AND TABLE_SCHEMA LIKE %s AND TABLE_NAME LIKE %s AND TABLE_SCHEMA NOT IN %s",
                *(_like(schema), _like(name), _SYSTEM),
            )
            plain = {(one["s"], one["t"]) for one in rows if one["p"] == "1"}
            if not plain:
                raise UserError(
                    f"expected a table {pattern!r} at {self.name}; found none that the user may read. (Views "
                    "and tables with system versioning can't be captured)"
                )
            for one in rows:
                if one["p"] != "1":
                    _log.warning(
                        "%s.%s has system versioning, and isn't captured", one["s"], one["t"]
                    )
            found |= plain
        return dict.fromkeys(sorted(found), 0)

    def definition(self, table: TableName) -> Definition:
        """A table's columns and key as they are now; none where it is gone."""
        rows = self.ask(
            "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
            "ORDER BY ORDINAL_POSITION",
            *table,
        )
        keys = self.ask(
            "SELECT COLUMN_NAME AS c FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA = %s "
            "AND TABLE_NAME = %s AND CONSTRAINT_NAME = 'PRIMARY' ORDER BY ORDINAL_POSITION",
            *table,
        )
        charsets = self._charsets
        return Definition(
            tuple(from_catalog(one, charsets) for one in rows), tuple(one["c"] for one in keys)
        )

    def estimated_rows(self, table: TableName) -> int:
        """How many rows a table has, as the server estimates."""
        rows = self.ask(
            "SELECT TABLE_ROWS AS n FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s "
            "AND TABLE_NAME = %s",
            *table,
        )
        return int(rows[0]["n"] or 0) if rows else 0

    @functools.cached_property
    def _charsets(self) -> dict[str, Charset]:
        """Character sets by their names."""
        return asked(self.ask)

    def charsets(self) -> dict[int, Charset]:
        """The character sets of collations' numbers."""
        rows = self.ask(
            "SELECT ID AS i, CHARACTER_SET_NAME AS c FROM information_schema.COLLATIONS WHERE ID IS NOT NULL"
        )
        names = {int(one["i"]): str(one["c"]) for one in rows if one["c"]}
        found = {i: self._charsets[name] for i, name in names.items() if name in self._charsets}
        if self.is_mariadb:
            found |= {i: Charset() for i in range(2048, 4096) if i not in found}
        return found

    # -- the binary log ---------------------------------------------------------------------------------

    def without_transactions(self, tables: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Of some tables those whose engine has no transactions."""
        rows = self.ask(
            "SELECT t.TABLE_SCHEMA AS s, t.TABLE_NAME AS t FROM information_schema.TABLES t JOIN "
            "information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE e.TRANSACTIONS <> 'YES' "
            "AND (t.TABLE_SCHEMA, t.TABLE_NAME) IN %s",
            tuple(tables),
        )
        return frozenset((one["s"], one["t"]) for one in rows)

    def check_logged(self, tables: Iterable[TableName]) -> None:
        """Makes sure that the binary log has what changes in some tables.

        Raises:
            SetupError: the server leaves it out.
        """
        status = self.status()
        only, never = (
            {one for one in (status.get(name) or "").split(",") if one}
            for name in ("Binlog_Do_DB", "Binlog_Ignore_DB")
        )
        missing = sorted(
            {schema for schema, _ in tables if schema in never or (only and schema not in only)}
        )
        if missing:
            raise SetupError(
                f"expected changes of {', '.join(missing)} in the binary log of {self.name}; found "
                f"binlog_do_db = {','.join(sorted(only))!r} and "
                f"binlog_ignore_db = {','.join(sorted(never))!r}. Remove "
                "these from [mysqld] of the server's configuration, and restart it"
            )
        if self.variables().get("log_slave_updates", "ON") == "OFF" and self._is_replica:
            raise SetupError(
                f"expected {self.name}, a replica, to write to its binary log what it replicates; found "
                "log_slave_updates = OFF. Write log_slave_updates = ON into [mysqld] of its configuration, "
                "and restart it, or capture the primary"
            )

    @property
    def _is_replica(self) -> bool:
        """Whether it follows another server; a user without the right gets no answer."""
        try:
            return bool(
                self.ask("SHOW ALL SLAVES STATUS" if self.is_mariadb else "SHOW SLAVE STATUS")
            )
        except self._pymysql.err.Error:
            return False

    def snapshot_place(self, sql: Any) -> tuple[str, int]:
        """The place of a consistent snapshot of MariaDB in the binary log."""
        status = {
            one["Variable_name"].lower(): one["Value"]
            for one in ask(sql, "SHOW STATUS LIKE 'binlog_snapshot_%%'")
        }
        return status["binlog_snapshot_file"], int(status["binlog_snapshot_position"])

    def gtids_at(self, file: str, position: int) -> str | None:
        """The GTIDs of what MariaDB's binary log has before a place; None where it can't say."""
        [found] = self.ask(f"SELECT BINLOG_GTID_POS(%s, {position:d}) AS g", file)
        return None if found["g"] is None else str(found["g"])

    def lacking(self, gtids: Gtids) -> str:
        """Of some GTIDs those of groups that the server hasn't executed; empty where it has all.

        MariaDB's domain that isn't in its log at all would be sent from the beginning.
        """
        if self.is_mariadb:
            [found] = self.ask("SELECT @@global.gtid_binlog_state AS g")
            return ",".join(gtids.lacking(str(found["g"] or "")))
        [found] = self.ask("SELECT GTID_SUBTRACT(%s, @@global.gtid_executed) AS g", gtids.text)
        return "".join(str(found["g"] or "").split())

    def dump(self, number: int, file: str, position: int, gtids: Gtids | None = None) -> Any:
        """A connection that the binary log comes from; its socket.

        Args:
            number: which replica this is.
            file: where to begin.
            position: likewise.
            gtids: behind which to begin, instead; in the order of the log, whatever its files are.

        Raises:
            ConnectionError: the address leads to another server than that of the questions.
        """
        if self._dump is not None:
            self._dump._force_close()  # noqa: SLF001 - it has more to say
        one = self._dump = self.another(SILENCE_S)
        ask(one, f"SET @master_heartbeat_period = {HEARTBEAT_S * 1_000_000_000}")
        ask(one, f"SET @source_heartbeat_period = {HEARTBEAT_S * 1_000_000_000}")
        ask(one, "SET @master_binlog_checksum = @@global.binlog_checksum")
        ask(one, "SET @source_binlog_checksum = @@global.binlog_checksum")
        ask(one, "SET @mariadb_slave_capability = 4")
        register = struct.pack("<I", number) + b"\x08penstock" + bytes(2 + 2 + 4 + 4)
        one._execute_command(_REGISTER, register)  # noqa: SLF001 - PyMySQL has no other way
        one._read_packet()  # noqa: SLF001
        if gtids is not None and not self.is_mariadb:
            packed = gtids.packed()
            command = struct.pack("<HIIQI", _BY_GTID, number, 0, _FIRST, len(packed)) + packed
            return _sent(one, _DUMP_GTID, command)
        if gtids is not None:
            ask(one, "SET @slave_connect_state = %s", gtids.text)
            ask(one, "SET @slave_gtid_strict_mode = 1")  # a group that isn't in the log is an error
            file, position = "", _FIRST
        command = struct.pack("<IHI", position, 0, number) + file.encode()
        return _sent(one, _DUMP, command)

    def is_dumping(self, number: int) -> bool | None:
        """Whether a capture takes the binary log; None where the user may not ask."""
        command = "SHOW SLAVE HOSTS" if self.is_mariadb else "SHOW REPLICAS"
        try:
            rows = self.ask(command)
        except self._pymysql.err.Error:
            return None
        return any(str(one.get("Server_id", one.get("Server_Id"))) == str(number) for one in rows)


def replica_of(details: Mapping[str, Any]) -> int:
    """A capture's number among the server's replicas; those of former releases had that of their names."""
    named = 0x40000000 | zlib.crc32(details["name"].encode()) & 0x3FFFFFFF
    return int(details.get("replica", named))


def replica_details(details: Mapping[str, Any]) -> dict[str, int]:
    """What a state says about that number."""
    return {"replica": replica_of(details)}


def new_replica() -> dict[str, int]:
    """A number that no other capture has, also not one of the same name that writes to another log.

    A server ends the connection of a replica when another one with its number comes.
    """
    return {"replica": 0x40000000 | secrets.randbits(30)}


def _keep_alive(connection: socket.socket) -> None:
    """Lets TCP notice that a server has vanished. One of the same machine can't."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", ALIVE_EACH_S),
        ("TCP_KEEPCNT", ALIVE_TRIES),
        ("TCP_USER_TIMEOUT", UNHEARD_MS),
    ):
        if (option := getattr(socket, name, None)) is not None:  # each system has some of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _sent(one: Any, kind: int, command: bytes) -> Any:
    """Sends a command; the socket that its answer comes from, piece by piece."""
    one._execute_command(kind, command)  # noqa: SLF001
    one._sock.settimeout(SILENCE_S)  # noqa: SLF001 - of a piece that has begun to come, by TLS
    return one._sock  # noqa: SLF001


def ask(sql: Any, query: str, *arguments: Any) -> list[dict[str, Any]]:
    """The rows of a query of a connection, by their columns.

    Raises:
        ConnectionError: the server doesn't answer in time.
    """
    with sql.cursor() as cursor:
        with answering(sql):
            cursor.execute(query, arguments or None)
        names = [one[0] for one in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextlib.contextmanager
def answering(sql: Any) -> Iterator[None]:
    """Says that a server hasn't answered in time; a context manager.

    Raises:
        ConnectionError: so it was; the connection is closed then.
    """
    from pymysql import err

    try:
        yield
    except err.OperationalError as error:
        if not isinstance(error.__context__, TimeoutError):
            raise
        raise ConnectionError(
            f"expected {sql.host}:{sql.port} to answer within {sql._read_timeout:g} s; found that it says "  # noqa: SLF001
            "nothing"
        ) from None


def _variables(sql: Any) -> dict[str, str]:
    return {
        one["Variable_name"]: one["Value"]
        for one in ask(
            sql,
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', "
            "'binlog_row_image', 'binlog_row_metadata', 'server_id', 'server_uuid', 'binlog_checksum', "
            "'binlog_row_value_options', 'log_bin_compress', 'binlog_transaction_compression', "
            "'log_slave_updates')",
        )
    }


def _like(pattern: str) -> str:
    return pattern.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%").replace("*", "%")


def quoted(name: str) -> str:
    """A name, for SQL."""
    return "`" + name.replace("`", "``") + "`"


def base_of(file: str) -> str:
    """The name of the binary log's files, without their number."""
    return file.rpartition(".")[0]


def lag_bytes(files: Mapping[str, int], places: Places, position: int) -> int:
    """The bytes of the binary log behind a position."""

    def sizes() -> Iterator[int]:
        for file, size in files.items():
            begin, end = places.number(file, 0), places.number(file, size)
            if end > position:
                yield end - max(begin, position)

    return sum(sizes())
