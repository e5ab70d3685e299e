"""The program with every operator comes to the same bytes on Spark and a broker as in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.engine.hosts.everything import everything, waves
from tests.engine.hosts.looks import content, difference

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer, Reader
from penstock.core.time import instant_us
from penstock.engine.log import KafkaLog
from penstock.engine.runtime import assemble, open_log, open_store
from penstock.engine.spark.host import SparkHost
from penstock.engine.spark.session import Spark, start_context
from penstock.testing import Record
from penstock.wire.columns import header

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NOW = "2026-01-02T00:00:00Z"
STEP_US = 10_000_000


class Clock:
    """What the wall clock shows."""

    def __init__(self) -> None:
        self.now_us = instant_us(NOW)

    def __call__(self) -> int:
        return self.now_us


def scenario(send: Callable[[list[Any]], None], step: Callable[[], Any], clock: Clock) -> None:
    """Some batches: what is sent before each, and how the clock goes on."""
    for wave in waves(7, 3, 60):
        send(wave)
        step()
        for _ in range(2):
            step()
            clock.now_us += STEP_US
    while step() is not None:
        pass


class Driven:
    """Has a host run the scenario as if it were one step."""

    def __init__(self, driver: Any, send: Callable[[list[Any]], None], clock: Clock) -> None:
        self.driver, self.send, self.clock = driver, send, clock
        self.is_over = False

    def step(self, execute: Any, *, timeout_s: float = 0.0, aside: Any = None) -> None:
        assert timeout_s
        if not self.is_over:
            scenario(self.send, functools.partial(self.driver.step, execute), self.clock)
            self.is_over = True


def sent_to(producer: Producer, wave: list[Any]) -> None:
    """Sends a wave, each partition's records in their order."""
    for place in sorted({(topic, partition) for topic, partition, *_ in wave}):
        rows = [row[2:] for row in wave if row[:2] == place]
        keys, values = (pa.array([row[i] for row in rows], pa.binary()) for i in (0, 1))
        producer.send(*place, keys, values, np.array([row[2] for row in rows], np.int64))


def read(address: str, topics: list[str]) -> dict[str, list[Record]]:
    """All records of some topics."""
    found: dict[str, list[Record]] = {topic: [] for topic in topics}
    with Client(address) as client, Reader(address) as reader:
        for topic in topics:
            for partition, end in client.offsets(topic, "latest").items():
                for records in reader.read(topic, partition, 0, end):
                    keys, values = records.keys().to_pylist(), records.values().to_pylist()
                    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
                        headers = {n: (b or b"").decode() for n, b in header(records, i)}
                        at_ms = int(records.timestamp_ms[i])
                        record = Record(
                            partition, int(records.offset[i]), key, value, at_ms, headers
                        )
                        found[topic].append(record)
    return found


def in_this_process() -> dict[str, Any]:
    """What `ps.testing` makes of the scenario."""
    run = ps.testing.run(everything(), cores=2, now=NOW)
    clock = Clock()

    def send(wave: list[Any]) -> None:
        for topic, partition, key, value, at_ms in wave:
            run.send_raw(topic, value, key=key, partition=partition, timestamp_ms=at_ms)

    def step() -> Any:
        run._clock_us = clock.now_us
        return run.step()

    scenario(send, step, clock)
    return content(run.store, {topic: run.log.records(topic) for topic in run.log.topics})


def test_spark_agrees(tmp_path: Path) -> None:
    """Topics, dead letters, views, counts, and every byte of state."""
    graph, clock, state = everything().graph(), Clock(), str(tmp_path / "state")
    with BrokerProcess(tmp_path / "log") as broker:
        log, store = KafkaLog(broker.address), open_store(state)
        job, driver = assemble(
            graph,
            store,
            log,
            cores=2,
            open_store=functools.partial(open_store, state),
            open_log=functools.partial(open_log, broker.address),
            wall_us=clock,
        )
        context = start_context("agree", None, tmp_path / "spark", cores=2)
        try:
            host = SparkHost(
                Spark(context),
                job,
                lanes=driver.lanes,
                log=str(tmp_path / "spark.log"),
            )
            with Producer(broker.address) as producer:
                driven = Driven(driver, functools.partial(sent_to, producer), clock)
                host.run(driven, lambda _: None, lambda: driven.is_over)
        finally:
            context.stop()
        expected = in_this_process()
        topics = read(broker.address, sorted(expected["topics"]))
        log.close()
    assert all(topics.values()), "each topic has records"
    assert difference(expected, content(store, topics)) is None
