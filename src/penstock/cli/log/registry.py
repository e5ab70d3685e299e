"""`penstock registry`: the schema registry of a log, next to its broker."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import broker_option
from penstock.cli.support.tables import note


@click.command(
    epilog="""\b
Examples:
  penstock registry
  penstock registry --broker kafka.example:9092 --listen 127.0.0.1:8081
  curl http://127.0.0.1:8081/subjects
"""
)
@click.option(
    "--listen",
    default="127.0.0.1:8081",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve. Beyond this machine it needs a password in PENSTOCK_REGISTRY_PASSWORD.",
)
@click.option("--tls-cert", type=Path, metavar="PEM", help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=Path, metavar="PEM", help="Its key, if in another file.")
@broker_option
def registry(listen: str, tls_cert: Path | None, tls_key: Path | None, broker: str | None) -> None:
    """Serve a schema registry with Confluent's REST API until Ctrl-C.

    All that it knows is in the topic _schemas of the log, so several may serve one log.
    """
    from penstock.registry import registry_served

    address = find_broker(broker)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    tls = None if tls_cert is None else (tls_cert, tls_key or tls_cert)
    with registry_served(address, listen, note, tls=tls):
        stop.wait()
