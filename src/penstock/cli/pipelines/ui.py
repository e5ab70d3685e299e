"""`penstock ui`: the live page for a pipeline that runs elsewhere, or not at all."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from pathlib import Path

import click

from penstock.cli.support.tables import note


@click.command(
    epilog="""\b
Example:
  penstock ui machine        reads machine.penstock, whether the pipeline runs or not
"""
)
@click.argument("app")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: 8750, or the next free one.")
def ui(app: str, port: int | None) -> None:
    """Serve the live page of APP (a pipeline's name or directory) until Ctrl-C."""
    from penstock.app import read_facts, read_graph
    from penstock.cli.support.host import LateViews
    from penstock.serve import Views
    from penstock.web import Server, StatusBoard

    Views(app)  # told at once where there is nothing to show
    views = LateViews(app)
    directory = directory_of(app)
    board = StatusBoard(
        Path(app).name.removesuffix(".penstock"),
        lambda: time.time_ns() // 1_000,
        lambda: None if directory is None else read_facts(directory),
        views.status,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    graph = (lambda: None) if directory is None else partial(read_graph, directory)
    server = Server(views, board.status, graph=graph, port=port)
    note(f"serving {app} on {server.url}; Ctrl-C stops")
    stop.wait()
    server.close()
    views.close()


def directory_of(app: str) -> Path | None:
    """The directory of a pipeline's name or directory; None: its state is elsewhere."""
    if "://" in app:
        return None
    return next((d for d in (Path(app), Path(f"{app}.penstock")) if d.is_dir()), None)
