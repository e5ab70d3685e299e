"""`penstock ui`: the page of a pipeline that runs elsewhere or not at all, and of any broker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.support.address import FILE, LOG, VARIABLE, find_broker, owner_runs
from penstock.cli.support.options import broker_option
from penstock.cli.support.tables import note
from penstock.core.names import hint, known_names
from penstock.errors import SetupError, UserError

if TYPE_CHECKING:
    from penstock.cli.support.host import LateViews
    from penstock.engine.explain import Arranged
    from penstock.web import StatusBoard
    from penstock.web.console.versions import KeptVersions


@click.command(
    epilog="""\b
Examples:
  penstock ui shop                          a pipeline, whether it runs or not, and its log
  penstock ui kafka.example:9092            a broker: topics, groups, dead letters
  penstock ui penstock-log --serve-log      a broker's directory, served while the page is open
"""
)
@click.argument("target", required=False)
@click.option("--port", type=click.IntRange(1, 65535), help="Default: 8750, or the next free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve on. Beyond this machine it needs a password in PENSTOCK_UI_PASSWORD.",
)
@click.option("--tls-cert", type=Path, metavar="PEM", help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=Path, metavar="PEM", help="Its key, if in another file.")
@click.option(
    "--allow-changes", is_flag=True, help="Let the page repair, replay and drop dead letters."
)
@click.option(
    "--serve-log",
    is_flag=True,
    help="Where the log is stopped, serve it until Ctrl-C. Its pipeline can't start meanwhile.",
)
@click.option(
    "--postgres",
    metavar="HOST:PORT",
    help="Serve the views there to PostgreSQL's clients too, read only.",
)
@broker_option
def ui(
    target: str | None,
    port: int | None,
    postgres: str | None,
    host: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    broker: str | None,
    *,
    allow_changes: bool,
    serve_log: bool,
) -> None:
    """Serve the page of TARGET until Ctrl-C: a pipeline's name or directory, or a broker.

    It shows the pipeline, and what its log holds: topics with their records, groups, dead letters,
    versions. Without TARGET it shows the pipeline in the current folder, or the broker that the other
    commands would use.
    """
    from penstock.cli.support.host import host_and_port, postgres_served
    from penstock.web import Console, Server, check_password, is_loopback
    from penstock.web.console.watermarks import Watermarks

    password = os.environ.get("PENSTOCK_UI_PASSWORD") or None
    check_password(host, password)

    if target is None and broker is None and not os.environ.get(VARIABLE):
        target = _only_pipeline()
    directory = None if target is None else directory_of(target)
    has_pipeline = target is not None and _has_state(target, directory)
    if not has_pipeline and directory is None:
        _check_target(target)
        find_broker(broker or target)  # says at once that there is nothing to show
    with contextlib.ExitStack() as stack:
        address = partial(_address, broker, target, directory)
        if serve_log and directory is not None:
            stack.enter_context(_served(directory))
        views, board = _shown(target or "log", directory, has_pipeline=has_pipeline)
        stack.callback(views.close)
        graph = (lambda: None) if directory is None else partial(_graph, directory)
        console = Console(
            address,
            has_pipeline=has_pipeline,
            allow_changes=allow_changes,
            versions=partial(_versions, target) if has_pipeline and target else None,
            marks=lambda address: Watermarks(address, target),
        )
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        server = Server(
            views,
            board.status,
            graph=graph,
            host=host,
            port=port,
            console=console,
            password=password,
            tls=None if tls_cert is None else (tls_cert, tls_key or tls_cert),
        )
        if tls_cert is None and not is_loopback(host):
            note(
                "The page and its password are not encrypted: use --tls-cert, or a proxy with TLS."
            )
        stack.callback(server.close)
        if postgres is not None:
            if target is None or not has_pipeline:
                raise UserError("expected a pipeline's views for --postgres; found none. Name it")
            at = host_and_port(postgres)
            tls = None if tls_cert is None else (tls_cert, tls_key or tls_cert)
            stack.enter_context(postgres_served(target, at, note, tls, views.answered))
        note(f"serving {target or address()} on {server.url}; Ctrl-C stops")
        stop.wait()


def _pipelines() -> list[str]:
    """The names of the pipelines in this folder."""
    return sorted(one.name.removesuffix(".penstock") for one in Path().glob("*.penstock"))


def _only_pipeline() -> str | None:
    """The pipeline in this folder; None where there are none or several."""
    there = _pipelines()
    return there[0] if len(there) == 1 else None


def _check_target(target: str | None) -> None:
    """Refuses a name that is neither a pipeline's nor an address.

    Raises:
        UserError: it is none.
    """
    if target is None or ":" in target:
        return
    there = _pipelines()
    known = f"{hint(target, there)}. Known here: {known_names(there)}" if there else ""
    raise UserError(
        "expected a pipeline's name or directory, or a broker as host:port; "
        f"found neither for {target!r}{known}"
    )


def _shown(
    name: str, directory: Path | None, *, has_pipeline: bool
) -> tuple[LateViews, StatusBoard]:
    """A pipeline's views and state; of a log alone none."""
    from penstock.app import read_facts
    from penstock.cli.support.host import LateViews
    from penstock.web import StatusBoard

    views = LateViews(name if has_pipeline else os.devnull)
    board = StatusBoard(
        Path(name).name.removesuffix(".penstock"),
        lambda: time.time_ns() // 1_000,
        lambda: read_facts(directory) if has_pipeline and directory is not None else None,
        views.committed,
        failures=views.failures,
    )
    return views, board


def _graph(directory: Path) -> Arranged | None:
    from penstock.app import read_graph

    return read_graph(directory)


def _versions(target: str) -> KeptVersions:
    from penstock.serve import Views
    from penstock.web.console import versions_of

    return versions_of(Views(target).store)


def _has_state(target: str, directory: Path | None) -> bool:
    """Whether a pipeline is there, or was.

    Raises:
        QueryError: the target is the URI of a state that isn't there.
    """
    if directory is not None:
        return any((directory / one).exists() for one in ("state", "versions", FILE))
    if "://" not in target or target.partition("://")[0].startswith("kafka"):
        return False
    from penstock.serve import Views

    Views(target)
    return True


def _address(broker: str | None, target: str | None, directory: Path | None) -> str:
    """Where the log is now.

    Raises:
        PenstockError: it doesn't run, or isn't known.
    """
    if broker is not None:
        return find_broker(broker)
    if directory is not None:
        try:
            return find_broker(str(directory))
        except SetupError as error:
            look = f"penstock ui {target} --serve-log"
            raise SetupError(f"{error}. To look at the log until then: {look}") from None
    if target is not None and "://" in target and not target.startswith("kafka"):
        raise SetupError(
            "expected the address of the log, which the state doesn't name; found none. Name it: "
            "penstock ui … --broker HOST:PORT"
        )
    return find_broker(target)


def _served(directory: Path) -> contextlib.AbstractContextManager[object]:
    """A stopped log, served by a process of its own; nothing where it runs already."""
    from penstock.broker import BrokerProcess

    data = directory / LOG if (directory / LOG).is_dir() else directory
    if owner_runs(data):
        return contextlib.nullcontext()
    return BrokerProcess(data)


def directory_of(app: str) -> Path | None:
    """The directory of a pipeline's name or directory; None: its state is elsewhere."""
    if "://" in app:
        return None
    return next((d for d in (Path(app), Path(f"{app}.penstock")) if d.is_dir()), None)
