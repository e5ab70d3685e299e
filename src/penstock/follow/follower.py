"""`Follower`: runs a body until it is over, whatever fails meanwhile.

    starting -> (the body's phases) -> stopped
                 |    ^      |   ^       failed: an error that doesn't pass
                 v    |      v   |
                waiting     paused

A body is what differs: a capture of a database, a sink, an import of files. The follower has what is the same
for all. It attempts; after an error that passes it waits, longer each time, and attempts again. It obeys
`pause` and `resume`. It reports once a second, so that whoever reaches the log sees what it does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from penstock.client import Client, Reader
from penstock.errors import BrokerError, FencedError, ProtocolError
from penstock.follow.breaker import Breaker
from penstock.follow.control import Requests, control_topic
from penstock.follow.report import Doing, group_of, report_text

__all__ = ["Body", "Follower"]

BACKOFF_S: Final = (0.2, 30.0)
"""The first pause after an error that passes, and the longest; doubled each time, with jitter."""
FENCED_S: Final = 5.0
"""How long one that the log has fenced waits, before it looks whether another process has taken over: that
says so once it has begun.
"""
LOOK_S: Final = 1.0
"""How often requests are looked for, and how often it reports."""
REST_S: Final = 0.5
"""How often a paused follower looks whether it is over."""
REPORT_S: Final = 5.0
"""How long a follower that waits or ends tries to say so, and how often one that waits does."""
UNREPORTED_S: Final = 30.0
"""How long none is made after a report that failed, where the body does without."""
LOG_AWAY: Final = (BrokerError, OSError, ProtocolError)
"""Errors of a log that is away, or whose connection broke in the middle of an answer."""
D = TypeVar("D", bound=Doing)
_log = logging.getLogger(__name__)


class Body(ABC, Generic[D]):
    """What a follower runs.

    Contract, which tests/follow/contract.py checks:

    - `attempt` works until `Follower.look` or `Follower.is_over` says that it is to return. It calls one of
      `look` and `wait` at least every few seconds, as a follower that says nothing for 15 seconds is taken
      for dead. A body that has no more to do calls `Follower.stop`.
    - It says what it does by `Follower.enter`, and calls `Follower.succeed` when something has gone through.
    - It may be ended at any instant, by an error or with its process, and be attempted again: what it has
      done so far is in the log or in the target, together with how far it is.
    - While it is paused it holds nothing that others may need.

    Attributes:
        kind: the word for what it is: `sink`. Its group and its topic of requests have it in their names.
        needs_reports: whether it is an error if a report can't be written, as where the offsets that it
            commits are the only ones.
        name: the follower's. Only one process at a time can use a name.
        done: what it has done.
        follower: who runs it; set before anything is called.
    """

    kind: ClassVar[str]
    needs_reports: ClassVar[bool] = False
    name: str
    done: D
    follower: Follower[D]

    @abstractmethod
    def attempt(self) -> None:
        """Works until it is over or to pause; an error ends the attempt."""

    @abstractmethod
    def figures(self) -> Mapping[str, object]:
        """What it has done, as values of JSON, for reports and metrics; can be called from any thread.

        Returns: at least `source` and `target`, texts without passwords, `records`, those that went
            through, and `dead`, those that are dead letters.
        """

    def watch(self) -> None:
        """What can't wait for the log: called before each attempt, and all the time while it is paused."""

    def rest(self) -> None:
        """What is to be done again and again while it is paused, such as to see how far it is behind."""

    def ending(self, error: Exception) -> Exception | None:
        """What ends the follower after an error: the error, or a clearer one; None: it passes.

        Those of a log that is away pass.
        """
        return None if isinstance(error, LOG_AWAY) else error

    def places(self, client: Client) -> Mapping[tuple[str, int], int] | None:
        """The offsets that are committed with a report, by topic and partition.

        Returns: what the body has read of its topic; None: it reads none, and reports next to how far it has
            read its requests; empty: it can't be said yet.
        """
        del client
        return None


