"""What feeds the demonstrations.

- `SampleFeed` looks at the machine every second. It doesn't look while there is no broker; rates
  are then over the longer time.
- `LineFeed` sends each line once: its topic has one partition that nobody else writes, so a line's
  offset is its number in the file, and the log itself says where to continue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa

from penstock.demo.lines import values_of_lines
from penstock.demo.machine import TOPICS, Row, Sampler
from penstock.errors import PenstockError
from penstock.files.feed import PATIENCE_S, Feed
from penstock.files.lines import Lines

SAMPLE_S: Final = 1.0  # between two looks at the machine
LINES_MAX: Final = 20_000
"""Sent at once: large enough for columns to pay, small enough to see progress."""
WEBLOG_TOPIC: Final = "requests"


class FeedLog(Protocol):
    """What a feeder needs of a log: `BrokerLog`, or a test's."""

    def create_topic(self, topic: str) -> None:
        """Creates a topic of one partition where there is none."""
        ...

    def end_offset(self, topic: str) -> int:
        """The offset that the next record of the topic's only partition will have."""
        ...

    def send(self, topic: str, values: pa.Array[Any], timestamps_ms: np.ndarray) -> None:
        """Appends records without keys to the topic's only partition."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class BrokerLog:
    """A log over the Kafka protocol."""

    def __init__(self, address: str) -> None:
        from penstock.client import Client, Producer

        self._client = Client(address, client_id="penstock-demo", patience_s=PATIENCE_S)
        self._producer = Producer(address, client_id="penstock-demo", patience_s=PATIENCE_S)

    def create_topic(self, topic: str) -> None:
        """Creates a topic of one partition where there is none."""
        self._client.create_topic(topic, 1, exists_ok=True)

    def end_offset(self, topic: str) -> int:
        """The offset that the next record will have."""
        return self._client.offsets(topic, "latest")[0]

    def send(self, topic: str, values: pa.Array[Any], timestamps_ms: np.ndarray) -> None:
        """Appends records without keys."""
        self._producer.send(topic, 0, None, values, timestamps_ms)

    def close(self) -> None:
        """Ends the connections."""
        with suppress(PenstockError, OSError):
            self._producer.close()
        with suppress(PenstockError, OSError):
            self._client.close()


class LogFeed(Feed):
    """A feed of one log after another.

    Args:
        connect: gives a log, or raises `BrokerError` or `OSError` while there is none yet.
        clock_ms: the wall clock, milliseconds since 1970 UTC.
    """

    def __init__(self, connect: Callable[[], FeedLog], clock_ms: Callable[[], int]) -> None:
        super().__init__()
        self._connect = connect
        self._clock_ms = clock_ms

    def _run(self) -> None:
        log = self._connect()
        try:
            self._feed(log)
        finally:
            log.close()

    @abstractmethod
    def _feed(self, log: FeedLog) -> None:
        """Feeds until there is no more (and sets `finished`), a stop, or the log's end."""

    def _now(self, count: int) -> np.ndarray:
        return np.full(count, self._clock_ms(), np.int64)


class SampleFeed(LogFeed):
    """Sends what a sampler sees, every second."""

    def __init__(
        self, connect: Callable[[], FeedLog], clock_ms: Callable[[], int], sampler: Sampler
    ) -> None:
        super().__init__(connect, clock_ms)
        self._sampler = sampler
        self._unsent: dict[str, list[Row]] = {}

    def _feed(self, log: FeedLog) -> None:
        for topic in TOPICS:
            log.create_topic(topic)
        while not self.stopping.is_set():
            self._unsent = self._unsent or self._sampler.sample()
            self._send(log, self._unsent)
            self.stopping.wait(SAMPLE_S)

    def _send(self, log: FeedLog, sample: dict[str, list[Row]]) -> None:
        """Sends a sample topic by topic, and forgets each that is sent: a retry won't repeat it."""
        for topic in list(sample):
            values = pa.array([orjson.dumps(row) for row in sample[topic]], pa.binary())
            log.send(topic, values, self._now(len(values)))
            self.sent += len(values)
            del sample[topic]


class LineFeed(LogFeed):
    """Sends an access log's lines, each once.

    Args:
        connect: as in `LogFeed`.
        clock_ms: as in `LogFeed`.
        lines: where they come from.
        first_offset: the offset of the first line in the topic.
        on_file: called with the device and inode of each file that is begun, and its first line's offset.
    """

    def __init__(
        self,
        connect: Callable[[], FeedLog],
        clock_ms: Callable[[], int],
        lines: Lines,
        first_offset: int = 0,
        on_file: Callable[[tuple[int, int], int], None] | None = None,
    ) -> None:
        super().__init__(connect, clock_ms)
        self.lines = lines
        self.bad = 0
        self._blocks = lines.blocks(self._begin_file)
        self._block: Sequence[bytes] = ()
        self._block_offset = first_offset
        self._on_file = on_file

    def _feed(self, log: FeedLog) -> None:
        log.create_topic(WEBLOG_TOPIC)
        while not self.stopping.is_set():
            end = log.end_offset(WEBLOG_TOPIC)
            if end >= self._block_offset + len(self._block):
                if not self._next_block():
                    self.finished.set()
                    return
                continue
            self._send_rest(log, end - self._block_offset)

    def _next_block(self) -> bool:
        self._block_offset += len(self._block)
        block = next(self._blocks, None)
        self._block = block or ()
        return block is not None

    def _begin_file(self, identity: tuple[int, int]) -> None:
        """Called while the next block is fetched: all before it is in the log."""
        if self._on_file is not None:
            self._on_file(identity, self._block_offset)

    def _send_rest(self, log: FeedLog, begin: int) -> None:
        for lo in range(begin, len(self._block), LINES_MAX):
            values, bad = values_of_lines(self._block[lo : lo + LINES_MAX])
            log.send(WEBLOG_TOPIC, values, self._now(len(values)))
            self.sent += len(values)
            self.bad += bad
            if self.stopping.is_set():
                return
