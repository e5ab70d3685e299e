"""A MySQL or MariaDB database's side of a capture."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from penstock.capture.chunked import CONNECTIONS, Incremental
from penstock.capture.database import Settings, TableName, spelled
from penstock.capture.databases.mysql.binlog import Places
from penstock.capture.databases.mysql.cascades import ACTIONS, Cascades, Link, links_of, stored
from penstock.capture.databases.mysql.chunks import MysqlWays, unordered
from penstock.capture.databases.mysql.columns import Definition, shape_of
from penstock.capture.databases.mysql.encoder import Encoder
from penstock.capture.databases.mysql.gtid import Gtids
from penstock.capture.databases.mysql.server import (
    READ_S,
    Server,
    ask,
    base_of,
    new_replica,
    quoted,
    replica_details,
)
from penstock.capture.databases.mysql.stream import Stream
from penstock.capture.databases.mysql.texts import converter, read
from penstock.capture.envelope import Record, Row
from penstock.capture.output import Output
from penstock.capture.progress import State
from penstock.capture.snapshots import Progress, marked
from penstock.capture.table_schemas import Shape
from penstock.capture.unread import Losses, Lost
from penstock.errors import SetupError

__all__ = ["MysqlDatabase"]

_log = logging.getLogger(__name__)
LARGE_ROWS: Final = 1_000_000
"""A table with more rows is read in chunks afterwards, while its changes are captured already."""


class MysqlDatabase:
    """See `penstock.capture.database.Database`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._server = settings, Server(settings.url)
        self.name, self.topics, self.claims = self._server.name, (), dict[str, str]()
        self._places, self._progress = Places(), Progress()
        self._streams: list[Stream] = []
        self.source = ("mariadb" if self._server.is_mariadb else "mysql", self._server.database)

    def close(self) -> None:
        """Closes the connections."""
        for one in self._streams:
            one.close()
        self._server.close()

    def check(self) -> str:
        """Whether it can be captured; which server and database it is."""
        return self._server.check()

    def tables(self, patterns: Iterable[str]) -> dict[TableName, int]:
        """The tables that patterns name."""
        return self._server.tables(patterns)

    def shape(self, table: TableName) -> Shape:
        """What a table looks like now."""
        return shape_of(self._server.definition(table))

    def prepare(
        self,
        state: State | None,
        tables: Iterable[TableName],
        end: Callable[[float], bool],  # noqa: ARG002 - nothing is waited for
    ) -> dict[str, Any]:
        """Looks whether the binary log has what is needed, and still has it."""
        some = [*tables]
        self._server.check_logged(some)
        links = links_of(self._server)
        self._report_actions(some, links)
        file, _ = self._server.position()
        shift = 0 if state is None else state.details.get("shift", 0)
        places = self._places = Places(base_of(file), shift)
        self._progress = Progress.of({} if state is None else state.details)
        if state is not None and state.position:
            needed, files = places.file(state.position), self._server.files()
            if needed not in files or places.number(needed, files[needed]) < state.position:
                raise SetupError(
                    f"expected the binary log of {self.name} at {places.text(state.position)}; found "
                    f"{', '.join(files) or 'none'}. Changes between were lost. Start again with a new "
                    f"snapshot: penstock capture drop {self._settings.name}. To keep more of the log: "
                    "binlog_expire_logs_seconds"
                )
        known = {} if state is None else replica_details(state.details)
        where: dict[str, Any] = {"log": places.base, "shift": places.shift}
        if self._reads_actions:
            before = None if state is None else state.details.get(ACTIONS)
            where[ACTIONS] = stored(links) if before is None else before
        return {**where, "name": self._settings.name, **(known or new_replica())}

    @property
    def _reads_actions(self) -> bool:
        """Whether tables are read again that foreign keys' actions may have changed."""
        return bool(self._settings.options.get("cascades", "read") == "read")

    def _report_actions(self, tables: Iterable[TableName], links: Iterable[Link]) -> None:
        """Says which tables actions change that aren't read again."""
        for table in tables:
            name = spelled(table)
            parents = sorted({one.parent for one in links if one.child == name})
            why = "" if self._reads_actions else "--cascades ignore"
            if parents and (why := why or unordered(self._server.definition(table))):
                _log.warning(
                    "%s: expected all changes of %s in the binary log; found foreign keys to %s with ON "
                    "DELETE or ON UPDATE actions, whose changes it lacks. The table isn't read again after "
                    "them (%s). Let the application change these rows",
                    *(self._settings.name, name, ", ".join(parents), why),
                )

    def moved(self, state: State, system: str) -> State:
        """Where a capture continues at this server, which has another one's groups: by their GTIDs.

        Until all that it has now is passed: its places alone don't say which groups before were captured.

        Raises:
            SetupError: it lacks one, or they aren't known.
        """
        (_, database), (_, wanted) = system.rsplit("/", 1), state.system.rsplit("/", 1)
        gtids = Gtids(state.details.get("gtids"), is_mariadb=self._server.is_mariadb)
        if database != wanted:
            return state
        name = self._settings.name
        if prepared := state.details.get("xa"):
            raise SetupError(
                f"expected no XA transactions that were prepared before {self.name} took over, and neither "
                f"committed nor rolled back; found {', '.join(prepared)}: what they have changed isn't known "
                f"here. Start again with a new snapshot: penstock capture drop {name}"
            )
        if not gtids.text:
            raise SetupError(
                f"expected the database that {name!r} has captured so far ({state.server}); found another "
                f"server at {self.name}, and the GTIDs of what was captured, by which it could continue, "
                f"aren't known. Return to the previous server, or start again with a new snapshot: "
                f"penstock capture drop {name}"
            )
        if lacking := self._server.lacking(gtids):
            raise SetupError(
                f"expected {self.name} to have in its binary log what {name!r} has captured at "
                f"{state.server}; found that it lacks {lacking}. Wait until it has caught up, or return to "
                "the previous server. If neither is possible, changes were lost. Start again with a new "
                f"snapshot: penstock capture drop {name}"
            )
        files, end = self._server.files(), self._server.position()
        first = Places().number(next(iter(files)), 0)
        after = Places(shift=1).number(Places().file(state.position), 0)
        shift = max(after - first, 0) >> 40
        position = first + (shift << 40)
        # A snapshot that the stream hadn't got to was at a place that says nothing here.
        tables = {name: one for name, one in state.tables.items() if one.since <= state.position}
        by_gtid = Places(shift=shift).number(*end)
        details = {**state.details, "shift": shift, "by_gtid": by_gtid}
        return replace(state, system=system, position=position, details=details, tables=tables)

    def snapshot(self) -> _Snapshot:
        """The rows as they are."""
        arguments = (self._server, self._settings, self._encoder(), self._places, self._progress)
        return _Snapshot(*arguments)

    def end(self) -> int:
        """The end of the binary log."""
        return self._places.number(*self._server.position())

    def stream(self, output: Output) -> Stream:
        """What committed at the output's position and behind it."""
        settings = self._settings
        encoder = self._encoder()
        connections = settings.options.get("snapshot_connections", CONNECTIONS)
        ways = MysqlWays(
            *(settings.url, encoder, settings.values, self._places, self._server.system),
            connections,
        )
        incremental = Incremental(output, ways, lambda: None)
        arguments = (self._server, self._places, encoder, settings.values, output)
        cascades = None
        if self._reads_actions:
            cascades = Cascades(self._server, output, incremental, self.end)
        self._streams.append(Stream(*arguments, incremental, cascades))
        return self._streams[-1]

    def _encoder(self) -> Encoder:
        return Encoder(self._settings, "mariadb" if self._server.is_mariadb else "mysql")


