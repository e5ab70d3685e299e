"""Where a database's side of a capture writes to: records, and what they make complete."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.capture.encoding import Encoding, without_letters
from penstock.capture.envelope import Block, Headers, Put, Record
from penstock.capture.notifications import Notifications
from penstock.capture.progress import Log, State, Watched, letters_topic
from penstock.capture.registered import HEAD_BYTES, Registered
from penstock.capture.table_schemas import Schemas, Shape
from penstock.capture.unread import Lost, OnUnreadable, letter_headers
from penstock.follow.report import Doing

__all__ = ["STEP_BYTES", "UNREAD", "Captured", "Output"]

UNREAD: Final = "unread"
"""Where counts of values that couldn't be read or written are in `State.details`."""
COLUMNS_MAX: Final = 200
"""Columns that are counted by themselves, as the state is written with each transaction."""
_log = logging.getLogger(__name__)
GONE: Final = -1
"""The identity of a table that has another name, or other rows; none that there is has it."""
STEP_BYTES: Final = 4 << 20
"""Bytes that are sent to the log at a time; up to twice as many are in memory."""
LINGER_S: Final = 0.05
"""How long a committed change waits for others, while the server has more of them at hand."""
IDLE_STORE_S: Final = 10.0
"""How often the position is stored while nothing changes in the tables, so that the server can let go."""


@dataclass
class Captured(Doing):
    """What a capture has done since it began.

    Attributes:
        phase: `starting`, `snapshot`, `streaming`, `paused`, `waiting` (for a server or the log), `failed` or
            `stopped`.
        records: written and committed.
        transactions: of the database, with changes of the tables.
        snapshot_rows: read.
        position: transactions that committed before this position are in the log.
        time_us: when the newest of them committed, since 1970.
        is_caught_up: whether the server had nothing more at hand when it was asked last.
        unchanged: large values that updates didn't touch, and whose place a placeholder takes.
        unread: values that couldn't be read or written: they are NULL, or their rows dead letters.
        letters: rows that are dead letters.
        retries: how often it tried again after an error that passes.
        trouble: why it waits; empty if it doesn't.
        last_error: the last error, also after it has passed.
        breaker: the circuit breaker's state; nothing is asked of a server while it is `open`.
    """

    records: int = 0
    transactions: int = 0
    snapshot_rows: int = 0
    position: int = 0
    time_us: int = 0
    is_caught_up: bool = False
    unchanged: int = 0
    unread: int = 0
    letters: int = 0


