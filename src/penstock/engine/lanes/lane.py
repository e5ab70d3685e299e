"""A lane: what runs in a task of Spark's for as long as the pipeline does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from penstock.engine.lanes.connection import Connection, connect
from penstock.engine.lanes.exchange import Exchange
from penstock.engine.lanes.messages import (
    BEAT_S,
    PEER_LOST,
    Abort,
    Beat,
    Done,
    Failed,
    Go,
    Hello,
    Stop,
    Written,
)
from penstock.engine.letters.failures import Described, described
from penstock.engine.states.hot import Hot
from penstock.engine.tasks import Job, LaneBatch

__all__ = ["serve"]


class _AbortedError(Exception):
    """The attempt is given up."""


class _StoppedError(Exception):
    """The pipeline stops."""


def serve(
    job: Job,
    lane: int,
    lanes: int,
    address: tuple[str, int],
    secret: bytes,
    *,
    stands_in: bool = False,
) -> None:
    """Runs batches until the driver says that there are no more.

    Args:
        job: what the pipeline does.
        lane: this lane's number.
        lanes: how many there are.
        address: of the driver.
        secret: of this run.
        stands_in: whether this is a lane for as long as Spark's isn't there.

    Raises:
        EOFError: the driver is gone.
    """
    control = connect(address, secret)
    runner = _Runner(job, lane, lanes, control, secret)
    exchange = runner.exchange
    control.send(Hello(lane, os.getpid(), exchange.host, exchange.port, stands_in))
    try:
        with _beating(control), contextlib.suppress(_StoppedError):
            runner.run()
    finally:
        exchange.close()
        control.close()


class _Runner:
    """One lane at work."""

    def __init__(self, job: Job, lane: int, lanes: int, control: Connection, secret: bytes) -> None:
        self.job, self.lane, self.lanes, self.control = job, lane, lanes, control
        host = control.sock.getsockname()[0]  # where the driver is reached from, others are too
        self.exchange = Exchange(lane, lanes, host, secret, control, self._called)
        self.hot = Hot()
        self._ticket = 0
        self._written = 0  # the ticket of the last attempt that may write to topics

    def run(self) -> None:
        while True:
            match self.control.receive():
                case Go() as go:
                    with contextlib.suppress(_AbortedError):
                        self._attempt(go)
                case Stop():
                    return
                case _:
                    pass  # of an attempt that has ended here

    def _attempt(self, go: Go) -> None:
        self._ticket = go.ticket
        self.exchange.begin(go.ticket, [(host, port) for host, port in go.peers])
        try:
            batch = LaneBatch(
                self.job, self.lane, self.lanes, go.plan, go.traces, self.hot, self._may_write
            )
            last = self.job.physical.levels - 1
            batch.run_level(0, [])
            for level in range(last):
                try:
                    handed = self.exchange.swap(level, batch.take_parcels())
                except OSError as error:
                    self._fail(PEER_LOST, f"expected to reach the other lanes; found: {error}")
                    return
                batch.run_level(level + 1, handed)
            report = batch.finish()
        except (_AbortedError, _StoppedError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must reach the user
            self.control.send(Failed(go.ticket, described(error)))
            return
        self.control.send(Done(go.ticket, report))

    def _fail(self, kind: str, text: str) -> None:
        self.control.send(Failed(self._ticket, Described(kind, text, retriable=True)))

    def _may_write(self) -> None:
        """Waits until the plan is written down."""
        while self._written < self._ticket:
            self._called()

    def _called(self) -> None:
        """Hears the driver while an attempt continues."""
        match self.control.receive():
            case Written(ticket):
                self._written = ticket
            case Abort(ticket) if ticket >= self._ticket:
                raise _AbortedError
            case Stop():
                raise _StoppedError
            case _:
                pass


@contextlib.contextmanager
def _beating(control: Connection) -> Iterator[None]:
    """Lets the driver know that this process is alive, whatever the lane computes."""
    ended = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(BEAT_S):
                control.send(Beat())

    thread = threading.Thread(target=beat, name="penstock-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
