"""The log as the engine sees it: offsets, columns, and writes that can be repeated.

`KafkaLog` is the embedded broker or a Kafka cluster. Tests run over one in memory
(`penstock.testing`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.schemas import Kind
from penstock.wire.columns import Records
from penstock.wire.headers import header_pairs

if TYPE_CHECKING:
    from penstock.client import TransactionalProducer
    from penstock.client.network.connection import Aside

__all__ = ["KafkaLog", "Log", "Outgoing", "Writer"]


# Of topics that are created here: a dead letter may be larger than the record that it was, which
# came compressed and without headers.
MESSAGE_BYTES_MAX: Final = 32 << 20
READ_BYTES: Final = 8 << 20
"""Of a partition at a time: a chunk's columns take three times as much, and a lane has two chunks at once."""
TRANSACTION_MS: Final = 15 * 60 * 1_000
"""How long a batch's transaction may stay open, from its first record: the most that brokers allow."""


@dataclass
class Writer:
    """Who writes to a topic, and how far it has come: what makes a repeated write harmless.

    Attributes:
        producer_id: allocated once for the writer, kept in the pipeline's versions.
        epoch: of the producer; stays as it was allocated, so that a repetition is recognised.
        next_sequence: by partition of the topic, of the next record.
        transactional_id: of the transaction that the records belong to.
    """

    producer_id: int
    epoch: int
    next_sequence: dict[int, int] = field(default_factory=dict)
    transactional_id: str | None = None


@dataclass(frozen=True)
class Outgoing:
    """Records on their way into one partition, in order.

    Attributes:
        keys: binary or string, or None where no record has a key.
        values: binary or string.
        timestamps_ms: int64, one per record.
        headers: of each record, as they stand in it (`penstock.wire.headers.raw_headers`); or None.
    """

    partition: int
    keys: pa.Array | None
    values: pa.Array
    timestamps_ms: np.ndarray
    headers: pa.Array | None = None

    def header_pairs(self) -> list[list[tuple[str, bytes]]]:
        """The headers of each record, as names and values."""
        if self.headers is None:
            return [[] for _ in range(len(self.values))]
        raw: list[Any] = self.headers.to_pylist()
        return [[(name, value or b"") for name, value in header_pairs(one)] for one in raw]


class Log(Protocol):
    """Contract: reading changes nothing; `send` of the same records by the same writer stores them once."""

    @property
    def decode_s(self) -> float:
        """Seconds spent on decoding records so far."""
        ...

    def ensure_topic(self, topic: str, partitions: int, retention_us: int | None = None) -> int:
        """Creates the topic where it doesn't exist; how many partitions it has.

        Args:
            topic: its name.
            partitions: to create it with.
            retention_us: likewise; None keeps records forever.
        """
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What distinguishes a topic from others that had its name; without it, topics are left out."""
        ...

    def start_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The first offset that each partition still has."""
        ...

    def end_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The offset after the last record of each partition."""
        ...

    def look(
        self,
        offsets: Mapping[tuple[str, int], int],
        timeout_s: float,
        aside: Aside | None = None,
    ) -> dict[str, dict[int, int]]:
        """The offset after the last record of each partition.

        Args:
            offsets: by topic and partition, the next one to read.
            timeout_s: how long to wait for a partition to have more than that.
            aside: what is attended to meanwhile.
        """
        ...

    def expect(self, topic_ids: Mapping[str, str]) -> None:
        """Has `read` refuse topics that were created again since, with a `BrokerError` that may be retried.

        Args:
            topic_ids: of the topics that are meant, where they are known: see `topic_ids`.
        """
        ...

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """The records with start <= offset < end, in order, in chunks."""
        ...

    def new_writer(self) -> Writer:
        """Allocates a producer id."""
        ...

    def send(self, topic: str, outgoing: Outgoing, writer: Writer) -> None:
        """Appends the records, once; moves the writer's sequence on."""
        ...

    def begin(self, transactional_id: str) -> Writer:
        """Takes over a transactional id: fences its previous writer, and ends what was left open.

        Returns:
            The writer of the transactions to come, one after the other.
        """
        ...

    def join(self, writer: Writer, places: Iterable[tuple[str, int]]) -> None:
        """Adds partitions to the writer's transaction; before the first `send` to each."""
        ...

    def end(self, writer: Writer, place: tuple[str, int], offset: int, note: str) -> None:
        """Makes what the transaction holds count, and with it an offset of the group of the same name.

        Args:
            writer: that `begin` gave.
            place: the topic and partition that the offset is of.
            offset: to commit.
            note: next to it.
        """
        ...

    def counted(self, group: str, place: tuple[str, int]) -> tuple[int, str]:
        """The offset that was committed last, and the note next to it; 0 and nothing where none was."""
        ...

    def schema_id(self, registry: str, subject: str, schema: str, kind: Kind = Kind.AVRO) -> int:
        """The id of a schema in a registry, where it is registered if it isn't.

        Args:
            registry: its URL.
            subject: that the schema is a version of.
            schema: its text.
            kind: what it is.
        """
        ...

    def schema_versions(self, registry: str, subject: str) -> Sequence[str]:
        """The schemas that a subject of a registry has, the newest first."""
        ...

    def close(self) -> None:
        """Lets go of connections."""
        ...


