"""The options that say who gets in, where that is kept, and passwords that are never arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import client_settings
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.access import AccessAdmin

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE: Final = "PENSTOCK_PASSWORD"


def place_options(command: F) -> F:
    """Adds --data and --broker: what is looked after is a directory, or a broker or cluster."""
    for option in (
        click.option(
            "--broker",
            metavar="ADDRESS",
            help="A broker's or a cluster's address instead, as kafka+tls://admin@host:9094.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("penstock-log"),
            show_default=True,
            metavar="DIR",
            help="The broker's data directory; the broker may run.",
        ),
    ):
        command = option(command)
    return command


def remote_of(broker: str | None) -> AccessAdmin | None:
    """A client for the broker that was named; None: a directory is meant.

    Raises:
        UserError: both were named.
    """
    if broker is None:
        return None
    source = click.get_current_context().get_parameter_source("data")
    if source is ParameterSource.COMMANDLINE:
        raise UserError("expected --data or --broker; found both")
    from penstock.client.access import AccessAdmin

    return AccessAdmin(find_broker(broker), **client_settings())


def ask_password(user: str, *, from_environment: bool = True) -> str:
    """A new password: from PENSTOCK_PASSWORD, from standard input, or from the terminal, twice.

    Raises:
        UserError: there is none.
    """
    found = os.environ.get(VARIABLE) if from_environment else None
    if found is None and not sys.stdin.isatty():
        found = sys.stdin.readline().rstrip("\r\n")
    if found is None:
        found = click.prompt(
            f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True
        )
    if not found:
        raise UserError(
            f"expected a password in {VARIABLE}, on standard input, or typed in; found none"
        )
    return str(found)
