"""Writes columns to partitions, each record once.

Exactly once on retries (KIP-98): each batch carries a producer id, an epoch and the sequence number
of its first record, and a partition's leader stores a batch only if it follows on the last one.
Batch boundaries depend on the input alone, so a process that starts over and sends the same input
finds what it had already stored, whole batch by whole batch, and continues from there.

A leader that knows nothing of a producer takes any first sequence number. So the first batch
travels alone: were it refused for a passing reason while the next one, sent ahead, was taken, the
gap would never be filled. Once the leader has acknowledged a batch it refuses what does not follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.client import producer_states
from penstock.client.network import hot
from penstock.client.network.cluster import PATIENCE_S, Cluster, OnWait
from penstock.client.network.connection import Connection
from penstock.client.network.errors import broker_error
from penstock.client.network.security import Security
from penstock.core.closing import Closing
from penstock.errors import (
    BrokerError,
    FencedError,
    LimitError,
    PenstockError,
    ProtocolError,
    UserError,
)
from penstock.wire.columns import BATCH_BYTES_MAX, SEQUENCE_MODULUS, Headers, encode
from penstock.wire.protocol import ApiKey, ErrorCode

PRODUCE_TIMEOUT_MS: Final = 30_000  # how long replicas may take
IN_FLIGHT_MAX: Final = 5  # a leader recognises the last five batches of a producer, and no more
RESUMES_MAX: Final = 100  # out-of-order answers in one send before something must be wrong

_OFFSET_BYTES: Final = 8  # at the start of a batch, outside its checksum
_COUNT_AT: Final = 57  # in a batch's header
_SEQUENCE_AT: Final = 53
_HALF: Final = SEQUENCE_MODULUS // 2


class Part(NamedTuple):
    """Records for one partition; see `Producer.send`."""

    topic: str
    partition: int
    keys: pa.Array[Any] | pa.ChunkedArray[Any] | None
    values: pa.Array[Any] | pa.ChunkedArray[Any]
    timestamps_ms: npt.NDArray[np.int64]
    headers: Sequence[Headers] | pa.Array[Any] | None = None
    base_sequence: int = 0


class Producer(Closing):
    """Writes columns. Don't share it between threads.

    Args:
        bootstrap: "host:port[,host:port]", or a URL that says how to reach it (`Security`).
        acks: "all" to wait until records are on disk (and replicated), 1 for the leader's memory.
        compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        batch_bytes_max: a batch's size before compression.
        client_id: the name the brokers log.
        patience_s: how long to keep trying while a broker is away.
        on_wait: called before each pause with what is waited for and the seconds so far.
        security: settings of TLS and log-in that the address does not have.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        acks: Literal["all", 1] = "all",
        compression: str = "none",
        batch_bytes_max: int = BATCH_BYTES_MAX,
        client_id: str = "penstock",
        patience_s: float = PATIENCE_S,
        on_wait: OnWait | None = None,
        security: Security | None = None,
    ) -> None:
        if acks not in ("all", 1):
            raise UserError(f"expected acks of 'all' or 1; found {acks!r}")
        #: Its connections.
        self.cluster = self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            patience_s=patience_s,
            on_wait=on_wait,
            security=security,
        )
        self._acks = -1 if acks == "all" else 1
        self._compression = compression
        #: A batch's size before compression.
        self.batch_bytes_max = batch_bytes_max
        self._own: tuple[int, int] | None = None
        self._next_sequence: dict[tuple[str, int], int] = {}
        #: Of Produce, the first and the last that may be used.
        self.versions = hot.PRODUCE_VERSIONS
        #: Whether the commit of their transaction makes records durable; see `DURABLE_LATER`.
        self.durable_later = False

    def close(self) -> None:
        """Closes the connections. Nothing is buffered: what was sent is stored."""
        self._cluster.close()

    def interrupt(self) -> None:
        """Ends a call of another thread, with OSError; only `close` may follow. From any thread."""
        self._cluster.interrupt()

    def send(
        self,
        topic: str,
        partition: int,
        keys: pa.Array[Any] | pa.ChunkedArray[Any] | None,
        values: pa.Array[Any] | pa.ChunkedArray[Any],
        timestamps_ms: npt.NDArray[np.int64],
        *,
        headers: Sequence[Headers] | pa.Array[Any] | None = None,
        producer_id: int | None = None,
        producer_epoch: int = 0,
        base_sequence: int = 0,
        transactional_id: str | None = None,
    ) -> int:
        """Writes records to a partition and waits until they are acknowledged.

        Without a producer id the producer takes one of its own and counts sequences itself. With
        one, the caller does, and the same call may be repeated, by any process, without storing
        anything twice.

        Args:
            topic: its name.
            partition: its number.
            keys: binary or string, or None where all are null.
            values: binary or string.
            timestamps_ms: int64[n].
            headers: one sequence of (name, value) per record, or `wire.headers.raw_headers`.
            producer_id: of an idempotent producer.
            producer_epoch: its epoch; the leader refuses older ones than it has seen.
            base_sequence: the first record's sequence number.
            transactional_id: of the transaction that the records belong to.

        Returns:
            The sequence number of the next record (after 2^31 - 1 comes 0).

        Raises:
            FencedError: a producer with a newer epoch has written.
            LimitError: the broker does not take a record as large as one of these.
            BrokerError: the broker refused for good, or patience ran out.
        """
        own = producer_id is None
        if producer_id is None:
            producer_id, producer_epoch = self._own_id()
            base_sequence = self._next_sequence.get((topic, partition), 0)
        part = Part(topic, partition, keys, values, timestamps_ms, headers, base_sequence)
        sending = self._sending(part, (producer_id, producer_epoch), transactional_id)
        try:
            sending.run()
        except Exception:
            if own:  # what was stored is not known, so these sequence numbers can't be used again
                self._own = None
                self._next_sequence.clear()
            raise
        following = (base_sequence + len(values)) % SEQUENCE_MODULUS
        if own:
            self._next_sequence[topic, partition] = following
        return following

    def send_together(
        self, parts: Sequence[Part], identity: tuple[int, int], transactional_id: str | None
    ) -> list[int]:
        """Writes records to several partitions, in one request for each of their leaders.

        Args:
            parts: different partitions, with sequence numbers that the caller counts.
            identity: producer id and epoch.
            transactional_id: of the transaction that the records belong to.

        Returns:
            The sequence numbers of the next records.

        Raises:
            FencedError, LimitError, BrokerError: as for `send`; some may be stored.
        """
        self.together(parts, identity, transactional_id).run()
        return [(one.base_sequence + len(one.values)) % SEQUENCE_MODULUS for one in parts]

    def together(
        self, parts: Sequence[Part], identity: tuple[int, int], transactional_id: str | None
    ) -> Together:
        """What `send_together` sends, not sent yet."""
        request = partial(
            hot.produce_together,
            acks=self._acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            transactional_id=transactional_id,
            durable_later=self.durable_later,
        )
        all_ = [self._sending(part, identity, transactional_id) for part in parts]
        return Together(self._cluster, self.versions, all_, request)

    def _sending(
        self, part: Part, identity: tuple[int, int], transactional_id: str | None
    ) -> _Sending:
        batches = encode(
            part.keys,
            part.values,
            part.timestamps_ms,
            batch_bytes_max=self.batch_bytes_max,
            compression=self._compression,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=part.base_sequence,
            headers=part.headers,
            transactional=transactional_id is not None,
        )
        for batch in batches:  # a broker gives offsets, and Kafka's refuses batches that have some
            batch[:_OFFSET_BYTES] = bytes(_OFFSET_BYTES)
        return _Sending(
            self._cluster,
            part.topic,
            part.partition,
            batches,
            self._acks,
            *identity,
            transactional_id,
            self.versions,
            self.durable_later,
        )

    def _own_id(self) -> tuple[int, int]:
        """This producer's own id and epoch, asked for once."""
        if self._own is None:
            what, api = "give out a producer id", ApiKey.INIT_PRODUCER_ID
            fields = {"transactional_id": None, "transaction_timeout": PRODUCE_TIMEOUT_MS}
            answer = self._cluster.request(what, self._cluster.any, api, fields)
            self._own = answer["producer_id"], answer["producer_epoch"]
        return self._own


