"""Where a registry's records are: the compacted topic `_schemas` of the log, and nowhere else.

Several registries may serve one topic. Who writes is decided by the log: a writer takes over the one
transactional id, which fences the one before it; then reads to the end, decides, and writes in one
transaction. A writer that was fenced between its reading and its writing has written nothing, and begins
again with what the other one wrote. So each decision stands on all decisions before it.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.client import Client, Reader
from penstock.client.topic_admin import TopicAdmin
from penstock.client.transactions import TransactionalProducer
from penstock.errors import FencedError, PenstockError
from penstock.registry.refusals import Refusal
from penstock.schemas.subjects import TOPIC, Subjects, Write

__all__ = ["LogStore", "MemoryStore", "Store"]

POLICY, COMPACT = "cleanup.policy", "compact"
WRITER: Final = "penstock-schema-registry"
"""The transactional id of the writer."""
TRIES_MAX: Final = 20
"""Of a write, when others take over again and again."""
PAUSE_S, PAUSE_S_MAX = 0.05, 2.0
"""How long a writer that was fenced stands back at most: at first, and after many times. The first is about
what a write takes; it doubles, so that of many writers one comes to its end.
"""
PATIENCE_S: Final = 20.0
"""How long a request waits for a broker that is away."""

Decide = Callable[[Subjects], list[Write]]
"""What to write, given all that there is; raises where it must not be."""


class Store(Protocol):
    """Contract: `write` decides on the state with all that was written before, and nothing is written
    between; what it writes is in every later `fresh` of every store. A state that was given doesn't change.
    """

    @property
    def state(self) -> Subjects:
        """What has been read so far."""
        ...

    def fresh(self) -> Subjects:
        """What there is now."""
        ...

    def write(self, decide: Decide) -> None:
        """Writes what is decided."""
        ...

    def close(self) -> None:
        """Lets go of the log."""
        ...


class MemoryStore:
    """Records in memory, for tests."""

    def __init__(self, records: list[Write] | None = None) -> None:
        self.records = [] if records is None else records
        self.state = Subjects()
        self._read = 0
        self._lock = threading.RLock()

    def fresh(self) -> Subjects:
        """See `Store`."""
        with self._lock:
            if self._read < len(self.records):
                state = self.state.copy()
                for key, value in self.records[self._read :]:
                    state.apply(key, value)
                    self._read += 1
                self.state = state
            return self.state

    def write(self, decide: Decide) -> None:
        """See `Store`."""
        with self._lock:
            self.records += decide(self.fresh())
            self.fresh()

    def close(self) -> None:
        """See `Store`."""


class LogStore:
    """Records in the log.

    Args:
        broker: its address, or what gives it once it is asked for.
        topic: where they are; made where it is missing.
    """

    def __init__(self, broker: str | Callable[[], str], topic: str = TOPIC) -> None:
        self._where = broker
        self._broker, self._topic = "", topic
        self._lock = threading.RLock()
        self._state = Subjects()
        self._next = 0
        self._client: Client | None = None
        self._reader: Reader | None = None
        self._writer: TransactionalProducer | None = None
        self._is_writer = False

    @property
    def state(self) -> Subjects:
        """See `Store`."""
        return self._state

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            for one in (self._client, self._reader, self._writer):
                if one is not None:
                    one.close()
            self._client = self._reader = self._writer = None

    def fresh(self) -> Subjects:
        """See `Store`."""
        with self._lock, _as_refusals():
            self._catch_up()
            return self._state

    def write(self, decide: Decide) -> None:
        """See `Store`."""
        with self._lock, _as_refusals():
            for attempt in range(TRIES_MAX):
                try:
                    self._write(decide)
                except FencedError:
                    self._is_writer = False
                    pause_s = min(PAUSE_S * 2**attempt, PAUSE_S_MAX)
                    time.sleep(random.uniform(0, pause_s))  # noqa: S311 - who continues first
                else:
                    self._catch_up()
                    return
            raise Refusal(
                50003, "Error while writing: other registries write all the time; try again"
            )

    def _write(self, decide: Decide) -> None:
        self._open()
        if self._writer is None:
            self._writer = TransactionalProducer(self._broker, WRITER, patience_s=PATIENCE_S)
        if not self._is_writer:
            self._writer.start()
            self._is_writer = True
        self._catch_up()
        records = decide(self._state)
        if not records:
            return
        self._is_writer = False  # until it is known how this ended
        keys = pa.array([key for key, _ in records], pa.binary())
        values = pa.array([value for _, value in records], pa.binary())
        now = np.full(len(records), time.time_ns() // 1_000_000, np.int64)
        self._writer.send(self._topic, 0, keys, values, now)
        self._writer.commit()
        self._is_writer = True

    def _open(self) -> Client:
        if self._client is None:
            self._broker = self._where if isinstance(self._where, str) else self._where()
            with contextlib.ExitStack() as opened:
                client = opened.enter_context(Client(self._broker, patience_s=PATIENCE_S))
                if self._topic not in client.topics():
                    settings = {POLICY: COMPACT}
                    client.create_topic(self._topic, 1, settings, exists_ok=True)  # or another one
                self._check_topic()
                self._reader = Reader(self._broker, patience_s=PATIENCE_S)
                self._client = client
                opened.pop_all()
        return self._client

    def _check_topic(self) -> None:
        """Refuses a topic whose oldest records go in time, such as one made for a reader that asked."""
        with TopicAdmin(self._broker, patience_s=PATIENCE_S) as admin:
            [found] = [one.value for one in admin.configs(self._topic) if one.name == POLICY]
        if found != COMPACT:
            raise Refusal(
                50001,
                f"Error in the backend data store: expected {POLICY}={COMPACT} of the topic {self._topic}, "
                f"since others delete schemas; found {found}. Set it: penstock topics alter {self._topic} "
                f"--set {POLICY}={COMPACT}",
            )

    def _catch_up(self) -> None:
        """Reads to the end of what is committed."""
        end = self._open().offsets(self._topic, "latest", [0])[0]
        assert self._reader is not None
        if end < self._next:  # the topic was deleted, and made again
            self._state, self._next = Subjects(), 0
        if end > self._next:
            state = self._state.copy()
            for records in self._reader.read(self._topic, 0, self._next, end, missing="skip"):
                pairs: Any = zip(
                    records.keys().to_pylist(), records.values().to_pylist(), strict=True
                )
                for key, value in pairs:
                    state.apply(key, value)
            self._state, self._next = state, end


@contextlib.contextmanager
def _as_refusals() -> Any:
    """A log that can't be reached is the store's error of Confluent's API."""
    try:
        yield
    except (Refusal, FencedError):
        raise
    except (OSError, PenstockError) as error:
        raise Refusal(50001, f"Error in the backend data store: {error}") from error
