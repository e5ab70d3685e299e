"""How a host goes on where a batch fails, without Spark."""

from __future__ import annotations

import errno
import logging
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


def run(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> list[Any]:
    """The batches until there is one."""
    monkeypatch.setattr(module, "ROOM_WAIT_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    job: Any = SimpleNamespace(physical=SimpleNamespace(graph=SimpleNamespace(nodes=())))
    session: Any = None
    host = SparkHost(session, job, lanes=1, host="127.0.0.1", log="spark.log")
    standing = SimpleNamespace(execute=None, listen=lambda: None, close=lambda: None)
    monkeypatch.setattr(host, "_stand", lambda: standing)
    done: list[Any] = []
    host.run(steps, done.append, lambda: bool(done))  # type: ignore[arg-type]
    return done


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
        assert run(monkeypatch, Steps(error, 20))[0] == "a batch"
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("expected room for the pipeline's state or log; found none")


def test_other_failures_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass is tried some times, and then told."""
    error = PenstockError("expected something else")
    error.retriable = True
    with pytest.raises(PenstockError, match="something else"):
        run(monkeypatch, Steps(error, 20))
