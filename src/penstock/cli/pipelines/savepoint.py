"""`penstock savepoint`: versions of a pipeline's state that are kept."""

from __future__ import annotations

import time
from typing import Final

import click

from penstock.cli.support.options import form_option
from penstock.cli.support.tables import note, write_rows
from penstock.core.time import instant_text

NAME: Final = "%Y%m%dT%H%M%SZ"  # of a savepoint that was given none


@click.group(
    epilog="""\b
Examples:
  penstock savepoint create shop before-release-7
  penstock savepoint list shop
  penstock run shop.py --from before-release-7
  penstock savepoint drop shop before-release-7
"""
)
def savepoint() -> None:
    """Keep versions of a pipeline's state, and restore them."""


@savepoint.command("create")
@click.argument("app")
@click.argument("name", required=False)
def create(app: str, name: str | None) -> None:
    """Keep the last committed version of APP (a pipeline's name or directory) as NAME.

    The pipeline can run meanwhile. Nothing is copied: the version's files are kept.
    """
    from penstock.engine.savepoints import create_savepoint
    from penstock.serve import open_store

    made = create_savepoint(
        open_store(app), name or time.strftime(NAME, time.gmtime()), time.time_ns() // 1_000
    )
    note(f"savepoint {made.name}: version {made.version:,}, {made.bytes:,} bytes of state, checked")


@savepoint.command("list")
@click.argument("app")
@form_option
def list_all(app: str, form: str) -> None:
    """List the savepoints of APP, the oldest first."""
    from penstock.engine.savepoints import list_savepoints
    from penstock.serve import open_store

    found = list_savepoints(open_store(app))
    names = ("name", "version", "created", "bytes", "views")
    rows = [
        (
            *(one.name, one.version, instant_text(one.created_us), one.bytes),
            ", ".join(one.content.views),
        )
        for one in found
    ]
    write_rows(names, rows, form, nothing="There are no savepoints.")


@savepoint.command("drop")
@click.argument("app")
@click.argument("name")
def drop(app: str, name: str) -> None:
    """Delete the savepoint NAME of APP.

    The running pipeline deletes its files, unless something else needs them.
    """
    from penstock.engine.savepoints import drop_savepoint
    from penstock.serve import open_store

    drop_savepoint(open_store(app), name)
    note(f"dropped {name}")
