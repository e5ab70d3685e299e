"""What a kind of database does for a capture; the loop in `capture.py` does the rest, for all of them.

Contract, which tests/capture/test_contract.py checks:

- A *position* is a number that grows with the database's commits. A transaction of the database that
  committed at or behind a position isn't before it.
- `Snapshot` reads rows as they are at its position: what committed before it is in them, nothing else is.
- `Stream` passes on each transaction that committed at its beginning or behind it, whole, in the order of
  commits, and nothing of those before. It may be cut at any place; another one begins where the records
  and the position were stored together.
- What the database keeps for a capture is let go of no further than `Output.stored`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from penstock.capture.envelope import Format, Record, Records, Values
from penstock.capture.output import Output
from penstock.capture.progress import State
from penstock.capture.table_schemas import OnSchemaChange, Shape, TableName, spelled, unspelled
from penstock.capture.unread import OnUnreadable
from penstock.core.schema import Schema
from penstock.errors import UserError
from penstock.schemas import Kind as SchemaKind

__all__ = [
    "Condition",
    "Database",
    "Kind",
    "Moves",
    "Settings",
    "Snapshot",
    "Stream",
    "TableName",
    "TakesRequests",
    "spelled",
    "unspelled",
]

_NAME: Final = re.compile(r"[a-z0-9_.-]{1,50}")


@dataclass(frozen=True)
class Settings:
    """What is captured, and where to; see `Capture`.

    Attributes:
        name: the capture's.
        url: the database's.
        patterns: of tables, as the kind reads them.
        topics: by table; None: what `to` says.
        to: what topics begin with.
        address: the log's.
        client: further arguments of `penstock.client.Client`.
        format: of records.
        values: likewise.
        partitions: of topics that are created.
        is_compact: likewise.
        options: of the kind, such as `slot`.
        schema_changes: whether there is Debezium's topic of schema changes.
        on_schema_change: what is done at a change at which readers may fail.
        notifications: whether there is Debezium's topic of notifications.
        schemas: the kind of a registry's schemas that records are written by; None: they are JSON.
        on_unreadable: what becomes of rows with values that can't be read or written.

    Raises:
        UserError: one is wrong, or two don't fit together.
    """

    name: str
    url: str
    patterns: tuple[str, ...]
    topics: Mapping[str, str] | None
    to: str | None
    address: str
    client: Mapping[str, Any]
    format: Format
    values: Values
    partitions: int
    is_compact: bool
    options: Mapping[str, Any]
    schema_changes: bool = False
    on_schema_change: OnSchemaChange = "pass"
    notifications: bool = False
    schemas: SchemaKind | None = None
    on_unreadable: OnUnreadable = "null"

    def __post_init__(self) -> None:
        """Checks them."""
        if not _NAME.fullmatch(self.name):
            raise UserError(
                "expected a name of at most 50 lower-case letters, digits, '_', '.' and '-', such as "
                f"name='shop'; found {self.name!r}"
            )
        if self.format not in ("debezium", "flat"):
            raise UserError(f"expected format='debezium' or 'flat'; found {self.format!r}")
        if self.values not in ("precise", "readable"):
            raise UserError(f"expected values='precise' or 'readable'; found {self.values!r}")
        if self.on_schema_change not in ("pass", "stop"):
            raise UserError(
                f"expected on_schema_change='pass' or 'stop'; found {self.on_schema_change!r}"
            )
        if self.on_unreadable not in ("null", "letter"):
            raise UserError(
                f"expected on_unreadable='null' or 'letter'; found {self.on_unreadable!r}"
            )
        if "transactions" in self.options and self.format != "debezium":
            raise UserError(
                "expected format='debezium' with transactions=True; found "
                f"format={self.format!r}, whose records are the rows alone"
            )
        if self.options.get("snapshot_connections", 1) < 1:
            raise UserError(
                "expected snapshot_connections of 1 or more; found "
                f"{self.options['snapshot_connections']}"
            )
        if self.to is None:
            for name, is_given in (
                ("schema_changes=True", self.schema_changes),
                ("outbox=…", "outbox" in self.options),
            ):
                if is_given:
                    raise UserError(
                        f"expected to=… with {name}; found a mapping of tables to topics"
                    )

    @property
    def source_name(self) -> str:
        """The source's name in the envelope."""
        return self.to or self.name


class Snapshot(Protocol):
    """Rows at one position of the database's log.

    It may have two more attributes, for `State.details`: `begins`, of a capture that has no tables yet, and
    `details`, of any.
    """

    position: int

    def read(
        self, topics: Mapping[TableName, str]
    ) -> Generator[tuple[TableName, Record | Records], None, None]:
        """The rows of tables, in the tables' order, one or many at a time."""


