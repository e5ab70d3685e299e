"""A server's changes, as a replica gets them.

    group    GTID, or BEGIN; tables and rows; then XID, or COMMIT: a transaction
    other    GTID and one statement: CREATE, ALTER, TRUNCATE, …

The position of a transaction is where its group begins; what is stored is the position behind it.
"""

from __future__ import annotations

import logging
import select
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.capture.chunked import Incremental
from penstock.capture.database import spelled, unspelled
from penstock.capture.databases.mysql.binlog import (
    HEADER,
    ROWS,
    Kind,
    Places,
    TableMap,
    packets,
    prepared_xa,
    refuse,
    rows_begin,
    table_map,
)
from penstock.capture.databases.mysql.cascades import Cascades
from penstock.capture.databases.mysql.columns import Definition, definition_of
from penstock.capture.databases.mysql.encoder import Encoder, report
from penstock.capture.databases.mysql.groups.group import Group
from penstock.capture.databases.mysql.groups.statements import (
    back_to,
    bare_of,
    defined,
    is_change,
    refuse_statement,
    replaced,
    savepoint,
    truncated,
    xa_of,
)
from penstock.capture.databases.mysql.gtid import Gtids, mysql_gtid
from penstock.capture.databases.mysql.rows import Changed, Table, read_rows
from penstock.capture.databases.mysql.server import DENIED, SILENCE_S, Server, replica_of
from penstock.capture.envelope import DELETIONS_FOLLOW, Record, Values
from penstock.capture.output import Output
from penstock.errors import CorruptError, SetupError

__all__ = ["Stream"]

READ_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)
DUMP_END: Final = 1 << 32
"""The protocol has no places from here on: behind a larger transaction, a file is read from its beginning."""
_FIRST: Final = 4
"""The place of a file's first event."""
_PURGED: Final = 1236
_CUT: Final = "truncated in the middle of event"
_TABLE_KINDS: Final = {Kind.GTID, Kind.ANONYMOUS, Kind.GTID_TAGGED}


class _ReplacedError(OSError):
    """A table has other rows, which the next session reads."""


