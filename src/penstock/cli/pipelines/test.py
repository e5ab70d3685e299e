"""`penstock test`: given rows and expected rows, in a file next to the program."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Literal

import click
import orjson

from penstock.cli.support.errors import FAILED, ExistingPath
from penstock.cli.support.programs import load
from penstock.errors import PenstockError


@click.command(
    epilog="""\b
Examples:
  penstock test shop.sql                  the tests in shop.test.yaml next to it
  penstock test tests/                    all *.test.yaml and *.test.json there
  penstock test shop.test.yaml --name refunds

A file of tests (docs/testing.md has all of it):
  tests:
    counts clicks per user:
      - given: {clicks: [{user_id: 1, at: "12:00:00"}]}
        expect: {per_user: [{user_id: 1, n: 1}]}

The programs run in this process, without a JVM. The code is 1 if a test fails.
"""
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=ExistingPath(".yaml", ".yml", ".json", ".py", ".sql", dir_okay=True),
)
@click.option("--name", help="Only the tests whose names contain this.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def test(files: tuple[Path, ...], name: str | None, form: Literal["text", "json"]) -> None:
    """Run the tests in FILES: of programs in SQL or Python, files of tests, or directories."""
    from penstock.cli.pipelines.run import find_app
    from penstock.cli.support.cases import cases_of, files_of

    failed = passed = 0
    for file in files_of(files):
        for case in cases_of(file):
            if name is not None and name not in case.name:
                continue
            begun = time.monotonic()
            try:
                lines = case.run(find_app(load(case.program), case.program))
            except PenstockError as error:
                lines = [str(error)]
            ms = 1_000 * (time.monotonic() - begun)
            failed, passed = failed + bool(lines), passed + (not lines)
            if form == "json":
                said = {"file": str(file), "test": case.name, "passed": not lines, "ms": round(ms)}
                click.echo(orjson.dumps(said | ({"differs": lines} if lines else {})))
                continue
            click.echo(f"{'FAILED' if lines else 'passed'}  {file}: {case.name} ({ms:.0f} ms)")
            for line in lines:
                click.echo(f"        {line}")
    if form == "text":
        click.echo(f"{passed} passed, {failed} failed")
    if failed or not passed:
        sys.exit(FAILED)
