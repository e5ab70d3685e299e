"""Runs a pipeline in the foreground with what goes with it: page, terminal, feeds, final tables."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
import pyarrow as pa

from penstock.broker.logs import configure_logs
from penstock.cli.support.address import find_broker
from penstock.cli.support.errors import FAILED
from penstock.cli.support.journal import Journal
from penstock.cli.support.options import of_topics
from penstock.cli.support.reload import Reload
from penstock.cli.support.tables import note, text_table, warn
from penstock.cli.support.terminal import Terminal
from penstock.cli.tracing import Traces, tracing
from penstock.errors import PenstockError, SetupError, UserError
from penstock.files.feed import Feed
from penstock.web import StatusBoard
from penstock.web.board import split_ms

if TYPE_CHECKING:
    import penstock as ps
    from penstock.app import Found
    from penstock.engine.driver import Progress
    from penstock.engine.explain import Arranged
    from penstock.engine.record.version import Version
    from penstock.engine.upgrade import Backfilled
    from penstock.serve import Answer, Failure, Queries, Question, Views
    from penstock.serve.arrivals import Arrivals
    from penstock.web.console.versions import KeptVersions

LOG: Final = logging.getLogger("penstock.run")
ROWS_PRINTED: Final = 20  # of each view at the end; `penstock query` prints all
IDLE_LOOKS: Final = 2  # the first may have begun before the last event came


@dataclass(frozen=True)
class Hosting:
    """How a pipeline is to be run.

    Attributes:
        seconds: how long; None until it is stopped.
        ui: whether there is a page.
        port: of the page; None takes the usual or the next free one.
        rebuild: whether to compute all state again.
        savepoint: to go back to; None continues.
        outputs: what topics get of what is computed again.
        until_done: whether to end when the feeds have no more and all is processed.
        print_views: whether to print the views at the end.
        metrics: where metrics and health are also served.
        postgres: where views are served to PostgreSQL's clients.
        registry: `HOST:PORT` where the log's schema registry is served.
        postgres_tls: files of a certificate and its key, for them.
        log_format: `json`: lines of JSON instead of the display.
        otel: whether a trace of each batch is sent.
        reload: ends the run when the program is to be read again; None: SIGHUP isn't listened for.
    """

    seconds: float | None = None
    ui: bool = True
    port: int | None = None
    rebuild: bool = False
    savepoint: str | None = None
    outputs: Literal["all", "new"] | None = None
    until_done: bool = False
    print_views: bool = False
    metrics: tuple[str, int] | None = None
    postgres: tuple[str, int] | None = None
    registry: str | None = None
    postgres_tls: tuple[str, str] | None = None
    log_format: Literal["text", "json"] = "text"
    otel: bool = False
    reload: Reload | None = None
    feeds: Callable[[str], Sequence[Feed]] = field(default=lambda _: ())


class LateViews:
    """Committed views that need not be there yet: before the first batch there are none.

    Args:
        where: the pipeline's record.
        log: the pipeline whose log it is, if the record is elsewhere.
    """

    def __init__(self, where: Path | str, log: Path | str | None = None) -> None:
        self._where, self._log = where, log or where
        self._lock = threading.Lock()
        self._views: Views | None = None
        self._queries: Queries | None = None
        self._failures: dict[str, Sequence[Failure]] = {}

    def _open(self) -> Views | None:
        with self._lock:
            if self._views is None:
                from penstock.serve import Views

                with contextlib.suppress(PenstockError, OSError):
                    self._views = Views(self._where, self._report)
            return self._views

    def _report(self, view: str, failures: Sequence[Failure]) -> None:
        self._failures[view] = failures

    def failures(self) -> dict[str, Sequence[Failure]]:
        """What failed in each view when it was last read here; of views that weren't, nothing is known."""
        return dict(self._failures)

    def failed(self, name: str) -> Sequence[Failure]:
        """What failed in a view when it was last read here."""
        return self._failures.get(name, ())

    @property
    def version(self) -> int:
        """The last committed version; 0 before the first batch."""
        views = self._open()
        return 0 if views is None else views.version

    def names(self) -> list[str]:
        """The views' names; none before the first batch."""
        views = self._open()
        return [] if views is None or views.version == 0 else views.names()

    def keys(self, name: str) -> list[str]:
        """A view's grouping columns."""
        return self._there().keys(name)

    def every_us(self, name: str) -> int:
        """From the start of one of a view's windows to the next one's."""
        return self._there().every_us(name)

    def table(
        self, name: str, *, window_from_us: int | None = None, limit: int | None = None
    ) -> pa.Table:
        """A view's rows."""
        return self._there().table(name, window_from_us=window_from_us, limit=limit)

    def committed(self) -> Version:
        """The last committed version."""
        return self._there().snapshot().content

    def wait_for(self, token: str, timeout: float, gone: Callable[[], bool]) -> int:
        """Waits for a version that has seen a write."""
        views = self._there()
        found, left = of_topics(
            token,
            timeout,
            lambda: find_broker(str(self._log)),
            lambda: views.status()["offsets"],
            gone,
        )
        return views.wait_for(found, left, gone) if found else views.version

    def arrivals(self, call: Callable[[], None]) -> Arrivals:
        """Calls when a version is committed."""
        return self._there().arrivals(call)

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        """The answer to a SELECT, made in a process of its own, with limits."""
        self._there()
        with self._lock:
            if self._queries is None:
                from penstock.serve import Queries

                self._queries = Queries(self._where)
        found = self._queries.ask(query, gone)
        self.answered(found)
        return found

    def answered(self, answer: Answer) -> None:
        """Takes what failed in the views that an answer was read from."""
        if answer.since is None:  # of changes, only some rows are read
            self._failures.update(answer.failures)

    def close(self) -> None:
        """Ends the queries that still run."""
        with self._lock:
            if self._queries is not None:
                self._queries.close()

    def _there(self) -> Views:
        views = self._open()
        if views is None:
            raise PenstockError(
                "expected committed views; found none yet. Wait for the first batch"
            )
        return views