class _Snapshot:
    """A transaction that sees the database at a place in the binary log; a context manager.

    MariaDB reports that place itself. With MySQL, tables are locked while both are read.
    """

    def __init__(
        self,
        server: Server,
        settings: Settings,
        encoder: Encoder,
        places: Places,
        progress: Progress,
    ) -> None:
        self._server, self._values, self._encoder = server, settings.values, encoder
        self._places, self._progress = places, progress

    def __enter__(self) -> Self:
        sql = self._sql = self._server.another(READ_S)
        with contextlib.ExitStack() as undo:
            undo.callback(sql._force_close)  # noqa: SLF001
            self._wait_for_xa(sql)
            ask(sql, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if self._server.is_mariadb:
                ask(sql, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
                self._file, self._at = self._server.snapshot_place(sql)
                gtids = self._server.gtids_at(self._file, self._at)
            else:
                ask(sql, "FLUSH TABLES WITH READ LOCK")
                ask(sql, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
                status = self._server.status(sql)
                self._file, self._at = status["File"], int(status["Position"])
                gtids = "".join(str(status.get("Executed_Gtid_Set") or "").split())
                ask(sql, "UNLOCK TABLES")
            undo.pop_all()
        self.begins: dict[str, Any] = {"gtids": gtids, "xa": {}}
        self.position = self._places.number(self._file, self._at)
        self._time_s = int(time.time())
        return self

    def _wait_for_xa(self, sql: Any) -> None:
        """Looks whether there are XA transactions that are prepared: the snapshot would lack them, and they
        may have begun before its place.

        Raises:
            ConnectionError: there are.
        """
        import pymysql

        with contextlib.suppress(pymysql.err.Error):  # a user without the right gets no answer
            if count := len(ask(sql, "XA RECOVER")):
                raise ConnectionError(
                    "expected no XA transactions that are prepared, before a snapshot of "
                    f"{self._server.name}; found {count}. XA RECOVER lists them: commit or roll them back"
                )

    def __exit__(self, *_: object) -> None:
        self._sql._force_close()  # noqa: SLF001 - a read that was cut has more to say

    def read(
        self, topics: Mapping[TableName, str]
    ) -> Generator[tuple[TableName, Record], None, None]:
        """The rows of tables, in the tables' order."""
        definitions = {table: self._server.definition(table) for table in topics}
        large = [one for one in topics if self._is_large(one, definitions[one])]
        self._progress = self._progress.with_tables(map(spelled, large))
        tables = [one for one in topics if one not in large]
        rows = ((one, self._rows(one, definitions)) for one in tables)
        for table, (row, lost), marker in marked(rows):
            at = {"time_s": self._time_s, "snapshot": marker, "server": 0, "gtid": None}
            source = self._encoder.source(
                table, {**at, "file": self._file, "pos": self._at, "row": 0}
            )
            topic, key = topics[table], definitions[table].key
            record = self._encoder.inserted(topic, key, row, source, self._time_s * 1000, "r")
            yield table, record._replace(lost=lost)

    @property
    def details(self) -> dict[str, Any]:
        """For the state: which tables are to be read in chunks."""
        return self._progress.details

    def _is_large(self, table: TableName, definition: Definition) -> bool:
        """Whether a table is read in chunks afterwards."""
        return not unordered(definition) and self._server.estimated_rows(table) > LARGE_ROWS

    def _rows(
        self, table: TableName, definitions: Mapping[TableName, Definition]
    ) -> Iterator[tuple[Row, tuple[Lost, ...]]]:
        """Rows, and their values that can't be read."""
        from pymysql.cursors import SSCursor

        losses = Losses(spelled(table), definitions[table].key)
        columns = [(one.name, converter(one, self._values)) for one in definitions[table].columns]
        names = ", ".join(quoted(name) for name, _ in columns)
        with self._sql.cursor(SSCursor) as cursor:
            cursor.execute(f"SELECT {names} FROM {quoted(table[0])}.{quoted(table[1])}")
            try:
                for row in cursor:
                    yield (
                        {
                            name: None if value is None else read(convert, value, losses, name)
                            for (name, convert), value in zip(columns, row, strict=True)
                        },
                        losses.take(),
                    )
            except BaseException:  # closing the cursor would read all rows that are left
                cursor._result.unbuffered_active, cursor.connection = False, None  # noqa: SLF001
                raise
