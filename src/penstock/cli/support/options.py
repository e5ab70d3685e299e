"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.support.address import DEFAULT, VARIABLE
from penstock.cli.support.errors import Suggesting
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


class BrokerGroup(Suggesting):
    """A group whose commands take `--broker` as well, so that it may stand at the end of any line.

    The commands read the address as their context's object (`click.pass_obj`).
    """

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Adds a command."""
        if all(one.name != "broker" for one in cmd.params):
            option = click.Option(
                ["--broker"],
                metavar="ADDRESS",
                expose_value=False,
                callback=_take_broker,
                help="The broker; can also be given before the command.",
            )
            cmd.params.append(option)
        super().add_command(cmd, name)


def _take_broker(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.obj = value


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
