"""`penstock users`: who may log in to a broker, kept in its data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._security import ask_password
from penstock.cli._tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.broker.security.users import Users

_data = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("penstock-log"),
    show_default=True,
    metavar="DIR",
    help="The broker's data directory; the broker may run.",
)


@click.group(
    epilog="""\b
Examples:
  penstock users add ann --data /srv/log              asks for the password
  penstock users add app < password.txt
  penstock users list
"""
)
def users() -> None:
    """Say who may log in to a broker (SASL PLAIN and SCRAM).

    A running broker takes changes up within seconds. Kafka's own tools (kafka-configs) work as
    well. Passwords are never arguments: they are asked for, or come from PENSTOCK_PASSWORD or
    standard input. What is stored does not tell them.
    """


@users.command()
@click.argument("name")
@_data
def add(name: str, data: Path) -> None:
    """Add a user, or change the password."""
    from penstock.broker.security.users import name_fault

    if fault := name_fault(name):
        raise UserError(fault)
    is_new = _open(data).add(name, ask_password(name))
    note(f"{'added' if is_new else 'changed the password of'} {name}")


@users.command()
@click.argument("name")
@_data
def remove(name: str, data: Path) -> None:
    """Remove a user. Connections that are open stay so until they log in again."""
    if not _open(data).remove(name):
        raise UserError(
            f"expected a user of {str(data)!r}, found {name!r}; see penstock users list"
        )
    note(f"removed {name}")


@users.command("list")
@_data
def list_(**options: Any) -> None:
    """List the users and how they may log in."""
    for name, mechanisms in _open(options["data"]).describe().items():
        click.echo(f"{name}\t{', '.join(mechanisms)}")


def _open(data: Path) -> Users:
    from penstock.broker.security.users import Users

    return Users(data)
