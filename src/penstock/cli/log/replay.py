"""`penstock replay`: a stretch of a topic again, into another topic."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.moments import moment_ms
from penstock.cli.support.options import broker_option, client_settings
from penstock.cli.support.progress import counter
from penstock.cli.support.tables import note
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.copying import Copy
    from penstock.client.tables.history import TopicTable

STEP_OFFSETS_SLOW = 500
"""Source offsets of a step with --rate: small, so that the rate is even."""


@click.command(
    epilog="""\b
Examples:
  penstock replay clicks --from "2 hours ago" --to-topic clicks-again
  penstock replay clicks --from 2026-11-21T09:00:00Z --to 2026-11-21T10:00:00Z --to-topic c --create
  penstock replay clicks --from 1000 --to-topic test --key alice --key bob --rate 500
  penstock replay clicks --to-topic c --iceberg-catalog sqlite:////srv/catalog.db
  penstock replay --resume 3f2a                  continues where it was interrupted

Keys, values, headers and timestamps are kept; a key's records stay in order. Each record is sent
once, even if a replay is interrupted or killed and then resumed.

With --iceberg-catalog, records that the topic's table covers are read from there, even if the log
no longer has them, and the rest from the log. The table must keep values as bytes (a topic without
penstock.schema), because decoded values can't be turned back into the same bytes.
"""
)
@click.argument("topic", required=False)
@click.option(
    "--from",
    "start",
    default="beginning",
    show_default=True,
    metavar="beginning|OFFSET|TIME",
    help="Where to begin; TIME is ISO 8601 or '2 hours ago'.",
)
@click.option(
    "--to",
    "stop",
    default="end",
    show_default=True,
    metavar="end|OFFSET|TIME",
    help="Where to end.",
)
@click.option("--to-topic", metavar="TOPIC", help="Where the records go.")
@click.option("--create", is_flag=True, help="Create that topic, with as many partitions.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only records with this key.")
@click.option("--rate", type=click.IntRange(1), help="Most records per second.")
@click.option("--resume", metavar="NAME", help="Resume an interrupted replay.")
@click.option(
    "--iceberg-catalog", metavar="URI", help="Read old records from the topic's Iceberg table."
)
@click.option(
    "--iceberg-warehouse", metavar="URI", help="The catalog's warehouse, if it needs one."
)
@broker_option
def replay(
    topic: str | None,
    start: str,
    stop: str,
    to_topic: str | None,
    keys: tuple[str, ...],
    rate: int | None,
    resume: str | None,
    iceberg_catalog: str | None,
    iceberg_warehouse: str | None,
    broker: str | None,
    *,
    create: bool,
) -> None:
    """Copy a range of TOPIC to another topic. TOPIC doesn't change."""
    from penstock.client import Client
    from penstock.client.copying import Copy, CopyJob

    address = find_broker(broker)
    name = resume or uuid.uuid4().hex[:8]
    with Copy(address, name, **client_settings()) as copy:
        if resume:
            copy.resume()
            topic, to_topic = copy.job.source, copy.job.target
        if topic is None or to_topic is None:
            raise UserError(
                "expected what to replay and where to: penstock replay TOPIC --to-topic OTHER"
            )
        history = None
        if iceberg_catalog is not None:
            history = _open(address, topic, iceberg_catalog, iceberg_warehouse)
            copy.read_from(history)
        if not resume:
            with Client(address, **client_settings()) as client:
                spans = _spans(client, topic, start, stop, history)
                if create:
                    count = len(client.partitions(topic))
                    client.create_topic(to_topic, count, exists_ok=True)
            copy.start(CopyJob(topic, to_topic, spans, keys or None))
        note(f"if it is interrupted, continue with: penstock replay --resume {name}")
        _run(copy, rate)
    note(f"replayed {copy.copied:,} records from {copy.job.source} to {copy.job.target}")


def _open(address: str, topic: str, catalog: str, warehouse: str | None) -> TopicTable:
    from penstock.client.tables.history import catalog_loader, open_table

    return open_table(address, topic, catalog_loader(catalog, warehouse), **client_settings())


def _run(copy: Copy, rate: int | None) -> None:
    from penstock.client.copying import STEP_OFFSETS

    begun = time.monotonic()
    with counter("replayed") as tick:

        def on_step() -> None:
            tick(copy.copied)
            if rate is not None:
                time.sleep(max(begun + copy.copied / rate - time.monotonic(), 0))

        copy.run(on_step, STEP_OFFSETS if rate is None else STEP_OFFSETS_SLOW)


def _spans(
    client: Client, topic: str, start: str, stop: str, history: TopicTable | None = None
) -> dict[int, tuple[int, int]]:
    """From where to where in each partition; those with nothing in between are left out."""
    starts, ends = client.offsets(topic, "earliest"), client.offsets(topic, "latest")
    if history is not None:  # it may have what the log no longer has
        starts = {p: 0 if history.covered.get(p, 0) else lo for p, lo in starts.items()}
    froms, tos = (
        _offsets(client, topic, text, option, starts, ends, history)
        for text, option in ((start, "--from"), (stop, "--to"))
    )
    spans = {p: (max(froms[p], starts[p]), min(tos[p], ends[p])) for p in ends}
    spans = {p: (lo, hi) for p, (lo, hi) in spans.items() if lo < hi}
    if not spans:
        raise UserError(f"expected records of {topic!r} from {start!r} to {stop!r}; found none")
    return spans


def _offsets(
    client: Client,
    topic: str,
    text: str,
    option: str,
    starts: dict[int, int],
    ends: dict[int, int],
    history: TopicTable | None,
) -> dict[int, int]:
    if text == "beginning":
        return starts
    if text == "end":
        return ends
    if text.isdigit():
        return dict.fromkeys(ends, int(text))
    moment = moment_ms(text, time.time_ns() // 1_000_000, option)
    if history is not None:
        return history.first_since(client, moment)
    return client.offsets(topic, moment)
