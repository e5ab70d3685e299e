"""Runs batches on Spark: one job whose tasks are the pipeline's lanes.

Spark places the lanes, carries the code there and starts a lost one again; what they do, and when, is
between them and the driver (`penstock.engine.lanes`). What is true is in `penstock.engine.store`. It
runs over Spark Connect, too.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from penstock import errors
from penstock.client.network.connection import Aside
from penstock.engine.driver import Progress
from penstock.engine.lanes.conductor import (
    Assignment,
    Conductor,
    LaneFailedError,
    LaneSilentError,
)
from penstock.engine.lanes.lane import serve
from penstock.engine.letters.failures import Described
from penstock.engine.plan import Execute, Work
from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report
from penstock.engine.spark import standby
from penstock.engine.spark.session import Place, Spark
from penstock.engine.tasks import Job
from penstock.errors import PenstockError
from penstock.flow.graph import function_of

__all__ = ["SparkHost"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

POLL_S: Final = 0.5  # of `until`
WAIT_S: Final = 0.5  # on the log, between two looks at what else may have changed
REST_WAIT_S: Final = 2.5  # the same at rest
REST_S: Final = 10.0  # without a record, until a pipeline is at rest
ATTEMPTS_MAX: Final = 5  # of one batch whose work fails with what may pass
RETRY_S: Final = 1.0
ROOM_WAIT_S: Final = 5.0  # between two attempts where a disk is full
ROOM_WARN_S: Final = 60.0  # between two words about that
STOP_S: Final = (
    10.0  # for a batch in flight to end before Spark's job is interrupted, and for it to end then
)
INTERRUPT_S: Final = 0.1  # between two interruptions of a job that hasn't ended
JOBS_MAX: Final = 5
"""Jobs of Spark's, on a new JVM or not, that are begun one after the other without a batch between them."""


class _JobEndedError(Exception):
    """Spark's job has ended, and its lanes with it."""


class _NotStartedError(Exception):
    """There is no Spark."""


class _StoppedError(Exception):
    """The pipeline is stopped while its lanes are not there yet, or have nothing to do."""


class Steps(Protocol):
    """What a host runs: a driver, or an upgrade."""

    def step(
        self,
        execute: Execute,
        *,
        timeout_s: float = 0.0,
        aside: Aside | None = None,
    ) -> Progress | None:
        """Runs one batch; None where there was nothing to do in `timeout_s`. Attends to `aside` meanwhile."""
        ...


