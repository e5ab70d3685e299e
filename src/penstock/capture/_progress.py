"""How far a database was captured: a compacted topic, written in the transactions of the records.

    invariant: after any transaction of the log, the topics have the changes of each of the database's
               transactions that committed before `State.position`, each once, and of no other

The newest record says it. Who begins starts transactions under the same id, which ends what a killed one
left, and then reads the topic; so it continues at exactly that place.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from penstock.capture._envelope import Record
from penstock.client import Client, Reader, TransactionalProducer
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import CorruptError

__all__ = ["Log", "State", "Watched", "control_topic", "state_topic"]

TIMEOUT_MS: Final = 15 * 60 * 1000
"""How long a transaction of the log may stay open, a snapshot's or that of the database's largest: Kafka's
transaction.max.timeout.ms."""
LOOKED_BACK: Final = 1000
"""Records that are looked at for the newest state, before all of them are."""
_KEY: Final = b"state"


@dataclass(frozen=True)
class Watched:
    """A table that is captured.

    Attributes:
        topic: where its records go.
        since: the position of its snapshot: transactions that committed before are in that.
        rows: of the snapshot.
        identity: which table it is: another number where it was created anew.
    """

    topic: str
    since: int
    rows: int = 0
    identity: int = 0


@dataclass(frozen=True)
class State:
    """How far a database was captured.

    Attributes:
        server: its address, without a password.
        system: which database it is.
        kind: of database.
        details: what this kind of database needs to go on: `slot`, `publication`.
        position: transactions that committed before it are in the log.
        time_us: when the newest of them committed, since 1970.
        tables: by name.
        stored_ms: when this was written, since 1970.
        owner: the process that wrote it.
    """

    server: str
    system: str
    kind: str
    details: dict[str, Any] = field(default_factory=dict)
    position: int = 0
    time_us: int = 0
    tables: dict[str, Watched] = field(default_factory=dict)
    stored_ms: int = 0
    owner: str = ""

    def encoded(self) -> bytes:
        """As a record's value."""
        return orjson.dumps(asdict(self))

    @staticmethod
    def decoded(value: bytes) -> State:
        """Reads it.

        Raises:
            CorruptError: somebody else has written to the topic.
        """
        try:
            found = orjson.loads(value)
            tables = {name: Watched(**one) for name, one in found.pop("tables").items()}
            return State(**found, tables=tables)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptError(
                f"expected the state of a capture; found {value[:60]!r} ({error}). Something else writes "
                "to its topic: choose another name"
            ) from None


def state_topic(name: str) -> str:
    """The topic with a capture's state."""
    return f"{name}.capture"


def control_topic(name: str) -> str:
    """The topic with what it was told: `pause`, `resume`."""
    return f"{name}.capture.control"


class Log:
    """The log's side of a capture: records and state, in transactions.

    Args:
        address: the broker's.
        name: the capture's.
        settings: further arguments of `penstock.client.Client`.
    """

    def __init__(self, address: str, name: str, **settings: Any) -> None:
        self._address, self._name, self._settings = address, name, settings
        self.client = Client(address, **settings)
        self._writer = TransactionalProducer(
            address, f"penstock.capture.{name}", timeout_ms=TIMEOUT_MS, **settings
        )
        self._partitions: dict[str, int] = {}
        self._waiting: dict[str, list[Record]] = {}
        #: Bytes that were added and are not sent.
        self.waiting_bytes = 0
        #: Records of the transaction that is open.
        self.open_records = 0

    def close(self) -> None:
        """Closes the connections; what is open is aborted by whoever starts next."""
        self._writer.close()
        self.client.close()

    def start(self) -> State | None:
        """Takes over, and says how far it got; None where there is nothing.

        Raises:
            CorruptError: somebody else has written to the topic.
        """
        compact = {"cleanup.policy": "compact"}
        for topic in (state_topic(self._name), control_topic(self._name)):
            self.client.create_topic(topic, 1, compact, exists_ok=True)
        self._writer.start()  # before reading: what another one left is ended then
        self._waiting.clear()
        self.waiting_bytes = self.open_records = 0
        return self.load()

    def load(self) -> State | None:
        """How far it got; None where there is nothing."""
        return load(self.client, self._address, self._name, **self._settings)

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        """Creates a topic where it doesn't exist."""
        self.client.create_topic(topic, partitions, configs, exists_ok=True)
        self._partitions[topic] = len(self.client.partitions(topic))

    def add(self, record: Record) -> None:
        """Takes a record for the transaction."""
        self._waiting.setdefault(record.topic, []).append(record)
        self.waiting_bytes += len(record.value or b"") + len(record.key or b"") + 32
        self.open_records += 1

    def send(self) -> None:
        """Sends what is waiting, in the open transaction."""
        for topic, records in self._waiting.items():
            keys = pa.array([one.key for one in records], pa.binary())
            of = np.maximum(murmur2_partitions(keys, self._partitions[topic]), 0)
            if self._partitions[topic] == 1:
                self._send(topic, 0, records)
                continue
            for partition in np.unique(of).tolist():
                self._send(
                    topic, partition, [records[i] for i in np.flatnonzero(of == partition).tolist()]
                )
        self._waiting.clear()
        self.waiting_bytes = 0

    def _send(self, topic: str, partition: int, records: list[Record]) -> None:
        headers = [one.headers for one in records] if any(one.headers for one in records) else None
        self._writer.send(
            topic,
            partition,
            pa.array([one.key for one in records], pa.binary()),
            pa.array([one.value for one in records], pa.binary()),
            np.array([one.time_ms for one in records], np.int64),
            headers=headers,
        )

    def commit(self, state: State) -> State:
        """Makes what was added and how far that is true together."""
        self.send()
        now_ms = time.time_ns() // 1_000_000
        state = replace(state, stored_ms=now_ms)
        self._writer.send(
            state_topic(self._name),
            0,
            pa.array([_KEY], pa.binary()),
            pa.array([state.encoded()], pa.binary()),
            np.array([now_ms]),
        )
        self._writer.commit()
        self.open_records = 0
        return state

    def told(self) -> str:
        """What it was told last: `pause`, `resume`, or nothing."""
        found = last_value(self.client, self._address, control_topic(self._name), **self._settings)
        return (found or b"").decode("utf-8", "replace")


def load(client: Client, address: str, name: str, **settings: Any) -> State | None:
    """How far a capture got; None where there is nothing."""
    value = last_value(client, address, state_topic(name), **settings)
    return State.decoded(value) if value is not None else None


def last_value(client: Client, address: str, topic: str, **settings: Any) -> bytes | None:
    """The newest record's value; None where there is none, or it is a tombstone."""
    first, end = client.offsets(topic, "earliest")[0], client.offsets(topic, "latest")[0]
    with Reader(address, **settings) as reader:
        for begin in (max(first, end - LOOKED_BACK), first):
            values: list[bytes | None] = []
            for records in reader.read(topic, 0, begin, end):
                values += records.values().to_pylist()[-1:]
            if values:
                return values[-1]
    return None
