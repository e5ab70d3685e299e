"""`penstock subscribe`: a view's changes, as they are committed."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time

import click


@click.command(
    epilog="""\b
Examples:
  penstock subscribe shop per_minute                       all rows, then what changes, until Ctrl-C
  penstock subscribe shop per_minute --from 17             what has changed since version 17
  penstock subscribe shop per_minute --until 20 | jq .     ends with version 20

Each line is JSON: {"version": 18, "since": 17, "changes": [[-1, {row}], [1, {row}]]}. A row with a negative
number was removed. If since is null, the changes are all rows: the version of --from is no longer kept, or
was lost and computed again.
"""
)
@click.argument("app")
@click.argument("view")
@click.option("--from", "since", type=click.IntRange(min=0), help="The version that is known.")
@click.option("--until", type=click.IntRange(min=1), help="End with this version or a later one.")
@click.option("--seconds", type=click.FloatRange(min=0), help="End after so many seconds.")
def subscribe(
    app: str, view: str, since: int | None, until: int | None, seconds: float | None
) -> None:
    """Print the changes of VIEW of APP (a pipeline's name or directory), version by version."""
    from penstock.cli.loading import forget_pandas

    forget_pandas()
    from penstock.cli.support.tables import warn
    from penstock.serve import Views
    from penstock.serve.answers import Once
    from penstock.serve.changes import changes
    from penstock.serve.following import Subscription, follow
    from penstock.web import changes_line

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    views = Views(app, Once(warn))
    what = Subscription(view, since or None, until)

    def is_over() -> bool:
        return stop.is_set() or time.monotonic() >= deadline

    for answer in follow(views, what, lambda known: changes(views, view, known), is_over):
        sys.stdout.buffer.write(changes_line(answer) + b"\n")
        sys.stdout.buffer.flush()
