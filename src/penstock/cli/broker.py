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
@click.option(
    "--iceberg-catalog",
    metavar="URI",
    help="Append topics with penstock.iceberg.table to tables of this catalog: "
    "sqlite:////DIR/catalog.db or a REST catalog's URI. Needs penstock[iceberg].",
)
@click.option("--iceberg-warehouse", metavar="URI", help="Where the catalog puts tables' files.")
@security_options
@click.option(
    "--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics there (http, /metrics)."
)
@click.option(
    "--min-free-bytes",
    type=click.IntRange(0),
    help="Refuse records while less is free on the disk.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning"
)
def broker(
    listen: tuple[str, ...],
    data: Path,
    partitions: int,
    tier: str | None,
    metrics: str | None,
    min_free_bytes: int | None,
    log_format: str,
    log_level: str,
    *,
    no_auto_create: bool,
    allow_remote: bool,
    iceberg_catalog: str | None,
    iceberg_warehouse: str | None,
    **security: Any,
) -> None:
    """Run the log's server until Ctrl-C. It speaks Kafka's protocol: every Kafka client works.

    The address is printed on standard output once it serves.
    """
    import uvloop

    from penstock.broker.config import BrokerConfig
    from penstock.broker.logs import configure_logs
    from penstock.broker.server import serve

    config = BrokerConfig(
        data=data,
        listen=",".join(listen),
        allow_remote=allow_remote,
        default_partitions=partitions,
        auto_create_topics=not no_auto_create,
        tier=tier,
        iceberg_catalog=iceberg_catalog,
        iceberg_warehouse=iceberg_warehouse,
        **security_settings(security),
        metrics=metrics,
        min_free_bytes=min_free_bytes,
    )
    configure_logs(log_level, log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready=_announce))
    note(f"stopped; the topics are in {data}")


def _announce(broker: Broker) -> None:
    for number, listener in enumerate(broker.listeners):
        protocol = f"{listener.protocol}://" if number else ""
        click.echo(f"listening on {protocol}{listener.address}")
    if broker.metrics.address is not None:
        click.echo("metrics on http://{}:{}/metrics".format(*broker.metrics.address))
