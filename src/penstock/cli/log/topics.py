"""`penstock topics`: look at topics, make them, change them, delete them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.moments import moment_ms
from penstock.cli.support.options import BrokerGroup, broker_option, client_settings, form_option
from penstock.cli.support.tables import note, write_rows
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.topic_admin import TopicAdmin


def _client(broker: str | None) -> Client:
    from penstock.client import Client

    return Client(find_broker(broker), **client_settings())


def _admin(broker: str | None) -> TopicAdmin:
    from penstock.client.topic_admin import TopicAdmin

    return TopicAdmin(find_broker(broker), **client_settings())


def _settings(texts: tuple[str, ...], option: str) -> dict[str, str]:
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(
                f"expected {option} NAME=VALUE, as in retention.ms=60000; found {text!r}"
            )
        settings[name] = value
    return settings


@click.group(
    cls=BrokerGroup,
    invoke_without_command=True,
    epilog="""\b
Examples:
  penstock topics
  penstock topics create clicks --partitions 4 --config retention.ms=604800000
  penstock topics describe clicks --format json
  penstock topics describe clicks --configs
  penstock topics alter clicks --set retention.ms=86400000 --unset segment.bytes
  penstock topics alter clicks --partitions 8
  penstock topics trim clicks --before "30 days ago"
""",
)
@broker_option
@click.pass_context
def topics(ctx: click.Context, broker: str | None) -> None:
    """List, create, describe, change and delete topics. Without a command it lists them."""
    ctx.obj = broker
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_topics, form="table")


@topics.command("list")
@form_option
@click.pass_obj
def list_topics(broker: str | None, form: str) -> None:
    """List topics with their partitions and number of records."""
    with _client(broker) as client:
        counts = client.topics()
        ranges = client.ranges_many(counts)
        rows = [
            (name, partitions, sum(end - first for first, end in ranges[name].values()))
            for name, partitions in counts.items()
        ]
    names = ("topic", "partitions", "records")
    write_rows(
        names, rows, form, nothing="There are no topics. Create one: penstock topics create NAME"
    )


@topics.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--replication", type=int, default=-1, help="Copies; by default the cluster's number."
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="Kafka's topic configs."
)
@click.option("--exists-ok", is_flag=True, help="Succeed if the topic exists.")
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
    with _client(broker) as client:
        made = client.create_topic(
            name,
            partitions,
            _settings(configs, "--config"),
            exists_ok=exists_ok,
            replication=replication,
        )
    note(f"created topic {name}" if made else f"topic {name} was there already")


@topics.command("describe")
@click.argument("name")
@click.option("--configs", is_flag=True, help="Show its configs and their sources instead.")
@form_option
@click.pass_obj
def describe(broker: str | None, name: str, form: str, *, configs: bool) -> None:
    """Show a topic's partitions and their offsets."""
    if configs:
        with _admin(broker) as admin:
            found = admin.configs(name)
        own = [
            (one.name, one.value, "topic" if one.is_own else "default", one.doc) for one in found
        ]
        write_rows(("config", "value", "from", "meaning"), own, form)
        return
    with _client(broker) as client:
        first, last = client.offsets(name, "earliest"), client.offsets(name, "latest")
    rows = [(p, first[p], last[p], last[p] - first[p]) for p in sorted(last)]
    write_rows(("partition", "first_offset", "next_offset", "records"), rows, form)


@topics.command("alter")
@click.argument("name")
@click.option("--set", "new", multiple=True, metavar="NAME=VALUE", help="A config's new value.")
@click.option("--unset", multiple=True, metavar="NAME", help="A config to reset to its default.")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="The new number, higher than now. New records of a key may go to another partition "
    "than its old ones.",
)
@click.pass_obj
def alter(
    broker: str | None,
    name: str,
    new: tuple[str, ...],
    unset: tuple[str, ...],
    partitions: int | None,
) -> None:
    """Change a topic's configs, or add partitions. Configs are changed together or not at all."""
    settings = _settings(new, "--set")
    if not settings and not unset and partitions is None:
        raise UserError("expected --set, --unset or --partitions; found nothing to change")
    with _admin(broker) as admin:
        if settings or unset:
            admin.change_configs(name, settings, unset)
        if partitions is not None:
            admin.grow(name, partitions)
    note(f"changed topic {name}")


@topics.command("trim")
@click.argument("name")
@click.option(
    "--before",
    metavar="WHEN",
    help="2026-11-21T09:00:00Z, '30 days ago', or now: all records.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Before this offset.")
@click.option("--partition", "-p", type=click.IntRange(0), help="Only of this partition.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def trim(
    broker: str | None,
    name: str,
    before: str | None,
    to_offset: int | None,
    partition: int | None,
    *,
    yes: bool,
) -> None:
    """Delete the records before a time or an offset, permanently.

    In each partition, everything before the first record of that time or later is deleted.
    """
    if (before is None) == (to_offset is None):
        raise UserError("expected either --before or --to-offset; found both or none")
    moment = None if before is None else moment_ms(before, time.time_ns() // 1_000_000, "--before")
    with _admin(broker) as admin:
        first = admin.offsets(name, "earliest")
        if partition is not None and partition not in first:
            raise UserError(
                f"expected a partition of {name!r} from 0 to {len(first) - 1}; found {partition}"
            )
        if before is None or moment is None:
            upto = dict.fromkeys(first, to_offset or 0)
        else:
            upto = admin.offsets(name, "latest" if before.strip() == "now" else moment)
        upto = {p: offset for p, offset in upto.items() if partition in {None, p}}
        count = sum(max(upto[part] - first[part], 0) for part in upto)
        if count and not yes:
            click.confirm(f"Delete {count} records of {name} for good?", abort=True, err=True)
        if count:
            admin.trim(name, upto)
    note(f"deleted {count} records of {name}")


@topics.command("delete")
@click.argument("name")
@click.option("--missing-ok", is_flag=True, help="Succeed if there is no such topic.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def delete(broker: str | None, name: str, *, missing_ok: bool, yes: bool) -> None:
    """Delete a topic and all its records."""
    if not yes:
        click.confirm(f"Delete topic {name} and all its records?", abort=True, err=True)
    with _client(broker) as client:
        gone = client.delete_topic(name, missing_ok=missing_ok)
    note(f"deleted topic {name}" if gone else f"there was no topic {name}")
