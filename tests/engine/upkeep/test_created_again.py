"""Topics that are deleted and created again while a pipeline runs, on a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.client.topic_admin import TopicAdmin
from penstock.engine.driver import TOPICS_EVERY_S, Driver
from penstock.engine.hosts.local import LocalHost
from penstock.engine.log import KafkaLog
from penstock.engine.plan import Work
from penstock.engine.record.report import Report
from penstock.engine.runtime import assemble
from penstock.engine.store import Store
from penstock.errors import BrokerError, FlowError
from penstock.state import MemoryStateFiles

AGAIN = r"the topic 't' .* deleted and created again: run the pipeline with --rebuild"


class Pipeline:
    """A pipeline that has read ten records, as it runs."""

    def __init__(self, address: str) -> None:
        self.address = address
        app = ps.App("p")
        app.view("n", app.stream("t", "v BIGINT").group_by("v").agg(n=ps.count()))
        files = MemoryStateFiles()
        self.log = KafkaLog(address, patience_s=5.0)
        job, self.driver = assemble(
            app.graph(),
            Store(files),
            self.log,
            cores=1,
            open_store=lambda: Store(files),
            open_log=lambda: self.log,
        )
        assert isinstance(self.driver, Driver)
        self.host = LocalHost(job)
        self.send(10)
        assert self.step() == 10

    def send(self, count: int) -> None:
        with Producer(self.address) as producer:
            values = pa.array([b'{"v": 1}'] * count, pa.binary())
            producer.send("t", 0, None, values, np.zeros(count, np.int64))

    def create_again(self, count: int) -> None:
        """Another topic of the name, with so many records."""
        with Client(self.address) as client:
            client.delete_topic("t")
            client.create_topic("t", 1, {"retention.ms": "-1"})
        if count:
            self.send(count)

    def step(self, timeout_s: float = 0.2) -> int | None:
        progress = self.driver.step(self.host.execute, timeout_s=timeout_s)
        return None if progress is None else progress.rows


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """One on a broker of its own."""
    with BrokerProcess(tmp_path / "log") as broker:
        one = Pipeline(broker.address)
        yield one
        one.log.close()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("count", [0, 4, 10, 25])
def test_another_topic_is_noticed_while_the_pipeline_runs(pipeline: Pipeline, count: int) -> None:
    """As when the pipeline starts: with what to do, before a record of the new one is read."""
    assert pipeline.step() is None
    pipeline.create_again(count)
    if count == 10:  # it is as long, and is noticed when the ids are asked for
        pipeline.driver._topics_looked_s = -TOPICS_EVERY_S
    if count > 10:  # the driver sees an end that it expects, lanes don't read it
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_ID") as failure:
            pipeline.step()
        assert failure.value.retriable
    for _ in range(2):
        with pytest.raises(FlowError, match=AGAIN):
            pipeline.step()
    assert pipeline.driver.version.offsets == {"t": {0: 10}}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("count", [0, 25])
def test_another_topic_is_noticed_by_lanes(pipeline: Pipeline, count: int) -> None:
    """Between the plan of a batch and its reading, too."""
    pipeline.send(5)

    def execute(work: Work) -> list[Report]:
        pipeline.create_again(count)
        return pipeline.host.execute(work)

    with pytest.raises(BrokerError) as failure:
        pipeline.driver.step(execute)
    assert failure.value.retriable
    with pytest.raises(FlowError, match=AGAIN):
        pipeline.step()


@pytest.mark.slow
def test_what_retention_removes_ahead_of_a_running_pipeline_is_counted(pipeline: Pipeline) -> None:
    """Its next offset is out of range, too, but the topic is the same."""
    assert pipeline.step() is None
    pipeline.send(5)
    with TopicAdmin(pipeline.address) as admin:
        admin.trim("t", {0: 13})
    assert pipeline.step() == 2
    assert pipeline.driver.version.offsets == {"t": {0: 15}}


@pytest.mark.slow
def test_a_topic_that_is_gone_is_waited_for(pipeline: Pipeline) -> None:
    """It may come back, as from a copy; the pipeline isn't ended by one look."""
    with Client(pipeline.address) as client:
        client.delete_topic("t")
    with pytest.raises(BrokerError, match="'t'") as failure:
        pipeline.step()
    assert failure.value.retriable
