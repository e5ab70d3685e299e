"""`App`: a flow that can run."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.app import command_line
from penstock.app.databases import DatabaseFlow
from penstock.engine.plan import Limits, Settings
from penstock.engine.store import VERSIONS_KEPT, VERSIONS_KEPT_MAX, VERSIONS_KEPT_MIN
from penstock.errors import FlowError, QueryError, SetupError
from penstock.flow.checks import check_function, check_number, check_text

# What runs a pipeline is imported by `run`: reading, checking and testing a program need none of it.
if TYPE_CHECKING:
    from penstock.app.embedded import Exposed
    from penstock.app.facts import Facts
    from penstock.app.heartbeat import Heartbeat
    from penstock.engine.driver import Progress
    from penstock.engine.upgrade import Backfilled, Outputs
    from penstock.flow.graph import Graph

__all__ = ["App"]

CORES_MAX: Final = 256  # tasks of one batch on one machine; more is a mistake in the argument
BATCH_ROWS_MAX: Final = 2**31 - 1  # of one partition in one batch: Arrow's offsets
EXAMPLES: Final = {
    "log": "kafka://127.0.0.1:9092",
    "spark": "spark://master:7077",
    "state": "s3://bucket/shop",
    "listen": "127.0.0.1:9092",
    "address": "10.0.0.5",
}


class App(DatabaseFlow):
    """A pipeline: what it computes, and where it runs.

    Args:
        name: the pipeline's name: letters, digits and `_`.
        log: `kafka://host:port`, `kafka+tls://user@host:port` (the password is in the environment,
            PENSTOCK_PASSWORD); by default an embedded broker whose log is in the directory.
        spark: `spark://…`; by default Spark runs on this machine.
        address: of this machine, at which a cluster's workers reach it; by default SPARK_LOCAL_IP of the
            environment, else the address from which this machine sends to Spark's master.
        listen: `host:port` of the embedded broker, on loopback. By default, or with port 0, the address
            of the last run, at first a free port.
        directory: where the log and the state are stored; by default `NAME.penstock` in the working
            directory.
        state: a URI for state that a Spark cluster shares (`s3://…`, `hdfs://…`).
        cores: tasks at a time; by default 2, or 1 on a machine with one core.
        shards: the number of parts of exchanged state; by default unchanged, at first one for each
            core. More cores than shards don't speed up exchanged steps. Another number cuts the state
            again.
        batch_rows: most records of one partition in one batch; limits the duration of a batch when
            the pipeline has fallen behind.
        versions_kept: how many of the last committed versions can be read: by `AS OF`, by transactions that
            read one version, and as the beginning of a view's changes. Each keeps its files.
        transactions: writes the output of a batch to all topics in one transaction. Readers of
            committed data see all of it or nothing; others may see some records twice after a crash.
        on_error: what becomes of an error that some rows cause and that no operator foresaw, such as one in
            your own function. `"dead-letter"`: these rows are dead letters with the error, and the others are
            used. `"stop"`: the pipeline stops.
    """

    def __init__(
        self,
        name: str,
        *,
        log: str | None = None,
        listen: str | None = None,
        spark: str | None = None,
        address: str | None = None,
        directory: str | Path | None = None,
        state: str | None = None,
        cores: int | None = None,
        shards: int | None = None,
        batch_rows: int = Limits.rows_max,
        versions_kept: int = VERSIONS_KEPT,
        transactions: bool = False,
        on_error: str = "dead-letter",
    ) -> None:
        super().__init__(name, transactions=transactions, on_error=on_error)
        if cores is None:
            cores = min(2, os.cpu_count() or 1)
        check_number(cores, "cores", 1, CORES_MAX)
        if shards is not None:
            check_number(shards, "shards", 1, CORES_MAX)
        given = {"log": log, "spark": spark, "state": state, "listen": listen, "address": address}
        for what, text in given.items():
            if text is not None:
                check_text(text, what, f"{what}={EXAMPLES[what]!r}")
        if not isinstance(directory, str | Path | None):
            raise FlowError(f"expected directory as a path, such as 'shop'; found {directory!r}")
        if spark is not None and state is None:
            raise FlowError(
                f"expected state=… that every machine of {spark!r} reaches (s3://…, hdfs://…); found none"
            )
        check_number(batch_rows, "batch_rows", 1, BATCH_ROWS_MAX)
        check_number(versions_kept, "versions_kept", VERSIONS_KEPT_MIN, VERSIONS_KEPT_MAX)
        folder = Path(directory) if directory is not None else Path(f"{name}.penstock")
        self.settings = Settings(
            folder,
            spark=spark,
            address=address,
            state=state,
            cores=cores,
            rows_max=batch_rows,
            shards=shards,
            versions_kept=versions_kept,
        )
        self._log = None if log is None else _address(log)
        self.listen = listen
        self._exposed: Exposed | None = None
        #: What starts the program, for messages to users who find it stopped.
        self.command: str | None = None
        #: The log's address while the app runs, `host:port`.
        self.address: str | None = None
        self._stop = threading.Event()
        self._heart: Heartbeat | None = None

    @property
    def listen(self) -> str | None:
        """Where the embedded broker listens; None: at its last address."""
        return self._listen

    @listen.setter
    def listen(self, address: str | None) -> None:
        if address is not None:
            if self._log is not None:
                raise FlowError(
                    f"expected log=… or listen=…; found both. The log is at {self._log}, together with "
                    "its broker. Remove listen=…: this process starts no broker"
                )
            from penstock.app.embedded import checked_listen

            checked_listen(address)
        self._listen = address

    def expose(self, listen: str, *, advertise: str | None = None) -> None:
        """Lets other machines reach the embedded log: it listens at another address as well.

        Clients aren't authenticated: everyone who can reach the address can read and delete everything.
        This is for networks that are protected themselves, such as a container whose port is published to
        one machine. For others, run a broker with TLS and users.

        Args:
            listen: `HOST:PORT`, such as `0.0.0.0:9092`.
            advertise: `HOST:PORT` that clients connect to; by default the address at which they reached the
                log. Where a port is published under another address, it is that address.

        Raises:
            FlowError: the log isn't the embedded one.
        """
        from penstock.app.embedded import Exposed

        if self._log is not None:
            raise FlowError(
                f"expected an embedded log to expose; found the log at {self._log}, whose broker says where "
                "it listens"
            )
        self._exposed = Exposed(listen, advertise)

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
        on_backfill: Callable[[Backfilled], None] | None = None,
        until: Callable[[], bool] | None = None,
        rebuild: bool = False,
        savepoint: str | None = None,
        outputs: Outputs | None = None,
    ) -> None:
        """Runs the pipeline in the foreground, until `stop`, Ctrl-C, SIGTERM or one of these.

        Args:
            seconds: how long to run, from the first batch on.
            on_start: called with the log's address once the log can be used.
            on_progress: called after each batch, on another thread.
            on_idle: called when all that is in the log has been read, on another thread.
            on_backfill: called while new views are computed from the log, on another thread.
            until: polled; the pipeline ends when it returns true.
            rebuild: recomputes all state from the log, then replaces the existing state.
            savepoint: returns to this savepoint first.
            outputs: whether topics get all records that are computed again, or only new ones.

        Raises:
            PenstockError: what stopped it.
        """
        from penstock.app.watch import Watch
        from penstock.engine.runtime import open_store, run_pipeline
        from penstock.engine.savepoints import find_savepoint
        from penstock.engine.spark.session import session_for

        limit_s = _limit_s(seconds)
        callbacks = {
            "on_start": on_start,
            "on_progress": on_progress,
            "on_idle": on_idle,
            "on_backfill": on_backfill,
            "until": until,
        }
        for what, function in callbacks.items():
            check_function(function, what)
        _check_beginning(savepoint, outputs, rebuild=rebuild)
        if savepoint is not None:
            find_savepoint(open_store(self.settings.state_uri), savepoint)  # before Spark starts
        graph = self.graph()
        self._stop.clear()
        heart = self._heart = self._new_heart(graph)
        _make_directory(self.directory)
        where = self.settings
        with (
            heart.beating(),
            _signals(self._stop),
            session_for(
                self.name,
                where.spark,
                where.spark_folder,
                cores=where.cores,
                address=where.address,
            ) as spark,
            self._open_log() as address,
        ):
            self.address = address
            heart.log_opened(address, embedded=self._log is None)
            if on_start:
                on_start(address)
            running = self.databases(address)
            heart.sinks_made(running.figures)
            watcher = Watch(
                heart,
                on_progress=on_progress,
                on_idle=on_idle,
                on_backfill=on_backfill,
                until=lambda: (
                    running.error is not None
                    or self._stop.is_set()
                    or (until is not None and until())
                ),
                limit_s=limit_s,
            )
            with running.running():
                run_pipeline(
                    graph,
                    self.settings,
                    address,
                    spark,
                    watcher,
                    rebuild=rebuild,
                    savepoint=savepoint,
                    outputs=outputs,
                    ordered=self._by_size if self.depends_on_sizes else None,
                )
            if running.error is not None:
                raise running.error

    def _new_heart(self, graph: Graph) -> Heartbeat:
        from penstock.app.heartbeat import Heartbeat

        return Heartbeat(
            self.name,
            self.directory,
            topics=[source.topic for source in graph.sources],
            command=self.command,
            read=functools.partial(_read_offsets, self.settings.state_uri),
        )

    def _by_size(self, records: Mapping[str, int]) -> Graph:
        return self.ordered(records)[0]

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[str]:
        """The log's address, while the log can be used."""
        from penstock.app.embedded import EmbeddedBroker, remember_log

        if self._log is not None:
            remember_log(self.directory, self._log, self.command)
            yield self._log
            return
        broker = EmbeddedBroker(
            self.directory, listen=self.listen, command=self.command, exposed=self._exposed
        )
        try:
            yield broker.start()
        finally:
            broker.stop()

    def facts(self) -> Facts | None:
        """The facts about the current run, or the last one; None if there was none."""
        return None if self._heart is None else self._heart.facts()

    def stop(self) -> None:
        """Ends `run` after the batch in flight. Can be called from any thread."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether the last `run` was stopped, by `stop`, Ctrl-C or SIGTERM."""
        return self._stop.is_set()

    def main(self, arguments: list[str] | None = None) -> None:
        """The command line of a program: the same as `penstock run` of its file."""
        command_line.given()(self, arguments)


def _limit_s(seconds: object) -> float | None:
    limit_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if not isinstance(limit_s, int | float | None) or isinstance(limit_s, bool):
        raise FlowError(f"expected seconds as a number or a timedelta; found {seconds!r}")
    return limit_s


def _check_beginning(savepoint: str | None, outputs: object, *, rebuild: bool) -> None:
    """Refuses what can't be asked of the beginning of a run."""
    if outputs not in {None, "all", "new"}:
        raise FlowError(f"expected outputs as 'all', 'new' or None; found {outputs!r}")
    if savepoint is not None and rebuild:
        raise FlowError("expected savepoint=… or rebuild=True; found both. Choose one of them")


def _read_offsets(state: str) -> Mapping[str, Mapping[str, int]]:
    """What the committed views have read; nothing before there are some."""
    from penstock.serve import Views

    try:
        offsets: Mapping[str, Mapping[str, int]] = Views(state).status()["offsets"]
    except QueryError:
        return {}
    return offsets


def _address(log: str) -> str:
    scheme, separator, address = log.rpartition("://")
    if scheme in {"kafka+tls", "kafka+sasl"}:
        from penstock.client.network.security import parse_target

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
def _signals(stop: threading.Event) -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM end the pipeline after the batch in flight."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