class KafkaLog:
    """A log that speaks the Kafka protocol. Connections are opened when they are needed."""

    def __init__(self, bootstrap: str, *, patience_s: float = 60.0) -> None:
        from penstock.client import Client, Producer, Reader

        self.bootstrap = bootstrap
        self._client = Client(bootstrap, patience_s=patience_s)
        self._reader = Reader(bootstrap, patience_s=patience_s)
        self._producer = Producer(bootstrap, acks="all", patience_s=patience_s)
        self._patience_s = patience_s
        self._transactions: dict[str, TransactionalProducer] = {}
        self._expected: dict[str, uuid.UUID] = {}

    @property
    def decode_s(self) -> float:
        """See `Log`."""
        return self._reader.decode_s

    def ensure_topic(self, topic: str, partitions: int, retention_us: int | None = None) -> int:
        """See `Log`."""
        configs = {
            "retention.ms": str(-1 if retention_us is None else retention_us // 1_000),
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
        }
        self._client.create_topic(topic, partitions, configs=configs, exists_ok=True)
        return len(self._client.partitions(topic))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """See `Log`."""
        found = {topic: self._client.topic_id(topic) for topic in topics}
        return {topic: str(one) for topic, one in found.items() if one.int}

    def start_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        return {topic: self._client.offsets(topic, "earliest") for topic in topics}

    def end_offsets(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """See `Log`."""
        return self._client.end_offsets_many(list(topics))

    def look(
        self,
        offsets: Mapping[tuple[str, int], int],
        timeout_s: float,
        aside: Aside | None = None,
    ) -> dict[str, dict[int, int]]:
        """See `Log`."""
        from penstock.client.network.connection import wait_for_any

        if not offsets:  # of a program over constants alone
            wait_for_any((), timeout_s, aside)
            return {}
        found = self._client.ends_past(offsets, timeout_s, aside)
        if found is None:
            if timeout_s > 0:
                self._client.wait_for_data(offsets, timeout_s, aside)
            return self.end_offsets({topic for topic, _ in offsets})
        ends: dict[str, dict[int, int]] = {}
        for (topic, partition), end in found.items():
            ends.setdefault(topic, {})[partition] = end
        return ends

    def expect(self, topic_ids: Mapping[str, str]) -> None:
        """See `Log`."""
        self._expected = {topic: uuid.UUID(one) for topic, one in topic_ids.items()}

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        """See `Log`."""
        topic_id = self._expected.get(topic)
        return self._reader.read(
            topic, partition, start, end, chunk_bytes=READ_BYTES, topic_id=topic_id
        )

    def new_writer(self) -> Writer:
        """See `Log`."""
        return Writer(*self._client.init_producer_id())

    def send(self, topic: str, outgoing: Outgoing, writer: Writer) -> None:
        """See `Log`."""
        sequence = writer.next_sequence.get(outgoing.partition, 0)
        writer.next_sequence[outgoing.partition] = self._producer.send(
            topic,
            outgoing.partition,
            outgoing.keys,
            outgoing.values,
            outgoing.timestamps_ms,
            headers=outgoing.headers,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=sequence,
            transactional_id=writer.transactional_id,
        )

    def begin(self, transactional_id: str) -> Writer:
        """See `Log`."""
        producer = self._transactional(transactional_id)
        producer.start()
        return Writer(*producer.identity, transactional_id=transactional_id)

    def join(self, writer: Writer, places: Iterable[tuple[str, int]]) -> None:
        """See `Log`."""
        assert writer.transactional_id is not None
        producer = self._transactional(writer.transactional_id)
        producer.resume((writer.producer_id, writer.epoch))
        producer.add_partitions(places)

    def end(self, writer: Writer, place: tuple[str, int], offset: int, note: str) -> None:
        """See `Log`."""
        assert writer.transactional_id is not None
        producer = self._transactional(writer.transactional_id)
        producer.commit_offsets(writer.transactional_id, {place: offset}, note)
        producer.commit()

    def counted(self, group: str, place: tuple[str, int]) -> tuple[int, str]:
        """See `Log`."""
        from penstock.client.groups import GroupAdmin

        with GroupAdmin(self.bootstrap, patience_s=self._patience_s) as admin:
            return admin.committed_entries(group).get(place, (0, ""))

    def _transactional(self, name: str) -> TransactionalProducer:
        if name not in self._transactions:
            from penstock.client import TransactionalProducer

            self._transactions[name] = TransactionalProducer(
                self.bootstrap, name, timeout_ms=TRANSACTION_MS, patience_s=self._patience_s
            )
        return self._transactions[name]

    def schema_id(self, registry: str, subject: str, schema: str, kind: Kind = Kind.AVRO) -> int:
        """See `Log`."""
        from penstock.client.schemas import schema_id

        return schema_id(registry, subject, schema, kind)

    def schema_versions(self, registry: str, subject: str) -> Sequence[str]:
        """See `Log`."""
        from penstock.client.schemas import schema_versions

        return schema_versions(registry, subject)

    def close(self) -> None:
        """See `Log`."""
        for part in (self._client, self._reader, self._producer):
            part.close()
        for producer in self._transactions.values():
            producer.close()