class Together:
    """Records of several partitions, on their way.

    Args:
        cluster: where to.
        versions: of Produce, the first and the last that may be used.
        all_: the records of each partition.
        request: makes a Produce request of a version, and of a batch for each partition.
    """

    def __init__(
        self,
        cluster: Cluster,
        versions: tuple[int, int],
        all_: list[_Sending],
        request: Callable[[int, Mapping[str, Mapping[int, memoryview]]], list[bytes | memoryview]],
    ) -> None:
        self._cluster, self._versions, self._all, self._request = cluster, versions, all_, request
        self._begun: tuple[Connection, int, int] | None = None

    def run(self) -> None:
        """Returns once all are stored: in one request for each of their leaders, and what is left then one
        after another; the leader reports what it has.

        Raises:
            FencedError, LimitError, BrokerError: as for `Producer.send`; some may be stored.
        """
        if self._begun is None:
            by_leader: dict[int, tuple[Connection, list[_Sending]]] = {}
            try:
                for one in self._all:
                    connection = self._cluster.leader(one.topic, one.partition)
                    by_leader.setdefault(id(connection), (connection, []))[1].append(one)
                for connection, some in by_leader.values():
                    self._take_answer(*self._send_first(connection, some), some)
            except FencedError:
                raise
            except (OSError, PenstockError):
                pass
        for one in self._all:
            one.run()

    def begin(self, connection: Connection) -> bool:
        """Sends all where one request does, on this connection, and doesn't wait for the answer: `answered`
        must follow. False where one doesn't; then nothing was sent.

        Raises:
            OSError: the connection broke.
        """
        try:
            is_one = all(
                one.is_single and self._cluster.leader(one.topic, one.partition) is connection
                for one in self._all
            )
        except (OSError, PenstockError):
            return False
        if is_one:
            self._begun = self._send_first(connection, self._all)
        return is_one

    def answered(self) -> None:
        """Takes the answer to what `begin` sent; `run` sends again what isn't stored.

        Raises:
            FencedError: a newer owner has written.
        """
        assert self._begun is not None
        try:
            self._take_answer(*self._begun, self._all)
        except FencedError:
            raise
        except (OSError, PenstockError):
            pass

    def _send_first(
        self, connection: Connection, some: list[_Sending]
    ) -> tuple[Connection, int, int]:
        """Sends the first batch of each partition of a leader; what its answer is taken by."""
        version = self._cluster.version(connection, ApiKey.PRODUCE, self._versions)
        batches: dict[str, dict[int, memoryview]] = {}
        for one in some:
            if one.first is not None:
                batches.setdefault(one.topic, {})[one.partition] = one.first
        flexible = version >= hot.PRODUCE_FLEXIBLE
        request = self._request(version, batches)
        return (
            connection,
            version,
            connection.send(ApiKey.PRODUCE, version, request, flexible=flexible),
        )

    @staticmethod
    def _take_answer(
        connection: Connection, version: int, number: int, some: list[_Sending]
    ) -> None:
        try:
            answers = hot.read_produce(version, connection.receive(number))
        except BaseException:
            connection.discard(number)
            raise
        found = {(one.topic, one.partition): one for one in answers}
        for one in some:
            if (answer := found.get((one.topic, one.partition))) is not None:
                one.judge(answer)


