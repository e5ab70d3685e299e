"""What a sink writes to: the contract of targets, and what those that speak SQL have in common.

Contract of a `Target`, which the tests in `tests/sinks` check for each kind:

1. `open` takes the sink's name over: a target that was opened before, by any process, writes nothing more
   (`FencedError`). It gives the offsets that were written, by partition.
2. `write` makes rows, deletions and offsets true together, or nothing of them.
   A target with `keeps_offsets = False` gets changes again after a kill, with the same offsets.
3. A row that the system doesn't take raises `RefusedError`, and nothing is written. What passes, such as a
   server that is away, is an error of `passing`.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import FencedError, PenstockError, UserError

__all__ = ["Batch", "RefusedError", "Rows", "SqlTarget", "Target", "fenced", "quoted"]

STATE_TABLE: Final = "penstock_sinks"
"""In the target: of each sink its owner's epoch (as partition -1), and the next offset of each partition."""


class RefusedError(PenstockError):
    """The target doesn't take a row."""


@dataclass(frozen=True)
class Rows:
    """What rows are like.

    Attributes:
        topic: where they come from.
        schema: their columns.
        key: those that tell rows apart; empty where rows only appear.
    """

    topic: str
    schema: Schema
    key: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Changes, one of a key.

    Attributes:
        upserts: rows, in the schema's columns; of a sink without a key, inserts.
        deletes: keys, in the key's columns.
        upserted_at: the offset of the record of each of `upserts`.
        deleted_at: the offset of the record of each of `deletes`.
        partition: of all these records.
    """

    upserts: pa.RecordBatch
    deletes: pa.RecordBatch
    upserted_at: npt.NDArray[np.int64]
    deleted_at: npt.NDArray[np.int64]
    partition: int

    def __len__(self) -> int:
        return len(self.upserts) + len(self.deletes)

    def halves(self) -> tuple[Batch, Batch]:
        """Two smaller ones; deletions in the first."""
        up, gone = len(self.upserts) // 2, len(self.deletes)
        if not len(self.upserts):
            gone //= 2
        return (
            Batch(
                self.upserts.slice(0, up),
                self.deletes.slice(0, gone),
                self.upserted_at[:up],
                self.deleted_at[:gone],
                self.partition,
            ),
            Batch(
                self.upserts.slice(up),
                self.deletes.slice(gone),
                self.upserted_at[up:],
                self.deleted_at[gone:],
                self.partition,
            ),
        )


class Target(Protocol):
    """What a sink writes to; see the contract above."""

    @property
    def name(self) -> str:
        """Which, for people, and as the default of the sink's name: without a password."""

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Errors after which the same may succeed."""

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over; the next offsets, by partition."""

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""

    def close(self) -> None:
        """Ends connections; it may be opened again."""


class SqlTarget(abc.ABC):
    """A table of a database with transactions.

    Args:
        table: its name, which may have a schema.
        create: whether to create it where it isn't there.
    """

    placeholder = "?"
    renames_in_transactions = True
    for_share = ""
    """Behind a query whose rows must stay as they are until the transaction's end."""
    state_options = ""
    """Behind the statement that creates the table with the state: names differ in each character."""

    def __init__(self, table: str, *, create: bool) -> None:
        if not isinstance(table, str) or not table:
            raise UserError(f"expected a table, such as table='users'; found {table!r}")
        self.table, self.create = table, create
        self._rows: Rows | None = None

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
    def load(self, statement: str, rows: pa.RecordBatch) -> None:
        """Runs a statement whose `{rows}` stands for these rows."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    @property
    @abc.abstractmethod
    def refusing(self) -> tuple[type[BaseException], ...]:
        """Errors of rows that aren't taken."""

    # -- the same for all -------------------------------------------------------------------------------

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes over, creates what isn't there, checks what is; the next offsets."""
        self._sink, self._rows = sink, rows
        self.connect()
        mark = self.placeholder
        self._ensure(
            f"CREATE TABLE IF NOT EXISTS {STATE_TABLE} (sink VARCHAR(200) NOT NULL, topic VARCHAR(250) "
            "NOT NULL, part INTEGER NOT NULL, next BIGINT NOT NULL, epoch BIGINT NOT NULL, "
            f"PRIMARY KEY (sink, topic, part)){self.state_options}"
        )
        self._check_table(rows)
        self.execute("BEGIN")
        try:
            self._epoch = self._next_epoch()
            found = self.execute(
                f"SELECT part, next FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} "
                "AND part >= 0",
                (sink, rows.topic),
            )
            self.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise
        return dict(found)

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Makes changes and offsets true together."""
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
            try:
                if len(batch.deletes):
                    self.load(self._delete_sql(rows), batch.deletes)
                if len(batch.upserts):
                    self.load(self._upsert_sql(rows), batch.upserts)
            except self.refusing as error:
                raise RefusedError(str(error).strip()) from error
            for partition, offset in offsets.items():
                self._store(partition, offset)
            self.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def _lost(self) -> Exception:
        """Why the epoch isn't this process's: another one, or another table in the place of this one."""
        assert self._rows is not None, "open comes first"
        mark = self.placeholder
        found = self.execute(
            f"SELECT epoch FROM {STATE_TABLE} WHERE sink = {mark} AND topic = {mark} AND part < 0",
            (self._sink, self._rows.topic),
        )
        if len(found) == 2 and found[0] == found[1]:
            return ConnectionError(f"{self.table} was put in the place of another table")
        return fenced(self.table, self._sink)

    def beside(self, table: str) -> Self:
        """The same for another table."""
        one = copy.copy(self)
        one.table = table
        return one

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
            self._ensure(statement)
            return
        missing = [name for name in rows.schema.names if name not in names]
        if missing:
            raise UserError(
                f"expected the table {self.table!r} to have the columns {', '.join(missing)}; found "
                f"{', '.join(names)}. Add them, or leave them out of the schema"
            )

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
        same = " AND ".join(f"t.{quoted(n)} = r.{quoted(n)}" for n in rows.key)
        return (
            f"DELETE FROM {self.path} AS t WHERE EXISTS (SELECT 1 FROM {{rows}} AS r WHERE {same})"
        )

    def _upsert_sql(self, rows: Rows) -> str:
        names = [quoted(name) for name in rows.schema.names]
        listed = ", ".join(names)
        statement = f"INSERT INTO {self.path} ({listed}) SELECT {listed} FROM {{rows}} WHERE true"
        if not rows.key:
            return statement
        others = [quoted(n) for n in rows.schema.names if n not in rows.key]
        keys = ", ".join(map(quoted, rows.key))
        change = ", ".join(f"{n} = excluded.{n}" for n in others)
        return f"{statement} ON CONFLICT ({keys}) DO " + (
            f"UPDATE SET {change}" if others else "NOTHING"
        )


def fenced(table: str, sink: str) -> FencedError:
    """What is said to a process that another one has taken over from."""
    return FencedError(
        f"expected to write to {table!r} as the sink {sink!r}; found that another process has begun under "
        "this name. Run one at a time"
    )


def quoted(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
