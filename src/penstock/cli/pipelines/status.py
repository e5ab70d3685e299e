"""`penstock status`: how a pipeline is, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli.support.journal import delay, summary
from penstock.cli.support.tables import text_table


@click.command(
    epilog="""\b
Examples:
  penstock status shop
  penstock status shop --json | jq .state

Rows in and out, late rows and time count from the start of the pipeline's process; rates are over its
last ten seconds. The operator with a * takes most of the time.
"""
)
@click.argument("app")
@click.option(
    "--json", "as_json", is_flag=True, help="The whole status, as GET /api/status has it."
)
def status(app: str, *, as_json: bool) -> None:
    """Show the topics, operators and state of APP (a pipeline's name or directory)."""
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
        from penstock.web._json import dumps

        click.echo(dumps(known).decode())
        return
    click.echo(summary(known))
    for names, rows in (_topics(known), _operators(known)):
        if rows:
            numbers = [name not in {"topic", "held by", "operator", "kind"} for name in names]
            click.echo("\n" + text_table(names, rows, numbers), nl=False)


def _topics(known: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["topic", "records", "lag", "late", "unusable", "lost", "delay", "held by"]
    rows = [
        [
            name,
            *(
                _count(one[what])
                for what in ("rows", "lag", "late_rows", "unusable_rows", "lost_rows")
            ),
            delay(one["watermark_delay_ms"]),
            one["held_by"] or "",
        ]
        for name, one in known["sources"].items()
    ]
    return names, rows


def _operators(known: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = ["operator", "kind", "in", "in/s", "out", "out/s", "late", "of a core"]
    names += ["state rows", "state bytes", "growth/s", "oldest"]
    return names, list(_nodes(known))


def _nodes(known: dict[str, Any]) -> Iterator[list[str]]:
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
