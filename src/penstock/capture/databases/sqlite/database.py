"""A SQLite file's side of a capture: triggers, the changes that they wrote, rows as they are."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

import orjson

from penstock.capture.database import Settings, TableName
from penstock.capture.databases.sqlite.changes import Change, changes
from penstock.capture.databases.sqlite.chunks import Chunks
from penstock.capture.databases.sqlite.triggers import COLUMNS_MAX, Layout, Triggers, quoted
from penstock.capture.databases.sqlite.values import AS_THEY_ARE, Convert, converter, plain
from penstock.capture.envelope import Envelope, Format, Record, Row, Values, version_text
from penstock.capture.output import Output
from penstock.capture.progress import State
from penstock.capture.snapshots import marked
from penstock.capture.table_schemas import Column, Shape
from penstock.capture.unread import UNREADABLE, Losses, Lost, keys_of
from penstock.errors import SetupError, UserError

__all__ = ["SqliteDatabase", "connect", "path_of", "table_names"]

BUSY_S: Final = 10.0
"""How long a lock of another process is waited for."""
POLL_S: Final = (0.001, 0.02)
"""How often it is asked whether the file has changed: soon after a change, and long after one."""
TRIM_S: Final = 1.0
"""How often changes that are stored are removed."""
TRIM_ROWS: Final = 5000
"""How many are removed in one transaction. Other processes can't write meanwhile."""
_EPOCH_DAY: Final = 2_440_587.5
"""1970-01-01 as a Julian day."""


class _SchemaChangedError(OSError):
    """Tables were altered: the next session begins with triggers that fit them."""


def path_of(url: str) -> Path:
    """The file of an address: `sqlite:///shop.db`, `sqlite:////var/shop.db`.

    >>> str(path_of("sqlite:////var/shop.db")), str(path_of("sqlite:///shop.db"))
    ('/var/shop.db', 'shop.db')
    """
    path = unquote(url.removeprefix("sqlite://").partition("?")[0])
    if not path.startswith("/") or len(path) < 2:
        raise UserError(f"expected a file, such as sqlite:///shop.db; found {url!r}")
    return Path(path[1:])


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a file that exists.

    Raises:
        SetupError: it doesn't.
    """
    if not path.is_file():
        raise SetupError(f"expected a SQLite database at {path}; found no file")
    sql = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    sql.text_factory = _text
    return sql


def _text(data: bytes) -> str:
    return str(data, "utf-8", "replace")


def table_names(sql: sqlite3.Connection) -> list[str]:
    """The tables that can be captured."""
    rows = sql.execute("PRAGMA main.table_list").fetchall()
    names = (name for schema, name, kind, *_ in rows if kind == "table" and schema == "main")
    return sorted(one for one in names if not one.startswith(("sqlite_", "_penstock_")))


class _Table:
    """How the rows of one layout become records."""

    def __init__(self, layout: Layout, topic: str, values: Values) -> None:
        self.layout, self.topic = layout, topic
        columns = [(one.name, converter(one.declared, values)) for one in layout.columns]
        # What is JSON as it is needs no call.
        self._columns = [
            (name, convert, AS_THEY_ARE if convert is plain else frozenset())
            for name, convert in columns
        ]
        self._key = layout.key
        self.losses = Losses(layout.table, layout.key)
        self.quoted = orjson.dumps(layout.table)

    def row(self, values: tuple[Any, ...]) -> Row:
        return {
            name: value if type(value) in same else self._read(name, convert, value)
            for (name, convert, same), value in zip(self._columns, values, strict=True)
        }

    def _read(self, name: str, convert: Convert, value: Any) -> Any:
        try:
            return convert(value)
        except UNREADABLE as error:
            return self.losses.note(name, value, error)

    def key(self, row: Row) -> bytes | None:
        """The key of a row's records. None where there is none: SQLite lets columns of a primary key be NULL,
        and there may be any number of such rows.
        """
        fields = {name: row[name] for name in self._key}
        return orjson.dumps(fields) if fields and None not in fields.values() else None

    def unkeyed(self, row: Row) -> tuple[Lost, ...]:
        """Why a row isn't written to a topic whose records must have keys; empty where it is."""
        return tuple(
            Lost(
                f"{self.layout.table}.{name}",
                f"{name}: expected a value in each column of the primary key, as {self.topic} keeps the "
                "newest record of each key; found NULL",
                is_key=True,
            )
            for name in self._key
            if row[name] is None
        )


