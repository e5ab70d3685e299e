"""What the page says while the real processes are stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port
from tests.web.browsing import chromium, visit
from tests.web.processes import Program, ui

from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.web.health import State

PROGRAM = Path(__file__).with_name("truth_program.py")
WAITING = 25_000
HEARD_US = 30_000_000
"""A log that answers was heard of later than so long ago, on a busy machine too: it is asked each second."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]


def send(address: str, count: int, partition: int = 0) -> None:
    """Appends so many clicks to one partition."""
    at = int(time.time() * 1_000)
    value = orjson.dumps({"user": "ann", "at": at})
    producer = Producer(address)
    times = np.full(count, at, np.int64)
    producer.send("clicks", partition, None, pa.array([value] * count, pa.binary()), times)
    producer.close()


def sent(address: str) -> int:
    """How many clicks there are, of this test and of those that ran before it."""
    with Client(address) as client:
        return sum(client.offsets("clicks", "latest").values())


def signal_all(processes: list[psutil.Process], number: int) -> None:
    """Signals those that are still there: while Spark starts, some start it, and others stand in for it."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(folder / "log", listen=f"127.0.0.1:{free_port()}")
    process.start()
    with Client(process.address) as client:
        client.create_topic("clicks", 2, configs={"retention.ms": "-1"})
    yield process
    process.stop()


def run(folder: Path, address: str) -> Program:
    port = free_port()
    return Program(folder, str(PROGRAM), "shop.penstock", address, str(port), port=port)


@pytest.fixture(scope="module")
def pipeline(folder: Path, broker: BrokerProcess) -> Iterator[Program]:
    """One pipeline, started once: what it goes through in these tests is one life."""
    program = run(folder, broker.address)
    yield program
    program.end()


def test_a_pipeline_without_events_waits_for_them(
    pipeline: Program, broker: BrokerProcess, folder: Path
) -> None:
    """It is not starting for ever; with the first events it is live, and `penstock ui` says the same."""
    status = pipeline.wait_for(State.WAITING)
    assert "clicks" in status["state"]["advice"]
    assert status["lag"] == 0
    send(broker.address, 10)
    assert pipeline.wait_for(State.LIVE)["rows"] == 10
    beside = ui(folder)
    try:
        assert beside.wait_for(State.WAITING, lambda s: s["lag"] == 0)["rows"] == 10
    finally:
        beside.end()


def test_a_silent_partition_is_named_since_it_holds_the_watermark(
    pipeline: Program, broker: BrokerProcess
) -> None:
    """The page says which partition windows wait for and since when; no longer once it has sent something."""
    pipeline.wait_for(State.WAITING)
    send(broker.address, 1)
    held = lambda: pipeline.status().get("sources", {}).get("clicks", {})  # noqa: E731
    wait_until(lambda: held().get("held_by") == "partition 1", held)
    since_us = held()["held_since_us"]
    assert since_us <= time.time_ns() // 1_000
    since = datetime.fromtimestamp(since_us // 1_000_000, UTC).strftime("%H:%M:%S")
    with chromium() as browser, visit(browser, pipeline.url) as page:
        cell = page.locator("#topics td", has_text="partition 1 since")
        cell.wait_for()
        assert since in cell.inner_text()
        send(broker.address, 1, partition=1)
        cell.wait_for(state="detached")
    assert held()["held_by"] != "partition 1"


def test_an_engine_that_is_stopped_is_not_called_live(
    pipeline: Program, broker: BrokerProcess
) -> None:
    """SIGSTOP for all of Spark, with records in the log: they are seen to wait, and then nothing moves."""
    pipeline.wait_for(State.WAITING)
    stopped = pipeline.engine()
    signal_all(stopped, signal.SIGSTOP)
    try:
        send(broker.address, WAITING)
        behind = pipeline.wait_for(State.BEHIND, lambda s: s["lag"] == WAITING)
        assert f"{WAITING:,} records wait" in behind["state"]["reason"]
        stalled = pipeline.wait_for(State.STALLED)
        assert stalled["state"]["level"] == "bad"
        assert stalled["lag"] == WAITING
        assert stalled["state"]["since_us"] < stalled["now_us"] - 10_000_000
        with chromium() as browser, visit(browser, pipeline.url) as page:
            page.wait_for_selector("#health.bad b:text('stalled')")
            assert "25,000 records wait" in page.inner_text("#health")
            assert page.locator("#dot.good").count() == 0
            signal_all(stopped, signal.SIGCONT)
            page.wait_for_selector("#dot.good")
            assert "stalled" not in page.inner_text("header")
    finally:
        signal_all(stopped, signal.SIGCONT)
    pipeline.wait_for(State.WAITING, lambda s: s["rows"] == sent(broker.address))


def test_a_broker_that_is_gone_is_reported_with_its_time(
    pipeline: Program, broker: BrokerProcess
) -> None:
    """Killed, the log is unreachable, and the lag unknown; when it is back the pipeline goes on."""
    pipeline.wait_for(State.WAITING)
    before_us = time.time_ns() // 1_000
    broker.kill()
    status = pipeline.wait_for(State.LOG_UNREACHABLE)
    assert abs(status["state"]["since_us"] - before_us) < HEARD_US
    assert "refused" in status["state"]["reason"]
    assert broker.address in status["state"]["advice"]
    assert status["lag"] is None
    broker.start()
    pipeline.wait_for(State.WAITING)
    send(broker.address, 5)
    pipeline.wait_for(State.LIVE, lambda s: s["rows"] == sent(broker.address))


def test_a_restarted_pipeline_is_not_starting_for_ever(
    pipeline: Program, broker: BrokerProcess, folder: Path
) -> None:
    """Stopped in order, it says so; killed, the system does; started again without events, it waits."""
    beside = ui(folder)
    try:
        beside.wait_for(State.WAITING)
        send(broker.address, 5)
        beside.wait_for(State.WAITING, lambda s: s["rows"] == sent(broker.address))
        pipeline.process.terminate()
        assert pipeline.process.wait(PATIENCE_S) == 0
        stopped = beside.wait_for(State.STOPPED)
        assert stopped["lag"] is None
        assert stopped["rows"] == sent(broker.address)
        assert "truth_program.py" in stopped["state"]["advice"]
        again = run(folder, broker.address)
        try:
            status = again.wait_for(State.WAITING)
            assert status["rows"] == sent(broker.address), "counted since the state was begun"
            beside.wait_for(State.WAITING)
            os.kill(again.process.pid, signal.SIGSTOP)
            assert "kill -CONT" in beside.wait_for(State.STALLED)["state"]["advice"]
            os.kill(again.process.pid, signal.SIGCONT)
            beside.wait_for(State.WAITING)
            again.process.kill()
            assert beside.wait_for(State.KILLED)["state"]["level"] == "bad"
        finally:
            again.end()
    finally:
        beside.end()


def test_a_wrong_address_is_reported(folder: Path) -> None:
    """Before the first batch as well: nothing starts where no log answers."""
    address = f"127.0.0.1:{free_port()}"
    program = run(folder, address)
    try:
        status = program.wait_for(State.LOG_UNREACHABLE)
        assert "never answered" in status["state"]["reason"]
        assert address in status["state"]["advice"]
    finally:
        program.end()
