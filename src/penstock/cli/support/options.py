"""Options that several commands have."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final

import click

from penstock.cli.support.address import DEFAULT, VARIABLE
from penstock.cli.support.errors import Suggesting
from penstock.cli.support.progress import show
from penstock.cli.support.tables import FORMATS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

TOKENS: Final = (
    "TOPIC-PARTITION:OFFSET, or CAPTURE@POSITION with a database's position, such as its LSN"
)
"""What a token is, for the help of commands."""
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
        show(f"waiting for the broker ({seconds:.0f} s): {what}")


def client_settings() -> dict[str, Any]:
    """How commands talk to a broker."""
    return {"client_id": "penstock-cli", "patience_s": PATIENCE_S, "on_wait": waiting}


def of_topics(
    token: str,
    seconds: float,
    broker: Callable[[], str],
    topics: Callable[[], Collection[str] | None],
    gone: Callable[[], bool] = lambda: False,
) -> tuple[str, float]:
    """A token of topics' positions, and the seconds that are left.

    Args:
        token: of topics, or of a capture, which is waited for.
        seconds: to wait at most.
        broker: the address of its log.
        topics: that are read; None: that isn't known.
        gone: polled; waiting ends when it returns true.
    """
    name, at, position = token.partition("@")
    if not at:
        return token, seconds
    from penstock import capture

    deadline = time.monotonic() + seconds
    found = capture.token(
        name,
        position,
        log=broker(),
        topics=topics(),
        timeout=seconds,
        gone=gone,
        **client_settings(),
    )
    return found, max(deadline - time.monotonic(), 0.0)
