"""`penstock doctor`: what is the matter with a pipeline's directory, or a broker's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from penstock.cli.support.tables import note, text_table
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock.broker.doctor import Finding, Report

COLORS = {"note": None, "warning": "yellow", "damage": "red"}
NAMES_SHOWN = 5  # of what lies in a directory that is neither


@click.command(
    epilog="""\b
Examples:
  penstock doctor shop.penstock
  penstock doctor penstock-log --repair
  penstock doctor shop --format json | jq .findings

It reads every batch, index and journal of a log, and every plan, version and file of a pipeline's state. It
changes nothing without --repair, which cuts off torn ends as the next start would, and
removes files that nothing refers to. The exit code is 1 if durable records are lost or changed.
"""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--repair", "do_repair", is_flag=True, help="Repair what can be repaired safely.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def doctor(directory: Path, form: str, *, do_repair: bool) -> None:
    """Check and explain a stopped pipeline's DIRECTORY (or name), or a stopped broker's."""
    from penstock.broker.doctor import repair
    from penstock.cli.loading import load_arrow

    load_arrow()
    directory, reports = _examined(directory)
    repaired = [done for one in reports for done in (repair(one) if do_repair else [])]
    if form == "json":
        click.echo(_json(directory, reports, repaired))
    else:
        for report in reports:
            _print(report, repaired, is_part=report.data != directory)
    if not all(one.is_sound for one in reports):
        sys.exit(1)


def _examined(directory: Path) -> tuple[Path, list[Report]]:
    """The directory that was meant, and the reports of it: one of a log, one of a pipeline's state."""
    from penstock.app.examination import examine_pipeline, is_pipeline_directory
    from penstock.broker.doctor import examine, is_data_directory

    named = directory.with_name(f"{directory.name}.penstock")
    if not directory.exists() and named.is_dir():
        directory = named
    if is_pipeline_directory(directory):
        return directory, examine_pipeline(directory)
    if is_data_directory(directory):
        return directory, [examine(directory)]
    if not directory.is_dir():
        raise SetupError(
            f"expected a directory; found {'a file' if directory.exists() else 'nothing'} at "
            f"{str(directory)!r}. Name a pipeline's (NAME.penstock) or a broker's (its --data)"
        )
    names = sorted(one.name for one in directory.iterdir())
    found = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
    raise SetupError(
        f"expected a pipeline's directory (NAME.penstock) or a broker's data; found in {str(directory)!r}: "
        f"{found or 'nothing'}"
    )


def _json(directory: Path, reports: list[Report], repaired: list[Finding]) -> str:
    def place(report: Report, name: str) -> str:
        return str((report.data / name).relative_to(directory))

    found = {
        "directory": str(directory),
        "is_sound": all(one.is_sound for one in reports),
        "facts": {place(one, name): fact for one in reports for name, fact in one.facts.items()},
        "topics": [
            {
                "name": one.name,
                "partitions": one.partitions,
                "segments": one.segments,
                "batches": one.batches,
                "records": one.records,
                "bytes": one.bytes,
            }
            for report in reports
            for one in report.topics
        ],
        "findings": [
            {
                "level": one.level.value,
                "path": place(report, one.path),
                "text": one.text,
                "repaired": one in repaired,
            }
            for report in reports
            for one in report.findings
        ],
    }
    return orjson.dumps(found).decode()


def _print(report: Report, repaired: list[Finding], *, is_part: bool) -> None:
    if is_part:
        click.secho(str(report.data), bold=True)
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
        click.echo(f"sound: every {report.durable} is there, and its checksum matches")
    else:
        note("damaged: see above; restore what is named from a copy")
