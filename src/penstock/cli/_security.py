"""The options of a broker that say who gets in, and passwords that are never arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.errors import UserError

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


def ask_password(user: str) -> str:
    """A new password: from PENSTOCK_PASSWORD, from standard input, or from the terminal, twice.

    Raises:
        UserError: there is none.
    """
    found = os.environ.get(VARIABLE)
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