class _Run:
    """One run: what the pipeline's callbacks and its end condition share."""

    def __init__(self, app: ps.App, hosting: Hosting) -> None:
        self.app, self.hosting = app, hosting
        self.views = LateViews(app.settings.state or app.directory, app.directory)
        self.board = StatusBoard(
            app.name,
            lambda: time.time_ns() // 1_000,
            self._found,
            self.views.committed,
            cores=app.settings.cores,
            starting=True,
            failures=self.views.failures,
        )
        self.feeds: Sequence[Feed] = ()
        self.traces: Traces | None = None
        self.url: str | None = None
        self._idle_looks = 0
        self._backfilled: Backfilled | None = None

    def _found(self) -> Found | None:
        """What this process says about the pipeline; nothing before it runs."""
        from penstock.app import Found

        facts = self.app.facts()
        return None if facts is None else Found(facts, alive=True)

    def graph(self) -> Arranged | None:
        """Where everything of the drawing is."""
        from penstock.app import read_graph

        return read_graph(self.app.directory)

    def say(self, text: str) -> None:
        """Says something on standard error."""
        if self.hosting.log_format == "json":
            LOG.info(text)
        else:
            note(text)

    def display(self) -> Terminal | Journal:
        """Shows how the pipeline is, until it is closed."""
        if self.hosting.log_format == "json":
            return Journal(self.board.status, LOG)
        return Terminal(
            self.board.status, self.views, self.url, lambda: self.app.address, self.doing
        )

    def log_address(self) -> str:
        """Where the log is.

        Raises:
            SetupError: it is still being started.
        """
        if not self.app.address:
            raise SetupError("expected the log to be served; found that it is still being started")
        return self.app.address

    def schemas(self) -> dict[str, dict[int | None, str]]:
        """The writers' schemas of topics that are Avro."""
        from penstock.formats.avro import Avro

        sources = self.app.graph().sources
        return {s.topic: dict(s.format.schemas) for s in sources if isinstance(s.format, Avro)}

    def versions(self) -> KeptVersions:
        """Committed versions and savepoints."""
        from penstock.serve import Views
        from penstock.web.console import versions_of

        return versions_of(Views(self.app.settings.state or self.app.directory).store)

    def started(self, address: str) -> None:
        """The log can be used: the pipeline wasn't refused, so its addresses are worth printing."""
        if self.url is not None:
            self.say(f"the page is at {self.url}")
        self.say(f"the log is at {address}, for any Kafka client")
        self.feeds = self.hosting.feeds(address)
        for feed in self.feeds:
            feed.start()

    def backfilled(self, done: Backfilled) -> None:
        """What is new in the program is being made of the log."""
        self._backfilled = done

    def progressed(self, progress: Progress) -> None:
        """A batch has ended."""
        self._backfilled = None
        self.board.add(progress)
        if self.traces is not None:
            parts_ms = split_ms(progress.batch_ms, progress.seconds, self.app.settings.cores)
            self.traces.batch(progress, parts_ms)

    def doing(self) -> str | None:
        """What has to be done before the program runs."""
        return None if self._backfilled is None else f"backfilling {self._backfilled}"

    def idle(self) -> None:
        """All that was in the log has been read."""
        self._backfilled = None
        if all(feed.finished.is_set() for feed in self.feeds):
            self._idle_looks += 1

    def over(self) -> bool:
        """Whether the pipeline should end."""
        if any(feed.error is not None for feed in self.feeds):
            return True
        if self.hosting.reload is not None and self.hosting.reload.is_ready.is_set():
            return True
        return self.hosting.until_done and self._idle_looks >= IDLE_LOOKS

    def close(self) -> None:
        """Stops the feeds. Raises what stopped one."""
        for feed in self.feeds:
            feed.stop()
        for feed in self.feeds:
            if feed.error is not None:
                raise feed.error


