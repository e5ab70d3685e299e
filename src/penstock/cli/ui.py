"""`penstock ui`: the live page for a pipeline that runs elsewhere, or not at all."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import click

from penstock.cli._tables import note


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
    from penstock.cli._host import LateViews
    from penstock.serve import Views
    from penstock.web import Server

    views = Views(app)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    started_us = time.time_ns() // 1_000

    def status(*, history: bool = False) -> dict[str, Any]:
        del history  # a reader of committed state has none
        return committed_status(views.status(), Path(app).name, started_us)

    server = Server(LateViews(app), status, port=port)
    note(f"serving {app} on {server.url}; Ctrl-C stops")
    stop.wait()
    server.close()


def committed_status(status: dict[str, Any], app: str, started_us: int) -> dict[str, Any]:
    """The status board's dictionary from what is committed."""
    return {
        "app": app,
        "running": True,
        "phase": "running",
        "now_us": time.time_ns() // 1_000,
        "started_us": started_us,
        "batches": 0,
        "batch_ms": None,
        "split_ms": {},
        "rows_per_s": None,
        "sources": {},
        "late_rows": 0,
        "dead_rows": 0,
        "lag": None,
        "watermark_delay_ms": None,
        **status,
    }
