"""A lane whose process is suspended: Spark doesn't know, so the pipeline has to do without it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import wait_until

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Producer
from penstock.engine.lanes import conductor
from penstock.engine.lanes.messages import BEAT_S
from penstock.engine.log import KafkaLog
from penstock.engine.runtime import assemble, open_log, open_store
from penstock.engine.spark.host import SparkHost
from penstock.engine.spark.session import Spark, start_context
from penstock.serve import Snapshot

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Suspending:
    """Runs one batch, suspends a lane of Spark's, and has the host run batches as ever."""

    def __init__(self, driver: Any, host: SparkHost, producer: Producer) -> None:
        self.driver, self.host, self.producer = driver, host, producer
        self.pid = 0
        self.is_over = False

    def send(self) -> None:
        values = pa.array([b'{"v": 1}', b'{"v": 2}'], pa.binary())
        self.producer.send("t", 0, None, values, np.zeros(2, np.int64))

    def step(self, execute: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
        if not self.pid:
            self.send()
            assert self.driver.step(execute) is not None
            standing = self.host._standing
            assert standing is not None
            wait_until(lambda: standing.listen() or standing.is_settled, "Spark's lanes")
            assert self.driver.step(execute) is None
            self.pid = standing._conductor.pids[0]
            os.kill(self.pid, signal.SIGSTOP)
            self.send()
        progress = self.driver.step(execute, timeout_s=timeout_s, aside=aside)
        self.is_over = self.is_over or progress is not None
        return progress


def test_another_job_takes_the_place_of_one_with_a_suspended_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the lane has said nothing for some time; its process is ended, and nothing is lost or twice."""
    monkeypatch.setattr(conductor, "SILENCE_S", 3 * BEAT_S)
    app = ps.App("p")
    app.view("n", app.stream("t", "v BIGINT").group_by("v").agg(n=ps.count()))
    state = str(tmp_path / "state")
    with BrokerProcess(tmp_path / "log") as broker:
        log, store = KafkaLog(broker.address), open_store(state)
        job, driver = assemble(
            app.graph(),
            store,
            log,
            cores=2,
            open_store=functools.partial(open_store, state),
            open_log=functools.partial(open_log, broker.address),
        )
        context = start_context("suspended", None, tmp_path / "spark", cores=2)
        try:
            host = SparkHost(Spark(context), job, lanes=driver.lanes, log=str(tmp_path / "log.txt"))
            with Producer(broker.address) as producer:
                steps = Suspending(driver, host, producer)
                host.run(steps, lambda _: None, lambda: steps.is_over)
            wait_until(lambda: not _is_there(steps.pid), "the suspended process to end")
        finally:
            context.stop()
            log.close()
    rows = Snapshot(store, store.version(store.newest_version())).table("n").to_pylist()
    assert sorted((row["v"], row["n"]) for row in rows) == [(1, 2), (2, 2)]


def _is_there(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
