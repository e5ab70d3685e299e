"""`penstock groups`: consumer groups, how far they are, and where they continue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.moments import moment_ms
from penstock.cli.support.options import BrokerGroup, broker_option, client_settings, form_option
from penstock.cli.support.tables import note, write_rows
from penstock.core.time import duration_text, duration_us
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client.groups import GroupAdmin, GroupPosition, Target

TIME_LEFT_LOW_MS = 24 * 3600 * 1000
"""A group with less time than this before retention reaches it is warned of."""


def _admin(broker: str | None) -> GroupAdmin:
    from penstock.client.groups import GroupAdmin

    return GroupAdmin(find_broker(broker), **client_settings())


@click.group(
    cls=BrokerGroup,
    invoke_without_command=True,
    epilog="""\b
Examples:
  penstock groups
  penstock groups describe audit
  penstock groups reset audit --by-duration "2 hours"             shows what it would do
  penstock groups reset audit --by-duration "2 hours" --execute   does it
  penstock groups reset audit --topic clicks:0,1 --to-earliest --execute
""",
)
@broker_option
@click.pass_context
def groups(ctx: click.Context, broker: str | None) -> None:
    """List, describe, reset and delete consumer groups. Without a command it lists them."""
    ctx.obj = broker
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_groups, form="table")


@groups.command("list")
@form_option
@click.pass_obj
def list_groups(broker: str | None, form: str) -> None:
    """List groups with their state and lag."""
    rows = []
    with _admin(broker) as admin:
        for one in admin.list_groups():
            positions = admin.positions(one.name)
            topics = ", ".join(sorted({part.topic for part in positions}))
            lag, lost = (sum(getattr(p, what) for p in positions) for what in ("lag", "lost"))
            rows.append((one.name, one.kind, one.state, topics, lag, lost))
    names = ("group", "type", "state", "topics", "lag", "lost")
    write_rows(names, rows, form, nothing="There are no groups.")


@groups.command("describe")
@click.argument("group")
@form_option
@click.pass_obj
def describe(broker: str | None, group: str, form: str) -> None:
    """Show a group's lag, and the time until retention reaches it."""
    from penstock.client import Reader

    with _admin(broker) as admin, Reader(find_broker(broker), **client_settings()) as reader:
        info = admin.info(group)
        positions = admin.positions(group, reader, time.time_ns() // 1_000_000)
        members = admin.members(info)
    note(f"{info.kind} group, {info.state}, {len(members)} member{'s' * (len(members) != 1)}")
    for member in members:
        note(f"  {member.client_id} at {member.host}: {member.id}")
    rows = [
        (one.topic, one.partition, one.committed, one.end, one.lag, one.lost, _left(one))
        for one in positions
    ]
    names = ("topic", "partition", "committed", "end", "lag", "lost", "time_left")
    write_rows(names, rows, form)
    for one in positions:
        _warn(one)


def _left(one: GroupPosition) -> str | None:
    if one.time_left_ms is None:
        return None
    return " ".join(duration_text(one.time_left_ms * 1000).split()[:4])


def _warn(one: GroupPosition) -> None:
    place = f"{one.topic}/{one.partition}"
    if one.lost:
        note(
            f"warning: {one.lost:,} records of {place} were removed before the group read them; "
            "it will receive an offset-out-of-range error"
        )
    elif one.time_left_ms is not None and one.time_left_ms < TIME_LEFT_LOW_MS:
        note(
            f"warning: retention reaches the group's position in {place} in {_left(one)}; "
            "let it catch up, or raise the topic's retention.ms or retention.bytes"
        )


@groups.command("reset")
@click.argument("group")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,P...]",
    help="Only this topic, or these partitions of it. Default: all that the group has read.",
)
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-time", metavar="TIME", help="To the first record of this time or later.")
@click.option(
    "--by-duration", metavar="DURATION", help="To the records of this long ago, such as '2 hours'."
)
@click.option("--shift", type=int, metavar="N", help="By this many records; negative: back.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset.")
@click.option("--execute", is_flag=True, help="Apply it; without this option it is only shown.")
@form_option
@click.pass_obj
def reset(
    broker: str | None,
    /,
    group: str,
    topics: tuple[str, ...],
    form: str,
    *,
    execute: bool,
    **ways: Any,
) -> None:
    """Show the offsets that a reset would give a group; --execute applies them.

    The group must have no members: stop its consumers first.
    """
    target = _target(**ways)
    with _admin(broker) as admin:
        admin.require_quiet(group)
        rows = admin.planned(group, target, _topics(topics))
        if execute:
            admin.reset(group, {(topic, p): new for topic, p, _, new in rows})
    names = ("topic", "partition", "offset", "new_offset")
    write_rows(names, rows, form)
    note(
        f"reset {len(rows)} offsets of {group}"
        if execute
        else "nothing was changed; --execute does it"
    )


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    by_duration: str | None,
    shift: int | None,
    to_offset: int | None,
) -> Target:
    from penstock.client.groups import Target

    now_ms = time.time_ns() // 1_000_000
    found = []
    if to_earliest:
        found.append(Target("earliest"))
    if to_latest:
        found.append(Target("latest"))
    if to_time is not None:
        found.append(Target("time", moment_ms(to_time, now_ms, "--to-time")))
    if by_duration is not None:
        found.append(Target("time", now_ms - duration_us(by_duration) // 1000))
    if shift is not None:
        found.append(Target("shift", shift))
    if to_offset is not None:
        found.append(Target("offset", to_offset))
    if len(found) != 1:
        raise UserError(
            "expected one of --to-earliest, --to-latest, --to-time, --by-duration, --shift and "
            f"--to-offset; found {len(found)}"
        )
    return found[0]


def _topics(texts: tuple[str, ...]) -> dict[str, list[int] | None] | None:
    if not texts:
        return None
    topics: dict[str, list[int] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not name or not all(part.isdigit() for part in parts):
            raise UserError(f"expected --topic TOPIC[:P,P...], as in clicks:0,1; found {text!r}")
        topics[name] = [int(part) for part in parts] if colon else None
    return topics


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def delete(broker: str | None, group: str, *, yes: bool) -> None:
    """Delete a group without members, and its offsets."""
    if not yes:
        click.confirm(f"Forget group {group} and its offsets?", abort=True, err=True)
    with _admin(broker) as admin:
        admin.delete_group(group)
    note(f"deleted group {group}")
