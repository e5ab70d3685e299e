"""The states of a pipeline that `test_truth` doesn't meet, each with the real process."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port
from tests.web.browsing import chromium, visit
from tests.web.processes import Program, ui

from penstock.app.facts import FILE
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.web.health import State

PROGRAM = Path(__file__).with_name("states_program.py")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(folder / "log") as process:
        with Client(process.address) as client:
            client.create_topic("clicks", 2, configs={"retention.ms": "-1"})
        send(process.address, 10)
        yield process


@pytest.fixture(scope="module")
def beside(folder: Path, broker: BrokerProcess) -> Iterator[Program]:
    """A page that sees the pipeline come and go."""
    (folder / "shop.penstock").mkdir()
    with running(folder, broker, "per_user_first") as first:
        first.wait_for(State.WAITING, lambda s: s["rows"] == 10)
    program = ui(folder)
    yield program
    program.end()


def send(address: str, count: int) -> None:
    """Appends so many clicks."""
    value = orjson.dumps({"user": "ann", "at": "2026-01-01T00:00:00Z"})
    with Producer(address) as producer:
        times = np.full(count, time.time_ns() // 1_000_000, np.int64)
        producer.send("clicks", 0, None, pa.array([value] * count, pa.binary()), times)


def gate(folder: Path) -> Path:
    """The file without which the pipeline doesn't work."""
    return folder / "gate"


@contextmanager
def running(
    folder: Path, broker: BrokerProcess, *views: str, held: bool = False
) -> Iterator[Program]:
    """The pipeline with these views besides; killed at the end unless it has ended."""
    gate(folder).unlink(missing_ok=True)
    if not held:
        gate(folder).touch()
    port = free_port()
    arguments = ("shop.penstock", broker.address, str(port), str(gate(folder)), *views)
    program = Program(folder, str(PROGRAM), *arguments, port=port)
    try:
        yield program
    finally:
        program.end()


def test_new_views_are_backfilled_in_sight(
    folder: Path, broker: BrokerProcess, beside: Program
) -> None:
    """How much is made and since when; the views of before answer meanwhile; then it waits for events."""
    before_us = time.time_ns() // 1_000
    with running(folder, broker, "per_user_first", "second", held=True) as program:
        for page in (program, beside):
            state = page.wait_for(State.BACKFILLING)["state"]
            assert state["level"] == "wait"
            assert before_us < state["since_us"] <= time.time_ns() // 1_000
            assert "10 remain) of second" in state["reason"]
            assert "previous views answer" in state["advice"]
        with chromium() as browser, visit(browser, program.url) as page:
            page.wait_for_selector("#health b:text('backfilling')")
            assert "previous views answer" in page.inner_text("#health")
        gate(folder).touch()
        program.wait_for(State.WAITING, lambda s: s["rows"] == 10)


def test_a_process_that_is_suspended_while_it_starts_is_not_starting_for_ever(
    folder: Path, broker: BrokerProcess, beside: Program
) -> None:
    """With a first batch that takes long it starts; suspended, it is stalled; resumed, it catches up."""
    send(broker.address, 1)
    with running(folder, broker, "per_user_first", "second", held=True) as program:
        starting = beside.wait_for(State.STARTING)["state"]
        assert (starting["level"], starting["reason"] != "") == ("wait", True)
        os.kill(program.process.pid, signal.SIGSTOP)
        stalled = beside.wait_for(State.STALLED)["state"]
        assert "has not reported since" in stalled["reason"]
        assert f"kill -CONT {program.process.pid}" in stalled["advice"]
        os.kill(program.process.pid, signal.SIGCONT)
        gate(folder).touch()
        program.wait_for(State.WAITING, lambda s: s["lag"] == 0)


def test_a_pipeline_that_ends_its_batch_is_stopping(
    folder: Path, broker: BrokerProcess, beside: Program
) -> None:
    """Told to end while a batch is in flight: since when, and what helps where that takes too long."""
    with running(folder, broker, "per_user_first", "second") as program:
        program.wait_for(State.WAITING)
        gate(folder).unlink()
        send(broker.address, 1)
        wait_until(lambda: program.status()["lag"] == 1, "the record to wait")
        before_us = time.time_ns() // 1_000
        program.process.send_signal(signal.SIGTERM)
        state = beside.wait_for(State.STOPPING)["state"]
        assert state["level"] == "wait"
        assert before_us <= state["since_us"] <= time.time_ns() // 1_000
        assert "batch in flight" in state["reason"]
        assert f"kill -9 {program.process.pid}" in state["advice"]
        gate(folder).touch()
        assert program.process.wait(PATIENCE_S) == 0
        beside.wait_for(State.STOPPED)


def test_a_pipeline_that_an_error_ends_has_failed(
    folder: Path, broker: BrokerProcess, beside: Program
) -> None:
    """Its topic is deleted under it: the error, when it came, and how to start it again."""
    with running(folder, broker, "per_user_first", "second") as program:
        program.wait_for(State.WAITING)
        before_us = time.time_ns() // 1_000
        with Client(broker.address) as client:
            client.delete_topic("clicks")
            client.create_topic("clicks", 2, configs={"retention.ms": "-1"})
        assert program.process.wait(PATIENCE_S) != 0
        state = beside.wait_for(State.FAILED)["state"]
        assert state["level"] == "bad"
        assert before_us <= state["since_us"] <= time.time_ns() // 1_000
        assert "clicks" in state["reason"]
        assert "states_program.py" in state["advice"]
        with chromium() as browser, visit(browser, beside.url) as page:
            page.wait_for_selector("#health.bad b:text('failed')")


def test_a_state_without_a_process_is_unknown(folder: Path, beside: Program) -> None:
    """Copied from another machine: its views answer, and the page says that no process has reported."""
    copied = folder / "copied.penstock"
    shutil.copytree(folder / "shop.penstock" / "state", copied / "state")
    assert not (copied / FILE).exists()
    program = ui(folder, "copied")
    try:
        status = program.wait_for(State.UNKNOWN)
        assert status["state"]["since_us"] is None
        assert "No process has reported" in status["state"]["reason"]
        assert "penstock run" in status["state"]["advice"]
        assert status["rows"] >= 10
    finally:
        program.end()
