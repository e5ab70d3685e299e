"""Tables of databases with transactions: rows, deletions and offsets are one of them."""

from __future__ import annotations

import abc
import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa

from penstock.errors import UserError
from penstock.sinks.targets.contract import (
    NEW,
    OLD,
    BaseTarget,
    Batch,
    Bury,
    RefusedError,
    Rows,
    Unchanged,
    changed,
    check_columns,
    fenced,
    no_row,
    nothing_before,
    nothing_built,
    replaced,
)
from penstock.sinks.targets.kind import Rebuilt

__all__ = ["HUNG_S", "RENAMED", "STATE_TABLE", "SqlTarget", "WithSavepoints", "quoted"]

STATE_TABLE: Final = "penstock_sinks"
"""In the target: of each sink its owner's epoch (as partition -1), and the next offset of each partition."""
HUNG_S: Final = 60
"""How long a process may hang within a transaction, in seconds: another one may wait to take over. A server
ends it then, where it can."""
RENAMED: Final = Rebuilt(
    new="`TABLE__new`",
    replaced="one transaction renames both tables; views, grants and triggers stay with the old one",
    old="`TABLE__old`",
)
"""What a rebuild does, for the documentation, where names of tables are part of a transaction."""
_log = logging.getLogger(__name__)
APART: Final = "__apart"
"""Behind a table's name, while it is on its way."""
SWITCHED: Final = -2
"""In place of a partition: the row whose epoch says that a table was switched, and no process took over."""


