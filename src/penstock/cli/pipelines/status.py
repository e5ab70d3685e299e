"""`penstock status`: how a pipeline is, or the captures, imports and sinks of a broker, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.journal import delay, summary
from penstock.cli.support.options import broker_option, client_settings
from penstock.cli.support.tables import text_table, write_rows
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.web.status import Status

FOLLOWER: Final = (
    *("kind", "name", "phase", "source", "target", "lag", "behind_s"),
    *("records", "dead", "retries", "last_error"),
)


@click.command(
    epilog="""\b
Examples:
  penstock status shop
  penstock status shop --json | jq .state
  penstock status --broker 127.0.0.1:9092     captures, imports of files and sinks, wherever they run

Rows in and out, late rows and time count from the start of the pipeline's process; rates are over its
last ten seconds. The operator with a * takes most of the time.
"""
)
@click.argument("app", required=False)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The whole status, as GET /api/status has it; without APP, a line for each follower.",
)
@broker_option
def status(app: str | None, broker: str | None, *, as_json: bool) -> None:
    """Show the topics, operators and state of APP (a pipeline's name or directory).

    Without APP, show what follows databases, files and topics with the log of a broker: the captures, imports
    of files and sinks that have run.
    """
    if app is None:
        _followers(find_broker(broker), "json" if as_json else "table")
        return
    if broker is not None:
        raise UserError(
            f"expected APP, a pipeline, or --broker, whose captures and sinks are shown; found {app} and "
            f"--broker {broker}"
        )
    _pipeline(app, as_json=as_json)


def _followers(address: str, form: str) -> None:
    """Shows the captures, imports and sinks of a broker."""
    from penstock.capture import names
    from penstock.client import Client
    from penstock.follow.listing import Listed, listed

    settings = client_settings()
    found = listed(address, **settings)
    with Client(address, **settings) as client:
        known = {one.name for one in found if one.kind == "capture"}
        found += [Listed("capture", name) for name in names(client) if name not in known]
    rows = []
    for one in sorted(found, key=lambda one: (one.kind, one.name)):
        counts = [one.about.get(name) for name in ("records", "dead", "retries")]
        behind_s = None if one.behind_s is None else round(one.behind_s, 1)
        source = one.about.get("source") or ", ".join(one.topics if one.kind == "sink" else ())
        places = source, one.about.get("target", "")
        rows.append(
            [one.kind, one.name, one.phase, *places, one.lag, behind_s, *counts, one.last_error]
        )
    write_rows(
        FOLLOWER, rows, form, nothing="There are no captures, imports of files or sinks yet."
    )


def _pipeline(app: str, *, as_json: bool) -> None:
    """Shows a pipeline."""
    from penstock.app import read_facts
    from penstock.cli.pipelines.ui import directory_of
    from penstock.serve.places import newest, open_store
    from penstock.web import StatusBoard

    directory = directory_of(app)
    found = None if directory is None else read_facts(directory)
    if found is None:
        open_store(app)  # says so where there is nothing to show
    board = StatusBoard(
        Path(app).name.removesuffix(".penstock"),
        lambda: time.time_ns() // 1_000,
        lambda: found,
        lambda: newest(open_store(app), app, lambda version: version),
    )
    known = board.status()
    if as_json:
        from penstock.web.jsons import dumps

        click.echo(dumps(known).decode())
        return
    click.echo(summary(known))
    for names, rows in (_topics(known), _operators(known)):
        if rows:
            numbers = [name not in {"topic", "held by", "operator", "kind"} for name in names]
            click.echo("\n" + text_table(names, rows, numbers), nl=False)


def _topics(known: Status) -> tuple[list[str], list[list[str]]]:
    names = ["topic", "records", "lag", "late", "unusable", "lost", "delay", "held by"]
    rows = [
        [
            name,
            *map(_count, (one["rows"], one["lag"])),
            *map(_count, (one["late_rows"], one["unusable_rows"], one["lost_rows"])),
            delay(one["watermark_delay_ms"]),
            one["held_by"] or "",
        ]
        for name, one in known["sources"].items()
    ]
    return names, rows


def _operators(known: Status) -> tuple[list[str], list[list[str]]]:
    names = ["operator", "kind", "in", "in/s", "out", "out/s", "late", "of a core"]
    names += ["state rows", "state bytes", "growth/s", "oldest"]
    return names, list(_nodes(known))


def _nodes(known: Status) -> Iterator[list[str]]:
    for node, one in known["nodes"].items():
        if one["kind"] in {"source", "output", "closed", "union"}:
            continue
        oldest = None
        if one["oldest_us"] is not None and one["frontier_us"] is not None:
            oldest = max(0, one["frontier_us"] - one["oldest_us"]) / 1_000
        yield [
            one["name"] + (" *" if node == known["slowest"] else ""),
            one["kind"],
            _count(one["rows_in"]),
            _rate(one["rows_in_per_s"]),
            _count(one["rows_out"]),
            _rate(one["rows_out_per_s"]),
            _count(one["late_rows"]),
            f"{one['busy']:.1%}",
            _count(one["state_rows"]),
            _count(one["state_bytes"]),
            _rate(one["growth_bytes_per_s"]),
            delay(oldest),
        ]


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"
