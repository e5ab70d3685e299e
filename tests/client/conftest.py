"""Brokers to run the client against: ours, and Apache Kafka where it can be had."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.patience import PATIENCE_S
from tests.peers import kafka_peer

from penstock.broker.process import BrokerProcess
from penstock.client import Client

_names = (f"topic-{i}" for i in itertools.count())


class Broker(Protocol):
    """A broker that can be killed and started again at the same address."""

    address: str

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...


class Embedded:
    """Our own broker."""

    def __init__(self, data: Path) -> None:
        # tests restart it from threads that end: its life can't hang on theirs
        self._process = BrokerProcess(data, die_with_parent=False).start()
        self.address = self._process.address

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.stop()


class Kafka:
    """Apache Kafka."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process = kafka_peer().KafkaProcess(data)
        self.address = self._process.address

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        self._process = kafka_peer().KafkaProcess(self._data)

    def stop(self) -> None:
        self._process.kill()


KAFKA = pytest.param("kafka", marks=[pytest.mark.peer, pytest.mark.slow])
"""Each process of a quick run would start one for the few of its tests."""


@pytest.fixture(scope="session", params=["embedded", KAFKA])
def broker(request, tmp_path_factory) -> Iterator[Broker]:
    """A broker that all tests share."""
    kind = Embedded if request.param == "embedded" else Kafka
    one = kind(tmp_path_factory.mktemp(request.param))
    yield one
    one.stop()


@pytest.fixture
def embedded(tmp_path) -> Iterator[Broker]:
    """A broker of our own for one test, which may kill it."""
    one = Embedded(tmp_path / "data")
    yield one
    one.stop()


@pytest.fixture
def client(broker) -> Iterator[Client]:
    """A client of the shared broker."""
    with Client(broker.address, patience_s=PATIENCE_S) as one:
        yield one


@pytest.fixture
def topic(client) -> Iterator[str]:
    """A new topic of two partitions."""
    name = next(_names)
    client.create_topic(name, 2, {"retention.ms": "-1"})  # the records' times are long ago
    yield name
    client.delete_topic(name, missing_ok=True)
