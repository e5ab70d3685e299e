"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.support.address import DEFAULT, VARIABLE
from penstock.cli.support.tables import FORMATS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATIENCE_S: Final = 10.0
"""A person waits for a broker that restarts, but not for one that isn't there."""

broker_option: Decorator = click.option(
    "--broker",
    metavar="ADDRESS",
    help=f"host:port, or a running pipeline's name or directory. Default: ${VARIABLE}, the "
    f"pipeline that runs in this folder, or {DEFAULT}.",
)

form_option: Decorator = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True
)


def waiting(what: str, seconds: float) -> None:
    """Says on standard error that a broker doesn't answer, once it takes long enough to wonder."""
    if seconds >= 1:
        click.echo(f"waiting for the broker ({seconds:.0f} s): {what}", err=True)


def client_settings() -> dict[str, Any]:
    """How commands talk to a broker."""
    return {"client_id": "penstock-cli", "patience_s": PATIENCE_S, "on_wait": waiting}
