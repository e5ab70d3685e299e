"""The driver's side of the lanes, with lanes of this test's own: reports, losses, strangers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.record import samples
from tests.patience import PATIENCE_S, wait_until

from penstock.engine.lanes import conductor as module
from penstock.engine.lanes.conductor import (
    Assignment,
    Conductor,
    LaneFailedError,
    LaneSilentError,
)
from penstock.engine.lanes.connection import Connection, connect
from penstock.engine.lanes.messages import (
    PEER_LOST,
    Abort,
    Done,
    Failed,
    Go,
    Hello,
    Stop,
    Written,
)
from penstock.engine.letters.failures import Described
from penstock.errors import PenstockError


class JobEndedError(Exception):
    """What `check` raises here."""


class Lane(threading.Thread):
    """A lane that does to its n-th order what its script says; then whatever comes last."""

    def __init__(
        self, conductor: Conductor, lane: int, script: list[Any], *, stands_in: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.conductor, self.lane, self.script = conductor, lane, script
        self.pid = 1_000 + lane + (100 if stands_in else 0)
        self.stands_in, self.is_greeted = stands_in, False
        self.heard: list[object] = []
        self.start()

    def run(self) -> None:
        connection = connect(self.conductor.address, self.conductor.secret)
        connection.send(Hello(self.lane, self.pid, "127.0.0.1", 9, self.stands_in))
        self.is_greeted = True
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = connection.receive()
                self.heard.append(message)
                match message:
                    case Go() as go:
                        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                        if act(connection, go) is DIE:
                            break
                    case Stop():
                        break
                    case _:
                        pass
        connection.close()


DIE = object()


def report(connection: Connection, go: Go) -> None:
    made = samples.report(version=go.plan.version, traces=go.traces)
    connection.send(Done(go.ticket, made))


def die(connection: Connection, go: Go) -> object:
    return DIE


def say_nothing(connection: Connection, go: Go) -> None:
    pass


def fail(connection: Connection, go: Go) -> None:
    error = Described("FlowError", "expected x; found y", retriable=False)
    connection.send(Failed(go.ticket, error))


def lose_a_peer(connection: Connection, go: Go) -> None:
    connection.send(Failed(go.ticket, Described(PEER_LOST, "gone", retriable=True)))


@contextlib.contextmanager
def conducting(lanes: int) -> Iterator[tuple[Conductor, socket.socket]]:
    wake, waker = socket.socketpair()

    def check() -> None:
        raise JobEndedError

    conductor = Conductor(lanes, "127.0.0.1", wake, check)
    try:
        yield conductor, waker
    finally:
        conductor.stop()
        conductor.close()
        wake.close()
        waker.close()


def assign(lane: int) -> Assignment:
    return Assignment(samples.plan(), {"op": {lane: {}}})


def write() -> None:
    """Writes no plan down."""


REPORTS = [samples.report(traces={"op": {lane: {}}}) for lane in (0, 1)]


def test_every_lane_reports() -> None:
    """Each gets its own part; reports are in the order of the lanes; batch after batch."""
    with conducting(2) as (conductor, _):
        lanes = [Lane(conductor, lane, [report]) for lane in (1, 0)]
        for _ in range(3):
            assert conductor.run(assign, write) == REPORTS
        assert conductor.pids == {0: 1_000, 1: 1_001}
        conductor.stop()
        for lane in lanes:
            lane.join(PATIENCE_S)
            tickets = [m.ticket for m in lane.heard if isinstance(m, Go)]
            assert tickets == sorted(set(tickets))
            assert isinstance(lane.heard[-1], Stop)


def test_lanes_hear_when_the_plan_is_written() -> None:
    """They have begun by then, and each attempt is told anew."""
    with conducting(2) as (conductor, _):
        lanes = [Lane(conductor, number, [report]) for number in (0, 1)]
        begun: list[bool] = []

        def writing() -> None:
            wait_until(lambda: all(any(isinstance(m, Go) for m in lane.heard) for lane in lanes))
            begun.append(not any(isinstance(m, Written) for lane in lanes for m in lane.heard))

        conductor.run(assign, writing)
        conductor.run(assign, write)
        conductor.stop()
        for lane in lanes:
            lane.join(PATIENCE_S)
            assert [m.ticket for m in lane.heard if isinstance(m, Written)] == [1, 2]
        assert begun == [True]


def test_an_attempt_whose_plan_cannot_be_written_is_given_up() -> None:
    """The lanes are ready for the next one."""
    with conducting(1) as (conductor, _):
        lane = Lane(conductor, 0, [say_nothing, report])

        def full() -> None:
            raise OSError("no space left")

        with pytest.raises(OSError, match="no space left"):
            conductor.run(assign, full)
        assert conductor.run(assign, write) == REPORTS[:1]
        conductor.stop()
        lane.join(PATIENCE_S)
        assert [m.ticket for m in lane.heard if isinstance(m, Abort)] == [1]
        assert [m.ticket for m in lane.heard if isinstance(m, Written)] == [2]


def test_a_lane_that_is_lost_is_waited_for_and_the_batch_run_again() -> None:
    """On all lanes: those that had done their part do it once more, under a new ticket."""
    with conducting(2) as (conductor, _):
        stays, goes = Lane(conductor, 0, [report]), Lane(conductor, 1, [die])
        goes_again = threading.Thread(
            target=lambda: (goes.join(), Lane(conductor, 1, [lose_a_peer, report]))
        )
        goes_again.start()
        assert conductor.run(assign, write) == REPORTS
        goes_again.join(PATIENCE_S)
        aborted = [m.ticket for m in stays.heard if isinstance(m, Abort)]
        assert aborted == [1, 2], "the lost lane's attempt, and that of the lost peer"
        assert conductor.run(assign, write) == REPORTS


def test_a_lane_lost_between_batches_is_noticed() -> None:
    """Its successor takes its place, and nobody hears of it."""
    with conducting(1) as (conductor, _):
        first = Lane(conductor, 0, [report, die])
        assert conductor.run(assign, write) == REPORTS[:1]
        with contextlib.suppress(OSError):
            Lane(conductor, 0, [report])
        assert conductor.run(assign, write) == REPORTS[:1]
        assert first.lane == 0


def test_what_a_lane_fails_with_is_raised() -> None:
    """The others give the attempt up, and run the next batch."""
    with conducting(2) as (conductor, _):
        other = Lane(conductor, 0, [say_nothing, report])
        Lane(conductor, 1, [fail, report])
        with pytest.raises(LaneFailedError, match="expected x; found y"):
            conductor.run(assign, write)
        assert conductor.run(assign, write) == REPORTS
        assert any(isinstance(message, Abort) for message in other.heard)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that say nothing are given up soon."""
    monkeypatch.setattr(module, "SILENCE_S", 0.2)
    monkeypatch.setattr(module, "BEAT_S", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_silent_lane_ends_the_wait() -> None:
    """A suspended process, or a machine that is cut off, closes no connection, and Spark starts no other."""
    with conducting(1) as (conductor, _):
        Lane(conductor, 0, [say_nothing])
        for _ in range(2):  # however often it is tried
            with pytest.raises(LaneSilentError, match=r"lost lane 0 \(process 1000\): it hasn't"):
                conductor.run(assign, write)
        Lane(conductor, 0, [report])
        wait_until(lambda: conductor.listen() or conductor.pids)
        assert conductor.run(assign, write) == REPORTS[:1]


@pytest.mark.usefixtures("impatient")
def test_sparks_lane_is_waited_for_where_one_that_stands_in_is_silent() -> None:
    """It comes in any case."""
    with conducting(1) as (conductor, _):
        silent = Lane(conductor, 0, [say_nothing], stands_in=True)
        after = threading.Thread(target=lambda: (silent.join(), Lane(conductor, 0, [report])))
        after.start()
        assert conductor.run(assign, write) == REPORTS[:1]
        after.join(PATIENCE_S)


def test_the_end_of_the_job_ends_the_wait() -> None:
    """Where Spark's job is over no lane will come any more."""
    with conducting(1) as (conductor, waker):
        waker.send(b"!")
        with pytest.raises(JobEndedError):
            conductor.run(assign, write)


def test_too_few_cores_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that Spark has no core for never comes."""
    monkeypatch.setattr(module, "GATHER_S", 0.1)
    with conducting(2) as (conductor, _):
        Lane(conductor, 0, [report])
        with pytest.raises(PenstockError, match="Too few cores are free"):
            conductor.run(assign, write)


def test_who_does_not_know_the_secret_is_refused() -> None:
    """It gets no plan; the lanes that do are served."""
    with conducting(1) as (conductor, _):
        failures: list[Exception] = []

        def stranger() -> None:
            try:
                connect(conductor.address, b"another secret")
            except (OSError, PenstockError) as error:
                failures.append(error)
            finally:
                Lane(conductor, 0, [report])

        thread = threading.Thread(target=stranger)
        thread.start()
        assert conductor.run(assign, write) == REPORTS[:1]
        thread.join(PATIENCE_S)
        assert failures, "the stranger was told nothing"


def test_sparks_lanes_take_the_places_of_those_that_stand_in() -> None:
    """Between two batches, each when it is there; those that come too late are sent away."""
    with conducting(2) as (conductor, _):
        early = [Lane(conductor, number, [report], stands_in=True) for number in (0, 1)]
        assert conductor.run(assign, write) == REPORTS
        late = Lane(conductor, 0, [report])
        wait_until(lambda: conductor.listen() or conductor.pids[0] == late.pid)
        early[0].join(PATIENCE_S)
        assert isinstance(early[0].heard[-1], Stop)
        assert conductor.run(assign, write) == REPORTS
        too_late = Lane(conductor, 0, [report], stands_in=True)
        wait_until(lambda: conductor.listen() or not too_late.is_alive())
        assert too_late.heard == []
        assert conductor.pids == {0: late.pid, 1: early[1].pid}
        assert conductor.run(assign, write) == REPORTS


def test_lanes_come_while_others_that_stand_in_are_lost() -> None:
    """One after the other, in one batch."""
    with conducting(2) as (conductor, _):
        first = Lane(conductor, 0, [say_nothing], stands_in=True)
        Lane(conductor, 1, [die], stands_in=True)
        done: list[Any] = []
        running = threading.Thread(target=lambda: done.append(conductor.run(assign, write)))
        running.start()
        wait_until(lambda: any(isinstance(one, Abort) for one in first.heard))
        own = Lane(conductor, 0, [report])
        wait_until(lambda: conductor.pids.get(0) == own.pid)
        Lane(conductor, 1, [report])
        running.join(PATIENCE_S)
        assert done == [REPORTS]


def test_a_lane_that_has_gone_replaces_nobody() -> None:
    """The one that stands in stays until Spark has started that lane again."""
    with conducting(1) as (conductor, _):
        early = Lane(conductor, 0, [report], stands_in=True)
        assert conductor.run(assign, write) == REPORTS[:1]

        def come_and_go() -> None:
            connection = connect(conductor.address, conductor.secret)
            connection.send(Hello(0, 7, "127.0.0.1", 9))
            connection.close()

        own = threading.Thread(target=come_and_go)
        own.start()
        conductor._selector.select(PATIENCE_S)
        conductor._welcome()
        own.join(PATIENCE_S)
        assert conductor.run(assign, write) == REPORTS[:1]
        assert conductor.pids == {0: early.pid}


def test_a_lane_is_there_where_the_one_that_stands_in_is_lost() -> None:
    """In a batch, too, which is run again."""
    with conducting(1) as (conductor, _):
        latest: list[Lane] = []

        def die_once_the_other_is_there(connection: Connection, go: Go) -> object:
            latest.append(Lane(conductor, 0, [report]))
            wait_until(lambda: latest[0].is_greeted)
            return DIE

        Lane(conductor, 0, [die_once_the_other_is_there], stands_in=True)
        assert conductor.run(assign, write) == REPORTS[:1]
        assert conductor.pids == {0: latest[0].pid}