class Follower(Generic[D]):
    """Runs a body.

    Args:
        body: what it runs.
        address: the broker's.
        settings: further arguments of `penstock.client.Client`.
    """

    def __init__(self, body: Body[D], address: str, settings: Mapping[str, Any]) -> None:
        self.body, self.done = body, body.done
        body.follower = self
        self.address, self.settings = address, settings
        self._end = threading.Event()
        self._until: Callable[[D], bool] | None = None
        self._breaker = Breaker(*BACKOFF_S)
        self._since_ms = _now_ms()
        self._looking = threading.Lock()  # a body may look in several threads
        self._connections: contextlib.ExitStack | None = None
        self._client: Client | None = None
        self._reader: Reader | None = None
        self._heard_at = self._reported_at = float("-inf")
        self._is_warned = False  # that it can't report
        self._requests = Requests(control_topic(body.kind, body.name))

    # -- from outside -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends `run` soon. Can be called from any thread."""
        self._end.set()

    def run(self, until: Callable[[D], bool] | None = None) -> D:
        """Runs the body until it is over.

        Args:
            until: polled; `run` ends when it returns true.

        Raises:
            FencedError: another process has begun under this name.
            Exception: one that doesn't pass.
        """
        self._until = until
        while not self.is_over:
            self._breaker.attempt()
            self.done.breaker = self._breaker.state
            try:
                self.body.watch()
                self._attempt()
            except Exception as error:
                if (ending := self.body.ending(error)) is not None:
                    self._fail(ending)
                    if ending is error:
                        raise
                    raise ending from None
                if self._end.is_set():
                    break
                self._back_off(error)
        self.enter("stopped")
        self.report()
        return self.done

    def figures(self) -> dict[str, Any]:
        """What it does now, as values of JSON.

        Returns:
            those of `Doing` and of the body; `since_ms`, when the phase began, and `at_ms`, now, in
            milliseconds since 1970.
        """
        done = self.done
        return {
            "phase": done.phase,
            "since_ms": self._since_ms,
            "at_ms": _now_ms(),
            "breaker": done.breaker,
            "trouble": done.trouble,
            "last_error": done.trouble or done.last_error,
            "retries": done.retries,
            **self.body.figures(),
        }

    # -- for the body -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or what `run` was given says so."""
        return self._end.is_set() or (self._until is not None and self._until(self.done))

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped."""
        return self._end.is_set()

    @property
    def is_paused(self) -> bool:
        """Whether it is to pause."""
        return self._requests.is_paused

    @property
    def requests(self) -> Mapping[bytes, bytes]:
        """The newest request of each key, as of the last look."""
        return self._requests.values

    @property
    def group(self) -> str:
        """The consumer group next to whose offsets it reports."""
        return group_of(self.body.kind, self.body.name)

    @property
    def client(self) -> Client:
        """A connection to the log for this attempt, made when it is first asked for."""
        if self._client is None:
            self._client = self._kept(Client(self.address, **self.settings))
        return self._client

    @property
    def reader(self) -> Reader:
        """A reader of the log for this attempt, made when it is first asked for."""
        if self._reader is None:
            self._reader = self._kept(Reader(self.address, **self.settings))
        return self._reader

    def enter(self, phase: str, trouble: str = "") -> None:
        """Says what it does from now on, and why if it waits or has failed."""
        if phase != self.done.phase:
            self._since_ms = _now_ms()
        self.done.phase, self.done.trouble = phase, trouble
        self.done.last_error = trouble or self.done.last_error

    def succeed(self) -> None:
        """Says that something has gone through: the circuit is closed."""
        self._breaker.succeed()
        self.done.breaker = self._breaker.state

    def look(self, *, now: bool = False) -> bool:
        """Hears requests and reports, each at most once a second; whether the attempt is to return.

        Args:
            now: whether to hear requests that came within this second, too.
        """
        if self._looking.acquire(blocking=now):
            try:
                if now or time.monotonic() - self._heard_at >= LOOK_S:
                    self._hear()
                self._report_after(LOOK_S)
            finally:
                self._looking.release()
        return self.is_paused or self._end.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits, and reports meanwhile: who is silent is taken for dead. Whether it was stopped."""
        until = time.monotonic() + seconds
        while True:
            if self._looking.acquire(blocking=False):
                try:
                    self._report_after(REPORT_S if self._connections is None else LOOK_S)
                finally:
                    self._looking.release()
            left = until - time.monotonic()
            if left <= 0 or self._end.wait(min(left, REPORT_S)):
                return self._end.is_set()

    def report(self) -> None:
        """Commits the body's offsets, with what it says about itself."""
        self._reported_at = time.monotonic()
        if self._connections is None:
            patient = {"patience_s": REPORT_S, **self.settings}
            with (
                contextlib.suppress(*LOG_AWAY),  # it tries again, or has said why it ends
                Client(self.address, **patient) as client,
            ):
                self._commit(client)
            return
        try:
            self._commit(self.client)
        except LOG_AWAY as error:
            if self.body.needs_reports:
                raise
            self._reported_at += UNREPORTED_S
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "%s: expected to report by committing offsets of the group %s; found: %s. It continues, "
                    "and can't be seen in penstock status",
                    *(self.body.name, self.group, error),
                )

    # -- attempts ---------------------------------------------------------------------------------------

    def _attempt(self) -> None:
        with self._connected():
            self._hear()
            if self.is_paused:
                self._rest()
            else:
                self.body.attempt()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Closes meanwhile made connections at the end."""
        with contextlib.ExitStack() as connections:
            self._connections = connections
            try:
                yield
            finally:
                with self._looking:  # a thread of the body may still report
                    self._connections = self._client = self._reader = None

    def _kept(self, connection: Any) -> Any:
        assert self._connections is not None, "the log is reached in an attempt alone"
        return self._connections.enter_context(connection)

    def _rest(self) -> None:
        """Is paused, with nothing held that others may need."""
        self.enter("paused")
        while True:
            self.body.watch()
            self.body.rest()
            self.look()
            if not self.is_paused or self.is_over:
                break
            self._end.wait(REST_S)
        if not self.is_paused:
            self.enter("starting")

    def _fail(self, error: Exception) -> None:
        self.enter("failed", _text(error))
        if not isinstance(error, FencedError):  # the other process reports from now on
            self.report()

    def _back_off(self, error: Exception) -> None:
        pause_s = self._breaker.fail()
        self.done.breaker = self._breaker.state
        self.done.retries += 1
        self.enter("waiting", _text(error))
        self.report()
        _log.warning("%s: %s; trying again", self.body.name, self.done.trouble)
        self.wait(max(pause_s, FENCED_S if isinstance(error, FencedError) else 0.0))

    # -- the log ----------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._heard_at = time.monotonic()
        self._requests.look(self.client, lambda: self.reader)

    def _report_after(self, seconds: float) -> None:
        if time.monotonic() - self._reported_at >= seconds:
            self.report()

    def _commit(self, client: Client) -> None:
        text, places = report_text(self.figures()), self.body.places(client)
        if places is None:
            requests = self._requests
            if requests.topic not in client.topics():  # it hasn't begun, or was dropped
                return
            places = {(requests.topic, 0): requests.end or 0}
        if places:
            client.commit(self.group, places, text)


def _text(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
