"""How far a database was captured: a compacted topic, written in the transactions of the records.

    invariant: after any transaction of the log, the topics have the changes of each of the database's
               transactions that committed before `State.position`, each once, and of no other

The newest record says it. Who begins starts transactions under the same id, which ends what a killed one
left, and then reads the topic; so it continues at exactly that place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.envelope import NO_HEADERS, Block, Headers, Record, Waiting
from penstock.capture.progress.state import (
    State,
    control_topic,
    letters_topic,
    schemas_topic,
    state_topic,
    stored,
    versions,
)
from penstock.capture.table_schemas import Version
from penstock.capture.unread import Lost, letter_headers
from penstock.client import Client, Producer, Reader, TransactionalProducer
from penstock.client.live_keys import LiveKeys
from penstock.client.producer import Part
from penstock.client.topic_admin import TopicAdmin
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import BrokerError, PenstockError, SetupError
from penstock.wire.protocol import ErrorCode

__all__ = ["MESSAGE_BYTES_MAX", "Log"]

TIMEOUT_MS: Final = 15 * 60 * 1000
"""How long a transaction of the log may stay open, a snapshot's or that of the database's largest: Kafka's
transaction.max.timeout.ms."""
GRACE_S: Final = 1.0
"""How long a commit that is on its way is waited for after Ctrl-C."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Of a batch of the topics that a capture makes: a row has one of its own, if it is long. It is the most that
Penstock's broker takes."""
HEAD_BYTES: Final = 512
"""Of a batch and of a record, beyond key, value and headers."""
CUT_BYTES: Final = 1 << 20
"""That are kept of a record that is too long."""
_LIMIT: Final = "max.message.bytes"
_KEY_BYTES_MAX: Final = 2**31 - 1
"""Of a key: Arrow's offsets are 32 bits."""
_KEY: Final = b"state"
_log = logging.getLogger(__name__)


class _Ending(NamedTuple):
    """A commit that is on its way, and what is to be done once it has succeeded."""

    future: Future[None]
    stored: Callable[[], None]


