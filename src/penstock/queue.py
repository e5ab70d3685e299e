"""A queue of jobs, on a topic of the log: each job to one worker, until it is done.

    q = ps.Queue("jobs", log="127.0.0.1:9092")
    q.put({"resize": "cat.jpg"}, delay="10 seconds")

    for job in q:                     # in any number of processes
        with job:                     # acknowledged at its end; retried after an exception
            resize(job.json()["resize"])

A job is *locked* while a worker has it. It is delivered again (`attempt` counts) when the worker
releases it, dies, or lets the lock expire; after `attempts` deliveries, or when a worker rejects it, it goes
to the topic `dlq.NAME` with the reason. An acknowledged job is never delivered again, whatever
crashes. A job whose worker died may have been done in part, so handlers must tolerate a second run.

A redelivered job comes after newer ones. Where order matters, give jobs keys and the queue
`order="key"`: a job then waits until all earlier ones of its key are done with.

The queue is a topic, its workers are a share group (KIP-932): Kafka's own clients can put and
take jobs too. Delays need Penstock's broker.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import orjson
import pyarrow as pa

from penstock.client.producer import Producer
from penstock.client.share import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Delivery,
    ShareClient,
    ShareMember,
)
from penstock.core.closing import Closing
from penstock.core.partitioner import murmur2_partitions
from penstock.core.time import duration_us
from penstock.errors import BrokerError, JobLostError, UserError
from penstock.wire.protocol import ConfigResource, ErrorCode

__all__ = ["Job", "Queue", "QueueStats"]

Duration: TypeAlias = "str | float | timedelta"
Payload: TypeAlias = "bytes | str | Mapping[str, Any] | list[Any] | int | float | bool | None"

NOT_BEFORE: Final = "penstock.not-before"
"""Header with the time (ms since 1970) before which a job is not to be worked on."""
DEAD_LETTERS: Final = "dlq."
"""How the name of a queue's dead-letter topic begins: Kafka's default prefix (KIP-1191)."""
POLL_S: Final = 5.0
"""Longest wait of one request; a longer wait is several."""
ATTEMPTS_MIN, ATTEMPTS_MAX = 2, 10
"""Kafka's limits of a delivery count limit."""
REASON_CHARACTERS_MAX: Final = 300
"""Of an exception's text in a dead letter."""
_log = logging.getLogger(__name__)


def _seconds(value: Duration) -> float:
    if isinstance(value, int | float):
        if value < 0:
            raise UserError(f"expected a duration of zero or more; found {value!r}")
        return float(value)
    return duration_us(value) / 1e6


def _bytes(value: Payload) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise UserError(f"expected bytes, a text or what JSON can say; found {error}") from None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's numbers.

    Attributes:
        waiting: jobs that are not done: new, locked, or waiting for another attempt.
        workers: workers at the moment.
        dead: dead letters.
    """

    waiting: int
    workers: int
    dead: int


class Job:
    """A job that this worker has.

    Attributes:
        value: the payload's bytes.
        key: the key, if it has one.
        headers: the headers; where a name is there more than once, the last value.
        attempt: which delivery this is, from 1 on.
        put_ms: when it was put (ms since 1970).
        partition: the partition of the queue's topic.
        offset: its place there; with the partition, the job's identity.
    """

    __slots__ = ("_delivery", "_queue", "_settled", "attempt", "headers", "key", "offset",
                 "partition", "put_ms", "value")  # fmt: skip

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        record = delivery.record
        self._queue, self._delivery, self._settled = queue, delivery, False
        self.value = record.value if record.value is not None else b""
        self.key = record.key
        self.headers = {name: value or b"" for name, value in record.headers}
        self.attempt = delivery.attempt
        self.put_ms = record.timestamp_ms
        self.partition = delivery.partition
        self.offset = record.offset

    def __repr__(self) -> str:
        return (
            f"<Job {self._queue.name}[{self.partition}]@{self.offset} attempt {self.attempt}: "
            f"{self.value[:60]!r}>"
        )

    def json(self) -> Any:
        """The payload, read as JSON."""
        return orjson.loads(self.value)

    def text(self) -> str:
        """The payload, read as UTF-8."""
        return self.value.decode()

    @property
    def attempts(self) -> int:
        """The queue's maximum number of attempts."""
        return self._queue.attempts

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, rejected or released by this worker."""
        return self._settled

    def ack(self) -> None:
        """Acknowledges the job: it is not delivered again. Returns once that is on the broker's disk.

        Raises:
            JobLostError: this worker no longer holds it.
        """
        self._settle(ACCEPT)

    def reject(self, reason: str = "") -> None:
        """Rejects the job, which becomes a dead letter.

        Args:
            reason: why; the dead letter contains it.

        Raises:
            JobLostError: this worker no longer holds it.
        """
        self._settle(REJECT, reason=reason)

    def release(self, delay: Duration | None = None, *, counts: bool = True) -> None:
        """Returns the job to the queue for another attempt.

        Args:
            delay: how long to wait; None: the queue's backoff, which doubles with each attempt.
            counts: whether this was an attempt.

        Raises:
            JobLostError: this worker no longer holds it.
        """
        wait_s = 0.0 if delay is None else max(_seconds(delay), 0.001)
        self._settle(RELEASE, delay_ms=round(wait_s * 1000), is_counted=counts)

    def renew(self) -> None:
        """Extends the lock: its whole length starts again now.

        Raises:
            JobLostError: this worker no longer holds it.
        """
        self._queue._settle(self._delivery, RENEW)  # noqa: SLF001 - one thing in two classes

    def _settle(self, kind: int, **more: Any) -> None:
        if self._settled:
            raise UserError(f"expected a job that isn't settled yet; found {self!r}")
        self._settled = True
        self._queue._settle(self._delivery, kind, **more)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Acknowledges; after an exception releases (the last time: rejects), and lets it pass."""
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        try:
            if isinstance(error, Exception) and self.attempt >= self.attempts:
                self.reject(f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX])
            else:
                self.release(counts=isinstance(error, Exception))
        except JobLostError as lost:
            _log.warning("%s", lost)


