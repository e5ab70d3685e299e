"""What `Body` promises and what `Follower` makes of it, as tests for any body.

A source or a target that is new subclasses `BodyContract`. Its `subject` says how one is made, fed and read.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.patience import wait_until

from penstock.errors import FencedError
from penstock.follow import follower as module
from penstock.follow.control import COMMAND, send
from penstock.follow.follower import Follower
from penstock.follow.listing import Listed, listed


class Subject(ABC):
    """Followers of one name, as those of processes that begin one after another, and what they carry."""

    log: str
    name: str
    #: What an attempt raises.
    error: Exception | None = None
    #: How many things were made.
    fed: int = 0

    @abstractmethod
    def follower(self) -> Follower[Any]:
        """Another one of the name."""

    @abstractmethod
    def feed(self) -> None:
        """Makes one more thing that is to be carried."""

    @abstractmethod
    def carried(self) -> int:
        """How many went through, as the log or the target has them."""

    def made(self) -> Follower[Any]:
        """A follower whose attempts raise `error` where there is one."""
        one = self.follower()
        attempt = one.body.attempt

        def attempt_or_fail() -> None:
            if self.error is not None:
                raise self.error
            attempt()

        one.body.attempt = attempt_or_fail  # type: ignore[method-assign]
        return one

    def listed(self) -> Listed | None:
        """What it reported last."""
        found = [one for one in listed(self.log) if one.name == self.name]
        return found[0] if found else None

    def is_reported(self, phase: str) -> bool:
        """Whether it reported last that it is in a phase."""
        found = self.listed()
        return found is not None and found.phase == phase

    def command(self, what: str) -> None:
        """Pauses or resumes it."""
        send(self.log, self.follower().body.kind, self.name, COMMAND, what.encode())

    def carry(self, count: int) -> Any:
        """Runs one until so many went through; what it has done."""
        return self.made().run(lambda _: self.carried() >= count)

    @contextmanager
    def running(self) -> Iterator[tuple[Follower[Any], list[Exception]]]:
        """Runs one meanwhile, with the errors that ended it."""
        one, errors = self.made(), list[Exception]()

        def run() -> None:
            try:
                one.run()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield one, errors
        finally:
            one.stop()
            thread.join()


class BodyContract:
    """Subclasses define the fixture `subject`."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch) -> None:
        monkeypatch.setattr(module, "LOOK_S", 0.05)
        monkeypatch.setattr(module, "REST_S", 0.05)
        monkeypatch.setattr(module, "FENCED_S", 0.05)
        monkeypatch.setattr(module, "BACKOFF_S", (0.02, 0.1))

    def test_it_runs_until_it_is_over_and_reports_that(self, subject) -> None:
        """What went through once isn't carried again by the next run; both say that they have stopped."""
        subject.feed()
        assert subject.carry(1).phase == "stopped"
        subject.feed()
        assert subject.carry(2).phase == "stopped"
        assert subject.carried() == 2
        found = subject.listed()
        assert (found.phase, found.last_error) == ("stopped", "")
        assert {"source", "target", "records", "dead", "retries"} <= found.about.keys()

    def test_an_error_that_passes_is_waited_for(self, subject) -> None:
        """It says so, with the error, and continues where it was."""
        subject.feed()
        subject.carry(1)
        subject.feed()
        subject.error = ConnectionError("it is away")
        with subject.running() as (one, errors):
            wait_until(lambda: one.done.retries > 1, "retries")
            wait_until(lambda: subject.is_reported("waiting"), "the report")
            assert subject.listed().last_error == "it is away"
            assert one.done.breaker != "closed"
            subject.error = None
            wait_until(lambda: subject.carried() == 2 or errors, "the rest")
            wait_until(lambda: one.done.breaker == "closed", "the breaker")
        assert errors == []
        assert (one.done.trouble, one.done.last_error) == ("", "it is away")

    def test_an_error_that_does_not_pass_ends_it(self, subject) -> None:
        """Whatever it is, it is reported, as somebody looks for the reason."""
        subject.feed()
        subject.carry(1)
        subject.error = ValueError("odd")
        with pytest.raises(ValueError, match="odd"):
            subject.made().run()
        found = subject.listed()
        assert (found.phase, found.last_error) == ("failed", "odd")

    def test_it_pauses_and_resumes(self, subject) -> None:
        """Within its look; what comes meanwhile waits."""
        subject.feed()
        with subject.running() as (one, errors):
            wait_until(lambda: subject.carried() == 1 or errors)
            subject.command("pause")
            wait_until(lambda: one.done.phase == "paused" or errors)
            subject.feed()
            wait_until(lambda: subject.is_reported("paused"), "the report")
            assert subject.carried() == 1
            subject.command("resume")
            wait_until(lambda: subject.carried() == 2 or errors)
        assert errors == []

    def test_one_that_starts_while_it_is_paused_waits(self, subject) -> None:
        """It attempts nothing: who needs what it would hold has it meanwhile."""
        subject.feed()
        subject.carry(1)
        subject.command("pause")
        subject.feed()
        subject.error = ValueError("it was attempted")
        with subject.running() as (one, errors):
            wait_until(lambda: one.done.phase == "paused" or errors)
            wait_until(lambda: subject.is_reported("paused") or errors)
            assert errors == []
            subject.error = None
            subject.command("resume")
            wait_until(lambda: subject.carried() == 2 or errors)
        assert errors == []

    def test_it_is_stopped_while_it_waits(self, subject, monkeypatch) -> None:
        """However long that would have been."""
        monkeypatch.setattr(module, "BACKOFF_S", (3_600.0, 3_600.0))
        subject.error = ConnectionError("it is away")
        with subject.running() as (one, errors):
            wait_until(lambda: one.done.phase == "waiting" or errors)
            one.stop()
            wait_until(lambda: one.done.phase == "stopped" or errors)
        assert errors == []

    def test_a_second_one_fences_the_first(self, subject) -> None:
        """The first ends with an error, and nothing is carried twice."""
        subject.feed()
        with subject.running() as (_, first):
            wait_until(lambda: subject.carried() == 1 or first)
            with subject.running() as (second, errors):
                busy = ("following", "streaming")
                wait_until(lambda: second.done.phase in busy or errors)
                wait_until(lambda: self._has_fenced(subject, first) or errors)
                count = subject.fed
                wait_until(lambda: subject.carried() == count or errors)
            assert errors == []
        assert isinstance(first[0], FencedError)
        assert subject.carried() == count

    @staticmethod
    def _has_fenced(subject, first) -> bool:
        """Feeds until the first one notices."""
        if not first and subject.carried() == subject.fed:
            subject.feed()
        return bool(first)
