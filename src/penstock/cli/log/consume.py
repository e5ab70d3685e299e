"""`penstock consume`: records to lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import orjson

from penstock.cli.support.address import find_broker
from penstock.cli.support.moments import moment_ms
from penstock.cli.support.options import broker_option, client_settings
from penstock.core.time import instant_text
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.client import Client, Reader
    from penstock.wire.columns import Records

ROUND_RECORDS: Final = 10_000  # of one partition before another has its turn
WAIT_S: Final = 1.0  # of one long poll while following


@dataclass(frozen=True)
class _Form:
    """How a record is written."""

    kind: str
    key_separator: str


@click.command(
    epilog="""\b
Examples:
  penstock consume clicks                         all records, values only
  penstock consume clicks --from end --follow     new records only
  penstock consume clicks --from "2 hours ago" --max 10 --format json
  penstock consume shop.dead-letters --format json | jq .headers
  penstock consume clicks --group audit           continues where the group stopped

A record in --format json is one line with topic, partition, offset, timestamp, key, value and
headers; bytes that aren't UTF-8 are written with replacement characters.
"""
)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default=None,
    metavar="beginning|end|OFFSET|TIME",
    help="Where to begin. TIME is ISO 8601 or '2 hours ago'. Default: beginning, or where the group "
    "stopped.",
)
@click.option("--partition", "-p", type=click.IntRange(0), help="Only this partition.")
@click.option(
    "--group", "-g", help="Begin at this group's committed offsets, and commit what was printed."
)
@click.option("--max", "-n", "most", type=click.IntRange(1), help="End after this many records.")
@click.option("--follow", "-F", is_flag=True, help="Wait for new records at the end.")
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Skip records that the broker can't read, with a warning.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["value", "key-value", "json"]),
    default="value",
    show_default=True,
)
@click.option(
    "--key-separator",
    "-K",
    default="\t",
    help="Between key and value in --format key-value. Default: a tab.",
)
@broker_option
def consume(
    topic: str,
    start: str | None,
    partition: int | None,
    group: str | None,
    most: int | None,
    form: str,
    key_separator: str,
    broker: str | None,
    *,
    follow: bool,
    skip_damaged: bool,
) -> None:
    """Print the records of TOPIC, one on each line, and stop at its end.

    Order is kept within a partition.
    """
    from penstock.cli.loading import forget_pandas

    forget_pandas()
    from penstock.client import Client, Reader

    address = find_broker(broker)
    out = sys.stdout.buffer
    with (
        Client(address, **client_settings()) as client,
        Reader(address, **client_settings()) as reader,
    ):
        positions = _start(client, topic, start, group, partition)
        left = most
        try:
            while True:
                for records in _round(client, reader, topic, positions, left, skips=skip_damaged):
                    p, batch = records
                    _write(out, topic, p, batch, _Form(form, key_separator))
                    positions[p] = int(batch.offset[-1]) + 1
                    left = None if left is None else left - len(batch)
                    if left == 0:
                        return
                out.flush()
                if not follow and _at_end(client, topic, positions):
                    return
                if follow:
                    if group:
                        client.commit(group, {(topic, p): o for p, o in positions.items()})
                    client.wait_for_data({(topic, p): o for p, o in positions.items()}, WAIT_S)
        except KeyboardInterrupt:
            pass
        finally:
            out.flush()
            if group:
                client.commit(group, {(topic, p): o for p, o in positions.items()})


def _start(
    client: Client, topic: str, start: str | None, group: str | None, partition: int | None
) -> dict[int, int]:
    """Where to begin in each partition."""
    partitions = client.partitions(topic)
    if partition is not None and partition not in partitions:
        raise UserError(
            f"expected a partition of {topic!r} from 0 to {len(partitions) - 1}; found {partition}"
        )
    chosen = partitions if partition is None else [partition]
    positions = _offsets(client, topic, start or "beginning", chosen)
    if group and start is None:
        committed = client.committed(group, [topic])
        positions |= {p: committed[topic, p] for p in chosen if (topic, p) in committed}
    return positions


def _offsets(client: Client, topic: str, start: str, partitions: list[int]) -> dict[int, int]:
    if start == "beginning":
        return client.offsets(topic, "earliest", partitions)
    if start == "end":
        return client.offsets(topic, "latest", partitions)
    if start.isdigit():
        first = client.offsets(topic, "earliest", partitions)
        return {p: max(int(start), first[p]) for p in partitions}
    try:
        at_ms = moment_ms(start, time.time_ns() // 1_000_000, "--from")
    except UserError:
        raise UserError(
            "expected --from beginning, end, an offset, an instant such as 2026-11-21T09:00:00Z, or "
            f"'2 hours ago'; found {start!r}"
        ) from None
    return client.offsets(topic, at_ms, partitions)


def _at_end(client: Client, topic: str, positions: dict[int, int]) -> bool:
    ends = client.offsets(topic, "latest", list(positions))
    return all(positions[p] >= ends[p] for p in positions)


def _round(
    client: Client,
    reader: Reader,
    topic: str,
    positions: dict[int, int],
    most: int | None,
    *,
    skips: bool,
) -> Iterator[tuple[int, Records]]:
    """What each partition has now, some of it at a time; at most `most` records in all."""
    left = most
    for p, end in client.offsets(topic, "latest", list(positions)).items():
        begin = positions[p]
        stop = min(end, begin + ROUND_RECORDS)
        if begin >= stop or left == 0:
            continue
        warn = partial(_warn_of_damage, topic, p) if skips else None
        for records in reader.read(topic, p, begin, stop, missing="skip", on_damage=warn):
            part = records if left is None else records.slice(0, min(left, len(records)))
            left = None if left is None else left - len(part)
            yield p, part
            if left == 0:
                return
        if left is None or left > 0:
            positions[p] = max(positions[p], stop)


def _warn_of_damage(topic: str, partition: int, first: int, following: int) -> None:
    click.echo(
        f"warning: offsets {first} to {following - 1} of partition {partition} of topic {topic!r} are "
        "damaged or lost, and skipped",
        err=True,
    )


def _write(out: BinaryIO, topic: str, partition: int, records: Records, form: _Form) -> None:
    from penstock.wire.columns import header

    values = records.values().to_pylist()
    if form.kind == "value":
        out.write(b"".join(b"%b\n" % (v or b"") for v in values))
        return
    keys = records.keys().to_pylist()
    if form.kind == "key-value":
        separator = form.key_separator.encode()
        pairs = zip(keys, values, strict=True)
        out.writelines(b"%b%b%b\n" % (k or b"", separator, v or b"") for k, v in pairs)
        return
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        row: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "offset": int(records.offset[i]),
            "timestamp": instant_text(int(records.timestamp_ms[i]) * 1000),
            "key": _text(key),
            "value": _text(value),
            "headers": {name: _text(text) for name, text in header(records, i)},
        }
        out.write(orjson.dumps(row) + b"\n")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