class Stream(Protocol):
    """Changes, from a position on."""

    def take(self, wait_s: float) -> bool:
        """Passes what has come to the output; waits if nothing has.

        It returns when `Output.committed` asks for that, when `Output.is_full`, and when nothing more has
        come. Whether anything had.
        """

    def confirm(self) -> None:
        """Confirms `Output.stored` to the database, which needn't keep its log up to there. Called often."""


@runtime_checkable
class Moves(Protocol):
    """A database that can be captured from another server, such as after a failover."""

    def moved(self, state: State, system: str) -> State:
        """The state from which a capture continues at this server. Its positions are this server's, and
        greater than the former ones. Tables that have to be read again are left out.

        Raises:
            SetupError: the server can't continue where the one before stopped.
        """


@runtime_checkable
class TakesRequests(Protocol):
    """A stream that takes snapshots while changes flow."""

    def ask(self, number: int, request: Mapping[str, Any]) -> None:
        """Takes a request, once; those with lower numbers were taken."""


class Database(Protocol):
    """A database's side of a capture, until a connection breaks; belongs to one thread.

    Attributes:
        name: its address, without a password.
        source: the connector's name in records, and the database's.
        topics: further topics that it writes to.
        claims: of `State.details`, what `Kind.forget` needs to let go of what `prepare` makes.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def claims(self) -> Mapping[str, str]:
        """See above."""
        ...

    @property
    def source(self) -> tuple[str, str]:
        """See above."""
        ...

    @property
    def topics(self) -> tuple[str, ...]:
        """See above."""
        ...

    def check(self) -> str:
        """Whether it can be captured; which database it is: the same text after a restart.

        Raises:
            SetupError: it can't; the message says what to do.
        """

    def tables(self, patterns: Iterable[str]) -> dict[TableName, int]:
        """The tables that patterns name, in their names' order; a number says which table it is, another one
        where it was created again.

        Raises:
            UserError: a pattern names none.
            SetupError: one can't be read, or not be captured.
        """

    def shape(self, table: TableName) -> Shape:
        """What a table looks like now."""

    def prepare(
        self, state: State | None, tables: Iterable[TableName], end: Callable[[float], bool]
    ) -> dict[str, Any]:
        """Makes the database keep its log, with changes of the tables.

        Args:
            state: where the capture got to.
            tables: which.
            end: waits, in seconds; whether to end.

        Returns: what is kept in `State.details`.

        Raises:
            SetupError: changes were lost.
        """

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """The rows as they are."""

    def end(self) -> int:
        """A position that `Output.received` gets to once all was passed on that has committed by now."""

    def stream(self, output: Output) -> Stream:
        """What committed at `output.position` and behind it.

        Raises:
            SetupError: it isn't there any more.
        """

    def close(self) -> None:
        """Closes the connections."""


@dataclass(frozen=True)
class Condition:
    """How a database is, for a capture that got to a position.

    Attributes:
        state: whether a process takes its changes; `unknown` where it can't be said.
        lag_bytes: of the database's log that the capture is behind; None: unknown.
        slot: how well the database keeps what is needed: see `Status`.
        safe_bytes: see `Status`.
        kept_bytes: of the database's log that it keeps for the capture: also those that it has, as long as a
            transaction is open that began before. None: unknown.
    """

    state: Literal["running", "stopped", "unknown"]
    lag_bytes: int | None = None
    slot: str = ""
    safe_bytes: int | None = None
    kept_bytes: int | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of databases.

    Attributes:
        name: `postgresql`.
        schemes: that its addresses begin with.
        options: of `Capture` that it has: `slot`.
        open: a database's side of a capture.
        patterns: what names of tables are patterns of; the address says which schema is meant.
        position: a position as the database writes it; with `State.details`.
        number: such a text as a position; ValueError where it is none. Likewise.
        passes: whether an error may be over later.
        refuses: what to do about an error that only a person can correct, of a capture's name; empty for
            other errors.
        look: how the database is; its address is the first argument.
        forget: lets go of what it keeps for a capture.
        setup: what an administrator runs before a capture: of an address, patterns of tables and its name.
        describe: a table's columns and key; the address and the table are the arguments.
        words: of SQL, in capital letters: `CREATE TABLE … FROM WORD 'address'`.
        address: the address of what programs may write instead, such as the path of a file.
    """

    name: str
    schemes: tuple[str, ...]
    options: frozenset[str]
    open: Callable[[Settings], Database]
    patterns: Callable[[str, Iterable[str]], tuple[str, ...]]
    position: Callable[[int, Mapping[str, Any]], str]
    number: Callable[[str, Mapping[str, Any]], int]
    passes: Callable[[Exception], bool]
    refuses: Callable[[Exception, str], str]
    look: Callable[[str, State], Condition]
    forget: Callable[[str, str, State], None]
    setup: Callable[[str, Sequence[str], str], str]
    describe: Callable[[str, str], tuple[Schema, tuple[str, ...]]]
    words: tuple[str, ...] = ()
    address: Callable[[str], str] = str