class SparkHost:
    """Executes a driver's batches on Spark, until the caller says that it is over.

    A JVM that is gone is started again, where Spark is the pipeline's own.

    Args:
        spark: where.
        job: what the lanes do.
        lanes: how many.
        log: where Spark's own log is, for messages.
        on_start: called when Spark is there, on another thread.
        on_restart: called when a JVM that was gone has been started again, likewise.
        on_gather: called every second while Spark's tasks are waited for, likewise.
    """

    def __init__(
        self,
        spark: Spark,
        job: Job,
        *,
        lanes: int,
        log: str,
        on_start: Callable[[], None] = lambda: None,
        on_restart: Callable[[], None] = lambda: None,
        on_gather: Callable[[], None] = lambda: None,
    ) -> None:
        self.spark, self.job, self.lanes = spark, job, lanes
        self._spark_log = log
        self._on_start, self._on_restart, self._on_gather = on_start, on_restart, on_gather
        self._is_gone = False  # the JVM
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._standing: _Standing | None = None
        self._jobs = 0
        self._attempts = 0
        self._room_warned_s = -ROOM_WARN_S

    def run(
        self,
        driver: Steps,
        on_progress: Callable[[Progress], None],
        until: Callable[[], bool],
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs batches until `until()`.

        Args:
            driver: the owner of the pipeline.
            on_progress: called after each batch, on another thread.
            until: asked often.
            on_idle: called when there was nothing to do, on another thread.

        Raises:
            PenstockError: what stopped the pipeline.
        """
        _carry_functions(self.job)
        loop = threading.Thread(
            target=self._loop,
            args=(driver, on_progress, on_idle),
            name="penstock-driver",
            daemon=True,
        )
        loop.start()
        try:
            while not self._ended.wait(POLL_S) and not until():
                pass
        finally:
            self._stop.set()
            if (standing := self._standing) is not None:
                standing.stop_waiting()
            self._ended.wait(STOP_S)
            if (standing := self._standing) is not None:
                standing.close()
        if self._failure is not None:
            raise self._failure

    def _loop(
        self,
        driver: Steps,
        on_progress: Callable[[Progress], None],
        on_idle: Callable[[], None],
    ) -> None:
        read_s = time.monotonic()
        try:
            while not self._stop.is_set():
                rests = time.monotonic() - read_s >= REST_S
                wait_s = REST_WAIT_S if rests else WAIT_S
                try:
                    standing = self._stand()
                    progress = driver.step(standing.execute, timeout_s=wait_s, aside=standing)
                    if progress is None:
                        standing.listen()
                except Exception as error:  # noqa: BLE001 - it must reach the user's thread
                    self._failed(error)
                    continue
                self._attempts = 0
                if progress is None:
                    on_idle()
                else:
                    if standing.is_settled:
                        self._jobs = 0
                    on_progress(progress)
                    if progress.rows:
                        read_s = time.monotonic()
        except BaseException as error:  # noqa: BLE001 - of the callbacks
            self._failure = error
        finally:
            self._ended.set()

    def _stand(self) -> _Standing:
        """The lanes; begins them, and Spark, where they are not there."""
        if self._standing is None:
            on_start = self._on_start
            if self._is_gone:
                self.spark.start_again()
                self._is_gone = False
                on_start = self._on_restart
            self._standing = _Standing(
                self.spark, self.job, self.lanes, on_start, self._stop.is_set
            )
            self._standing.on_gather = self._on_gather
            if self._stop.is_set():
                # A cluster took long, and these lanes are no longer waited for.
                self._standing.close()
                raise _StoppedError
        return self._standing

    def _failed(self, error: Exception) -> None:
        """Tries the batch again where that may help: it has a plan, so it will be the same one."""
        if isinstance(error, _NotStartedError) and isinstance(error.__cause__, PenstockError):
            self._failure = error.__cause__  # of the set-up: no attempt changes that
            self._stop.set()
            return
        may_pass = not isinstance(error, PenstockError) or error.retriable
        if may_pass and self._stop.is_set():
            return  # the lanes were stopped under a batch that took long; the next run repeats it
        if _lacks_room(error):
            self._wait_for_room(error)
            return
        of_spark = not isinstance(error, PenstockError) and self.spark.is_gone()
        if of_spark or isinstance(error, _JobEndedError):
            self._job_ended(error)
            return
        self._attempts += 1
        if may_pass and self._attempts < ATTEMPTS_MAX:
            _log.warning("batch failed, attempt %d: %s", self._attempts, _short(error))
            self._stop.wait(RETRY_S * self._attempts)
            return
        if isinstance(error, PenstockError):
            self._failure = error
        else:
            self._failure = PenstockError(f"expected the batch to run; found: {_short(error)}")
            self._failure.__cause__ = error
        self._stop.set()

    def _wait_for_room(self, error: Exception) -> None:
        """Tries the batch again until there is room: nothing else can help, and nothing is lost."""
        now_s = time.monotonic()
        if now_s - self._room_warned_s >= ROOM_WARN_S:
            self._room_warned_s = now_s
            _log.warning(
                "expected disk space for the pipeline's state or log; found none (%s). The pipeline waits, "
                "and continues when there is space",
                _short(error),
            )
        self._stop.wait(ROOM_WAIT_S)

    def _job_ended(self, error: Exception) -> None:
        """Begins a new job, on a new JVM where that is gone, unless jobs end as soon as they begin."""
        if self._standing is not None:
            self._standing.close()
            self._standing = None
        self._jobs += 1
        is_gone = self.spark.is_gone()
        to, found = "continue", "its process (java) has ended, killed or out of memory"
        if isinstance(error, _NotStartedError):
            to, found = "start", _short(error.__cause__ or error)
        if self._jobs < JOBS_MAX and (self.spark.can_start_again or not is_gone):
            self._is_gone = is_gone
            if is_gone:
                _log.warning(
                    "expected Spark to %s; found: %s. It is started again, and the batch in flight is "
                    "repeated. Spark's log is %s",
                    to,
                    found,
                    self._spark_log,
                )
            else:
                _log.warning("%s; Spark's job is started again", _short(error))
            self._stop.wait(RETRY_S * 2 ** (self._jobs - 1))
            return
        detail = found if is_gone else _short(error)
        self._failure = PenstockError(
            f"expected Spark to {to}; found: {detail}. Nothing is lost: run the pipeline again, and it "
            f"continues after the last committed batch. Spark's log is {self._spark_log}"
        )
        self._failure.__cause__ = error
        self._stop.set()


class _Standing:
    """One job of Spark's, with its lanes."""

    def __init__(
        self,
        spark: Spark,
        job: Job,
        lanes: int,
        on_start: Callable[[], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._is_stopped = is_stopped
        #: Called every second while Spark's tasks are waited for.
        self.on_gather: Callable[[], None] = lambda: None
        self._tag = f"penstock-{uuid.uuid4().hex}"
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._turning = threading.Lock()
        self._has_job, self._is_closing = False, False
        self._interrupt: Callable[[], object] = lambda: None  # until there is a job
        host = _started(lambda: spark.host)
        self._wake, self._waker = socket.socketpair()
        self._stopped, self._stopper = socket.socketpair()
        self._conductor = Conductor(lanes, host, self._wake, self._check, self._gathers)
        address, secret = self._conductor.address, self._conductor.secret

        def stay(numbers: Iterable[int]) -> None:
            for lane in numbers:
                serve(job, lane, lanes, address, secret)

        def stand_in(lane: int) -> None:
            serve(job, lane, lanes, address, secret, stands_in=True)

        def collect() -> None:
            try:
                standby.fork_lanes(stand_in, lanes)
                place = _started(lambda: spark.place)
                with self._turning:
                    if self._is_closing:
                        return
                    run, self._interrupt = _tasks(place, lanes, stay, self._tag)
                    self._has_job = True
                on_start()
                run()
            except BaseException as error:  # noqa: BLE001 - reported by `_check`, on the driver's thread
                self._error = error
            finally:
                self._over.set()
                with contextlib.suppress(OSError):
                    self._waker.send(b"!")

        self._thread = threading.Thread(target=collect, name="penstock-spark", daemon=True)
        self._thread.start()

    def execute(self, work: Work) -> list[Report]:
        """Runs a batch on all lanes; their reports. Lanes that are lost are another attempt.

        Raises:
            PenstockError: what a lane's work failed with.
        """
        plan: Plan | None = None

        def assign(lane: int) -> Assignment:
            nonlocal plan
            if lane == 0:  # every attempt assigns to all lanes, this one first
                plan = work.attempt()
            assert plan is not None
            return Assignment(plan, work.traces_of(lane))

        try:
            return self._conductor.run(assign, work.write)
        except LaneFailedError as error:
            raise _raised(error.described) from None
        except LaneSilentError as error:
            # Spark takes its task for running. Ending the job kills a process that is suspended.
            raise _JobEndedError(f"expected Spark's tasks to answer; found: {error}") from None

    @property
    def is_settled(self) -> bool:
        """Whether all of Spark's lanes are there."""
        return self._conductor.is_settled

    def listen(self) -> None:
        """Hears the lanes between batches."""
        self._conductor.listen()

    # -- aside, while the log is waited for ---------------------------------------------------------

    def filenos(self) -> list[int]:
        """See `Aside`: of the lanes, and of the stop."""
        return [self._stopped.fileno(), *self._conductor.filenos()]

    def attend(self) -> None:
        """See `Aside`."""
        self._on_wait()
        self.listen()

    def stop_waiting(self) -> None:
        """Ends a wait for the log, now or later, once the pipeline is stopped; from another thread."""
        with contextlib.suppress(OSError):  # these lanes are gone
            self._stopper.send(b"!")

    # -- the job ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops the lanes, and Spark's job with them."""
        with self._turning:
            if self._is_closing:
                return
            self._is_closing = True
        self._conductor.stop()
        if self._has_job and not (self.is_settled and self._over.wait(STOP_S)):
            self._end_job()
        self._conductor.close()
        for one in (self._wake, self._waker, self._stopped, self._stopper):
            one.close()

    def _end_job(self) -> None:
        """Interrupts Spark's job until it has ended: one that Spark doesn't know yet can't be interrupted."""
        give_up_s = time.monotonic() + STOP_S
        while not self._over.is_set() and time.monotonic() < give_up_s:
            with contextlib.suppress(Exception):  # a JVM that is gone has stopped already
                self._interrupt()
            self._over.wait(INTERRUPT_S)

    def _check(self) -> None:
        if self._over.is_set():
            if isinstance(self._error, _NotStartedError):
                raise self._error
            found = "it ended" if self._error is None else _short(self._error)
            raise _JobEndedError(f"expected Spark's job to stay; found: {found}") from self._error

    def _gathers(self) -> None:
        self._on_wait()
        self.on_gather()

    def _on_wait(self) -> None:
        if self._is_stopped():
            raise _StoppedError


def _started(ask: Callable[[], T]) -> T:
    """What is asked of Spark, once it is there.

    Raises:
        _NotStartedError: it can't be started; its cause says why.
    """
    try:
        return ask()
    except BaseException as error:
        raise _NotStartedError from error


def _tasks(
    place: Place, count: int, work: Callable[[Iterable[int]], None], tag: str
) -> tuple[Callable[[], None], Callable[[], object]]:
    """A job of so many tasks, each of which works on its number: what runs it, and what interrupts it.

    An RDD's job needs nothing of Spark's SQL: its classes would be loaded, and a plan compiled, for seconds.
    Spark Connect has no RDDs.
    """
    from pyspark import SparkContext

    if not isinstance(place, SparkContext):

        def stay(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                work(batch.column(0).to_numpy().tolist())
            yield from ()

        frame = place.range(0, count, numPartitions=count).mapInArrow(stay, "nothing long")

        def collect() -> None:
            place.addTag(tag)
            frame.collect()

        return collect, lambda: place.interruptTag(tag)

    def each() -> None:
        place.addJobTag(tag)
        place.setInterruptOnCancel(True)
        place.parallelize(range(count), count).foreachPartition(work)

    return each, lambda: place.cancelJobsWithTag(tag)


def _lacks_room(error: Exception) -> bool:
    """Whether a disk is full: the state's, here or where a lane is, or the log's."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return True
    is_retriable = isinstance(error, PenstockError) and error.retriable
    return is_retriable and any(
        word in str(error) for word in ("No space left", "KAFKA_STORAGE_ERROR")
    )


def _raised(found: Described) -> PenstockError:
    kind: type[PenstockError] = getattr(errors, found.type, PenstockError)
    error = kind(found.text)
    error.retriable = found.retriable
    return error


def _carry_functions(job: Job) -> None:
    """Sends the modules of the user's functions along: workers can't import a program file."""
    from pyspark import cloudpickle

    for node in job.physical.graph.nodes:
        found = function_of(node)
        if found is not None:
            module = sys.modules.get(found[1].__module__)
            installed = "site-packages" in str(getattr(module, "__file__", None) or "")
            if module is not None and module.__name__ != "__main__" and not installed:
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # no types


def _short(error: BaseException) -> str:
    """The last line of an error that says something: Python's own, below Java's trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (messages or lines or [repr(error)])[-1 if messages else 0][:2_000]
