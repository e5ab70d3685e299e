"""A session that starts on another thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.engine.spark.session import Spark
from penstock.errors import SetupError

PATIENCE_S = 60


class Session:
    """Remembers that it was stopped."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


def test_what_fails_is_raised_where_the_session_is_asked_for() -> None:
    """Each time; there is nothing to close then."""

    def start() -> Any:
        raise SetupError("expected Java; found none")

    spark = Spark(start=start)
    for _ in range(2):
        with pytest.raises(SetupError, match="found none"):
            assert spark.session
    spark.close()


def test_a_session_that_still_starts_is_stopped_once_it_is_there() -> None:
    """Whoever closes it waits for that: nothing is left behind."""
    goes_on, session = threading.Event(), Session()

    def start() -> Any:
        assert goes_on.wait(PATIENCE_S)
        return session

    spark = Spark(start=start)
    closing = threading.Thread(target=spark.close)
    closing.start()
    assert not session.is_stopped
    goes_on.set()
    closing.join(PATIENCE_S)
    assert session.is_stopped