class Log:
    """The log's side of a capture: records and state, in transactions.

    Args:
        address: the broker's.
        name: the capture's.
        settings: further arguments of `penstock.client.Client`.
    """

    def __init__(self, address: str, name: str, **settings: Any) -> None:
        self._address, self.name, self._settings = address, name, settings
        self.client = Client(address, **settings)
        self._writer = TransactionalProducer(
            address, f"penstock.capture.{name}", timeout_ms=TIMEOUT_MS, version=2, **settings
        )
        self._partitions: dict[str, int] = {}
        self._compacted: set[str] = set()
        self._limits: dict[str, int] = {}  # of messages, by topic
        self._short_bytes = MESSAGE_BYTES_MAX // 2  # of a value that no topic is too small for
        #: Told of records that are too long for their topic, which are dead letters.
        self.too_long: Callable[[Lost], None] = lambda _: None
        self._waiting: dict[str, Waiting] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-capture")
        self._ending: _Ending | None = None
        #: Bytes that were added and are not sent.
        self.waiting_bytes = 0
        #: Records of the transaction that is open.
        self.open_records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        # On Ctrl-C, a broker that hangs isn't waited for as long as the client has patience.
        if is_interrupted and self._ending and wait([self._ending.future], GRACE_S).not_done:
            self._writer.interrupt()
        self.close()

    def close(self) -> None:
        """Closes the connections, once no commit is on its way; the next process aborts what is open."""
        self._try(self.settle)
        self._thread.shutdown()
        self._writer.close()
        self.client.close()

    def start(self) -> State | None:
        """Takes over, and says how far it got; None where there is nothing.

        Raises:
            CorruptError: another program has written to the topic.
        """
        compact = {"cleanup.policy": "compact"}
        topics = state_topic(self.name), control_topic(self.name), schemas_topic(self.name)
        for topic in topics:
            self.client.create_topic(topic, 1, compact, exists_ok=True)
        self._writer.start()  # before reading: what another one left is ended then
        self._waiting.clear()
        self.waiting_bytes = self.open_records = 0
        return self.load()

    def load(self) -> State | None:
        """How far it got, if only that it has begun; None where there is nothing, or no topic."""
        try:
            return stored(self.client, self._address, self.name, **self._settings)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        return None

    def versions(self) -> dict[str, Version]:
        """The newest version of each table's schema."""
        return versions(self.client, self._address, self.name, **self._settings)

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        """Creates a topic where it doesn't exist."""
        limited = {_LIMIT: str(MESSAGE_BYTES_MAX), **configs}
        is_new = self.client.create_topic(topic, partitions, limited, exists_ok=True)
        if topic not in self._limits:
            self._limits[topic] = MESSAGE_BYTES_MAX if is_new else self._raised_limit(topic)
            self._short_bytes = min(self._limits.values()) // 2
            self._writer.limit_batches(self._limits[topic])
        self._partitions[topic] = len(self.client.partitions(topic))
        if "compact" in configs.get("cleanup.policy", ""):
            self._compacted.add(topic)

    def _raised_limit(self, topic: str) -> int:
        """The limit of a topic's messages: a default is raised, a limit of the topic's own stays."""
        with TopicAdmin(self._address, **self._settings) as admin:
            [found] = [one for one in admin.configs(topic) if one.name == _LIMIT]
            limit = int(found.value or MESSAGE_BYTES_MAX)
            if found.is_own or limit >= MESSAGE_BYTES_MAX:
                return limit
            try:
                admin.change_configs(topic, {_LIMIT: str(MESSAGE_BYTES_MAX)})
            except BrokerError as error:
                _log.warning("%s: %s has the limit %s: %s", self.name, topic, limit, error)
                return limit
        return MESSAGE_BYTES_MAX

    def add(self, record: Record) -> None:
        """Takes a record for the transaction."""
        self.put(record.topic, record.key, record.value, record.time_ms, record.headers)

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        time_ms: int,
        headers: Headers = (),
    ) -> None:
        """Takes a record for the transaction, in its parts."""
        if value is not None and len(value) > self._short_bytes:
            size = HEAD_BYTES + len(value) + len(key or b"")
            if self._is_too_long(topic, size + sum(len(n) + len(v or b"") + 8 for n, v in headers)):
                self._put_cut(topic, key, value, time_ms)
                return
        found = self._waiting.get(topic)
        if found is None:
            found = self._waiting[topic] = Waiting()
        self.waiting_bytes += found.add(key, value, time_ms, headers)
        self.open_records += 1

    def letter(
        self, topic: str, key: bytes | None, value: bytes, time_ms: int, headers: Headers
    ) -> None:
        """Takes a record for the transaction that is a dead letter, as it was for a topic."""
        place = self._letters()
        if self._is_too_long(place, 2 * HEAD_BYTES + len(value) + len(key or b"")):
            self._put_cut(topic, key, value, time_ms)
        else:
            self.put(place, key, value, time_ms, headers)

    def _letters(self) -> str:
        """The topic of dead letters, which is there."""
        place = letters_topic(self.name)
        if place not in self._partitions:
            self.create_topic(place, 1, {"retention.ms": "-1"})
        return place

    def _is_too_long(self, topic: str, size: int) -> bool:
        """Whether a topic takes no record of so many bytes."""
        if topic not in self._limits:
            self.create_topic(topic, 1, {"retention.ms": "-1"})
        return size > self._limits[topic]

    def _put_cut(self, topic: str, key: bytes | None, value: bytes, time_ms: int) -> None:
        """Takes the beginning of a record that is too long, as a dead letter."""
        limit = self._limits[topic]
        lost = Lost(
            topic,
            f"expected a record of at most {limit:,} bytes, {_LIMIT} of {topic}; found {len(value):,}",
        )
        self.too_long(lost)
        place = self._letters()
        kept = value[: min(CUT_BYTES, self._limits[place] // 4)]
        self.put(place, key, kept, time_ms, letter_headers(topic, (lost,), len(value)))

    def _fitting(
        self, block: Block, headers: Mapping[int, Headers] = NO_HEADERS
    ) -> tuple[Block, Mapping[int, Headers]]:
        """Records that a topic takes, and their headers by place; the others are dead letters."""
        topic, keys, values, times_ms = block
        longest = pc.max(pc.binary_length(cast("Any", values))).as_py() or 0
        if longest <= self._short_bytes:
            return block, headers
        sizes = np.array([HEAD_BYTES + len(one or b"") for one in values.to_pylist()])
        sizes += np.array([len(one or b"") for one in keys.to_pylist()])
        for i, some in headers.items():
            sizes[i] += sum(len(name) + len(value or b"") + 8 for name, value in some)
        is_long = np.array([self._is_too_long(topic, size) for size in sizes.tolist()])
        for i in np.flatnonzero(is_long).tolist():
            self._put_cut(topic, keys[i].as_py(), values[i].as_py(), int(times_ms[i]))
        kept = pa.array(~is_long)
        places = np.cumsum(~is_long) - 1
        return (
            Block(topic, keys.filter(kept), values.filter(kept), times_ms[~is_long]),
            {int(places[i]): some for i, some in headers.items() if not is_long[i]},
        )

    def put_block(self, block: Block, headers: Mapping[int, Headers] = NO_HEADERS) -> None:
        """Takes records of one topic for the transaction, behind those that are waiting.

        Args:
            block: the records.
            headers: of those that have some, by place.
        """
        block, headers = self._fitting(block, headers)
        found = self._waiting.get(block.topic)
        if found is None:
            found = self._waiting[block.topic] = Waiting()
        self.waiting_bytes += found.put(block, headers)
        self.open_records += len(block.values)

    def put_all(self, topic: str, keys: pa.Array[Any], values: pa.Array[Any], time_ms: int) -> None:
        """Sends records of a topic in the open transaction, behind what is waiting.

        Args:
            topic: where to.
            keys: of them, binary.
            values: of them, binary.
            time_ms: of all, since 1970.
        """
        block = Block(topic, keys, values, np.full(len(keys), time_ms, np.int64))
        (_, keys, values, times_ms), _ = self._fitting(block)
        if topic in self._waiting:  # a partition can't be written twice at once
            self.send()
        self._send([*self._of_partitions(topic, keys, values, times_ms, None)])
        self.open_records += len(keys)

    def say(self, topic: str, key: bytes, value: bytes, time_ms: int) -> None:
        """Writes a record at once, outside the transaction."""
        columns = (
            pa.array([key], pa.binary()),
            pa.array([value], pa.binary()),
            np.array([time_ms]),
        )
        with Producer(self._address, **self._settings) as producer:
            producer.send(topic, 0, *columns)

    def send(self) -> None:
        """Sends what is waiting, in the open transaction."""
        self._send([])

    def is_compacted(self, topic: str) -> bool:
        """Whether it keeps the newest record of each key, so that all must have one."""
        return topic in self._compacted

    def delete_all(
        self, topic: str, since: Sequence[int], time_ms: int
    ) -> Generator[None, None, tuple[int, ...]]:
        """Deletes each key of a topic, in the open transaction: by a record without a value.

        The topic says which keys there are. What this transaction has written counts, so what isn't
        committed is read; keys of transactions that were aborted are deleted as well, which changes nothing.

        Args:
            topic: which.
            since: by partition, the offset before which all keys are deleted; 0 where there is none.
            time_ms: of the records, since 1970.

        Yields: after each part of the topic that is read.

        Returns: the offsets for `since`, the next time.
        """
        self.send()
        ends = self.client.offsets(topic, uncommitted=True)
        offsets = []
        with Reader(self._address, uncommitted=True, **self._settings) as reader:
            for partition, end in sorted(ends.items()):
                begin = since[partition] if partition < len(since) else 0
                found = LiveKeys()
                for records in reader.read(topic, partition, begin, end, missing="skip"):
                    found.add(records.keys())
                    yield
                keys = found.array()
                count = len(keys)
                if count:
                    nothing, times_ms = pa.nulls(count, pa.binary()), np.full(count, time_ms)
                    self._writer.send_together([Part(topic, partition, keys, nothing, times_ms)])
                self.open_records += count
                offsets.append(end + count)
        return tuple(offsets)

    def ends(self, topic: str) -> tuple[int, ...]:
        """By partition, the offset behind its newest record."""
        return tuple(end for _, end in sorted(self.client.offsets(topic, uncommitted=True).items()))

    def delete_unseen(
        self,
        topic: str,
        since: Sequence[int],
        begins: Sequence[int],
        time_ms: int,
        head_bytes: int = 0,
    ) -> Generator[None, None, None]:
        """Deletes each key that a topic has before some offsets and not behind them, in the open transaction.

        Behind them all rows that there are have been written again. Keys are in memory, each once, those of
        one partition at a time.

        Args:
            topic: which.
            since: by partition, the offset before which all keys are deleted; 0 where there is none.
            begins: by partition, the offsets.
            time_ms: of the records, since 1970.
            head_bytes: at the front of keys, which don't say which row it is: a schema's id, another one
                after the key's type was changed.

        Yields: after each part of the topic that is read.
        """
        self.send()
        ends = self.client.offsets(topic, uncommitted=True)
        for partition, begin in enumerate(begins):
            first = since[partition] if partition < len(since) else 0
            if first >= begin:
                continue
            before, seen = LiveKeys(), LiveKeys()
            with Reader(self._address, **self._settings) as reader:
                for records in reader.read(topic, partition, first, begin, missing="skip"):
                    before.add(records.keys(), pc.is_null(records.values()))
                    yield
            former = before.array()
            if not len(former):  # also where retention has removed them, and some behind them
                continue
            with Reader(self._address, uncommitted=True, **self._settings) as reader:
                for records in reader.read(topic, partition, begin, ends[partition]):
                    seen.add(records.keys())
                    yield
            rows, there = (
                pc.binary_slice(one, head_bytes, _KEY_BYTES_MAX) if head_bytes else one
                for one in (former, seen.array())
            )
            gone = former.filter(pc.invert(pc.is_in(rows, value_set=there)))
            if count := len(gone):
                columns = (gone, pa.nulls(count, pa.binary()), np.full(count, time_ms))
                self._writer.send_together([Part(topic, partition, *columns)])
                self.open_records += count

    def _send(self, more: list[Part]) -> None:
        parts = self._taken() + more
        self.settle()
        if parts:
            self._writer.send_together(parts)

    def _taken(self) -> list[Part]:
        """What is waiting, which is no longer."""
        parts = [part for topic, one in self._waiting.items() for part in self._parts(topic, one)]
        self._waiting.clear()
        self.waiting_bytes = 0
        return parts

    def _parts(self, topic: str, waiting: Waiting) -> Iterator[Part]:
        """A topic's records, by partition."""
        if topic not in self._partitions:  # a record says where it goes
            self.create_topic(topic, 1, {"retention.ms": "-1"})
        _, keys, values, times_ms = waiting.block(topic)
        if self.is_compacted(topic) and keys.null_count:
            raise SetupError(
                f"expected records with keys for {topic!r}, which keeps the newest one of each key; found a "
                "table without a key. Add a primary key, or capture it without compact"
            )
        yield from self._of_partitions(topic, keys, values, times_ms, waiting.all_headers())

    def _of_partitions(
        self,
        topic: str,
        keys: pa.Array[Any],
        values: pa.Array[Any],
        times_ms: npt.NDArray[np.int64],
        headers: list[Headers] | None,
    ) -> Iterator[Part]:
        """Records by the partition of their keys."""
        count = self._partitions[topic]
        if count == 1:
            yield Part(topic, 0, keys, values, times_ms, headers)
            return
        of = np.maximum(murmur2_partitions(keys, count), 0)
        for partition in np.unique(of).tolist():
            at = np.flatnonzero(of == partition)
            some = None if headers is None else [headers[i] for i in at.tolist()]
            places = pa.array(at, pa.int64())
            columns = keys.take(places), values.take(places)
            yield Part(topic, partition, *columns, times_ms[at], some)

    def commit(
        self,
        state: State,
        stored: Callable[[], None] = lambda: None,
        *,
        in_background: bool = False,
    ) -> State:
        """Makes what was added and how far that is true together.

        Args:
            state: how far it is.
            stored: called once that is done: here, or where it is waited for.
            in_background: whether to return before that is done, so that more can be added meanwhile; see
                `settle`.
        """
        now_ms = time.time_ns() // 1_000_000
        state = replace(state, stored_ms=now_ms)
        keys = pa.array([_KEY], pa.binary())
        values = pa.array([state.encoded()], pa.binary())
        last = Part(state_topic(self.name), 0, keys, values, np.array([now_ms]))
        parts = [*self._taken(), last]
        self.settle()
        if in_background:
            self._ending = _Ending(self._thread.submit(self._end, parts), stored)
        else:
            self._end(parts)
            stored()
        self.open_records = 0
        return state

    def _end(self, parts: list[Part]) -> None:
        """Sends the last records of a transaction, and commits it."""
        if (commit := self._writer.commit_ahead(parts)) is not None:
            commit.finish()

    @property
    def is_ending(self) -> bool:
        """Whether a commit is on its way."""
        return self._ending is not None and not self._ending.future.done()

    def settle(self) -> None:
        """Waits for the commit that is on its way.

        Raises:
            FencedError, BrokerError: it failed.
        """
        if (ending := self._ending) is not None:
            error = ending.future.exception()  # Ctrl-C leaves it on its way
            self._ending = None
            if error is not None:
                raise error
            ending.stored()

    def abort(self) -> None:
        """Ends what is open, as it isn't gone on with: readers of committed records wait no longer.

        The commit that is on its way is waited for. What fails is logged, so that it doesn't hide why it
        ends: the next process to begin ends what is open, and reads how far it got.
        """
        self._try(self.settle)
        self._try(self._writer.abort)
        self._waiting.clear()
        self.waiting_bytes = self.open_records = 0

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (PenstockError, OSError) as error:
            _log.warning("%s: the transaction was not ended: %s", self.name, error)
