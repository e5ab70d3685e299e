"""Share groups over the wire: a group that reads from the start, and members of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from share_worker import GROUP, Worker, configure

from penstock.wire import batches

_names = itertools.count()
Connect = Callable[[str], Any]


@pytest.fixture
def group(raw: Any) -> str:
    """A group that begins at the beginning."""
    name = f"share-{next(_names)}"
    configure(raw, GROUP, name, share_auto_offset_reset="earliest")
    return name


@pytest.fixture
def worker(raw: Any, group: str, topic: str) -> Worker:
    """A member that has joined; the topic has ten records."""
    raw.produce(topic, batches.build([(None, b"%d" % i) for i in range(10)]))
    one = Worker(raw, group, topic)
    answer = one.beat()
    assert answer["error_code"] == 0
    parts = answer["assignment"]["topic_partitions"]
    assert parts == [{"topic_id": one.topic_id, "partitions": [0, 1]}]
    return one


@pytest.fixture
def second(worker: Worker, address: str, connect: Connect) -> Iterator[Worker]:
    """Another member, on a connection of its own."""
    with connect(address) as raw:
        one = Worker(raw, worker.group, worker.topic)
        assert one.beat()["error_code"] == 0
        yield one
