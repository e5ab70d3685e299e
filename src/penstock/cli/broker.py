"""`penstock broker`: the log's server alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  penstock broker
  penstock broker --listen 127.0.0.1:19092 --data /srv/log
"""
)
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Port 0 takes a free one. Beyond loopback there is no protection.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("penstock-log"),
    show_default=True,
    metavar="DIR",
    help="Where the topics are kept.",
)
def broker(listen: str, data: Path) -> None:
    """Run the log's server until Ctrl-C. It speaks Kafka's protocol: every Kafka client works."""
    from penstock.broker import serve

    serve(listen, data)
