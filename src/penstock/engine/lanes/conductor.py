"""The driver's side of the lanes: it lets them run batches, and runs a batch again when one is lost.

While Spark starts, lanes that stand in do the work (`penstock.engine.spark.standby`). Spark's take their
places between two batches, each when it is there.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.engine.lanes.connection import Connection, accept
from penstock.engine.lanes.messages import (
    BEAT_S,
    PEER_LOST,
    Abort,
    Beat,
    Done,
    Failed,
    Go,
    Hello,
    Message,
    Stop,
    Written,
)
from penstock.engine.letters.failures import Described
from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report
from penstock.engine.record.values import Traces
from penstock.errors import PenstockError

__all__ = ["Assignment", "Conductor", "LaneFailedError", "LaneSilentError"]

_log = logging.getLogger(__name__)

SILENCE_S: Final = 12 * BEAT_S
"""After which a lane that says nothing is given up: its process is suspended, or its machine is cut off."""
GATHER_S: Final = 600.0
"""How long all lanes may take to report for duty: a cluster may start machines for them, or be busy."""
WARN_S: Final = 10.0
"""After which it is said that lanes are missing."""
LOSSES_MAX: Final = 20
"""Lanes lost in one batch before it is given up: something kills them."""
BACKLOG: Final = 128
SECRET_BYTES: Final = 32


class LaneFailedError(Exception):
    """A lane's work failed.

    Attributes:
        described: its error.
    """

    def __init__(self, described: Described) -> None:
        super().__init__(described.text)
        self.described = described


class LaneSilentError(Exception):
    """A lane is taken for lost that Spark has a task for still, so that no other will come."""


class _LostError(Exception):
    """A lane is gone, or has lost another one."""


@dataclass(frozen=True)
class Assignment:
    """What a lane needs for a batch: the plan, and the state that its shards begin with."""

    plan: Plan
    traces: Traces


@dataclass
class _Lane:
    connection: Connection
    pid: int
    address: tuple[str, int]
    heard_s: float
    stands_in: bool


class Conductor:
    """Gathers lanes and lets them run batches.

    Args:
        lanes: how many.
        host: to listen at; lanes must reach it.
        wake: readable when the job that holds the lanes has ended.
        check: raises where it has.
        on_wait: called every second while lanes are missing; may raise.
    """

    def __init__(
        self,
        lanes: int,
        host: str,
        wake: socket.socket,
        check: Callable[[], None],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.lanes = lanes
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._check, self._on_wait = check, on_wait
        self._listener = socket.create_server((host, 0), backlog=BACKLOG)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(wake, selectors.EVENT_READ, None)
        self._wake = wake
        self._there: dict[int, _Lane] = {}
        self._next: dict[int, _Lane] = {}  # Spark's, while others stand in for them
        self._silent: dict[int, str] = {}  # Spark's that are missing: why they were given up
        self._ticket = 0
        self._reports: dict[int, Report] = {}

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the lanes that are there."""
        return {number: lane.pid for number, lane in self._there.items()}

    @property
    def is_settled(self) -> bool:
        """Whether all of Spark's lanes are there."""
        known = (*self._there.values(), *self._next.values())
        return sum(not lane.stands_in for lane in known) == self.lanes

    def filenos(self) -> list[int]:
        """Descriptors; one is readable when there is something to `listen` to."""
        return [key.fd for key in self._selector.get_map().values()]

    def run(self, assign: Callable[[int], Assignment], write: Callable[[], None]) -> list[Report]:
        """Has every lane run its part of a batch; their reports, by lane.

        Args:
            assign: gives a lane's part.
            write: called when the lanes have theirs; they write to topics after it.

        Raises:
            LaneFailedError: what a lane's work failed with.
            LaneSilentError: a lane hasn't reported for too long; only another job brings another one.
            PenstockError: lanes are missing, or are lost again and again.
        """
        for _ in range(LOSSES_MAX):
            try:
                self._replace()
                self._gather()
                self._ticket += 1
                self._reports = {}
                self._go(assign)
                write()
                self._broadcast(Written(self._ticket))
                return self._collected()
            except _LostError as error:
                _log.warning("%s; the batch is run again", error)
                self._abort()
            except Exception:
                self._abort()
                raise
        raise PenstockError(
            f"expected the lanes to stay for a batch; lost one {LOSSES_MAX} times. Something ends them: "
            "look at the machine's memory, and at Spark's log"
        )

    def listen(self) -> None:
        """Hears what lanes say between batches; notices those that are gone."""
        with contextlib.suppress(_LostError):
            while self._turn(0.0):
                pass
            self._replace()
            self._look_for_silence()

    def stop(self) -> None:
        """Informs all lanes that there are no more batches."""
        for lane in (*self._there.values(), *self._next.values()):
            with contextlib.suppress(OSError):
                lane.connection.send(Stop())

    def close(self) -> None:
        """Closes all sockets."""
        for lane in (*self._there.values(), *self._next.values()):
            lane.connection.close()
        self._there.clear()
        self._next.clear()
        self._selector.close()
        self._listener.close()

    # -- a batch ------------------------------------------------------------------------------------

    def _gather(self) -> None:
        began = time.monotonic()
        has_warned = False
        while len(self._there) < self.lanes:
            if self._silent:
                raise LaneSilentError(next(iter(self._silent.values())))
            waited = time.monotonic() - began
            missing = sorted(set(range(self.lanes)) - set(self._there))
            if waited > GATHER_S:
                raise PenstockError(
                    f"expected {self.lanes} tasks of Spark at the same time; after {GATHER_S:.0f} s found "
                    f"{len(self._there)}. Too few cores are free: give the pipeline fewer "
                    "(ps.App(cores=…)), or the cluster more"
                )
            if waited > WARN_S and not has_warned:
                has_warned = True
                _log.warning("waiting for Spark to start the lanes %s", missing)
            with contextlib.suppress(_LostError):
                self._turn(1.0)
            self._replace()
            self._on_wait()

    def _go(self, assign: Callable[[int], Assignment]) -> None:
        peers = [list(self._there[number].address) for number in range(self.lanes)]
        for number in range(self.lanes):
            part = assign(number)
            try:
                self._there[number].connection.send(Go(self._ticket, part.plan, part.traces, peers))
            except OSError as error:
                raise self._lose(number, str(error)) from None

    def _broadcast(self, message: Message) -> None:
        for number, lane in list(self._there.items()):
            try:
                lane.connection.send(message)
            except OSError as error:
                raise self._lose(number, str(error)) from None

    def _collected(self) -> list[Report]:
        while len(self._reports) < self.lanes:
            self._turn(BEAT_S)
            self._look_for_silence()
        return [self._reports[number] for number in range(self.lanes)]

    def _abort(self) -> None:
        for number, lane in list(self._there.items()):
            try:
                lane.connection.send(Abort(self._ticket))
            except OSError as error:
                self._lose(number, str(error))

    # -- what lanes say -----------------------------------------------------------------------------

    def _turn(self, timeout_s: float) -> bool:
        """Hears what there is to hear; False where there was nothing in time.

        Raises:
            _LostError: a lane is gone.
            LaneFailedError: of the attempt that is running.
        """
        events = self._selector.select(timeout_s)
        for key, _ in events:
            if key.fileobj is self._listener:
                self._welcome()
            elif key.fileobj is self._wake:
                self._check()
            else:
                self._hear(key.data)
        return bool(events)

    def _hear(self, number: int) -> None:
        lane = self._there.get(number)
        if lane is None:
            return
        try:
            message = lane.connection.receive()
        except (OSError, EOFError, PenstockError) as error:
            raise self._lose(number, str(error)) from None
        lane.heard_s = time.monotonic()
        match message:
            case Done(ticket, report) if ticket == self._ticket:
                self._reports[number] = report
            case Failed(ticket, found) if ticket == self._ticket:
                if found.type == PEER_LOST:
                    raise _LostError(found.text)
                raise LaneFailedError(found)
            case Beat() | Done() | Failed():
                pass  # of an attempt that was given up
            case _:
                raise self._lose(number, f"it said {message!r}")

    def _welcome(self) -> None:
        sock, _ = self._listener.accept()
        try:
            connection = accept(sock, self.secret)
            hello = connection.receive()
            if not isinstance(hello, Hello) or not 0 <= hello.lane < self.lanes:
                raise PenstockError(f"expected a lane below {self.lanes}; found {hello!r}")
        except (OSError, EOFError, PenstockError) as error:
            _log.warning("refused a connection: %s", error)
            sock.close()
            return
        # Neither a report nor a plan may take longer than a lane may be silent.
        sock.settimeout(SILENCE_S)
        there = self._there.get(hello.lane)
        if hello.stands_in and there is not None:
            connection.close()  # it comes too late
            return
        address = (hello.host, hello.port)
        lane = _Lane(connection, hello.pid, address, time.monotonic(), hello.stands_in)
        if there is not None and there.stands_in:
            if (former := self._next.pop(hello.lane, None)) is not None:
                former.connection.close()
            self._next[hello.lane] = lane
            return
        if (stale := self._next.pop(hello.lane, None)) is not None:
            stale.connection.close()
        lost = None
        if there is not None:  # Spark has started it again before we noticed
            lost = self._lose(hello.lane, "another task has taken its place")
        self._enlist(hello.lane, lane)
        if lost is not None:
            raise lost

    def _enlist(self, number: int, lane: _Lane) -> None:
        lane.heard_s = time.monotonic()
        self._there[number] = lane
        self._silent.pop(number, None)
        self._selector.register(lane.connection, selectors.EVENT_READ, number)

    def _replace(self) -> None:
        """Lets Spark's lanes take the places of those that stand in for them."""
        while self._next:
            number, lane = self._next.popitem()
            if lane.connection.is_closed():  # Spark starts it again; the other one stays until then
                lane.connection.close()
                continue
            if (former := self._there.pop(number, None)) is not None:
                self._selector.unregister(former.connection)
                with contextlib.suppress(OSError):
                    former.connection.send(Stop())
                former.connection.close()
            self._enlist(number, lane)

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        for number, lane in self._there.items():
            if now - lane.heard_s > SILENCE_S:
                lost = self._lose(number, f"it hasn't reported for {SILENCE_S:.0f} s")
                if not lane.stands_in:
                    self._silent[number] = str(lost)
                raise lost

    def _lose(self, number: int, why: str) -> _LostError:
        lane = self._there.pop(number)
        self._selector.unregister(lane.connection)
        lane.connection.close()
        return _LostError(f"lost lane {number} (process {lane.pid}): {why}")
