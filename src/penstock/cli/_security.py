"""The options that say who gets in, where that is kept, and passwords that are never arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from penstock.cli._address import find_broker
from penstock.cli._options import client_settings
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.access import AccessAdmin

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE: Final = "PENSTOCK_PASSWORD"

_file = click.Path(path_type=Path, dir_okay=False)
_OPTIONS: Final = (
    click.option(
        "--tls-cert", type=_file, metavar="PEM", help="Certificate (chain); read again on SIGHUP."
    ),
    click.option("--tls-key", type=_file, metavar="PEM", help="Its key, if in another file."),
    click.option(
        "--tls-client-ca",
        type=_file,
        metavar="PEM",
        help="Who issues clients' certificates: SSL listeners then ask for one.",
    ),
    click.option(
        "--sasl-mechanisms",
        default="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        show_default=True,
        metavar="NAMES",
        help="What SASL listeners offer.",
    ),
    click.option(
        "--session-lifetime-s",
        type=click.FloatRange(0),
        default=0.0,
        help="After how long clients must log in again; 0: never.",
    ),
    click.option(
        "--authorize",
        is_flag=True,
        help="Refuse what no access control list allows; on by itself where there is one.",
    ),
    click.option(
        "--super-user",
        multiple=True,
        metavar="User:NAME",
        help="May do everything; may be given several times.",
    ),
    click.option("--allow-if-no-acl", is_flag=True, help="Allow what no list is about."),
    click.option(
        "--connections-per-address",
        type=click.IntRange(1),
        metavar="N",
        help="Most connections of one address.",
    ),
)


def security_options(command: F) -> F:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def security_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a `BrokerConfig` that the options stand for."""
    from penstock.broker.security.tls import TlsFiles

    tls = None
    if given["tls_cert"] is not None:
        tls = TlsFiles(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    return {
        "tls": tls,
        "mechanisms": tuple(one for one in given["sasl_mechanisms"].split(",") if one),
        "session_lifetime_s": given["session_lifetime_s"],
        "authorize": given["authorize"],
        "super_users": given["super_user"],
        "allow_if_no_acl": given["allow_if_no_acl"],
        "connections_per_address": given["connections_per_address"],
    }


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
        raise UserError("expected --data or --broker, found both")
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