class _Sending:
    """Batches on their way to one partition; `done` of them are stored."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        batches: list[memoryview],
        acks: int,
        producer_id: int,
        producer_epoch: int,
        transactional_id: str | None,
        versions: tuple[int, int],
        durable_later: bool,  # noqa: FBT001 - of a private class
    ) -> None:
        self._cluster = cluster
        self._versions, self._durable_later = versions, durable_later
        self.topic = topic
        self.partition = partition
        self._batches = batches
        self._acks = acks
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._transactional_id = transactional_id
        self._resumes = 0
        self.done = 0

    @property
    def _what(self) -> str:
        """For messages."""
        return f"write to partition {self.partition} of topic {self.topic!r}"

    def run(self) -> None:
        """Sends until every batch is stored."""
        while self.done < len(self._batches):
            before = self.done
            self._cluster.attempt(self._what, self._send_window)
            if self.done == before:
                self._resumes += 1

    def _send_window(self) -> None:
        """Sends on from the first batch that isn't stored, a few ahead of their answers.

        Returns when all are stored, or when the leader's sequence was looked up and `done` moved.
        """
        connection = self._cluster.leader(self.topic, self.partition)
        version = self._cluster.version(connection, ApiKey.PRODUCE, self._versions)
        flights: deque[int] = deque()
        following = begun = self.done
        try:
            while self.done < len(self._batches):
                ahead = IN_FLIGHT_MAX if self.done > begun else 1
                while following < len(self._batches) and len(flights) < ahead:
                    parts = hot.produce_request(
                        version,
                        self.topic,
                        self.partition,
                        self._batches[following],
                        acks=self._acks,
                        timeout_ms=PRODUCE_TIMEOUT_MS,
                        transactional_id=self._transactional_id,
                        durable_later=self._durable_later,
                    )
                    flexible = version >= hot.PRODUCE_FLEXIBLE
                    flights.append(
                        connection.send(ApiKey.PRODUCE, version, parts, flexible=flexible)
                    )
                    following += 1
                frame = connection.receive(flights.popleft())
                if not self._judge(hot.read_produce(version, frame)):
                    return
        finally:
            for number in flights:
                connection.discard(number)

    @property
    def is_single(self) -> bool:
        """Whether it is one batch."""
        return len(self._batches) == 1

    @property
    def first(self) -> memoryview | None:
        """The batch that is sent first; None where there is none."""
        return self._batches[0] if self._batches else None

    def _judge(self, answer: list[hot.Produced]) -> bool:
        """Counts the next batch as stored, or raises; False where sending must start again."""
        if len(answer) != 1 or answer[0].partition != self.partition:
            raise ProtocolError(f"expected one partition in a Produce answer; found {answer}")
        return self.judge(answer[0])

    def judge(self, answer: hot.Produced) -> bool:
        """Counts the next batch as stored, or raises; False where sending must start again."""
        code = answer.error
        if code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.done += 1
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._skip_stored()
            return False
        if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            raise FencedError(
                f"expected to {self._what} as producer {self._producer_id} of epoch "
                f"{self._producer_epoch}; found that a newer owner has written with a later epoch. "
                "This process must stop"
            )
        if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            size = len(self._batches[self.done])
            raise LimitError(
                f"expected the broker to take a batch of {size} bytes into topic {self.topic!r}; "
                "found that it is over its limit. Raise the topic's max.message.bytes, or send "
                "smaller records"
            )
        raise broker_error(code, self._what, "", answer.message)

    def _skip_stored(self) -> None:
        """Moves on to the first batch that the leader hasn't stored, by its own account.

        Raises:
            BrokerError: the leader's last sequence is not one that these batches follow on.
        """
        states = producer_states(self._cluster, self.topic, [self.partition])
        state = states.get(self.partition, {}).get(self._producer_id)
        first = _span(self._batches[self.done])[0]
        if state is not None and self._resumes < RESUMES_MAX:
            last = state.last_sequence
            while self.done < len(self._batches) and _covers(self._batches[self.done], last):
                self.done += 1
            if self.done == len(self._batches):
                return
            first = _span(self._batches[self.done])[0]
            same_epoch = state.epoch == self._producer_epoch
            if same_epoch and first == (last + 1) % SEQUENCE_MODULUS:
                return
        found = "nothing of this producer"
        if state is not None:
            found = (
                f"sequence {state.last_sequence} of epoch {state.epoch} (a new epoch begins at 0)"
            )
        raise BrokerError(
            f"expected the leader of partition {self.partition} of topic {self.topic!r} to have "
            f"stored producer {self._producer_id}'s records up to sequence {first - 1}; "
            f"found {found}. Records in between were lost, or were sent in other batches",
            code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        )


def _span(batch: memoryview) -> tuple[int, int]:
    """A batch's first sequence number and its record count."""
    first = int.from_bytes(batch[_SEQUENCE_AT : _SEQUENCE_AT + 4], "big", signed=True)
    return first, int.from_bytes(batch[_COUNT_AT : _COUNT_AT + 4], "big")


def _covers(batch: memoryview, last_sequence: int) -> bool:
    """Whether a batch lies wholly at or before a sequence number, on the circle of 2^31."""
    first, count = _span(batch)
    ahead = (last_sequence - (first + count - 1)) % SEQUENCE_MODULUS
    return ahead < _HALF