class _Encoder:
    """Makes records of a file's changes and rows.

    Args:
        name: the source's.
        database: its name.
        format_: of records.
        is_compact: whether records must have keys.
    """

    def __init__(self, name: str, database: str, format_: Format, *, is_compact: bool) -> None:
        self._envelope, self._is_compact = Envelope(format_, time.time_ns), is_compact
        head = {"version": version_text(), "connector": "sqlite", "name": name}
        self._head, self._database = orjson.dumps(head)[:-1], orjson.dumps(database)

    def change(self, table: _Table, one: Change) -> Iterator[Record]:
        time_us = _time_us(one.at)
        source = self._source(table, "false", one.number, time_us)
        origin = (source, time_us // 1000)
        if one.op == "d":
            before = table.row(one.old)
            gone = keys_of(table.losses.take()) or self._unkeyed(table, before)
            deleted = self._envelope.deleted(table.topic, table.key(before), before, *origin)
            yield from _lettered(deleted, gone) if gone else deleted
            return
        after = table.row(one.new)
        key, lost = table.key(after), table.losses.take() + self._unkeyed(table, after)
        if one.op == "c":
            yield self._envelope.row(table.topic, key, "c", after, *origin)._replace(lost=lost)
            return
        before = table.row(one.old)
        # A row whose key can't be written isn't in the topic.
        is_there = not (keys_of(table.losses.take()) or self._unkeyed(table, before))
        keys = (table.key(before) if is_there else key), key
        rows = (before if is_there else None), after
        *others, last = self._envelope.updated(table.topic, keys, rows, *origin)
        yield from others
        yield last._replace(lost=lost)

    def _unkeyed(self, table: _Table, row: Row) -> tuple[Lost, ...]:
        return table.unkeyed(row) if self._is_compact else ()

    def read(self, table: _Table, values: tuple[Any, ...], at: tuple[int, int, str]) -> Record:
        number, time_us, marker = at
        row, source = table.row(values), self._source(table, marker, number, time_us)
        lost = table.losses.take() + self._unkeyed(table, row)
        made = self._envelope.row(table.topic, table.key(row), "r", row, source, time_us // 1000)
        return made._replace(lost=lost)

    def _source(self, table: _Table, marker: str, number: int, time_us: int) -> bytes:
        if not self._envelope.is_debezium:
            return b""
        times = b'"ts_us":%d,"ts_ns":%d' % (time_us, time_us * 1000)
        return (
            b'%b,"ts_ms":%d,"snapshot":"%b","db":%b,"sequence":null,%b,"table":%b,"change":%d}'
            % (
                self._head,
                time_us // 1000,
                marker.encode(),
                self._database,
                times,
                table.quoted,
                number,
            )
        )


def _lettered(deleted: Iterator[Record], gone: tuple[Lost, ...]) -> Iterator[Record]:
    """The deletion of a row whose key can't be written: the topic doesn't have it."""
    yield next(deleted)._replace(lost=gone)


def _time_us(day: float) -> int:
    return int((day - _EPOCH_DAY) * 86_400_000_000)


class SqliteDatabase:
    """See `penstock.capture.database.Database`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._path = settings, path_of(settings.url)
        self.name, self.topics = f"sqlite:///{self._path.absolute()}", ()
        self.claims = dict[str, str]()
        self.source = ("sqlite", self._path.stem)
        self._sql = connect(self._path)
        self._triggers = Triggers(self._sql, settings.name)
        names = settings.source_name, self._path.stem
        self._encoder = _Encoder(*names, settings.format, is_compact=settings.is_compact)
        self._layouts: dict[str, Layout] = {}

    def close(self) -> None:
        """Closes the connection."""
        self._sql.close()

    def check(self) -> str:
        """Whether it can be written to; which file it is."""
        try:
            with _writing(self._sql):
                return self._triggers.create(uuid.uuid4().hex)
        except sqlite3.OperationalError as error:
            # A file system that is read-only can't have the files that SQLite makes for readers, either.
            if "readonly" in str(error) or not os.access(self._path, os.W_OK):
                raise SetupError(
                    f"expected to write to {self._path}, where triggers are made; found: {error}. Let the "
                    "user of this process write to the file and to its folder"
                ) from None
            raise

    def tables(self, patterns: Iterable[str]) -> dict[TableName, int]:
        """The tables that patterns name; the number is that of their first triggers."""
        has, found = table_names(self._sql), set[str]()
        for pattern in patterns:
            some = [one for one in has if fnmatchcase(one, pattern)]
            if not some:
                known = ", ".join(has) or "none"
                raise UserError(f"expected a table {pattern!r} in {self._path}; found {known}")
            found.update(some)
        for one in sorted(found):
            if len(columns := self._triggers.look(one).columns) > COLUMNS_MAX:
                raise SetupError(
                    f"expected at most {COLUMNS_MAX} columns in {one!r}; found {len(columns)}"
                )
        with _writing(self._sql):
            for one in sorted(found):
                before = self._triggers.installed(one)
                self._layouts[one] = before or self._triggers.install(one, self._triggers.end)
        return {("", one): self._layouts[one].root for one in sorted(found)}

    def shape(self, table: TableName) -> Shape:
        """What a table looks like now."""
        return shape_of(self._layouts[table[1]])

    def prepare(
        self,
        state: State | None,
        tables: Iterable[TableName],
        end: Callable[[float], bool],  # noqa: ARG002 - nothing is waited for
    ) -> dict[str, Any]:
        """Makes the triggers fit the tables as they are now."""
        last = self._triggers.end
        if state is not None and state.position > last:
            raise SetupError(
                f"expected the changes of {self._path} to be at {state.position} or later; found them "
                f"at {last}: the file was restored. Start again with a new snapshot: penstock capture drop "
                f"{self._settings.name}"
            )
        position = last if state is None else state.position
        with _writing(self._sql):
            for _, name in tables:
                self._layouts[name] = self._triggers.install(name, position)
            self._schema = schema_version(self._sql)
        return {"log": self._triggers.name}

    def end(self) -> int:
        """Anywhere: what has committed is there when it is asked for."""
        return 0

    def snapshot(self) -> _Snapshot:
        """The rows as they are."""
        return _Snapshot(self._path, self._triggers, self._layouts, self._encoder, self._settings)

    def stream(self, output: Output) -> _Stream:
        """What committed at the output's position and behind it."""
        values = self._settings.values
        return _Stream(self._sql, self._triggers, self._encoder, values, output, self._schema)


def schema_version(sql: sqlite3.Connection) -> int:
    """Another number after each change of the schema."""
    return int(sql.execute("PRAGMA main.schema_version").fetchone()[0])


@contextlib.contextmanager
def _writing(sql: sqlite3.Connection) -> Iterator[None]:
    sql.execute("BEGIN IMMEDIATE")
    try:
        yield
        sql.execute("COMMIT")
    except BaseException:
        sql.execute("ROLLBACK")
        raise


def shape_of(layout: Layout) -> Shape:
    """What a table looks like."""
    columns = (Column(one.name, one.declared or "any", one.required) for one in layout.columns)
    return Shape(tuple(columns), layout.key)


class _Snapshot:
    """A transaction that reads; a context manager."""

    def __init__(
        self,
        path: Path,
        triggers: Triggers,
        layouts: Mapping[str, Layout],
        encoder: _Encoder,
        settings: Settings,
    ) -> None:
        self._path, self._triggers, self._layouts = path, triggers, layouts
        self._encoder, self._values, self._name = encoder, settings.values, settings.name

    def __enter__(self) -> Self:
        self._sql = connect(self._path)
        self._sql.execute("BEGIN")
        self.position = Triggers(
            self._sql, self._name
        ).end  # the first read: what is seen begins here
        self._time_us = time.time_ns() // 1000
        return self

    def __exit__(self, *_: object) -> None:
        self._sql.close()

    def read(
        self, topics: Mapping[TableName, str]
    ) -> Generator[tuple[TableName, Record], None, None]:
        """The rows of tables, in the tables' order."""
        tables = {
            name: _Table(self._layouts[name[1]], topic, self._values)
            for name, topic in topics.items()
        }
        for name, values, marker in marked((one, self._rows(one[1])) for one in tables):
            at = (self.position, self._time_us, marker)
            yield name, self._encoder.read(tables[name], values, at)

    def _rows(self, name: str) -> Iterator[tuple[Any, ...]]:
        columns = ", ".join(quoted(one.name) for one in self._layouts[name].columns)
        return iter(self._sql.execute(f"SELECT {columns} FROM {quoted(name)}"))


class _Stream:
    """Changes as they come.

    What one read sees are whole transactions: SQLite has one writer at a time, so numbers are in the order of
    commits. Where one ends and the next begins isn't known, so all that a read sees is stored together.
    """

    def __init__(
        self,
        sql: sqlite3.Connection,
        triggers: Triggers,
        encoder: _Encoder,
        values: Values,
        output: Output,
        schema: int,
    ) -> None:
        self._sql, self._triggers, self._encoder, self._values = sql, triggers, encoder, values
        self._output = output
        self._tables: dict[int, _Table | None] = {}
        self._described: set[int] = set()
        self._seen = -1
        self._changed_at = self._trimmed_at = time.monotonic()
        self._trimmed = 0
        self._schema = schema
        self._layouts = triggers.layouts()
        self._reading: Iterator[Change] | None = None
        self._chunks = Chunks(output)

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request for a snapshot; see `Requests.ask`."""
        self._chunks.ask(number, request)

    def take(self, wait_s: float) -> bool:
        """Passes what has come to the output; waits if nothing has. Whether anything had."""
        if self._reading is None and not self._chunks.is_due and not self._waited(wait_s):
            return False
        if self._reading is None:
            self._begin()
        return self._go_on()

    def _waited(self, wait_s: float) -> bool:
        """Waits until a process has written to the file; returns whether one has."""
        deadline = time.monotonic() + wait_s
        while True:
            version = self._sql.execute("PRAGMA main.data_version").fetchone()[0]
            now = time.monotonic()
            if version != self._seen:
                self._seen, self._changed_at = version, now
                return True
            if now >= deadline:
                return False
            time.sleep(min(max(POLL_S[0], (now - self._changed_at) / 100), POLL_S[1]))

    def _begin(self) -> None:
        """Begins to read the existing rows.

        Raises:
            OSError: tables were altered.
        """
        self._sql.execute("BEGIN")
        self._schema_is_known()
        self._end = self._triggers.end
        rows = self._sql.execute(
            f"SELECT * FROM {self._triggers.log} WHERE id >= ? ORDER BY id",
            (self._output.position,),
        )
        self._reading = changes(iter(rows), self._layouts)

    def _schema_is_known(self) -> None:
        if schema_version(self._sql) != self._schema:
            self._sql.execute("ROLLBACK")
            raise _SchemaChangedError("tables were altered; triggers are made to fit them")

    def _go_on(self) -> bool:
        """Passes on what is read; whether there was anything."""
        output, came, at = self._output, False, 0.0
        assert self._reading is not None, "nothing is read"
        for one in self._reading:
            came, at = True, one.at
            number = one.layout.number
            if number not in self._tables:
                self._tables[number] = self._watched(one.layout)
            table = self._tables[number]
            if table is None or one.number < output.tables[table.layout.table].since:
                continue
            if number not in self._described:
                self._described.add(number)
                name, time_ms = ("", table.layout.table), _time_us(at) // 1000
                output.describe(name, shape_of(table.layout), time_ms)
            for record in self._encoder.change(table, one):
                output.add(record)
            if output.is_full:
                output.is_open = True
                return True
        self._reading = None
        if self._end > output.position:
            came = True
            output.committed(self._end, _time_us(at) if at else time.time_ns() // 1000)
        output.is_open = False
        if self._chunks.is_due:
            came |= self._chunks.step(self._sql, self._layout, self._read, self._end)
        self._sql.execute("COMMIT")
        return came

    def _layout(self, name: str) -> Layout | None:
        """What a table that is captured looks like now."""
        watched = self._output.tables.get(name)
        found = None if watched is None else self._triggers.installed(name)
        return None if found is None or self._watched(found) is None else found

    def _read(self, layout: Layout, values: tuple[Any, ...]) -> None:
        """Passes on a row of a chunk."""
        table = self._tables.get(layout.number)
        if table is None:
            table = self._tables[layout.number] = self._watched(layout)
        assert table is not None, "a table that isn't captured"
        now_us = time.time_ns() // 1000
        if layout.number not in self._described:
            self._described.add(layout.number)
            self._output.describe(("", layout.table), shape_of(layout), now_us // 1000)
        at = (self._end, now_us, "incremental")
        self._output.add(self._encoder.read(table, values, at))
        self._output.send()

    def _watched(self, layout: Layout) -> _Table | None:
        watched = self._output.tables.get(layout.table)
        if watched is None or watched.identity != layout.root:
            return None
        return _Table(layout, watched.topic, self._values)

    def confirm(self) -> None:
        """Removes changes that are stored, some at a time."""
        stored, now = self._output.stored, time.monotonic()
        if stored <= self._trimmed or now - self._trimmed_at < TRIM_S or self._reading is not None:
            return
        self._trimmed_at = now
        log = self._triggers.log
        self._sql.execute("PRAGMA busy_timeout = 20")
        with contextlib.suppress(sqlite3.OperationalError):  # another process writes: retry later
            first = self._sql.execute(f"SELECT min(id) FROM {log}").fetchone()[0]
            if first is None or first >= stored:
                self._trimmed = stored
            else:
                until = min(first + TRIM_ROWS, stored)
                self._sql.execute(f"DELETE FROM {log} WHERE id < ?", (until,))
                if until < stored:
                    self._trimmed_at = now - TRIM_S  # there is more
        self._sql.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
