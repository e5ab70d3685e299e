"""How a host goes on where a batch fails, without Spark."""

from __future__ import annotations

import errno
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from penstock.client.network.connection import wait_for_any
from penstock.engine.spark import host as module
from penstock.engine.spark.host import SparkHost
from penstock.errors import BrokerError, FlowError, PenstockError

BATCH = SimpleNamespace(rows=1)
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

    def step(self, _: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
        assert timeout_s
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        return BATCH


class Spark:
    """A session whose JVM is gone as soon as somebody looks; some can be started again."""

    place: Any = None

    def __init__(self, *, can_start_again: bool = True) -> None:
        self.can_start_again, self.starts = can_start_again, 0

    def is_gone(self) -> bool:
        return True  # as often as it is asked

    def start_again(self) -> None:
        self.starts += 1


def run(
    monkeypatch: pytest.MonkeyPatch,
    steps: Any,
    spark: Spark | None = None,
    *,
    is_settled: bool = True,
) -> tuple[list[Any], int]:
    """The batches until there is one, and how often a JVM was started again."""
    monkeypatch.setattr(module, "ROOM_WAIT_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    restarts: list[None] = []
    host = SparkHost(
        spark or Spark(),  # type: ignore[arg-type]
        job,
        lanes=1,
        log="spark.log",
        on_restart=lambda: restarts.append(None),
    )

    def standing(_spark: object, _job: object, _lanes: int, on_start: Any, _: object) -> Any:
        on_start()
        return SimpleNamespace(
            execute=None,
            listen=lambda: None,
            close=lambda: None,
            stop_waiting=lambda: None,
            is_settled=is_settled,
        )

    monkeypatch.setattr(module, "_Standing", standing)
    done: list[Any] = []
    host.run(steps, done.append, lambda: bool(done))
    return done, len(restarts)


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
        assert run(monkeypatch, Steps(error, 20))[0][0] is BATCH
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("expected disk space for the pipeline's state or log; found none")


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
    batches, restarts = run(monkeypatch, Steps(error, module.JOBS_MAX - 1), spark)
    assert batches[0] is BATCH
    assert restarts == spark.starts == module.JOBS_MAX - 1


@pytest.mark.parametrize(
    ("spark", "starts"),
    [(Spark(), module.JOBS_MAX - 1), (Spark(can_start_again=False), 0)],
    ids=["own", "program's"],
)
def test_a_jvm_that_stays_away_is_reported(
    spark: Spark, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends again and again, or is not the pipeline's to start, ends the run."""
    with pytest.raises(PenstockError, match=r"has ended, killed or out of memory\. Nothing"):
        run(monkeypatch, Steps(GONE, 100), spark)
    assert spark.starts == starts


def test_a_job_that_has_not_begun_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop may come before Spark knows of the job, which can't be interrupted then."""
    is_begun, is_stopping, is_known, is_interrupted = (threading.Event() for _ in range(4))

    def run() -> None:
        is_begun.set()
        assert is_stopping.wait(60)  # the first interruption finds no job
        is_known.set()
        assert is_interrupted.wait(60)

    def interrupt() -> None:
        if is_known.is_set():
            is_interrupted.set()
        is_stopping.set()

    monkeypatch.setattr(module, "_tasks", lambda *_: (run, interrupt))
    monkeypatch.setattr(module, "INTERRUPT_S", 0.001)
    standing = standing_on(SimpleNamespace(place=None, host="127.0.0.1"))
    assert is_begun.wait(60)
    standing.close()
    assert is_interrupted.is_set()
    assert standing._over.is_set()


def standing_on(spark: Any) -> Any:
    """What holds two lanes of nothing."""
    anything: Any = None
    return module._Standing(spark, anything, 2, lambda: None, lambda: True)


class Waiting:
    """A driver without anything to do, which waits for a log that says nothing."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def step(self, _: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
        self.waits.set()
        assert not wait_for_any((), timeout_s, aside)


def test_a_stop_ends_the_wait_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that would take."""
    is_over = threading.Event()
    monkeypatch.setattr(module, "WAIT_S", 24 * 3600.0)
    monkeypatch.setattr(module, "_tasks", lambda *_: (is_over.wait, is_over.set))
    monkeypatch.setattr(module.standby, "fork_lanes", lambda *_: None)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    spark: Any = SimpleNamespace(place=None, host="127.0.0.1")
    steps = Waiting()
    host = SparkHost(spark, job, lanes=1, log="spark.log")
    host.run(steps, lambda _: None, steps.waits.is_set)
    assert host._ended.is_set()  # or it was given up


def test_a_job_that_ends_is_noticed_while_the_log_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next job begins then."""
    is_over, ends = threading.Event(), threading.Event()
    jobs: list[int] = []

    def work() -> None:
        jobs.append(1)
        (ends if len(jobs) == 1 else is_over).wait(PATIENCE_S)

    monkeypatch.setattr(module, "WAIT_S", 24 * 3600.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(module, "_tasks", lambda *_: (work, is_over.set))
    monkeypatch.setattr(module.standby, "fork_lanes", lambda *_: None)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    spark: Any = SimpleNamespace(
        place=None, host="127.0.0.1", can_start_again=True, is_gone=lambda: False
    )
    steps = Waiting()

    def until() -> bool:
        if steps.waits.is_set() and jobs:
            ends.set()
        return len(jobs) == 2

    SparkHost(spark, job, lanes=1, log="spark.log").run(steps, lambda _: None, until)
    assert len(jobs) == 2


def test_no_job_begins_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark is there only then."""

    class Late:
        host = "127.0.0.1"
        is_there = threading.Event()

        @property
        def place(self) -> None:
            assert self.is_there.wait(60)

    def run() -> None:
        raise AssertionError

    monkeypatch.setattr(module, "_tasks", lambda *_: (run, run))
    standing = standing_on(Late())
    standing.close()
    assert not standing._over.is_set()
    Late.is_there.set()
    assert standing._over.wait(60)
    assert standing._error is None


class Failing:
    """A session that can't be started; it is the pipeline's own."""

    host = "127.0.0.1"
    can_start_again = True

    def __init__(self, error: Exception) -> None:
        self.error, self.starts = error, 0

    @property
    def place(self) -> None:
        raise self.error

    def is_gone(self) -> bool:
        return True

    def start_again(self) -> None:
        self.starts += 1


def failed(spark: Failing, monkeypatch: pytest.MonkeyPatch) -> BaseException | None:
    """What ends a pipeline that has this session."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    host = SparkHost(spark, job, lanes=2, log="spark.log")  # type: ignore[arg-type]

    class Idle:
        def step(self, _: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
            return None

    with pytest.raises(PenstockError) as raised:
        host.run(Idle(), lambda _: None, lambda: False)
    return raised.value


def test_a_set_up_that_can_not_start_spark_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried again."""
    spark = Failing(FlowError("expected a Java runtime; found none"))
    assert failed(spark, monkeypatch) is spark.error
    assert not spark.starts


def test_a_jvm_that_ends_while_it_starts_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within bounds, and why is told."""
    spark = Failing(ConnectionRefusedError("nobody there"))
    assert "expected Spark to start; found: nobody there" in str(failed(spark, monkeypatch))
    assert spark.starts == module.JOBS_MAX - 1


def test_batches_of_lanes_that_stand_in_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that never stays is given up, though the pipeline has batches meanwhile."""
    steps = iter([GONE, None] * (module.JOBS_MAX - 1) + [GONE])

    class Alternating:
        def step(self, _: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
            if error := next(steps):
                raise error
            return BATCH

    monkeypatch.setattr(module, "POLL_S", 60)
    with pytest.raises(PenstockError, match="has ended"):
        run(monkeypatch, Alternating(), is_settled=False)
    assert not list(steps)


def test_a_batch_that_waits_for_sparks_tasks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second, so that nobody takes a pipeline for stalled whose tasks are still being started."""
    monkeypatch.setattr(module.standby, "fork_lanes", lambda *_: False)
    said, is_over = threading.Event(), threading.Event()

    class Starting:
        """Spark that takes long."""

        host, can_start_again = "127.0.0.1", True

        @property
        def place(self) -> Any:
            is_over.wait(PATIENCE_S)
            raise ConnectionAbortedError

        def is_gone(self) -> bool:
            return False

    class Waiting:
        def step(self, execute: Any, *, timeout_s: float = 0.0, aside: Any = None) -> Any:
            return execute(SimpleNamespace(write=None))

    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    spark: Any = Starting()
    host = SparkHost(spark, job, lanes=1, log="spark.log", on_gather=said.set)
    host.run(Waiting(), lambda _: None, said.is_set)
    assert said.is_set()
    is_over.set()