class SqlTarget(BaseTarget):
    """A table of a database with transactions.

    Args:
        table: its name, which may have a schema.
        create: whether to create it if it doesn't exist.
    """

    unchanged: Unchanged = "kept"
    placeholder = "?"
    for_share = ""
    """Behind a query whose rows must stay as they are until the transaction's end."""
    overriding = ""
    """Behind the columns of an INSERT: values count, also of columns that the database would fill."""
    state_options = ""
    """Behind the statement that creates the table with the state: names differ in each character."""

    def __init__(self, table: str, *, create: bool) -> None:
        if not isinstance(table, str) or not table:
            raise UserError(f"expected a table, such as table='users'; found {table!r}")
        self.table, self.create = table, create
        self._rows: Rows | None = None
        self._owned: tuple[str, str, int] | None = (
            None  # sink, topic, and the epoch that this one had
        )

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Which, for people: without a password."""

    @property
    @abc.abstractmethod
    def passing(self) -> tuple[type[BaseException], ...]:
        """Errors after which the same may succeed."""

    # -- what databases differ in -----------------------------------------------------------------------

    @abc.abstractmethod
    def connect(self) -> None:
        """Opens the connection."""

    @abc.abstractmethod
    def execute(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""

    @abc.abstractmethod
    def type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called."""

    @abc.abstractmethod
    def columns(self) -> list[str]:
        """The table's columns; empty where there is no such table."""

    @abc.abstractmethod
    def load(self, statements: Sequence[str], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Runs statements whose `{rows}` stands for these rows; the rows of the last one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    @abc.abstractmethod
    def refuses(self, error: BaseException) -> bool:
        """Whether an error says that the database doesn't take a row."""

    def misses(self, error: BaseException) -> bool:  # noqa: ARG002 - those of others
        """Whether an error says that the table isn't the one that was opened."""
        return False

    # -- the same for all -------------------------------------------------------------------------------

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, creates what isn't there, checks what is; the next offsets."""
        self._sink, self._rows = sink, rows
        self.connect()
        mark = self.placeholder
        if not self.columns_of(STATE_TABLE):  # who may write it may not be one who may create it
            self._ensure(
                f"CREATE TABLE IF NOT EXISTS {STATE_TABLE} (sink VARCHAR(200) NOT NULL, topic VARCHAR(250) "
                "NOT NULL, part INTEGER NOT NULL, next BIGINT NOT NULL, epoch BIGINT NOT NULL, "
                f"PRIMARY KEY (sink, topic, part)){self.state_options}"
            )
        with self._alone(sink, rows.topic):
            self._check_table(rows)
            self.execute("BEGIN")
            try:
                self._epoch = self._take_over()
                found = self.execute(
                    f"SELECT part, next FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} "
                    "AND part >= 0",
                    (sink, rows.topic),
                )
                self.execute("COMMIT")
            except BaseException:
                self._rollback()
                raise
        self._owned = (sink, rows.topic, self._epoch)
        return dict(found)

    def _take_over(self) -> int:
        """Raises the sink's epoch.

        Raises:
            FencedError: another process has done so since this one had it.
        """
        assert self._rows is not None, "open comes first"
        own, epoch = (self._sink, self._rows.topic), self._next_epoch()
        if self._owned is not None and self._owned[:2] == own and epoch > self._owned[2] + 1:
            mark = self.placeholder
            found = self.execute(
                f"SELECT epoch FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} "
                f"AND part = {SWITCHED}",
                own,
            )
            if found != [(epoch - 1,)]:
                raise fenced(self.table, self._sink)
        return epoch

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
        with self._transaction():
            self._apply(batch)
            self._store_all(offsets)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of the sink's owner; its end checks the constraints that are deferred."""
        rows, mark = self._rows, self.placeholder
        assert rows is not None, "open comes first"
        self.execute("BEGIN")
        try:
            found = self.execute(
                f"SELECT epoch FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} "
                f"AND part = -1{self.for_share}",
                (self._sink, rows.topic),
            )
            if found != [(self._epoch,)]:
                raise self._lost()
            yield
            self.execute("COMMIT")
        except BaseException as error:
            self._rollback()
            if self.refuses(error):
                raise RefusedError(str(error).strip()) from error
            if self.misses(error):
                raise changed(self.table, error) from error
            raise

    def _apply(self, batch: Batch) -> None:
        assert self._rows is not None, "open comes first"
        if len(batch.deletes):
            self.load([self._delete_sql(self._rows)], batch.deletes)
        for part, lacks in batch.parts():
            if lacks:
                self._update(part, lacks)
            elif len(part):
                self.load([self.upsert_sql(self._rows)], part)

    def _update(self, part: pa.RecordBatch, lacks: tuple[str, ...]) -> None:
        """Changes some columns of rows.

        Raises:
            RefusedError: a row isn't there.
        """
        assert self._rows is not None, "open comes first"
        names = [name for name in part.schema.names if name not in self._rows.key]
        statements = [self._update_sql(self._rows, names)] if names else []
        if self.load([*statements, self._missing_sql(self._rows)], part) != [(0,)]:
            raise no_row(lacks)

    def _store_all(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._store(partition, offset)

    def _lost(self) -> Exception:
        """Why the epoch isn't this process's: another one, or another table in the place of this one."""
        assert self._rows is not None, "open comes first"
        mark = self.placeholder
        found = self.execute(
            f"SELECT epoch FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} "
            "AND part IN (-1, -2)",
            (self._sink, self._rows.topic),
        )
        if len(found) == 2 and found[0] == found[1]:
            return replaced(self.table)
        return fenced(self.table, self._sink)

    def named(self, table: str) -> Self:
        """The same for another table."""
        one = copy.copy(self)
        one.table = table
        return one

    def _run(self, statements: Iterable[str], staged: str) -> list[tuple[Any, ...]]:
        """Runs statements, for whose `{rows}` it puts the name of a table; the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for one in statements:
            found = self.execute(one.replace("{rows}", staged))
        return found

    def columns_of(self, table: str) -> list[str]:
        """The columns of another table; empty where there is no such table."""
        mine, self.table = self.table, table
        try:
            return self.columns()
        finally:
            self.table = mine

    def _next_epoch(self) -> int:
        """Raises the sink's epoch; who had it before is fenced."""
        assert self._rows is not None, "open comes first"
        mark = self.placeholder
        [(epoch,)] = self.execute(
            f"INSERT INTO {STATE_TABLE} (sink, topic, part, next, epoch) VALUES "
            f"({mark}, {mark}, -1, 0, 1) ON CONFLICT (sink, topic, part) "
            f"DO UPDATE SET epoch = {STATE_TABLE}.epoch + 1 RETURNING epoch",
            (self._sink, self._rows.topic),
        )
        return int(epoch)

    def _store(self, partition: int, offset: int) -> None:
        """Stores the next offset of a partition."""
        assert self._rows is not None, "open comes first"
        mark = self.placeholder
        self.execute(
            f"INSERT INTO {STATE_TABLE} (sink, topic, part, next, epoch) VALUES "
            f"({mark}, {mark}, {mark}, {mark}, 0) ON CONFLICT (sink, topic, part) "
            "DO UPDATE SET next = excluded.next",
            (self._sink, self._rows.topic, partition, offset),
        )

    def _rollback(self) -> None:
        try:
            self.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - the connection is gone, and the transaction with it
            self.close()

    def _ensure(self, statement: str) -> None:
        """Creates something; two that do so at once are no error."""
        self.execute(statement)

    def _check_table(self, rows: Rows) -> None:
        """Makes the table be there.

        Raises:
            UserError: it isn't, or it lacks columns.
        """
        names = self.columns()
        if not names:
            statement = self.ddl(rows)
            if not self.create:
                raise UserError(
                    f"expected the table {self.table!r}; found none. Create it: {statement}"
                )
            self._create_table(statement, rows.topic)
            return
        check_columns(self.table, rows, names)

    def _no_index(self, rows: Rows, add: str = "ALTER TABLE {table} ADD PRIMARY KEY") -> UserError:
        """What is said where the table has no unique index over the key.

        Args:
            rows: what it is to have.
            add: what adds one, but for its columns.
        """
        return UserError(
            f"expected the table {self.table!r} to have the key ({', '.join(rows.key)}) as its primary key; "
            f"found no unique index over it. Add one: {add.format(table=self.path)} "
            f"({', '.join(map(quoted, rows.key))});"
        )

    def _create_table(self, statement: str, topic: str) -> None:
        """Creates the table, and forgets the offsets of one that is gone: its rows are gone with it."""
        mark = self.placeholder
        where = f"WHERE sink = {mark} AND topic = {mark} AND part >= 0"
        own = (self._sink, topic)
        self.execute("BEGIN")
        try:
            if self.execute(f"SELECT 1 FROM {STATE_TABLE} {where}", own):
                _log.warning(
                    "%s: expected the table %s, which this sink has written; found none. Writing it again "
                    "from the topic's first record",
                    *(self._sink, self.table),
                )
                self.execute(f"DELETE FROM {STATE_TABLE} {where}", own)
            self._ensure(statement)
            self.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def key_type_of(self, type_: pa.DataType) -> str:
        """What a column's type is called that is a part of the key."""
        return self.type_of(type_)

    def ddl(self, rows: Rows) -> str:
        """The statement that creates the table."""
        columns = [
            f"{quoted(one.name)} "
            + (self.key_type_of if one.name in rows.key else self.type_of)(one.type)
            + (" NOT NULL" if one.required or one.name in rows.key else "")
            for one in rows.schema
        ]
        if rows.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, rows.key))})")
        return f"CREATE TABLE IF NOT EXISTS {self.path} ({', '.join(columns)})"

    @property
    def path(self) -> str:
        """The table's name, quoted."""
        return ".".join(map(quoted, self.table.split(".")))

    def _delete_sql(self, rows: Rows) -> str:
        there = f"SELECT 1 FROM {{rows}} AS r WHERE {self._same(rows)}"
        return f"DELETE FROM {self.path} AS t WHERE EXISTS ({there})"

    def upsert_sql(self, rows: Rows) -> str:
        """What writes the rows of `{rows}`, by their key if they have one."""
        names = [quoted(name) for name in rows.schema.names]
        listed = ", ".join(names)
        into = f"INSERT INTO {self.path} ({listed}){self.overriding}"
        statement = f"{into} SELECT {listed} FROM {{rows}} WHERE true"
        if not rows.key:
            return statement
        others = [quoted(n) for n in rows.schema.names if n not in rows.key]
        keys = ", ".join(map(quoted, rows.key))
        change = ", ".join(f"{n} = excluded.{n}" for n in others)
        return f"{statement} ON CONFLICT ({keys}) DO " + (
            f"UPDATE SET {change}" if others else "NOTHING"
        )

    def _update_sql(self, rows: Rows, names: Sequence[str]) -> str:
        """What changes columns of the rows of `{rows}` that are there."""
        change = ", ".join(f"{quoted(n)} = r.{quoted(n)}" for n in names)
        return f"UPDATE {self.path} AS t SET {change} FROM {{rows}} AS r WHERE {self._same(rows)}"

    def _missing_sql(self, rows: Rows) -> str:
        """Counts those of `{rows}` that aren't there."""
        there = f"SELECT 1 FROM {self.path} AS t WHERE {self._same(rows)}"
        return f"SELECT count(*) FROM {{rows}} AS r WHERE NOT EXISTS ({there})"

    def _same(self, rows: Rows) -> str:
        """Whether a row `t` of the table and a row `r` have the same key."""
        return " AND ".join(f"t.{quoted(n)} = r.{quoted(n)}" for n in rows.key)

    @contextlib.contextmanager
    def _alone(self, sink: str, topic: str) -> Iterator[None]:  # noqa: ARG002 - those of others
        """Holds up who switches the sink's tables, where that is no single transaction."""
        yield

    # -- tables that are rebuilt ---------------------------------------------------------------------

    def beside(self, sink: str, rows: Rows) -> Self:
        """`TABLE__new`, once a switch that was killed is complete: its offsets are those of the last one."""
        with self._connected():  # a database that is away is reported at once
            if self.columns_of(STATE_TABLE):
                with self._alone(sink, rows.topic):
                    pass
        return self.named(self.table + NEW)

    def switch(self, sink: str, rows: Rows) -> None:
        """Renames tables, and the sinks of their offsets."""
        with self._connected():
            self._require(OLD)
            self._move(sink, rows.topic, [("", OLD), (NEW, "")], dropped=OLD)

    def go_back(self, sink: str, rows: Rows) -> None:
        """Exchanges the table and the one before."""
        with self._connected():
            self._require(None)
            self._move(sink, rows.topic, [("", APART), (OLD, ""), (APART, OLD)])

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        self.connect()
        try:
            yield
        finally:
            self.close()

    def _require(self, dropped: str | None) -> None:
        """Checks that what replaces the live one exists: again, once no other process can change it.

        Raises:
            UserError: there isn't.
        """
        end, error = (OLD, nothing_before) if dropped is None else (NEW, nothing_built)
        if not self.columns_of(self.table + end):
            raise error(self.table)

    def _forget(self, sink: str, topic: str) -> None:
        mark = self.placeholder
        self.execute(
            f"DELETE FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark}", (sink, topic)
        )

    def _move(
        self, sink: str, topic: str, moves: list[tuple[str, str]], *, dropped: str | None = None
    ) -> None:
        """Renames tables and the sinks of their offsets, in one transaction."""
        self.execute("BEGIN")
        try:
            self._fence(sink, topic)
            self._require(dropped)
            if dropped is not None:
                self.execute(f"DROP TABLE IF EXISTS {self.named(self.table + dropped).path}")
            for one, to in moves:
                beside = self.named(self.table + one)
                if self.columns_of(beside.table):
                    last = (self.table + to).split(".")[-1]
                    self.execute(f"ALTER TABLE {beside.path} RENAME TO {quoted(last)}")
            self._move_state(sink, topic, moves, dropped)
            self.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def _fence(self, sink: str, topic: str) -> None:
        """Locks first what a write of the live sink locks first."""
        mark = self.placeholder
        self.execute(
            f"UPDATE {STATE_TABLE} SET next = 0 WHERE sink = {mark} AND topic = {mark} AND part = -1",
            (sink, topic),
        )

    def _move_state(
        self, sink: str, topic: str, moves: list[tuple[str, str]], dropped: str | None
    ) -> None:
        """Renames the sinks of offsets as their tables, and makes the live sink open its table again."""
        names = {"": sink, NEW: f"{sink}.rebuild", OLD: f"{sink}.old", APART: f"{sink}.apart"}
        mark = self.placeholder
        where = f"WHERE sink = {mark} AND topic = {mark}"
        [(epoch,)] = self.execute(
            f"SELECT coalesce(max(epoch), 0) + 1 FROM {STATE_TABLE} WHERE topic = {mark}", (topic,)
        )
        if dropped is not None:
            self._forget(names[dropped], topic)
        for one, to in moves:
            self.execute(
                f"UPDATE {STATE_TABLE} SET sink = {mark} {where}", (names[to], names[one], topic)
            )
        self.execute(f"DELETE FROM {STATE_TABLE} {where} AND part < 0", (sink, topic))
        for part in (-1, SWITCHED):
            self.execute(
                f"INSERT INTO {STATE_TABLE} (sink, topic, part, next, epoch) "
                f"VALUES ({mark}, {mark}, {part}, 0, {epoch})",
                (sink, topic),
            )