class Stream:
    """Changes as they come.

    Args:
        server: whose.
        places: in the binary log.
        encoder: makes records.
        values: how they are written.
        output: where to.
        incremental: snapshots in chunks.
        cascades: reads what foreign keys' actions have changed; None: nothing does.
    """

    def __init__(
        self,
        server: Server,
        places: Places,
        encoder: Encoder,
        values: Values,
        output: Output,
        incremental: Incremental,
        cascades: Cascades | None = None,
    ) -> None:
        self._incremental, self._cascades = incremental, cascades
        self._server, self._encoder, self._values, self._output = server, encoder, values, output
        self._charsets, self._is_mariadb = server.charsets(), server.is_mariadb
        self._catalog: dict[tuple[str, str], Definition] = {}
        self._tables: dict[int, Table | None] = {}
        self._made: dict[bytes, Table | None] = {}
        self._checksum_bytes = 4 if server.variables().get("binlog_checksum") == "CRC32" else 0
        self._places = places
        self._from = output.position  # what begins before was captured
        # But for XA transactions that were prepared before, and aren't committed yet.
        self._prepared: dict[str, int] = dict(output.state.details.get("xa", {}))
        self._replaced: str | None = None  # a captured table that has other rows now
        begin = min([output.position, *self._prepared.values()])
        self._file, self._end = places.file(begin), begin & (1 << 40) - 1
        self._gtids = Gtids(self._captured(), is_mariadb=self._is_mariadb)
        self._is_by_gtid = self._begins_by_gtid()
        if self._end >= DUMP_END:
            self._end = _FIRST
        self._begin: int | None = None  # where the open group begins
        self._gtid: str | None = None
        self._is_transaction = self._is_due = False
        self._rest = b""
        self._heard_at = time.monotonic()
        self._group = Group(self._add, server.without_transactions, self._name)
        self._born = 0  # when the file was begun
        after = (self._gtids,) if self._is_by_gtid else ()
        self._socket = server.dump(replica_of(output.state.details), self._file, self._end, *after)

    def _captured(self) -> str | None:
        """The GTIDs of what was captured; those that a state doesn't have, MariaDB says."""
        stored: str | None = self._output.state.details.get("gtids")
        if not stored and self._is_mariadb and self._end >= _FIRST:
            return self._server.gtids_at(self._file, self._end)
        return stored

    def _begins_by_gtid(self) -> bool:
        """Whether the server is given the GTIDs, and not a place.

        It is while the log may have groups ahead that were captured at the server before. A server's own
        groups are distinguished by their place: MariaDB's numbers may go back (gtid_strict_mode = OFF).
        Behind `DUMP_END` places can't be distinguished without those before.
        """
        is_moved = self._from < self._output.state.details.get("by_gtid", 0)
        return bool(self._gtids.text) and self._end < DUMP_END and (is_moved or self._end < _FIRST)

    def close(self) -> None:
        """Closes the connections of snapshots."""
        self._incremental.close()

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request for a snapshot; see `Incremental.ask`."""
        self._incremental.ask(number, request)

    def _add(self, table: tuple[str, str], record: Record) -> None:
        """Takes a record of a change of a table."""
        if spelled(table) == self._incremental.table:
            put = self._output.judged(record.lost) or self._incremental.put
            put(*record[:3], record.time_ms, record.headers)
            self._output.is_open = True
        else:
            self._output.add(record)

    def confirm(self) -> None:
        """Nothing: the server keeps its binary log as long as its settings say."""

    # -- packets ----------------------------------------------------------------------------------------

    def take(self, wait_s: float) -> bool:
        """Passes what has come to the output; waits if nothing has. Whether anything had."""
        came, self._is_due = False, False
        if self._begin is None:
            if self._replaced is not None:
                raise _ReplacedError(f"{self._replaced} has other rows now, which are read")
            is_stale = self._cascades is not None and self._cascades.read()
            if self._incremental.step():
                return True
            self._output.is_reading |= is_stale
        while True:
            for kind, data in self._events():
                came |= self._take(kind, data)
                if self._is_due or self._output.is_full:
                    return True
            pending = getattr(self._socket, "pending", None)
            if not (pending is not None and pending()):
                # Within a group chunks wait, and what has rung isn't heard.
                news = [self._incremental.news] if self._begin is None else []
                all_ = [self._socket, *news]
                ready, _, _ = select.select(all_, [], [], 0.0 if came else wait_s)
                if self._socket not in ready:
                    if time.monotonic() - self._heard_at > SILENCE_S:
                        raise self._silent()
                    return came
            try:
                data = self._socket.recv(READ_BYTES)
            except TimeoutError:  # within a record of TLS
                raise self._silent() from None
            if not data:
                raise ConnectionError(f"{self._server.name} has ended the connection")
            self._rest += data
            self._heard_at = time.monotonic()

    def _silent(self) -> ConnectionError:
        return ConnectionError(
            f"expected {self._server.name} to send a heartbeat at least every {SILENCE_S:g} s; found none"
        )

    def _events(self) -> Iterator[tuple[tuple[int, int, int, int, int, int], bytes]]:
        """The events of what was received; what isn't whole yet is kept."""
        data, at = self._rest, 0
        try:
            for packet, end in packets(data):
                at = end
                if packet[0]:
                    self._fail(packet)
                    return
                header = HEADER.unpack_from(packet, 1)
                yield header, packet[20 : len(packet) - self._checksum_bytes]
        finally:
            self._rest = data[at:] if at else data

    def _fail(self, packet: bytes) -> None:
        """Stops at an error that the server says, unless it can be passed.

        Raises:
            SetupError: the place in the binary log isn't there any more.
            ConnectionError: something else.
        """
        code, text = struct.unpack_from("<H", packet, 1)[0], packet[9:].decode("utf-8", "replace")
        if packet[0] == 0xFF and code == _PURGED and _CUT in text and self._passes_cut():
            return
        if packet[0] == 0xFF and code == _PURGED:
            raise SetupError(
                f"expected the binary log of {self._server.name} at {self._stored_at}; "
                f"found: {text}. If the server is behind the previous one, wait until it has caught up, or "
                "return to that one. If not, changes between were lost. Start again with a new snapshot: "
                f"penstock capture drop {self._name}. To keep more of the log: binlog_expire_logs_seconds"
            )
        if packet[0] == 0xFF and code in DENIED:
            raise SetupError(self._server.no_replication(text))
        raise ConnectionError(
            f"{self._server.name} has ended the binary log: {text or packet[:1]!r}"
        )

    def _passes_cut(self) -> bool:
        """Continues with the next file, if any, behind one whose end was cut by a kill of the server.

        A group that isn't whole was never committed. But the file of a machine that has lost its power may
        lack some that were: all tables are read again.
        """
        names = [*self._server.files()]
        later = names[names.index(self._file) + 1 :] if self._file in names else []
        if not later:
            return False
        _log.warning(
            "%s: expected whole groups in the binary log; found that the end of %s is cut, as when a server "
            "is killed. Continuing with %s, and reading all tables again",
            *(self._name, self._file, later[0]),
        )
        self._rotate(struct.pack("<Q", _FIRST) + later[0].encode(), is_made_up=True)
        self._socket = self._server.dump(replica_of(self._output.state.details), later[0], _FIRST)
        self._incremental.read_again(dict.fromkeys(self._output.tables, ""), {})
        return True

    # -- events -----------------------------------------------------------------------------------------

    def _take(self, header: tuple[int, int, int, int, int, int], data: bytes) -> bool:
        """An event; whether it says anything but that the server is there."""
        time_s, kind, server, size, end, _ = header
        begin = self._end
        if kind == Kind.ROTATE:
            # The first one is made up for us: it says where we begin, which we know but for GTIDs.
            if end or self._born or self._is_by_gtid:
                self._rotate(data, is_made_up=not end)
            return False
        if kind == Kind.FORMAT:
            self._check_born(time_s)
            self._checksum_bytes = 4 if data[-5 + self._checksum_bytes :][:1] == b"\x01" else 0
            self._pass(end)
            return False
        if kind == Kind.HEARTBEAT:
            return False
        if end:
            self._pass(end)
            begin = self._end - size
        if kind in ROWS:
            self._rows(kind, data, (time_s, server, begin))
        elif kind == Kind.TABLE_MAP:
            self._describe(data)
        elif kind == Kind.XID:
            self._close(time_s)
        elif kind == Kind.XA_PREPARE:
            self._prepare(time_s, is_committed=data[:1] == b"\x01")
        elif kind == Kind.QUERY:
            self._query(data, time_s, server, begin)
        elif kind == Kind.GTID_MARIADB:
            number, domain, flags = struct.unpack_from("<QIB", data)
            self._open(begin, f"{domain}-{server}-{number}", is_transaction=not flags & 1)
            self._group.xa = prepared_xa(data)
        elif kind in _TABLE_KINDS:
            gtid = mysql_gtid(data) if kind == Kind.GTID else None
            self._open(begin, gtid)
        elif kind == Kind.LOAD:
            refuse_statement("LOAD DATA", self._name)
        elif kind in Kind.COMPRESSED or kind in {Kind.PARTIAL, Kind.PAYLOAD}:
            refuse(kind)
        elif self._begin is None:
            self._output.reached(self._place(self._end))
        return True

    def _pass(self, end: int) -> None:
        """An event ends at a place."""
        if end:
            end |= self._end >> 32 << 32  # files may be longer than the numbers in them
            self._end = end if end >= self._end else end + (1 << 32)

    @property
    def _name(self) -> str:
        """The capture's."""
        return str(self._output.state.details["name"])

    @property
    def _stored_at(self) -> str:
        return self._places.text(self._output.position)

    def _check_born(self, time_s: int) -> None:
        """A file begins, or continues, that was begun at a time: another one under its name is another log.

        Raises:
            SetupError: changes were lost.
        """
        self._born = time_s
        known = self._output.state.details.get("born")
        number = self._place(0) >> 40
        if known is not None and known[0] == number and known[1] != time_s:
            raise SetupError(
                f"expected the binary log of {self._server.name} at {self._stored_at}; "
                f"found that {self._file} is another file now: the log was reset (RESET MASTER). Changes "
                "between were lost. Start again with a new snapshot: penstock capture drop "
                f"{self._name}"
            )

    def _rotate(self, data: bytes, *, is_made_up: bool) -> None:
        """Another file follows. Where a server was ended, the file doesn't say so: the event is made up.

        A group that is open there was never committed.

        Raises:
            SetupError: it was passed on already.
        """
        (position,) = struct.unpack_from("<Q", data)
        file = data[8:].decode("utf-8", "replace")
        if is_made_up and self._begin is not None:
            self._group.end(is_rolled_back=True)
            self._begin, self._is_transaction = None, False
            self._output.is_open = False
        self._file, self._end = file, position
        self._tables.clear()
        if self._begin is None:
            self._output.reached(self._place(position))

    def _place(self, position: int) -> int:
        return self._places.number(self._file, position)

    def _open(self, begin: int, gtid: str | None, *, is_transaction: bool = False) -> None:
        self._begin, self._gtid = self._place(begin), gtid
        self._is_transaction = is_transaction
        self._incremental.begin(self._begin)
        self._output.is_open = True

    @property
    def _is_old(self) -> bool:
        """Whether the group was captured before."""
        return self._begin is not None and self._begin < self._from

    def _close(self, time_s: int, *, is_rolled_back: bool = False) -> None:
        """A group is complete."""
        self._begin, self._is_transaction = None, False
        self._group.end(is_rolled_back=is_rolled_back)
        end = self._place(self._end)
        if end <= self._from:
            self._output.is_open = False
            return
        details: dict[str, Any] = {"gtid": self._gtid} if self._gtid else {}
        if self._gtid:
            self._gtids.add(self._gtid)
        else:
            self._gtids.forget()
        details |= {"gtids": self._gtids.text, "xa": dict(self._prepared)}
        if self._born:
            details["born"] = [end >> 40, self._born]
        if self._cascades is not None:
            details |= self._cascades.details()
        self._is_due |= self._output.committed(end, time_s * 1_000_000, details)

    def _query(self, data: bytes, time_s: int, server: int, begin: int) -> None:
        schema_bytes, extra = data[8], struct.unpack_from("<H", data, 11)[0]
        at = 13 + extra
        schema = data[at : at + schema_bytes].decode("utf-8", "replace")
        text = data[at + schema_bytes + 1 :].decode("utf-8", "replace")
        word = text.split(None, 1)[0].upper().rstrip(";") if text.strip() else ""
        bare = bare_of(text)
        if (xa := xa_of(bare)) is not None:
            self._xa(*xa, time_s=time_s, begin=begin)
            return
        if word == "BEGIN":
            if self._begin is None:
                self._open(begin, None)
            self._is_transaction = True
            return
        if (name := back_to(bare)) is not None:
            self._group.back_to(name)
            return
        if word in {"COMMIT", "ROLLBACK"}:
            self._close(time_s, is_rolled_back=word == "ROLLBACK")
            return
        if (name := savepoint(bare)) is not None:
            self._group.savepoint(name)
            return
        if self._begin is not None and (word in {"RELEASE", "XA"} or not bare.strip()):
            return
        if is_change(bare):
            refuse_statement(bare, self._name)
        since = self._begin if self._begin is not None else self._place(begin)
        if since >= self._from:
            self._change_tables(bare, schema, text, since, (time_s, server, begin))
        self._tables.clear()
        self._made.clear()
        self._catalog.clear()
        if self._cascades is not None:
            self._cascades.altered()
        if not self._is_transaction:
            self._close(time_s)

    # -- XA transactions --------------------------------------------------------------------------------

    def _xa(self, what: str, xa: str, is_whole: bool, *, time_s: int, begin: int) -> None:  # noqa: FBT001
        """One begins, in a group of its own; or another group says that it counts, or doesn't."""
        if what in {"START", "BEGIN"}:
            if self._begin is None:
                self._open(begin, None)
            self._is_transaction, self._group.xa = True, xa
            return
        is_rolled_back = what == "ROLLBACK"
        if self._cascades is not None:
            self._cascades.finished(xa, is_rolled_back=is_rolled_back)
        if not (is_whole or self._group.xa == xa):
            self._group.finish(xa, is_rolled_back=is_rolled_back or self._is_old)
            self._prepared.pop(xa, None)
        self._close(time_s, is_rolled_back=is_rolled_back)

    def _prepare(self, time_s: int, *, is_committed: bool) -> None:
        """The group of an XA transaction ends."""
        xa = self._group.xa
        if is_committed and self._cascades is not None:
            self._cascades.finished(xa, is_rolled_back=False)
        if xa and not is_committed and self._begin is not None:
            self._prepared.setdefault(xa, self._begin)
            self._group.prepare()
        self._close(time_s)

    # -- tables -----------------------------------------------------------------------------------------

    def _change_tables(
        self, bare: str, schema: str, text: str, since: int, at: tuple[int, int, int]
    ) -> None:
        """A statement defines, empties or drops tables."""
        if (table := truncated(bare, schema)) is not None:
            self._truncate(table, since, at)
        elif (found := defined(bare, schema)) is not None:
            report(found, text, at[0], self._at(at, 0), (self._server, self._encoder, self._output))
        new = replaced(bare, schema)
        output = self._output
        known = {name: one for name, one in output.tables.items() if since >= one.since}
        gone = {spelled(one) for one in new.gone}
        gone |= {one for one in known if new.schema and unspelled(one)[0] == new.schema}
        others = {spelled(one) for one in new.other} & known.keys()
        # A table that was dropped, and is there again.
        others |= {
            name for one in new.new if (name := spelled(one)) in known and output.is_gone(name)
        }
        output.replaced((gone & known.keys()) | others)
        if others:
            self._replaced = min(others)

    def _truncate(self, table: tuple[str, str], since: int, at: tuple[int, int, int]) -> None:
        watched = self._output.tables.get(spelled(table))
        if watched is None or since < watched.since:
            return
        topic, output, time_ms = watched.topic, self._output, at[0] * 1000
        self._incremental.truncated(spelled(table))
        known = self._catalog.get(table) or self._server.definition(table)
        deletes = bool(known.key) and output.is_alone(topic)
        if output.takes_truncation(topic):
            source = self._encoder.source(table, self._at(at, 0))
            headers = DELETIONS_FOLLOW if deletes else ()
            for record in self._encoder.envelope.truncated(topic, source, time_ms, headers):
                output.add(record)
        if deletes:
            for _ in output.emptied(topic, time_ms):
                pass

    def _at(self, at: tuple[int, int, int], row: int) -> dict[str, Any]:
        time_s, server, begin = at
        place_ = {"file": self._file, "pos": begin, "row": row}
        return {
            "time_s": time_s,
            "snapshot": "false",
            "server": server,
            "gtid": self._gtid,
            **place_,
        }

    def _describe(self, data: bytes) -> None:
        number, body = int.from_bytes(data[:6], "little"), data[8:]
        if body not in self._made:
            self._made[body] = self._make_table(table_map(body, is_mariadb=self._is_mariadb))
        self._tables[number] = self._made[body]

    def _make_table(self, table_map: TableMap) -> Table | None:
        table = (table_map.schema, table_map.name)
        watched = self._output.tables.get(spelled(table))
        if watched is None and not (self._cascades is not None and self._cascades.needs(table)):
            return None
        if table not in self._catalog:
            self._catalog[table] = self._server.definition(table)
        definition = definition_of(table_map, self._catalog[table], self._charsets)
        if definition is None:
            raise SetupError(
                f"expected {'.'.join(table)} to have the columns that it had when its rows changed; found "
                "that it was altered since, and the binary log doesn't have columns' names. SET GLOBAL "
                "binlog_row_metadata = FULL; and start again with a new snapshot"
            )
        topic, since = ("", 0) if watched is None else (watched.topic, watched.since)
        return Table(table_map, definition, topic, since)

    def _rows(self, kind: int, data: bytes, at: tuple[int, int, int]) -> None:
        number, first, second, p = rows_begin(kind, data)
        if number not in self._tables:
            raise CorruptError(
                f"expected the rows of a table that was described; found number {number}"
            )
        table = self._tables[number]
        if table is None:
            return
        if self._begin is None:
            raise CorruptError("expected rows in a transaction; found some outside one")
        is_prepared = self._group.xa in self._prepared
        if self._begin < table.since or (self._is_old and not is_prepared):
            return
        if self._cascades is not None:
            self._cascades.note(
                *(kind, table.name, data, self._group.xa),
                lambda: (
                    p,
                    table.decoder(first, self._values),
                    table.decoder(second, self._values),
                ),
            )
            table.losses.take()
        if not table.topic:
            return
        self._output.use(table.topic, table.shape)
        if not table.is_described:
            table.is_described = True
            self._output.describe(table.name, table.shape, at[0] * 1000, is_reported=True)
        try:
            decoders = table.decoder(first, self._values), table.decoder(second, self._values)
            rows = read_rows(kind, data, p, decoders, table.losses)
        except CorruptError as error:
            name, time_ms = spelled(table.name), at[0] * 1000
            self._output.unread_event(name, table.topic, data, error, time_ms)
            return
        for record in self._records(table, rows, at):
            self._group.add(table.name, record)

    def _records(
        self,
        table: Table,
        rows: list[Changed],
        at: tuple[int, int, int],
    ) -> Iterator[Record]:
        encoder, topic, key = self._encoder, table.topic, table.definition.key
        time_ms, block = at[0] * 1000, encoder.block(table.name, self._at(at, 0))
        for i, (before, after, gone, lost) in enumerate(rows):
            source = block % i if block else b""
            if before is None:
                assert after is not None, "a change of no row"
                record = encoder.inserted(topic, key, after, source, time_ms, "c")
                yield record._replace(lost=lost)
            elif after is None:
                records = [*encoder.deleted(topic, key, before, source, time_ms)]
                yield from [one._replace(lost=gone) for one in records[: 1 if gone else None]]
            else:
                # A row whose key can't be written isn't in the topic.
                yield from encoder.updated(
                    *(topic, key, (None if gone else before, after), source, time_ms), lost
                )
