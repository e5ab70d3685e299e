"""`penstock topics`: look at topics, make them, delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from penstock.cli._address import find_broker
from penstock.cli._options import broker_option, client_settings, form_option
from penstock.cli._tables import note, write_table
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client import Client


def _client(broker: str | None) -> Client:
    from penstock.client import Client

    return Client(find_broker(broker), **client_settings())


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  penstock topics
  penstock topics create clicks --partitions 4 --config retention.ms=604800000
  penstock topics describe clicks --format json
""",
)
@broker_option
@click.pass_context
def topics(ctx: click.Context, broker: str | None) -> None:
    """List, create, describe and delete topics. Alone, it lists them."""
    ctx.obj = broker
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_topics, form="table")


@topics.command("list")
@form_option
@click.pass_obj
def list_topics(broker: str | None, form: str) -> None:
    """List topics with their partitions and how many records they hold."""
    with _client(broker) as client:
        counts = client.topics()
        rows = []
        for name, partitions in counts.items():
            first, last = client.offsets(name, "earliest"), client.offsets(name, "latest")
            rows.append((name, partitions, sum(last[p] - first[p] for p in last)))
    if not rows and form == "table":
        note("There are no topics. Create one: penstock topics create NAME")
        return
    names = ("topic", "partitions", "records")
    _write(names, (pa.string(), pa.int64(), pa.int64()), rows, form)


@topics.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--replication", type=int, default=-1, help="Copies; by default the cluster's number."
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="Kafka's topic configs."
)
@click.option("--exists-ok", is_flag=True, help="It is no error if the topic is there already.")
@click.pass_obj
def create(
    broker: str | None,
    name: str,
    partitions: int,
    replication: int,
    configs: tuple[str, ...],
    *,
    exists_ok: bool,
) -> None:
    """Create a topic."""
    settings = {}
    for config in configs:
        key, equals, value = config.partition("=")
        if not equals or not key:
            raise UserError(
                f"expected --config NAME=VALUE, as in retention.ms=60000; found {config!r}"
            )
        settings[key] = value
    with _client(broker) as client:
        made = client.create_topic(
            name, partitions, settings, exists_ok=exists_ok, replication=replication
        )
    note(f"created topic {name}" if made else f"topic {name} was there already")


@topics.command("describe")
@click.argument("name")
@form_option
@click.pass_obj
def describe(broker: str | None, name: str, form: str) -> None:
    """Show a topic's partitions and their offsets."""
    with _client(broker) as client:
        first, last = client.offsets(name, "earliest"), client.offsets(name, "latest")
    rows = [(p, first[p], last[p], last[p] - first[p]) for p in sorted(last)]
    _write(("partition", "first_offset", "next_offset", "records"), (pa.int64(),) * 4, rows, form)


@topics.command("delete")
@click.argument("name")
@click.option("--missing-ok", is_flag=True, help="It is no error if there is no such topic.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def delete(broker: str | None, name: str, *, missing_ok: bool, yes: bool) -> None:
    """Delete a topic and all its records."""
    if not yes:
        click.confirm(f"Delete topic {name} and all its records?", abort=True, err=True)
    with _client(broker) as client:
        gone = client.delete_topic(name, missing_ok=missing_ok)
    note(f"deleted topic {name}" if gone else f"there was no topic {name}")


def _write(
    names: tuple[str, ...],
    types: tuple[pa.DataType, ...],
    rows: list[tuple[Any, ...]],
    form: str,
) -> None:
    columns = [pa.array([row[i] for row in rows], types[i]) for i in range(len(names))]
    write_table(pa.table(columns, names=list(names)), form)