class Queue(Closing):
    """A queue. Don't share it between threads.

    Args:
        name: the topic's name.
        log: the broker's address, "host:port".
        workers: the share group's name; workers of one group share the jobs, two groups each get
            all of them.
        partitions: of a new topic; one is enough for many workers.
        attempts: maximum number of deliveries of a job, 2 to 10.
        lock: how long a worker keeps a job before another one gets it, 1 second to 1 hour.
        backoff: how long a released job waits; doubled with each attempt.
        backoff_max: the longest such wait.
        dead_letters: whether jobs that can't be done are kept in the topic `dlq.NAME`.
        order: "key": jobs of one key are processed one after another, in order.
        prefetch: number of jobs fetched at once; all of them are locked from then on.
        settings: further arguments of `penstock.client.Client`.
    """

    def __init__(
        self,
        name: str,
        log: str = "127.0.0.1:9092",
        *,
        workers: str | None = None,
        partitions: int = 1,
        attempts: int = 5,
        lock: Duration = "30 seconds",
        backoff: Duration = "1 second",
        backoff_max: Duration = "1 minute",
        dead_letters: bool = True,
        order: Literal["key"] | None = None,
        prefetch: int = 1,
        **settings: Any,
    ) -> None:
        if not ATTEMPTS_MIN <= attempts <= ATTEMPTS_MAX:
            raise UserError(f"expected {ATTEMPTS_MIN} to {ATTEMPTS_MAX} attempts; found {attempts}")
        if prefetch < 1:
            raise UserError(f"expected to take at least one job at once; found {prefetch}")
        if order not in {None, "key"}:
            raise UserError(f"expected an order of None or 'key'; found {order!r}")
        self.name = name
        self.workers = workers or name
        self.attempts = attempts
        self.dead_letter_topic = f"{DEAD_LETTERS}{name}" if dead_letters else ""
        self._address = log
        self._partitions = partitions
        self._prefetch = prefetch
        self._settings = settings
        self._group_settings = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(attempts),
            "share.record.lock.duration.ms": str(round(_seconds(lock) * 1000)),
            "penstock.share.retry.backoff.ms": str(round(_seconds(backoff) * 1000)),
            "penstock.share.retry.backoff.max.ms": str(round(_seconds(backoff_max) * 1000)),
            "penstock.share.order": order or "none",
            "errors.deadletterqueue.topic.name": self.dead_letter_topic,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        self._client = ShareClient(log, **settings)
        self._producer: Producer | None = None
        self._member: ShareMember | None = None
        self._taken: deque[Delivery] = deque()
        self._topic_partitions = 0
        self._turn = time.time_ns()

    def close(self) -> None:
        """Leaves the group and releases this worker's jobs."""
        self._taken.clear()
        if self._member is not None:
            self._member.close()
            self._member = None
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._client.close()

    # -- putting -----------------------------------------------------------------------------------

    def put(
        self,
        value: Payload,
        key: bytes | str | None = None,
        *,
        delay: Duration | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> None:
        """Puts a job; returns once it is on the broker's disk.

        Args:
            value: bytes, text, or a value that JSON can represent.
            key: jobs of one key go to one partition.
            delay: how long it waits before it is handed out.
            headers: further headers of the record.
        """
        self._find_topic()
        if self._producer is None:
            self._producer = Producer(self._address, **self._settings)
        key_bytes = key.encode() if isinstance(key, str) else key
        now_ms = time.time_ns() // 1_000_000
        pairs = [
            (name, text.encode() if isinstance(text, str) else text)
            for name, text in (headers or {}).items()
        ]
        if delay is not None:
            pairs.append((NOT_BEFORE, str(now_ms + round(_seconds(delay) * 1000)).encode()))
        self._producer.send(
            self.name,
            self._partition(key_bytes),
            pa.array([key_bytes], pa.binary()),
            pa.array([_bytes(value)], pa.binary()),
            np.array([now_ms], np.int64),
            headers=[pairs],
        )

    def _partition(self, key: bytes | None) -> int:
        if key is None:
            self._turn += 1
            return self._turn % self._topic_partitions
        return int(murmur2_partitions(pa.array([key], pa.binary()), self._topic_partitions)[0])

    def _find_topic(self) -> None:
        if not self._topic_partitions:
            self._client.create_topic(self.name, self._partitions, exists_ok=True)
            self._topic_partitions = len(self._client.partitions(self.name))

    # -- working -----------------------------------------------------------------------------------

    def get(self, timeout: Duration | None = None) -> Job | None:
        """The next job, locked for this worker.

        Args:
            timeout: how long to wait for one; None: without limit.

        Returns:
            None if there was none in time.
        """
        member = self._join()
        deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
        while True:
            while self._taken:
                delivery = self._taken.popleft()
                if not self._postpone(delivery):
                    return Job(self, delivery)
            left_s = POLL_S if deadline is None else deadline - time.monotonic()
            self._taken.extend(member.fetch(self._prefetch, min(max(left_s, 0.0), POLL_S)))
            if not self._taken and deadline is not None and time.monotonic() >= deadline:
                return None

    def __iter__(self) -> Iterator[Job]:
        """Every job, forever. What was not settled when the next one is asked for stays locked."""
        while True:
            job = self.get()
            assert job is not None
            yield job

    def work(self, handle: Callable[[Job], object], *, idle: Duration | None = None) -> int:
        """Passes each job to `handle`: acknowledged when it returns, retried when it raises.

        Args:
            handle: works on one job; it may also settle it itself.
            idle: end after this long without a job; None: never.

        Returns:
            How many jobs were handled without an exception.
        """
        done = 0
        while (job := self.get(idle)) is not None:
            try:
                with job:
                    handle(job)
                done += 1
            except JobLostError as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - one job must not end the others
                _log.exception("attempt %d at %r failed", job.attempt, job)
        return done

    def _join(self) -> ShareMember:
        if self._member is None:
            self._find_topic()
            self._configure()
            self._member = ShareMember(
                self._address, group=self.workers, topic=self.name, **self._settings
            )
        return self._member

    def _configure(self) -> None:
        """Sets the group's settings; a broker that lacks ours gets those that it knows."""
        enable = {"errors.deadletterqueue.group.enable": "true"}
        try:
            if self.dead_letter_topic:
                keep = enable | {"retention.ms": "-1"}
                self._client.create_topic(self.dead_letter_topic, configs=keep, exists_ok=True)
                self._client.configure(ConfigResource.TOPIC, self.dead_letter_topic, enable)
            self._client.configure(ConfigResource.GROUP, self.workers, self._group_settings)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            known = {
                name: value
                for name, value in self._group_settings.items()
                if name.startswith("share.")
            }
            self._client.configure(ConfigResource.GROUP, self.workers, known)
            _log.warning(
                "queue %s has no backoff, no dead letters and no order by key: expected a broker "
                "that can do that (Penstock's); found one that can't (%s)",
                self.name,
                error,
            )

    def _postpone(self, delivery: Delivery) -> bool:
        """Gives a job back until its time, if that hasn't come."""
        for name, value in delivery.record.headers:
            if name == NOT_BEFORE and value is not None and value.isdigit():
                left_ms = int(value) - time.time_ns() // 1_000_000
                if left_ms > 0:
                    try:
                        self._settle(delivery, RELEASE, delay_ms=left_ms, is_counted=False)
                    except JobLostError as error:
                        _log.warning("%s", error)
                    return True
        return False

    def _settle(self, delivery: Delivery, kind: int, **more: Any) -> None:
        if self._member is None:
            raise JobLostError(
                "expected an open queue; found that it was closed: its jobs are back"
            )
        self._member.settle(delivery, kind, **more)

    # -- looking -----------------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """The queue's numbers."""
        self._find_topic()
        found = [one for one in self._client.share_offsets(self.workers) if one.topic == self.name]
        if found:
            waiting = sum(max(one.waiting, 0) for one in found)
        else:
            first = self._client.offsets(self.name, "earliest")
            last = self._client.offsets(self.name, "latest")
            waiting = sum(last[one] - first[one] for one in last)
        dead = 0
        if self.dead_letter_topic and self.dead_letter_topic in self._client.topics():
            first = self._client.offsets(self.dead_letter_topic, "earliest")
            last = self._client.offsets(self.dead_letter_topic, "latest")
            dead = sum(last[one] - first[one] for one in last)
        return QueueStats(waiting, self._client.share_members(self.workers), dead)
