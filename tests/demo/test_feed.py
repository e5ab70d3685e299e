"""Feeders, over a log that tests make up: it fails when they say."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until

from penstock.demo import feed as feed_module
from penstock.demo.feed import WEBLOG_TOPIC, LineFeed, SampleFeed
from penstock.demo.machine import Sampler
from penstock.errors import BrokerError, UserError
from penstock.files import feed as files_feed
from penstock.files.lines import Lines

LINE = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /%d HTTP/1.1" 200 1\n'


class FakeLog:
    """Topics as lists. `faults` says what each send does: None, or fail before or after it is stored."""

    def __init__(self, *faults: str | None) -> None:
        self.topics: dict[str, list[bytes]] = {}
        self.faults = list(faults)
        self.connections = 0

    def connect(self) -> FakeLog:
        self.connections += 1
        return self

    def create_topic(self, topic: str) -> None:
        self.topics.setdefault(topic, [])

    def end_offset(self, topic: str) -> int:
        return len(self.topics[topic])

    def send(self, topic: str, values: pa.Array[Any], timestamps_ms: np.ndarray) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault == "before":
            raise BrokerError("gone", retriable=True)
        self.topics[topic] += values.to_pylist()
        if fault == "after":
            raise BrokerError("no answer", retriable=True)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_feed, "RETRY_S", 0.001)
    monkeypatch.setattr(feed_module, "SAMPLE_S", 0.001)
    monkeypatch.setattr(feed_module, "LINES_MAX", 3)


def lines_of(path: Path) -> Lines:
    return Lines(str(path), follow=False, stop=threading.Event())


def paths(log: FakeLog) -> list[str]:
    return [json.loads(value)["path"] for value in log.topics[WEBLOG_TOPIC]]


@pytest.mark.parametrize(
    "faults", [(), ("before",), ("after",), (None, "after", "before", "after")]
)
def test_every_line_is_sent_once_whatever_the_broker_does(
    tmp_path: Path, faults: tuple[str | None, ...]
) -> None:
    """A send that failed is repeated, and one that was stored without an answer is not."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(LINE % i for i in range(10)))
    log = FakeLog(*faults)
    feed = LineFeed(log.connect, lambda: 0, lines_of(path))
    feed.start()
    assert feed.finished.wait(PATIENCE_S)
    assert paths(log) == [f"/{i}" for i in range(10)]
    assert feed.error is None


def test_a_second_feeder_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    """A line's offset is its number: what is in the log already is not sent again."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(LINE % i for i in range(10)))
    log = FakeLog()
    log.topics[WEBLOG_TOPIC] = [b"an older file's"] * 2 + [b'{"path":"/0"}'] * 4
    files: list[int] = []
    feed = LineFeed(
        log.connect, lambda: 0, lines_of(path), 2, lambda _, offset: files.append(offset)
    )
    feed.start()
    assert feed.finished.wait(PATIENCE_S)
    assert [json.loads(v)["path"] for v in log.topics[WEBLOG_TOPIC][6:]] == [
        f"/{i}" for i in range(4, 10)
    ]
    assert files == [2]


def test_what_is_wrong_with_the_file_is_reported(tmp_path: Path) -> None:
    """An error that isn't the broker's ends the feed and is kept for whoever runs the pipeline."""
    path = tmp_path / "log"
    path.write_bytes(b"\x1f\x8bnot gzip after all")
    feed = LineFeed(FakeLog().connect, lambda: 0, lines_of(path))
    feed.start()
    assert feed.finished.wait(PATIENCE_S)
    assert isinstance(feed.error, UserError)


def test_samples_go_on_after_the_broker_was_away() -> None:
    """The sampler outlives a broker, and sends no sample twice."""
    log = FakeLog(None, "before", "before")
    ticks = itertools.count(0, 1_000_000)
    feed = SampleFeed(log.connect, lambda: 0, Sampler(lambda: next(ticks)))
    feed.start()
    wait_until(lambda: len(log.topics.get("memory", ())) >= 5, "five samples")
    feed.stop()
    times = [json.loads(value)["at"] for value in log.topics["memory"]]
    assert len(times) >= 5
    assert len(set(times)) == len(times)
    assert log.connections == 3
