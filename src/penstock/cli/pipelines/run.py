"""`penstock run FILE.py`, and the command line of a program of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from penstock.cli.support.errors import Command
from penstock.cli.support.programs import guarded, load
from penstock.cli.tracing import otel_option
from penstock.errors import UserError

if TYPE_CHECKING:
    import penstock as ps
    from penstock.cli.support.host import Hosting
    from penstock.cli.support.reload import Reload
    from penstock.files.feed import Feed


SHARDS_MAX: Final = 256  # as many as there may be cores


@dataclass(frozen=True)
class How:
    """The options of a run, as they were given."""

    seconds: float | None
    port: int | None
    ui: bool
    rebuild: bool
    listen: str | None
    savepoint: str | None
    outputs: Literal["all", "new"] | None
    shards: int | None
    ingest: tuple[str, ...] = ()
    metrics: str | None = None
    postgres: str | None = None
    registry: str | None = None
    postgres_tls: tuple[str, str] | None = None
    log_format: Literal["text", "json"] = "text"
    otel: bool = False
    advertise: str | None = None
    allow_remote: bool = False

    def hosting(self, app: ps.App, **more: Any) -> Hosting:
        """The same for the pipeline's host."""
        from penstock.cli.support.host import Hosting, host_and_port

        if self.postgres_tls is not None and self.postgres is None:
            raise UserError("expected --postgres HOST:PORT with --postgres-tls; found none. Add it")
        feeds = more.pop("feeds", lambda _: ())
        files = self._files(app)
        ended = {"print_views": self.seconds is not None, **more}
        return Hosting(
            self.seconds,
            self.ui,
            self.port,
            self.rebuild,
            savepoint=self.savepoint,
            outputs=self.outputs,
            metrics=None if self.metrics is None else host_and_port(self.metrics),
            postgres=None if self.postgres is None else host_and_port(self.postgres),
            registry=self.registry,
            postgres_tls=self.postgres_tls,
            log_format=self.log_format,
            otel=self.otel,
            feeds=lambda address: [*feeds(address), *files(address)],
            **ended,
        )

    def _place(self, app: ps.App) -> None:
        """Says where the embedded broker listens."""
        if self.listen is None and (self.advertise is not None or self.allow_remote):
            raise UserError(
                "expected --listen HOST:PORT with --advertise and --allow-remote; found none. Add it"
            )
        if self.listen is None:
            return
        if self.allow_remote:
            app.expose(self.listen, advertise=self.advertise)
        elif self.advertise is not None:
            raise UserError(
                "expected --allow-remote with --advertise, because clients of an embedded broker aren't "
                "authenticated; found none. Add it if everyone who can reach the address may read and delete "
                "everything"
            )
        else:
            app.listen = self.listen

    def _files(self, app: ps.App) -> Callable[[str], list[Feed]]:
        """What gives the feeds of the files to ingest, for a broker's address."""
        if not self.ingest:
            return lambda _: []
        from penstock.cli.support.ingestion import FileFeed, checked_files

        found = checked_files(self.ingest, app)
        return lambda address: [
            FileFeed(topic, files, address, source) for topic, files, source in found
        ]

    def host(self, app: ps.App, command: str | None, **more: Any) -> None:
        """Runs a pipeline.

        Args:
            app: the pipeline.
            command: that starts it, for users who find it stopped.
            more: of the `Hosting`.
        """
        from penstock.cli.pipelines.compiling import compile_once
        from penstock.cli.support.host import host
        from penstock.cli.support.tables import note

        hosting = self.hosting(app, **more)
        compile_once(note if self.log_format == "text" else None)
        self._place(app)
        if self.shards is not None:
            app.settings = replace(app.settings, shards=self.shards)
        app.command = command
        host(app, hosting)