class WithSavepoints(SqlTarget):
    """One whose transactions go on after what they refuse; see `Sorting`."""

    def _check_deferred(self) -> None:
        """Checks the constraints that are deferred, now."""

    def _part_done(self) -> None:
        """Makes the transaction what it was before a part of its changes was written."""

    def write_rest(
        self,
        count: int,
        batch: Callable[[slice], Batch],
        offsets: Mapping[int, int],
        bury: Bury,
    ) -> list[Batch]:
        """Makes the changes that it takes and the offsets true together."""
        reasons: list[str | None] = [None] * count
        written = []
        with self._transaction():
            self.execute("SAVEPOINT penstock_rest")
            todo = _halves(slice(0, count))
            while todo:
                some = todo.pop(0)
                try:
                    made = batch(some)
                    self._apply(made)
                    self._check_deferred()
                except Exception as error:
                    if not (isinstance(error, RefusedError) or self.refuses(error)):
                        raise
                    self.execute("ROLLBACK TO SAVEPOINT penstock_rest")
                    if some.stop - some.start == 1:
                        reasons[some.start] = str(error).strip()
                    else:
                        todo[:0] = _halves(some)
                else:
                    written.append(made)
                    self.execute("RELEASE SAVEPOINT penstock_rest")
                    self._part_done()
                    self.execute("SAVEPOINT penstock_rest")
            self._store_all(offsets)
            bury(reasons)
        return written


def _halves(some: slice) -> list[slice]:
    middle = (some.start + some.stop) // 2
    halves = slice(some.start, middle), slice(middle, some.stop)
    return [one for one in halves if one.start < one.stop]


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
