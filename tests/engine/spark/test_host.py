"""How a host goes on where a batch fails, without Spark."""

from __future__ import annotations

import errno
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine.spark import host as module
from penstock.engine.spark.host import SparkHost
from penstock.errors import BrokerError, PenstockError

FULL = OSError(errno.ENOSPC, "No space left on device")


def lane_error() -> PenstockError:
    """What a lane says of a full disk."""
    error = PenstockError(
        "expected a task to work; found OSError: [Errno 28] No space left on device"
    )
    error.retriable = True
    return error


class Steps:
    """A driver whose batch fails so often."""

    def __init__(self, error: Exception, failures: int) -> None:
        self.error, self.failures = error, failures

    def step(self, _: Any, *, timeout_s: float = 0.0) -> Any:
        assert timeout_s
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        return "a batch"


class Spark:
    """A session whose JVM is gone as soon as somebody looks; some can be started again."""

    session: Any = None

    def __init__(self, *, can_start_again: bool = True) -> None:
        self.can_start_again, self.starts = can_start_again, 0

    def is_there(self) -> bool:
        return False  # as often as it is asked

    def start_again(self) -> None:
        self.starts += 1


def run(
    monkeypatch: pytest.MonkeyPatch, steps: Steps, spark: Spark | None = None
) -> tuple[list[Any], int]:
    """The batches until there is one, and how often a JVM was started again."""
    monkeypatch.setattr(module, "ROOM_WAIT_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    told: list[None] = []
    host = SparkHost(
        spark or Spark(),  # type: ignore[arg-type]
        job,
        lanes=1,
        host="127.0.0.1",
        log="spark.log",
        on_restart=lambda: told.append(None),
    )

    def standing(*_: object) -> Any:
        return SimpleNamespace(execute=None, listen=lambda: None, close=lambda: None)

    monkeypatch.setattr(module, "_Standing", standing)
    done: list[Any] = []
    host.run(steps, done.append, lambda: bool(done))  # type: ignore[arg-type]
    return done, len(told)


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        lane_error(),
        BrokerError("…; found KAFKA_STORAGE_ERROR (code 56)", code=56, retriable=True),
    ],
    ids=["driver", "lane", "log"],
)
def test_a_full_disk_is_waited_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long it takes until there is room; it is said once a minute, not at each attempt."""
    with caplog.at_level(logging.WARNING):
        assert run(monkeypatch, Steps(error, 20))[0][0] == "a batch"
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("expected room for the pipeline's state or log; found none")


def test_other_failures_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass is tried some times, and then told."""
    error = PenstockError("expected something else")
    error.retriable = True
    with pytest.raises(PenstockError, match="something else"):
        run(monkeypatch, Steps(error, 20))


GONE = module._JobEndedError("expected Spark's job to stay; found: Answer from Java side is empty")


@pytest.mark.parametrize("error", [GONE, ConnectionRefusedError()], ids=["job", "session"])
def test_a_jvm_that_is_gone_is_started_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as it takes until there is a batch, within bounds; each time is told."""
    spark = Spark()
    batches, told = run(monkeypatch, Steps(error, module.JOBS_MAX - 1), spark)
    assert batches[0] == "a batch"
    assert told == spark.starts == module.JOBS_MAX - 1


@pytest.mark.parametrize(
    ("spark", "starts"),
    [(Spark(), module.JOBS_MAX - 1), (Spark(can_start_again=False), 0)],
    ids=["own", "program's"],
)
def test_a_jvm_that_stays_away_is_told(
    spark: Spark, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends again and again, or is not the pipeline's to start, ends the run."""
    with pytest.raises(PenstockError, match=r"has ended, killed or out of memory\. Nothing"):
        run(monkeypatch, Steps(GONE, 100), spark)
    assert spark.starts == starts


def test_a_job_that_has_not_begun_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop may come before Spark knows of the job, which can't be interrupted then."""
    is_stopping, is_known, is_interrupted = (threading.Event() for _ in range(3))

    def run() -> None:
        assert is_stopping.wait(60)  # the first interruption finds no job
        is_known.set()
        assert is_interrupted.wait(60)

    def interrupt() -> None:
        if is_known.is_set():
            is_interrupted.set()
        is_stopping.set()

    monkeypatch.setattr(module, "_tasks", lambda *_: (run, interrupt))
    monkeypatch.setattr(module, "INTERRUPT_S", 0.001)
    anything: Any = None
    standing = module._Standing(anything, anything, 2, "127.0.0.1", lambda: True)
    standing.close()
    assert is_interrupted.is_set()
    assert standing._over.is_set()
