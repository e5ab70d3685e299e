"""`penstock quotas`: how much of a broker users and client ids may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import BrokerGroup, broker_option, client_settings, form_option
from penstock.cli.support.tables import note, write_rows
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.access import AccessAdmin, Entity

F = TypeVar("F", bound=Callable[..., Any])

LIMITS: Final = {
    "produce": "producer_byte_rate",
    "consume": "consumer_byte_rate",
    "request": "request_percentage",
}
"""Options, and Kafka's names."""
DEFAULT: Final = "*"
"""How the default entity is written."""


def _entity_options(command: F) -> F:
    for option in (
        click.option("--client", metavar="ID", help="Of a client id; * for those without one."),
        click.option("--user", metavar="NAME", help="Of a user; * for those without one."),
    ):
        command = option(command)
    return command


def _admin(broker: str | None) -> AccessAdmin:
    from penstock.client.access import AccessAdmin

    return AccessAdmin(find_broker(broker), **client_settings())


@click.group(
    cls=BrokerGroup,
    invoke_without_command=True,
    epilog="""\b
Examples:
  penstock quotas
  penstock quotas set --user ann --produce 1000000 --consume 5000000
  penstock quotas set --client '*' --request 50
  penstock quotas set --user ann --client batch --produce 100000
  penstock quotas remove --user ann --produce
  penstock quotas remove --user ann
""",
)
@broker_option
@click.pass_context
def quotas(ctx: click.Context, broker: str | None) -> None:
    """Manage quotas of users and client ids. Without a command it lists them.

    The most specific quota counts: of a user with a client id, of a user, of a client id; a name of
    its own before *. A client that exceeds its quota is delayed, and loses nothing.
    """
    ctx.obj = broker
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_quotas, form="table")


@quotas.command("list")
@form_option
@click.pass_obj
def list_quotas(broker: str | None, form: str) -> None:
    """List quotas: bytes per second, and percent of the broker's time."""
    with _admin(broker) as admin:
        found = admin.quotas()
    rows = sorted(
        (_said(entity, "user"), _said(entity, "client-id"), *map(values.get, LIMITS.values()))
        for entity, values in found.items()
    )
    names = ("user", "client_id", *LIMITS.values())
    write_rows(names, rows, form, nothing="There are no quotas.")


@quotas.command("set")
@_entity_options
@click.option(
    "--produce", type=click.FloatRange(0, min_open=True), help="Bytes written, per second."
)
@click.option("--consume", type=click.FloatRange(0, min_open=True), help="Bytes read, per second.")
@click.option(
    "--request",
    type=click.FloatRange(0, min_open=True),
    help="Percent of one core's time; 200 is two.",
)
@click.pass_obj
def set_(
    broker: str | None, /, user: str | None, client: str | None, **limits: float | None
) -> None:
    """Set limits of a user, a client id, or of a user's client id."""
    values = {LIMITS[name]: value for name, value in limits.items() if value is not None}
    if not values:
        raise UserError("expected a limit: --produce, --consume or --request; found none")
    with _admin(broker) as admin:
        admin.set_quotas(_entity(user, client), values)
    note(f"set {_list(values)}")


@quotas.command()
@_entity_options
@click.option("--produce", is_flag=True, help="This limit alone.")
@click.option("--consume", is_flag=True, help="This limit alone.")
@click.option("--request", is_flag=True, help="This limit alone.")
@click.pass_obj
def remove(broker: str | None, /, user: str | None, client: str | None, **limits: bool) -> None:
    """Remove limits: those that are named, or all of them."""
    entity = _entity(user, client)
    named = {LIMITS[name] for name, is_meant in limits.items() if is_meant}
    with _admin(broker) as admin:
        known = admin.quotas().get(entity, {})
        gone = dict.fromkeys(sorted(set(known) & (named or set(known))))
        if not gone:
            raise UserError("expected a quota that is set; `penstock quotas` lists them")
        admin.set_quotas(entity, gone)
    note(f"removed {_list(gone)}")


def _entity(user: str | None, client: str | None) -> Entity:
    said = (("client-id", client), ("user", user))
    found = tuple((kind, None if one == DEFAULT else one) for kind, one in said if one is not None)
    if not found:
        raise UserError("expected --user, --client, or both; found neither")
    return found


def _said(entity: Entity, kind: str) -> str:
    """A name as it is given to the command; nothing where the quota isn't about one."""
    names = dict(entity)
    return (names[kind] or DEFAULT) if kind in names else ""


def _list(values: Any) -> str:
    return ", ".join(values)