def host(app: ps.App, hosting: Hosting) -> None:
    """Runs a pipeline until it ends, is stopped or fails.

    Raises:
        PenstockError: what stopped it.
    """
    run = _Run(app, hosting)
    if hosting.log_format == "json":
        configure_logs("warning", "json")
        logging.getLogger("penstock").setLevel(logging.INFO)
    where = app.settings.state or app.directory
    listening = (
        contextlib.nullcontext() if hosting.reload is None else hosting.reload.listening(run.say)
    )
    with (
        listening,
        _page(run) as url,
        _metrics(run),
        tracing(app.name, on=hosting.otel) as run.traces,
        _registry(run),
        postgres_served(where, hosting.postgres, run.say, hosting.postgres_tls, run.views.answered),
    ):
        run.url = url
        terminal = run.display()
        try:
            app.run(
                hosting.seconds,
                on_start=run.started,
                on_progress=run.progressed,
                on_idle=run.idle,
                on_backfill=run.backfilled,
                until=run.over,
                rebuild=hosting.rebuild,
                savepoint=hosting.savepoint,
                outputs=hosting.outputs,
            )
        except PenstockError as error:
            if hosting.log_format == "text":
                raise
            LOG.error(str(error))  # noqa: TRY400 - a message for its user, as on a terminal
            sys.exit(FAILED)
        finally:
            terminal.close()
            run.close()
    if hosting.reload is not None and not app.is_stopping:
        hosting.reload.restart()
    run.say(f"stopped; the log and the state are in {app.directory}")
    if hosting.print_views:
        print_views(run.views)


def host_and_port(text: str) -> tuple[str, int]:
    """The address that a text names.

    Raises:
        UserError: it names none.

    >>> host_and_port("127.0.0.1:9645"), host_and_port("[::1]:0")
    (('127.0.0.1', 9645), ('::1', 0))
    """
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"expected HOST:PORT, such as 127.0.0.1:9645; found {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextlib.contextmanager
def _metrics(run: _Run) -> Iterator[None]:
    if run.hosting.metrics is None:
        yield
        return
    from penstock.web import MetricsServer

    server = MetricsServer(run.board.status, *run.hosting.metrics)
    run.say(f"metrics are at {server.url}/metrics")
    try:
        yield
    finally:
        server.close()


@contextlib.contextmanager
def _registry(run: _Run) -> Iterator[None]:
    if run.hosting.registry is None:
        yield
        return
    from penstock.registry import registry_served

    with registry_served(run.log_address, run.hosting.registry, run.say):
        yield


@contextlib.contextmanager
def postgres_served(
    where: str | Path,
    address: tuple[str, int] | None,
    say: Callable[[str], None],
    tls: tuple[str | Path, str | Path] | None = None,
    answered: Callable[[Answer], None] = lambda _: None,
) -> Iterator[None]:
    """Serves views to PostgreSQL's clients for a while, if there is an address to do it at.

    Args:
        where: as for `Views`; there may be nothing yet.
        address: host and port.
        say: prints a message for the user.
        tls: files of a certificate and its key.
        answered: takes each answer.
    """
    if address is None:
        yield
        return
    from penstock.serve.postgres.server import PASSWORD_VARIABLE, PostgresServer

    password = os.environ.get(PASSWORD_VARIABLE)
    server = PostgresServer(where, *address, password=password, tls=tls, answered=answered)
    say(f"views are at {server.url} for PostgreSQL's clients")
    try:
        yield
    finally:
        server.close()


@contextlib.contextmanager
def _page(run: _Run) -> Iterator[str | None]:
    if not run.hosting.ui:
        yield None
        return
    from penstock.web import Console, Server
    from penstock.web.console.watermarks import Watermarks

    server = Server(
        run.views,
        run.board.status,
        graph=run.graph,
        port=run.hosting.port,
        console=Console(
            run.log_address,
            versions=run.versions,
            schemas=run.schemas,
            marks=lambda address: Watermarks(address, str(run.app.directory)),
        ),
    )
    try:
        yield server.url
    finally:
        server.close()
        run.views.close()


def print_views(views: LateViews) -> None:
    """Prints each view as a table on standard output, the newest windows first."""
    from penstock.serve.shown.values import kind, plain_values

    for name in views.names():
        table = views.table(name)
        click.echo(f"{name} ({table.num_rows:,} rows)")
        if "window_start" in table.column_names:
            table = table.sort_by([("window_start", "descending")])
        shown = table.slice(0, ROWS_PRINTED)
        numbers = [kind(f.type) == "number" for f in shown.schema]
        rows = zip(*[plain_values(c) for c in shown.columns], strict=True)
        sys.stdout.write(text_table(shown.column_names, rows, numbers))
        if table.num_rows > shown.num_rows:
            click.echo(f"… and {table.num_rows - shown.num_rows:,} more")
        for one in views.failed(name):
            warn(one.text)
        click.echo()