class Output:
    """Records of a transaction of the database, and of several, until they are stored with their position.

    Args:
        log: where to.
        state: how far it got.
        done: its figures.
        owner: the process that has the capture.
        schemas: the tables' versions.
        notifications: of snapshots.
        by_schemas: writes records of tables by schemas of a registry; None: they are JSON.
        unread: what becomes of rows with values that can't be read or written.
    """

    def __init__(
        self,
        log: Log,
        state: State,
        done: Captured,
        owner: str,
        schemas: Schemas,
        notifications: Notifications,
        by_schemas: Registered | None = None,
        unread: OnUnreadable = "null",
    ) -> None:
        self._log, self.done, self._owner, self._unread = log, done, owner, unread
        self._reported: set[str] = set()  # columns with a value that couldn't be read
        log.too_long = self._count_long
        self.state = state
        self.schemas, self._notifications, self._by_schemas = schemas, notifications, by_schemas
        self._encoding = None
        if by_schemas is not None:
            self._encoding = Encoding(log, by_schemas, partial(self.judged, is_encoded=True))
        self._received = self._counted = 0
        self._storing = state.position  # what committed before it is stored, or on its way
        self._closed_at: float | None = None  # when the oldest transaction that waits was complete
        self._stored_at = time.monotonic()
        #: Whether what was added last isn't a whole transaction.
        self.is_open = False
        #: A position that someone waits for: it is stored once all before it was taken.
        self.wanted = 0
        #: Whether rows of a snapshot are still to be written while changes flow.
        self.is_reading = False

    @property
    def state(self) -> State:
        """How far it got."""
        return replace(self._others, position=self.position, time_us=self._time_us)

    @state.setter
    def state(self, state: State) -> None:
        #: Transactions that committed before it were taken.
        self.position = state.position
        self._time_us = state.time_us
        self._others = state  # its other members: a state isn't made for each transaction

    @property
    def stored(self) -> int:
        """Transactions that committed before it are in the log."""
        return self.done.position

    @property
    def received(self) -> int:
        """How far the database's log is known, tables' changes or not."""
        return max(self._received, self.position)

    @property
    def tables(self) -> Mapping[str, Watched]:
        """Those that are captured."""
        return self._others.tables

    @property
    def is_full(self) -> bool:
        """Whether there is enough to be sent."""
        held = 0 if self._encoding is None else self._encoding.bytes
        return self._log.waiting_bytes + held >= STEP_BYTES

    @property
    def _open_records(self) -> int:
        """Records that were added since the last commit."""
        held = 0 if self._encoding is None else self._encoding.records
        return self._log.open_records + held

    def add(self, record: Record) -> None:
        """Takes a record, or the dead letter that takes its place."""
        put = self.judged(record.lost) or self.put
        put(record.topic, record.key, record.value, record.time_ms, record.headers)
        self.is_open = True

    # -- rows with values that can't be read or written -------------------------------------------------

    def judged(self, lost: tuple[Lost, ...], *, is_encoded: bool = False) -> Put | None:
        """Counts values of a new row that its record doesn't have; what takes the row, where it is a dead
        letter. None: it is written.

        Args:
            lost: the values.
            is_encoded: whether the record is taken as it is written, not as JSON.
        """
        if not lost:
            return None
        is_letter = self._unread == "letter" or any(one.is_key for one in lost)
        self._count([one.column for one in lost], int(is_letter))
        for one in lost:
            if one.column not in self._reported:
                self._reported.add(one.column)
                _log.warning(
                    "%s: expected a value of %s that can be read and written; found one that can't: %s. %s. "
                    "More of them are counted: penstock capture status",
                    *(self._log.name, one.column, one.reason),
                    f"Its row is a dead letter in {letters_topic(self._log.name)}"
                    if is_letter
                    else "It is NULL",
                )
        if not is_letter:
            return None
        is_made = is_encoded or self._by_schemas is None
        return partial(self._put_letter if is_made else self._put_encoded_letter, lost)

    def _count(self, columns: Iterable[str], letters: int) -> None:
        """Counts values that couldn't be read or written, also in the state."""
        known = dict(self._others.details.get(UNREAD, {}))
        found = dict(known.get("columns", {}))
        for one in columns:
            name = one if one in found or len(found) < COLUMNS_MAX else "others"
            found[name] = found.get(name, 0) + 1
            self.done.unread += 1
        self.done.letters += letters
        counts = {"columns": found, "letters": known.get("letters", 0) + letters}
        self._others = replace(self._others, details={**self._others.details, UNREAD: counts})

    def _count_long(self, lost: Lost) -> None:
        """A record is a dead letter, as it is too long for its topic."""
        self._count([lost.column], 1)
        _log.warning(
            "%s: %s. It is a dead letter in %s, which has its beginning",
            *(self._log.name, lost.reason, letters_topic(self._log.name)),
        )

    def _put_letter(
        self,
        lost: tuple[Lost, ...],
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """Takes the record of a row as a dead letter; the tombstone of one isn't any."""
        if value is not None:
            self._log.letter(topic, key, value, time_ms, (*headers, *letter_headers(topic, lost)))

    def _put_encoded_letter(
        self,
        lost: tuple[Lost, ...],
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        assert self._by_schemas is not None
        made = self._by_schemas.record(topic, key, value)
        more = self._by_schemas.take()
        self._count([one.column for one in more], 0)
        self._put_letter((*lost, *more), topic, *made, time_ms, headers)

    def unread_event(
        self, table: str, topic: str, data: bytes, why: Exception, time_ms: int
    ) -> None:
        """Changes of a table couldn't be read at all: what the database has sent is a dead letter."""
        lost = (Lost(table, f"{table}: {why} ({data[:40]!r})"),)
        self._count([table], 1)
        _log.warning(
            "%s: expected changes of %s that can be read; found: %s. They are a dead letter in %s. Read the "
            "table again: penstock capture snapshot %s --tables %s --delete-missing",
            *(self._log.name, table, why, letters_topic(self._log.name), self._log.name, table),
        )
        self._log.letter(topic, None, data, time_ms, letter_headers(topic, lost))
        self.is_open = True

    @property
    def put(self) -> Put:
        """Takes a record of a transaction that was said to be open, in its parts; see `Log.put`."""
        return (self._encoding or self._log).put

    def put_block(self, block: Block) -> None:
        """Takes records of one topic, in columns; see `Log.put_block`."""
        (self._encoding or self._log).put_block(block)

    def _encode(self) -> None:
        """Passes on to the log what is held as JSON."""
        if self._encoding is not None:
            self._counted -= self._encoding.pass_on()

    def use(self, topic: str, shape: Shape) -> None:
        """What is put into a table's topic from here on has these columns. Of rows that `put_all` takes it
        says itself, as they may have been read before a change, or after one that hasn't come yet.
        """
        if self._encoding is not None:
            self._counted -= self._encoding.use(topic, shape)

    def put_all(
        self,
        topic: str,
        keys: pa.Array[Any],
        values: pa.Array[Any],
        time_ms: int,
        shape: Shape,
        lost: Mapping[int, tuple[Lost, ...]],
    ) -> None:
        """Takes rows of a table, and sends them; see `Log.put_all`.

        Args:
            topic: where to.
            keys: of the records.
            values: likewise.
            time_ms: likewise.
            shape: what the table looks like.
            lost: by place, the values that records don't have.
        """
        if self._by_schemas is not None:
            self._encode()  # it is before them
            keys, values, more = self._by_schemas.columns(topic, keys, values, shape)
            lost = {i: (*lost.get(i, ()), *more.get(i, ())) for i in lost.keys() | more.keys()}
        block = Block(topic, keys, values, np.full(len(keys), time_ms, np.int64))
        kept = without_letters(block, lost, partial(self.judged, is_encoded=True))
        if kept is not None:
            keys, values = keys.filter(pa.array(kept)), values.filter(pa.array(kept))
        self._log.put_all(topic, keys, values, time_ms)

    def describe(
        self, table: tuple[str, str], shape: Shape, time_ms: int, *, is_reported: bool = False
    ) -> None:
        """Records of a table look like this from here on; see `Schemas.see`."""
        self.schemas.see(table, shape, time_ms, self._log.put, is_reported=is_reported)

    def notify(
        self, which: str, what: str, id_: str, tables: Iterable[str] = (), **more: str | int
    ) -> None:
        """Notifies of a snapshot; see `Notifications.record`."""
        if (topic := self._notifications.topic) is not None:
            now_ms = time.time_ns() // 1_000_000
            made = self._notifications.record(which, what, id_, now_ms, tables, **more)
            self._log.put(topic, *made, now_ms)

    def notify_now(
        self, which: str, what: str, id_: str, tables: Iterable[str] = (), **more: str | int
    ) -> None:
        """Notifies of a snapshot at once, whether it is stored or not."""
        if (topic := self._notifications.topic) is not None:
            now_ms = time.time_ns() // 1_000_000
            made = self._notifications.record(which, what, id_, now_ms, tables, **more)
            self._log.say(topic, *made, now_ms)

    def takes_truncation(self, topic: str) -> bool:
        """Whether a topic may have a record that says that a table was emptied: it has no key."""
        return not self._log.is_compacted(topic)

    def is_alone(self, topic: str) -> bool:
        """Whether a topic has the rows of one table alone."""
        return sum(one.topic == topic for one in self.tables.values()) == 1

    def emptied(self, topic: str, time_ms: int) -> Iterator[None]:
        """A table was emptied that is alone in its topic: each key there is deleted.

        Yields: now and then, as it may take long.
        """
        [(name, watched)] = [pair for pair in self.tables.items() if pair[1].topic == topic]
        self._encode()
        ends = yield from self._log.delete_all(topic, watched.emptied, time_ms)
        tables = {**self.tables, name: replace(watched, emptied=ends)}
        self._others = replace(self._others, tables=tables)

    def replaced(self, names: Iterable[str]) -> None:
        """The names of tables are those of others by now, or of none: the next session reads these."""
        tables = {name: replace(self.tables[name], identity=GONE) for name in names}
        self._others = replace(self._others, tables={**self.tables, **tables})

    def is_gone(self, name: str) -> bool:
        """Whether that was said of a table."""
        return self.tables[name].identity == GONE

    def expect_all(self, names: Iterable[str]) -> None:
        """All rows of tables are read again: `forget_unseen` deletes keys that none of them has by then.

        Where tables share a topic, it doesn't say which of them has had a key: nothing is deleted.
        """
        tables = dict(self.tables)
        for name in names:
            watched = tables.get(name)
            if watched is not None and self.is_alone(watched.topic):
                tables[name] = replace(watched, unseen=self._log.ends(watched.topic))
        self._others = replace(self._others, tables=tables)

    def forget_unseen(self, name: str) -> Iterator[None]:
        """All rows of a table were written again: keys that it hasn't any more are deleted.

        Yields: now and then, as it may take long.
        """
        watched = self.tables[name]
        if watched.unseen:
            self._encode()
            offsets = (watched.topic, watched.emptied, watched.unseen)
            head_bytes = 0 if self._by_schemas is None else HEAD_BYTES
            now_ms = time.time_ns() // 1_000_000
            yield from self._log.delete_unseen(*offsets, now_ms, head_bytes)
            tables = {**self.tables, name: replace(watched, unseen=())}
            self._others = replace(self._others, tables=tables)

    def committed(
        self, position: int, time_us: int, details: Mapping[str, Any] | None = None
    ) -> bool:
        """A transaction is complete: what was added belongs to it.

        Args:
            position: behind its commit.
            time_us: of its commit, since 1970.
            details: for `State.details`.

        Returns: whether it is to be stored now.
        """
        if details is not None:
            others = self._others
            self._others = replace(others, details={**others.details, **details})
        self.position, self._time_us = position, time_us
        self.is_open = False
        return self._close(self._open_records, int(self.has_open))

    def passed(self, position: int, time_us: int, transactions: int, open_records: int) -> bool:
        """Several transactions are complete.

        Args:
            position: behind the commit of the last one.
            time_us: of its commit, since 1970.
            transactions: how many of them have records.
            open_records: records that belong to the one behind them, which is open.

        Returns: whether they are to be stored now.
        """
        self.position, self._time_us = position, time_us
        return self._close(self._open_records - open_records, transactions)

    @property
    def has_open(self) -> bool:
        """Whether there are records of a transaction that isn't complete."""
        return self._open_records > self._counted

    def _close(self, records: int, transactions: int) -> bool:
        if transactions:
            self._counted = records
            self.done.transactions += transactions
            self._closed_at = self._closed_at or time.monotonic()
        return self.is_full or self._lingers

    def reached(self, position: int) -> None:
        """Nothing more of the tables committed before a position of the database's log."""
        self._received = max(self._received, position)

    @property
    def _lingers(self) -> bool:
        """Whether what is complete has waited long enough."""
        return self._closed_at is not None and time.monotonic() - self._closed_at > LINGER_S

    def store(self, *, came: bool) -> bool:
        """Stores what is complete; of a transaction that isn't, sends what there is. Whether it stored.

        Args:
            came: whether anything has since it was called last. If not, what is complete is waited for.
        """
        if not self._log.is_ending:
            self.settle()
        if self.is_open:
            self.send()
            return False
        is_idle = not self._open_records
        since_s = time.monotonic() - self._stored_at
        is_wanted = self._storing < self.wanted <= self.received
        is_early = since_s < IDLE_STORE_S or self.received <= self._storing
        if is_idle and is_early and not is_wanted:
            return False
        # While the server has more at hand, that is read meanwhile.
        in_background = came and (self.is_full or self._lingers)
        self._encode()
        self._commit(replace(self.state, position=self.received), in_background=in_background)
        return True

    def send(self) -> None:
        """Sends what there is, if it is enough."""
        if self.is_full:
            self._encode()
            self._log.send()

    def commit(self, state: State) -> None:
        """Stores records and state together."""
        self._encode()
        counts = self._others.details.get(UNREAD)  # also those that were found now
        if counts is not None:
            state = replace(state, details={**state.details, UNREAD: counts})
        self._commit(state, in_background=False)

    def _commit(self, state: State, *, in_background: bool) -> None:
        self._storing = state.position
        self.state = self._log.commit(
            replace(state, owner=self._owner),
            partial(self._count_stored, state, self._log.open_records),
            in_background=in_background,
        )
        self._stored_at, self._closed_at, self.is_open = time.monotonic(), None, False
        self._counted = 0

    def _count_stored(self, state: State, count: int) -> None:
        self.done.records += count
        self.done.position, self.done.time_us = state.position, state.time_us

    def settle(self) -> None:
        """Waits until what is being stored is stored."""
        self._log.settle()
