"""`penstock users`: who may log in to a broker, in its data directory or by its address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.support.security import ask_password, place_options, remote_of
from penstock.cli.support.tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.broker.security.users import Users


@click.group(
    epilog="""\b
Examples:
  penstock users add ann --data /srv/log              asks for the password
  penstock users add app < password.txt
  penstock users list
  penstock users add bob --broker kafka+tls://admin@broker.example:9094
"""
)
def users() -> None:
    """Manage the users who can log in to a broker (SASL PLAIN and SCRAM).

    With --data it changes the directory of a broker on this machine, which applies changes within seconds;
    with --broker it changes a broker or a cluster. Passwords are never arguments: they are prompted
    for, or read from PENSTOCK_PASSWORD or standard input. They are neither stored nor sent.
    """


@users.command()
@click.argument("name")
@place_options
def add(name: str, data: Path, broker: str | None) -> None:
    """Add a user, or change the password.

    With a --broker that you log in to, PENSTOCK_PASSWORD is your own password; the new one is prompted
    for, or read from standard input.
    """
    from penstock.broker.security.users import name_fault

    if fault := name_fault(name):
        raise UserError(fault)
    remote = remote_of(broker)
    if remote is None:
        is_new = _open(data).add(name, ask_password(name))
    else:
        password = ask_password(name, from_environment=broker is None or "@" not in broker)
        with remote as admin:
            is_new = admin.put_user(name, password)
    note(f"{'added' if is_new else 'changed the password of'} {name}")


@users.command()
@click.argument("name")
@place_options
def remove(name: str, data: Path, broker: str | None) -> None:
    """Remove a user. Penstock's broker closes the user's connections within seconds."""
    remote = remote_of(broker)
    if remote is None:
        was_there, where = _open(data).remove(name), str(data)
    else:
        with remote as admin:
            was_there, where = admin.remove_user(name), str(broker)
    if not was_there:
        raise UserError(f"expected a user of {where!r}; found {name!r}; see penstock users list")
    note(f"removed {name}")


@users.command("list")
@place_options
def list_(data: Path, broker: str | None) -> None:
    """List the users and how they may log in."""
    remote = remote_of(broker)
    if remote is None:
        known = _open(data).describe()
    else:
        with remote as admin:
            known = admin.users()
    for name, mechanisms in known.items():
        click.echo(f"{name}\t{', '.join(mechanisms)}")


def _open(data: Path) -> Users:
    from penstock.broker.security.users import Users

    return Users(data)
