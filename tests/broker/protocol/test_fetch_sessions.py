from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from penstock.broker.protocol import fetch_sessions
from penstock.broker.protocol.fetch_sessions import IDLE_S, FetchSessions
from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ErrorCode

Raw = Any


class Reader:
    """A client of a fetch session."""

    def __init__(self, raw: Raw, topic: str) -> None:
        self.raw, self.topic = raw, topic
        self.id = self.epoch = 0

    def fetch(
        self, offsets: dict[int, int], *, forget: tuple[int, ...] = (), **more: Any
    ) -> tuple[int, dict[int, tuple[int, int]]]:
        """Fetches; the error, and of each partition in the answer its error and number of batches."""
        parts = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            | {"current_leader_epoch": -1}
            for index, offset in offsets.items()
        ]
        fields = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_id": self.id,
            "session_epoch": self.epoch,
            "topics": [{"topic": self.topic, "partitions": parts}] if parts else [],
            "forgotten_topics_data": (
                [{"topic": self.topic, "partitions": list(forget)}] if forget else []
            ),
        }
        answer = self.raw.call(ApiKey.FETCH, 12, **{**fields, **more})
        if not answer["error_code"]:
            self.id = answer["session_id"]
            self.epoch = self.epoch + 1 if self.id else 0
        found = {
            part["partition_index"]: (
                part["error_code"],
                sum(1 for _ in batches.iterate(part["records"] or b"")),
            )
            for topic in answer["responses"]
            for part in topic["partitions"]
        }
        return answer["error_code"], found


def test_only_what_has_changed(raw: Raw, topic: str, make_batch: Callable[..., bytearray]) -> None:
    """After the first answer only partitions are named of which there is something to say."""
    reader = Reader(raw, topic)
    assert reader.fetch({0: 0, 1: 0}) == (0, {0: (0, 0), 1: (0, 0)})
    assert reader.id > 0
    assert reader.fetch({}) == (0, {})
    assert raw.produce(topic, make_batch(), partition=1)["error_code"] == 0
    assert reader.fetch({}) == (0, {1: (0, 1)})
    assert reader.fetch({}) == (0, {1: (0, 1)})  # it has not moved on
    assert reader.fetch({1: 1}) == (0, {})
    assert raw.produce(topic, make_batch(), partition=0)["error_code"] == 0
    assert raw.produce(topic, make_batch(), partition=1)["error_code"] == 0
    assert reader.fetch({}, forget=(0,)) == (0, {1: (0, 1)})
    assert reader.fetch({0: 0, 1: 2}) == (0, {0: (0, 1)})
    assert reader.fetch({9: 0}) == (0, {0: (0, 1), 9: (3, 0)})
    assert reader.fetch({0: 77}, forget=(9,)) == (0, {0: (1, 0)})


def test_no_partition_starves(raw: Raw, topic: str, make_batch: Callable[..., bytearray]) -> None:
    """Where not all fits into an answer, the partitions take turns."""
    for partition in (0, 1):
        for _ in range(4):
            raw.produce(topic, make_batch(), partition=partition)
    reader = Reader(raw, topic)
    seen = []
    offsets = {0: 0, 1: 0}
    _, found = reader.fetch(offsets, max_bytes=1)
    for _ in range(5):
        (index,) = [one for one, (_, count) in found.items() if count]
        seen.append(index)
        offsets[index] += 1
        _, found = reader.fetch({index: offsets[index]}, max_bytes=1)
    assert sorted(seen[:2]) == sorted(seen[2:4]) == [0, 1]


def test_sessions_that_cannot_go_on(raw: Raw, topic: str) -> None:
    """Unknown sessions and wrong epochs have errors of their own; an ended session is forgotten."""
    reader = Reader(raw, topic)
    assert reader.fetch({0: 0})[0] == 0
    reader.epoch += 1
    assert reader.fetch({})[0] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    reader.epoch -= 1
    assert reader.fetch({})[0] == 0
    other = raw.call(ApiKey.FETCH, 11, session_id=reader.id, session_epoch=reader.epoch, topics=[])
    assert other["error_code"] == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    former = reader.id
    assert reader.fetch({0: 0}, session_epoch=-1) == (0, {0: (0, 0)})
    assert reader.id == 0
    reader.id, reader.epoch = former, 2
    assert reader.fetch({})[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    reader.id, reader.epoch = 0, 0
    assert reader.fetch({0: 0})[0] == 0
    assert reader.fetch({}, forget=(0,)) == (0, {})
    assert reader.id == 0  # nothing was left in it


def test_a_session_waits(
    raw: Raw,
    topic: str,
    connect: Callable[[str], Raw],
    address: str,
    make_batch: Callable[..., bytearray],
) -> None:
    """A long poll of a session ends with the partition that got a record, and no other."""
    reader = Reader(raw, topic)
    reader.fetch({0: 0, 1: 0})
    with connect(address) as writer:
        timer = threading.Timer(0.2, lambda: writer.produce(topic, make_batch(), partition=1))
        timer.start()
        assert reader.fetch({}, max_wait=60_000) == (0, {1: (0, 1)})
        timer.join()
    assert reader.fetch({1: 1}, max_wait=50) == (0, {})


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever clients ask for, sessions and their partitions stay within the limits; an idle
    session makes room, one in use doesn't.
    """
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 5)
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 20)
    for seed in range(20):
        chance = random.Random(seed)
        numbers = itertools.count(1)
        sessions: FetchSessions[int] = FetchSessions(lambda numbers=numbers: next(numbers))
        now_s = 0.0
        for _ in range(200):
            now_s += chance.choice([0.1, 1.0, IDLE_S / 3])
            keys = {(b"t", chance.randrange(12)): 0 for _ in range(chance.randrange(10))}
            number = chance.randrange(1, 60)
            kind = chance.random()
            if kind < 0.4:
                idle = [one for one in sessions if now_s - one.used_s >= IDLE_S]
                begun = sessions.begin(now_s, 0, keys)
                assert begun is not None or not keys or not idle or len(sessions)
            elif kind < 0.9:
                known = sessions.get(number)
                epoch = known.epoch if known is not None and chance.random() < 0.9 else 3
                forgotten = list(known.parts)[:2] if known is not None else []
                sessions.go_on(now_s, number, epoch, 0, keys, forgotten)
            else:
                sessions.end(number)
            sessions.check()


def test_python_client_reads_in_a_session(address: str, topic: str) -> None:
    """kafka-python commits and aborts; its incremental fetches see what was committed, once."""
    script = Path(__file__).with_name("kafka_python_transactions.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, address, topic],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    values = [f"{n}-{i}" for n in (0, 2, 4) for i in range(3)]
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 8), (0, 9), (0, 10)]
    wanted = [[*place, value] for place, value in zip(places, values, strict=True)]
    assert json.loads(done.stdout) == wanted
