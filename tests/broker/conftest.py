"""A broker for all tests of the package, and a client that sends what no proper client would."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.wire import batches
from penstock.wire.messages import request_codec, response_codec
from penstock.wire.protocol import ApiKey

API_VERSIONS = ApiKey.API_VERSIONS
NOW_MS = time.time_ns() // 1_000_000
"""Records are of today: retention would remove older ones in the middle of a test."""
WITHOUT_RETENTION = ("--retention-interval-ms", "86400000")
"""For brokers that tests send records from 1970, as `batches.build` makes them by itself: they stay
where a test takes longer than the usual 30 s.
"""
_names = itertools.count()


class Raw:
    """A connection that sends single requests, whole or not."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.correlation = 0
        self.client_id = b"test"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
        """A request's frame."""
        self.correlation += 1
        size = len(self.client_id)
        head = struct.pack(">hhih", key, version, self.correlation, size) + self.client_id
        head += b"\0" if flexible else b""
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, key: int, version: int, fields: dict[str, Any]) -> None:
        """Sends a request."""
        codec = request_codec(key, version)
        body = bytes(codec.encode(fields))
        self.socket.sendall(self.frame(key, version, body, flexible=codec.flexible))

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes; ConnectionError if the peer closes before."""
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionError("closed")
            data += more
        return bytes(data)

    def receive(self, key: int, version: int) -> dict[str, Any]:
        """The next answer's fields."""
        data = self.exactly(int.from_bytes(self.exactly(4), "big"))
        codec = response_codec(key, version)
        assert int.from_bytes(data[:4], "big") <= self.correlation
        return codec.decode(data[5 if codec.flexible and key != API_VERSIONS else 4 :])

    def call(self, key: int, version: int, /, **fields: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer."""
        self.send(key, version, fields)
        return self.receive(key, version)

    def produce(
        self, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = 1
    ) -> dict[str, Any]:
        """Produces a batch; the partition's part of the answer."""
        part = {"index": partition, "records": bytes(batch)}
        data = [{"name": topic, "partition_data": [part]}]
        answer = self.call(ApiKey.PRODUCE, 9, acks=acks, timeout=1000, topic_data=data)
        found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return found

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, max_wait: int = 0, **more: Any
    ) -> dict[str, Any]:
        """Fetches from one partition; its part of the answer."""
        self.send_fetch(topic, offset, partition=partition, max_wait=max_wait, **more)
        found: dict[str, Any] = self.receive(1, 11)["responses"][0]["partitions"][0]
        return found

    def send_fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> None:
        """Sends a fetch of one partition."""
        part = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": max_bytes,
            "current_leader_epoch": -1,
            "log_start_offset": -1,
        }
        self.send(
            1,
            11,
            {
                "max_wait": max_wait,
                "min_bytes": min_bytes,
                "max_bytes": max_bytes,
                "session_epoch": -1,
                "topics": [{"topic": topic, "partitions": [part]}],
            },
        )


def sample(count: int = 1, size: int = 10, **options: Any) -> bytearray:
    """A batch of `count` records of `size` bytes."""
    return batches.build([(None, bytes(size))] * count, timestamps_ms=[NOW_MS] * count, **options)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests share."""
    data = tmp_path_factory.mktemp("shared") / "data"
    with BrokerProcess(data, arguments=WITHOUT_RETENTION) as process:
        yield process


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    """Where the shared broker listens."""
    assert broker.is_running(), "an earlier test ended the shared broker"
    return broker.address


@pytest.fixture
def raw(address: str) -> Iterator[Raw]:
    """A raw connection to the shared broker."""
    with Raw(address) as connection:
        yield connection


@pytest.fixture
def connect() -> Callable[[str], Raw]:
    """Makes raw connections."""
    return Raw


@pytest.fixture(scope="module")
def connect_any() -> Callable[[str], Raw]:
    """Makes raw connections for fixtures that a module's tests share."""
    return Raw


@pytest.fixture
def make_batch() -> Callable[..., bytearray]:
    """Makes batches of simple records."""
    return sample


@pytest.fixture
def topic(raw: Raw) -> str:
    """A new topic with two partitions, which keeps records however old their timestamps are."""
    name = f"topic-{next(_names)}"
    configs = [{"name": "retention.ms", "value": "-1"}]
    wanted = {"name": name, "num_partitions": 2, "replication_factor": 1, "configs": configs}
    answer = raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    assert answer["topics"][0]["error_code"] == 0
    return name


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, not started yet."""
    process = BrokerProcess(tmp_path / "data", arguments=WITHOUT_RETENTION)
    yield process
    process.kill()
