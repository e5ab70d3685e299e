"""A session that starts on another thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import wait_until

from penstock.engine.spark import session as module
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
            assert spark.place
    spark.close()


def test_a_session_that_still_starts_is_stopped_once_it_is_there() -> None:
    """Whoever closes it waits for that: nothing is left behind."""
    goes_on, session = threading.Event(), Session()

    def start() -> Any:
        assert goes_on.wait(PATIENCE_S)
        return session

    closing = threading.Thread(target=Spark(start=start).close)
    closing.start()
    assert not session.is_stopped
    goes_on.set()
    closing.join(PATIENCE_S)
    assert session.is_stopped


def test_what_fails_before_a_start_is_raised_likewise() -> None:
    """Nobody waits for a session that will never be there."""

    def before() -> None:
        raise OSError("no space left on device")

    spark = Spark(start=lambda: Session(), before=before)  # type: ignore[arg-type,return-value]
    with pytest.raises(OSError, match="no space"):
        assert spark.place
    assert spark.is_gone()


def test_no_session_is_made_for_a_pipeline_that_has_ended(tmp_path: Path) -> None:
    """It would be stopped at once, and be taken for the program's own meanwhile."""
    with pytest.raises(SetupError, match="it has ended"):
        module.start_context("p", None, tmp_path, cores=1, is_over=lambda: True)


def test_another_session_takes_the_place_of_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who asks waits for it; meanwhile it isn't gone."""
    monkeypatch.setattr(module, "_let_go", lambda _: None)  # of other tests' JVM
    goes_on, session = threading.Event(), Session()
    starts = iter([ConnectionRefusedError(), session])
    called: list[str] = []

    def start() -> Any:
        found = next(starts)
        if isinstance(found, Exception):
            raise found
        assert goes_on.wait(PATIENCE_S)
        return found

    spark = Spark(start=start, before=lambda: called.append("before"))
    wait_until(spark.is_gone)
    spark.start_again()
    assert called == ["before"] * 2
    assert not spark.is_gone()
    goes_on.set()
    assert spark.place is session