_OPTIONS: Final = (
    click.option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics for Prometheus and /health there (http), also beyond loopback.",
    ),
    click.option(
        "--postgres",
        metavar="HOST:PORT",
        help="Serve the views there to PostgreSQL's clients, read only. Beyond loopback it needs a "
        "password in PENSTOCK_POSTGRES_PASSWORD.",
    ),
    otel_option,
    click.option(
        "--registry",
        metavar="HOST:PORT",
        help="Serve the log's schema registry there, with Confluent's REST API. Beyond loopback it needs "
        "a password in PENSTOCK_REGISTRY_PASSWORD.",
    ),
    click.option(
        "--postgres-tls",
        nargs=2,
        metavar="CERT KEY",
        help="Files (PEM) of a certificate and its key: PostgreSQL's clients must use TLS.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json writes what happens as JSON lines on standard error, for a service's log.",
    ),
    click.option(
        "--ingest",
        multiple=True,
        metavar="TOPIC=FILES",
        help="Write the rows of these files, and of new ones, to a topic, each once: "
        "clicks=data/*.jsonl.",
    ),
    click.option(
        "--outputs",
        type=click.Choice(["all", "new"]),
        help="What topics get that the program did not write so far: all that the log gives, or what "
        "is new. Default: all where a topic is empty.",
    ),
    click.option(
        "--shards",
        type=click.IntRange(1, SHARDS_MAX),
        help="Number of parts of exchanged state. Default: unchanged; at first one for each core.",
    ),
    click.option(
        "--from",
        "savepoint",
        metavar="NAME",
        help="Return to this savepoint first (penstock savepoint list).",
    ),
    click.option(
        "--rebuild",
        is_flag=True,
        help="Recompute all state from the log; topics receive nothing twice.",
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        help="Where the embedded broker listens, on loopback. Default: its last address, at "
        "first a free port.",
    ),
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        help="With --allow-remote: the address for clients, where it isn't that of --listen, such as the "
        "published one of a container.",
    ),
    click.option(
        "--allow-remote",
        is_flag=True,
        help="Permit --listen beyond loopback. Anyone who reaches it can read and delete everything.",
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="The page's port. Default: 8750, or the next free one.",
    ),
    click.option(
        "--ui/--no-ui", default=True, show_default=True, help="Serve the live page on loopback."
    ),
    click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        help="End after this many seconds and print the views.",
    ),
)
"""The last one comes first in the help."""


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that runs a pipeline; the command gets them as `how`."""

    @wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        how = How(**{one.name: given.pop(one.name) for one in fields(How)})
        return function(*args, how=how, **given)

    found: Callable[..., Any] = command
    for option in _OPTIONS:
        found = option(found)
    return found


@click.command(
    epilog="""\b
Examples:
  penstock run shop.py
  penstock run shop.sql
  penstock run shop.py --listen 127.0.0.1:9092
  penstock run shop.py --seconds 60 --no-ui
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@run_options
def run(file: Path, how: How) -> None:
    """Run the pipeline in FILE.py: its `app`, or what its `pipeline()` returns; or a program in SQL.

    It runs in the foreground until Ctrl-C; started again, it continues where it stopped. A program
    without log=… uses an embedded broker and prints its address.
    """
    app = find_app(load(file), file)
    how.host(app, shlex.join(["penstock", "run", str(file)]), reload=reloaded(file))


def reloaded(file: Path) -> Reload | None:
    """What reads a program again on SIGHUP; nothing where it isn't a file, as in a notebook."""
    from penstock.cli.support.reload import Reload

    return Reload(file) if file.is_file() else None


def program_command(app: ps.App) -> click.Command:
    """The command line of a program that calls `app.main()`."""

    @click.command(cls=Command, help=f"Run the pipeline {app.name!r} until Ctrl-C.")
    @click.option("--debug", is_flag=True, help="Show tracebacks.")
    @run_options
    def command(how: How, *, debug: bool) -> None:
        del debug  # read where errors are shown
        how.host(app, shlex.join(["python", sys.argv[0]]), reload=reloaded(Path(sys.argv[0])))

    return command


def find_app(module: ModuleType, file: Path) -> ps.App:
    """The pipeline of a program.

    Raises:
        UserError: there is none, or more than one.
    """
    import penstock as ps

    found = {id(v): v for v in vars(module).values() if isinstance(v, ps.App)}
    named = getattr(module, "app", None)
    if isinstance(named, ps.App):
        return named
    if not found and callable(getattr(module, "pipeline", None)):
        made = guarded(file, module.pipeline)
        if isinstance(made, ps.App):
            return made
    if len(found) != 1:
        names = ", ".join(sorted(a.name for a in found.values())) or "none"
        raise UserError(
            f"expected one ps.App in {file}, named app, or a function pipeline() that gives it; "
            f"found {names}"
        )
    return next(iter(found.values()))
