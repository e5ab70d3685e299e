"""The heartbeat of a run: gathers its facts every second, and writes them down."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.app.facts import Facts, hold, read_facts, write_facts
from penstock.app.lag import Meter
from penstock.app.nodes import NodeTotals, write_graph

if TYPE_CHECKING:
    from penstock.engine.driver import Progress
    from penstock.engine.physical import Physical
    from penstock.sinks.figures import SinkFigures

__all__ = ["Heartbeat"]

EVERY_S: Final = 1.0  # between two writings
REST_US: Final = 1_500_000  # at least, while only the instants of looks change: every second time
BATCHES: Final = 100  # the last ones, of which the slowest says what is usual
ENGINE: Final = "penstock.engine"  # whose warnings are facts


class Heartbeat:
    """One run's facts. Reported by the threads of the run; read by any.

    Args:
        app: the pipeline's name.
        directory: where the facts are written.
        topics: that the pipeline reads.
        command: that starts it.
        read: gives the offsets that the committed version has read; see `Meter`.
        clock_us: the wall clock.
    """

    def __init__(
        self,
        app: str,
        directory: Path,
        *,
        topics: list[str],
        command: str | None,
        read: Callable[[], Mapping[str, Mapping[str, int]]],
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._directory, self._read, self._clock_us = directory, read, clock_us
        now_us = clock_us()
        self._facts = Facts(
            app=app,
            pid=os.getpid(),
            machine=socket.gethostname(),
            directory=str(directory),
            started_us=now_us,
            said_us=now_us,
            topics=topics,
            command=command,
        )
        self._batches_ms: deque[float] = deque(maxlen=BATCHES)
        self._meter: Meter | None = None
        self._nodes = NodeTotals()
        self._sinks: Callable[[], dict[str, SinkFigures]] = dict
        self._written: Facts | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Writes the facts until the block ends, and how it ended."""
        ear = _Ear(self._warned)
        logger = logging.getLogger(ENGINE)
        logger.addHandler(ear)
        thread = threading.Thread(target=self._beat, name="penstock-heartbeat", daemon=True)
        with hold(self._directory):
            thread.start()
            try:
                yield
            except BaseException as error:
                reason = None if isinstance(error, KeyboardInterrupt) else str(error) or repr(error)
                self._note(ended_us=self._clock_us(), error=reason)
                raise
            else:
                self._note(ended_us=self._clock_us())
            finally:
                logger.removeHandler(ear)
                if self._meter is not None:
                    self._meter.close()
                self._ended.set()
                thread.join()

    def facts(self) -> Facts:
        """All that is known now."""
        now_us = self._clock_us()
        with self._lock:
            facts = replace(
                self._facts,
                said_us=now_us,
                nodes=self._nodes.figures(now_us),
                sinks=self._sinks(),
            )
        if self._meter is None:
            return facts
        found = self._meter.measured
        return replace(
            facts,
            asked_us=found.asked_us,
            answered_us=found.answered_us,
            answering_us=found.answering_us,
            log_error=found.error,
            lag=found.lag,
            behind_us=found.behind_us,
            abreast_us=found.abreast_us,
        )

    # -- what happens -------------------------------------------------------------------------------

    def log_opened(self, address: str, *, embedded: bool) -> None:
        """The log is at this address; from now on it is asked how far it reaches."""
        self._note(log=address.rpartition("@")[2].removeprefix("kafka://"), embedded=embedded)
        self._meter = Meter(address, self._facts.topics, self._read, self._clock_us)

    def sinks_made(self, figures: Callable[[], dict[str, SinkFigures]]) -> None:
        """The program's sinks are about to run; this gives what they do, by name."""
        self._sinks = figures

    def spark_started(self) -> None:
        """Spark has started. Also called when its job starts again."""
        if self._facts.spark_us is None:
            self._note(spark_us=self._clock_us())

    def spark_restarted(self) -> None:
        """Spark was gone, and is there again."""
        self.spark_started()  # if it went while it started
        self._note(spark_restarts=self._facts.spark_restarts + 1)

    def gathering(self) -> None:
        """A batch waits for Spark's tasks."""
        self._note(gathering_us=self._clock_us())

    def planned(self, physical: Physical) -> None:
        """The program is about to run, so."""
        with contextlib.suppress(OSError):  # as of the facts
            write_graph(self._directory, physical)

    def progressed(self, progress: Progress) -> None:
        """A batch has ended."""
        now_us = self._clock_us()
        self._nodes.take(progress.nodes, now_us)
        if self._facts.batch_us is not None:  # the first one starts Spark's tasks as well
            self._batches_ms.append(progress.batch_ms)
        more = {"read_us": now_us} if progress.rows else {}
        self._note(
            looked_us=now_us,
            batch_us=now_us,
            backfill=None,
            backfill_us=None,
            batch_ms=progress.batch_ms,
            slowest_ms=max(self._batches_ms, default=0.0),
            warning=None,  # whatever it was, it has passed
            **more,
        )

    def idled(self) -> None:
        """There was nothing to read."""
        self._note(looked_us=self._clock_us(), backfill=None, backfill_us=None, warning=None)

    def backfilled(self, done: str) -> None:
        """A batch of a backfill has ended; so much of it is done."""
        now_us = self._clock_us()
        since_us = self._facts.backfill_us or now_us
        self._note(backfill=done, backfill_us=since_us, looked_us=now_us, warning=None)

    def stopping(self) -> None:
        """The run has been asked to stop."""
        if self._facts.stopping_us is None:
            self._note(stopping_us=self._clock_us())

    def _warned(self, text: str) -> None:
        self._note(warning=text, warning_us=self._clock_us())

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._facts = replace(self._facts, **changes)

    def _beat(self) -> None:
        self._write(self.facts())
        while not self._ended.wait(EVERY_S):
            facts = self.facts()
            if not _is_redundant(facts, self._written):
                self._write(facts)
        self._write(self.facts())

    def _write(self, facts: Facts) -> None:
        self._written = facts
        found = read_facts(self._directory)
        if found is not None and found.facts.started_us > self._facts.started_us:
            return  # another run has taken over
        with contextlib.suppress(OSError):  # a full disk: the pipeline itself says so
            write_facts(self._directory, facts)


def _is_redundant(facts: Facts, written: Facts | None) -> bool:
    """Whether what was written not long ago says as much."""
    if written is None or facts.said_us - written.said_us >= REST_US or not written.answered_us:
        return False
    looks = ("said_us", "looked_us", "answered_us")
    return replace(facts, **{name: getattr(written, name) for name in looks}) == written


class _Ear(logging.Handler):
    """Hears warnings, and passes them on as if nobody had heard them."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard(record.getMessage())
        if not logging.root.handlers and logging.lastResort is not None:
            logging.lastResort.handle(record)
