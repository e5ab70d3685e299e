"""`penstock broker`: the log's server alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli._security import security_options, security_settings
from penstock.cli._tables import note

if TYPE_CHECKING:
    from penstock.broker.server import Broker


@click.command(
    epilog="""\b
Examples:
  penstock broker
  penstock broker --listen 127.0.0.1:19092 --data /srv/log
  penstock users add ann --data /srv/log
  penstock broker --data /srv/log --listen SASL_SSL://0.0.0.0:9094 --tls-cert broker.pem
"""
)
@click.option(
    "--listen",
    multiple=True,
    default=["127.0.0.1:9092"],
    show_default=True,
    metavar="[PROTOCOL://]HOST:PORT",
    help="PLAINTEXT (the default), SSL, SASL_SSL or SASL_PLAINTEXT; may be given several times. "
    "Port 0 takes a free one; which, is printed.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("penstock-log"),
    show_default=True,
    metavar="DIR",
    help="Where the topics are kept.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of topics that are made on first use.",
)
@click.option("--no-auto-create", is_flag=True, help="Don't make topics on first use.")
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Permit an address beyond loopback without authentication. Whoever reaches it can read "
    "and delete everything.",
)
@click.option(
    "--tier",
    metavar="URI",
    help="Copy closed segments of topics with remote.storage.enable there: s3://BUCKET/PREFIX or "
    "file:///DIR. Credentials come from the environment.",
)
@security_options
def broker(
    listen: tuple[str, ...],
    data: Path,
    partitions: int,
    *,
    no_auto_create: bool,
    allow_remote: bool,
    tier: str | None,
    **security: Any,
) -> None:
    """Run the log's server until Ctrl-C. It speaks Kafka's protocol: every Kafka client works.

    The address is printed on standard output once it serves.
    """
    import uvloop

    from penstock.broker.config import BrokerConfig
    from penstock.broker.server import serve

    config = BrokerConfig(
        data=data,
        listen=",".join(listen),
        allow_remote=allow_remote,
        default_partitions=partitions,
        auto_create_topics=not no_auto_create,
        tier=tier,
        **security_settings(security),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready=_announce))
    note(f"stopped; the topics are in {data}")


def _announce(broker: Broker) -> None:
    for number, listener in enumerate(broker.listeners):
        protocol = f"{listener.protocol}://" if number else ""
        click.echo(f"listening on {protocol}{listener.address}")
