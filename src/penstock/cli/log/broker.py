"""`penstock broker`: the log's server alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.broker.listeners import SecurityProtocol
from penstock.broker.options import OPTIONS, Option, config_of
from penstock.cli.support.tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.broker.server import Broker


class _Value(click.ParamType):
    """What an option of the table says its value is."""

    def __init__(self, option: Option) -> None:
        self.name = option.name
        self._parse = option.parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of a text; defaults are values already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all options that a broker has (see `penstock.broker.options`)."""
    for one in reversed(OPTIONS):
        if one.is_flag:
            command = click.option(one.flag, is_flag=True, help=one.help)(command)
            continue
        command = click.option(
            one.flag,
            type=click.Choice(one.choices) if one.choices else _Value(one),
            default=one.default,
            show_default=one.shown_default is not None,
            multiple=one.is_multiple,
            metavar=one.metavar,
            help=one.help,
        )(command)
    return command


@click.command(
    epilog="""\b
Examples:
  penstock broker
  penstock broker --listen 127.0.0.1:19092 --data /srv/log
  penstock broker --registry 127.0.0.1:8081
  penstock users add ann --data /srv/log
  penstock broker --data /srv/log --listen SASL_SSL://0.0.0.0:9094 --tls-cert broker.pem
"""
)
@broker_options
@click.option(
    "--registry",
    metavar="HOST:PORT",
    help="Serve a schema registry with Confluent's REST API there; with --tls-cert over HTTPS. Beyond "
    "loopback it needs a password in PENSTOCK_REGISTRY_PASSWORD.",
)
def broker(registry: str | None, **given: Any) -> None:
    """Run the log's server until Ctrl-C. It speaks Kafka's protocol: every Kafka client works.

    The address is printed on standard output once it serves.
    """
    import uvloop

    from penstock.broker.logs import configure_logs
    from penstock.broker.server import serve

    config = config_of(given)
    configure_logs(given["log_level"], given["log_format"])
    with contextlib.ExitStack() as stack:

        def ready(broker: Broker) -> None:
            _announce(broker)
            _serve_registry(broker, registry, stack)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, ready=ready))
    note(f"stopped; the topics are in {config.data}")


def _serve_registry(broker: Broker, listen: str | None, stack: contextlib.ExitStack) -> None:
    """Serves a registry next to the broker, which it reaches as any client does."""
    if listen is None:
        return
    from penstock.registry import registry_served

    plain = [one for one in broker.listeners if one.protocol is SecurityProtocol.PLAINTEXT]
    if not plain:
        raise UserError(
            "expected a listener without a log-in for the registry, such as --listen 127.0.0.1:9092; "
            "found none. Add one, or run it on its own: penstock registry --broker kafka+tls://USER@…"
        )
    tls = broker.config.tls
    pair = None if tls is None else (tls.certificate, tls.key or tls.certificate)
    address = plain[0].address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104
    stack.enter_context(registry_served(address, listen, click.echo, tls=pair))


def _announce(broker: Broker) -> None:
    for number, listener in enumerate(broker.listeners):
        protocol = f"{listener.protocol}://" if number else ""
        click.echo(f"listening on {protocol}{listener.address}")
    if broker.metrics.address is not None:
        click.echo("metrics on http://{}:{}/metrics".format(*broker.metrics.address))
