"""`App`: a flow that can run."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

from penstock.app.embedded import EmbeddedBroker
from penstock.engine.driver import Limits, Progress
from penstock.engine.runtime import Settings, run_pipeline
from penstock.errors import FlowError, SetupError
from penstock.flow import Flow

__all__ = ["App"]

CORES_MAX: Final = 256  # tasks of one batch on one machine; more is a mistake in the argument


class App(Flow):
    """A pipeline: what it computes, and where it runs.

    Args:
        name: of letters, digits and `_`.
        log: `kafka://host:port`, `kafka+tls://user@host:port` (the password is in the environment,
            PENSTOCK_PASSWORD); by default an embedded broker whose log is in the directory.
        spark: `spark://…`; by default Spark runs on this machine.
        directory: of the log and the state; by default `NAME.penstock` in the working directory.
        state: a URI for state that a Spark cluster shares (`s3://…`, `hdfs://…`).
        cores: tasks at a time; by default 2, or 1 on a machine with one core.
        batch_rows: of one partition in one batch, at most; bounds how long a batch takes when the
            pipeline has fallen behind.
    """

    def __init__(
        self,
        name: str,
        *,
        log: str | None = None,
        spark: str | None = None,
        directory: str | Path | None = None,
        state: str | None = None,
        cores: int | None = None,
        batch_rows: int = Limits.rows_max,
    ) -> None:
        super().__init__(name)
        cores = cores or min(2, os.cpu_count() or 1)
        if not 1 <= cores <= CORES_MAX:
            raise FlowError(f"expected 1 to {CORES_MAX} cores; found {cores}")
        if spark is not None and state is None:
            raise FlowError(
                f"expected state=… that every machine of {spark!r} reaches (s3://…, hdfs://…); found none"
            )
        if batch_rows < 1:
            raise FlowError(f"expected batch_rows of 1 or more; found {batch_rows}")
        folder = Path(directory) if directory is not None else Path(f"{name}.penstock")
        self.settings = Settings(folder, spark=spark, state=state, cores=cores, rows_max=batch_rows)
        self._log = None if log is None else _address(log)
        #: The log's address while the app runs, `host:port`.
        self.address: str | None = None
        self._stop = threading.Event()

    @property
    def directory(self) -> Path:
        """Where the app keeps its log and state."""
        return self.settings.directory

    def run(
        self,
        seconds: float | timedelta | None = None,
        *,
        on_start: Callable[[str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_idle: Callable[[], None] | None = None,
        until: Callable[[], bool] | None = None,
        rebuild: bool = False,
    ) -> None:
        """Runs the pipeline in the foreground, until `stop`, Ctrl-C, SIGTERM or one of these.

        Args:
            seconds: how long to run, from the first batch on.
            on_start: called with the log's address once the log can be used.
            on_progress: called after each batch, on another thread.
            on_idle: called when all that is in the log has been read, on another thread.
            until: asked often; the pipeline ends when it is true.
            rebuild: throws the state away first; it is computed again from the log.

        Raises:
            PenstockError: what stopped it.
        """
        limit_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        graph = self.graph()
        self._stop.clear()
        began: list[float] = []

        def started(address: str) -> None:
            self.address = address
            if on_start:
                on_start(address)

        def began_at() -> float:
            if not began:
                began.append(time.monotonic())
            return began[0]

        def progressed(progress: Progress) -> None:
            began_at()
            if on_progress:
                on_progress(progress)

        def idled() -> None:
            began_at()
            if on_idle:
                on_idle()

        def ended() -> bool:
            over = limit_s is not None and bool(began) and time.monotonic() - began[0] >= limit_s
            return over or self._stop.is_set() or (until is not None and until())

        _make_directory(self.directory)
        with _signals(self._stop) as take_signals, self._open_log() as address:
            started(address)
            run_pipeline(
                graph,
                self.settings,
                address,
                on_progress=progressed,
                on_idle=idled,
                until=ended,
                on_session=take_signals,
                rebuild=rebuild,
            )

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[str]:
        """The log's address, while the log is to be had."""
        if self._log is not None:
            yield self._log
            return
        broker = EmbeddedBroker(self.directory)
        try:
            yield broker.start()
        finally:
            broker.stop()

    def stop(self) -> None:
        """Ends `run` after the batch in flight; may be called from any thread."""
        self._stop.set()

    def main(self, arguments: list[str] | None = None) -> None:
        """The command line of a program: the same as `penstock run` of its file."""
        # The command line stands above this module; the program that calls this asks for it.
        importlib.import_module("penstock.cli").program(self, arguments)


def _address(log: str) -> str:
    scheme, separator, address = log.rpartition("://")
    if scheme in {"kafka+tls", "kafka+sasl"}:
        from penstock.client._security import parse_target

        parse_target(log)
        return log
    if (separator and scheme != "kafka") or not address:
        raise SetupError(f"expected a log such as 'kafka://127.0.0.1:9092'; found {log!r}")
    return address


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"expected to create {str(directory)!r}; found: {error.strerror}. Name another directory"
        ) from None
    if not os.access(directory, os.W_OK):
        raise SetupError(f"expected to write to {str(directory)!r}; found no permission")


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """Lets Ctrl-C and SIGTERM end the pipeline after the batch in flight.

    Yields:
        What takes the signals, and takes them back from whoever did meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def take() -> None:
        for number in numbers:
            signal.signal(number, lambda *_: stop.set())

    take()
    try:
        yield take
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
