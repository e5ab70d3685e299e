"""`penstock doctor`: what is the matter with a data directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from penstock.cli._tables import note, text_table

if TYPE_CHECKING:
    from penstock.broker.doctor import Finding, Report

COLORS = {"note": None, "warning": "yellow", "damage": "red"}


@click.command(
    epilog="""\b
Examples:
  penstock doctor penstock-log
  penstock doctor shop.penstock/log --repair
  penstock doctor penstock-log --format json | jq .findings

Every batch, index and journal is read; nothing is changed without --repair, which does what is
safe: it cuts torn ends off as the next start would, and clears away what nothing refers to. The exit
code is 1 where records that were durable are gone or changed.
"""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--repair", "do_repair", is_flag=True, help="Set right what is safe to.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def doctor(directory: Path, form: str, *, do_repair: bool) -> None:
    """Check and explain the data directory of a broker that is stopped."""
    from penstock.broker.doctor import examine, repair

    report = examine(directory)
    repaired = repair(report) if do_repair else []
    if form == "json":
        click.echo(_json(report, repaired))
    else:
        _print(report, repaired)
    if not report.is_sound:
        sys.exit(1)


def _json(report: Report, repaired: list[Finding]) -> str:
    found = {
        "directory": str(report.data),
        "is_sound": report.is_sound,
        "facts": report.facts,
        "topics": [
            {
                "name": one.name,
                "partitions": one.partitions,
                "segments": one.segments,
                "batches": one.batches,
                "records": one.records,
                "bytes": one.bytes,
            }
            for one in report.topics
        ],
        "findings": [
            {
                "level": one.level.value,
                "path": one.path,
                "text": one.text,
                "repaired": one in repaired,
            }
            for one in report.findings
        ],
    }
    return orjson.dumps(found).decode()


def _print(report: Report, repaired: list[Finding]) -> None:
    for name, fact in report.facts.items():
        click.echo(f"{name}: {fact}")
    if report.topics:
        names = ("topic", "partitions", "segments", "batches", "records", "bytes")
        rows = [
            (one.name, one.partitions, one.segments, one.batches, one.records, one.bytes)
            for one in report.topics
        ]
        click.echo(text_table(names, rows, [False, True, True, True, True, True]), nl=False)
    for one in report.findings:
        click.secho(f"{one.level.value}: ", fg=COLORS[one.level.value], nl=False)
        text = "".join(c if c.isprintable() else "�" for c in f"{one.path}: {one.text}")
        click.echo(text + (" [repaired]" if one in repaired else ""))
    if report.is_sound:
        click.echo("sound: every batch that was durable is there, and its checksum matches")
    else:
        note("damaged: see above; restore what is named from a copy")
