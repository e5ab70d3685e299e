"""`penstock produce`: lines to records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import broker_option, client_settings
from penstock.cli.support.progress import counter
from penstock.cli.support.tables import note
from penstock.errors import LimitError, UserError
from penstock.files.lines import Lines

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

TURN_RECORDS: Final = 1_000  # without keys, to one partition before the next: batches stay large
LINE_BYTES_MAX: Final = 16 << 20  # without a line end: more than any broker takes as one record


@click.command(
    epilog="""\b
Examples:
  echo '{"user": 1}' | penstock produce clicks
  penstock produce clicks --file events.jsonl.gz
  printf 'a:1\\nb:2\\n' | penstock produce clicks --key-separator :
"""
)
@click.argument("topic")
@click.option(
    "--file",
    "-f",
    "file",
    default="-",
    metavar="FILE",
    help="Lines to send, gzipped or not; - is standard input.",
    show_default=True,
)
@click.option(
    "--key-separator",
    "-K",
    metavar="TEXT",
    help="Separates the record's key from its value in a line.",
)
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    help="Send all to this partition. Default: by key as Kafka does; without keys in turn.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1"]),
    default="all",
    show_default=True,
    help="Wait for the disk, or only for the broker.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--create", is_flag=True, help="Create the topic (one partition) if it doesn't exist."
)
@broker_option
def produce(
    topic: str,
    file: str,
    key_separator: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    broker: str | None,
    *,
    create: bool,
) -> None:
    """Send each line of a file or of standard input to TOPIC as a record.

    Lines are sent as they arrive, in blocks, each once, in order within a partition.
    """
    from penstock.cli.loading import forget_pandas

    forget_pandas()
    import numpy as np
    import pyarrow as pa

    from penstock.client import Client, Producer

    if key_separator == "":
        raise UserError("expected a --key-separator of at least one character; found ''")
    address = find_broker(broker)
    wait: Literal["all", 1] = "all" if acks == "all" else 1
    with Client(address, **client_settings()) as client:
        if create:
            client.create_topic(topic, 1, exists_ok=True)
        partitions = client.partitions(topic)
    if partition is not None and partition not in partitions:
        raise UserError(
            f"expected a partition of {topic!r} from 0 to {len(partitions) - 1}; found {partition}"
        )
    sent = 0
    written: set[int] = set()
    with (
        Producer(address, acks=wait, compression=compression, **client_settings()) as producer,
        counter("sent") as tick,
    ):
        for lines in _blocks(file):
            keys, values = _records(lines, key_separator)
            target = _partitions(keys, len(lines), len(partitions), partition, sent)
            for p in np.unique(target).tolist():
                mine = np.flatnonzero(target == p)
                written.add(p)
                chosen = pa.array(mine, pa.int64())
                now = np.full(len(mine), time.time_ns() // 1_000_000, np.int64)
                producer.send(topic, p, keys and keys.take(chosen), values.take(chosen), now)
            sent += len(lines)
            tick(sent)
    note(f"sent {sent:,} record{'' if sent == 1 else 's'} to {topic}")
    if written:
        with Client(address, **client_settings()) as client:
            ends = client.offsets(topic, "latest")
        token = ",".join(f"{topic}-{p}:{ends[p] - 1}" for p in sorted(written))
        note(f"to read them in a view: penstock query … --after {token}")


def _blocks(file: str) -> Iterator[list[bytes]]:
    lines = Lines(file, follow=False, stop=threading.Event(), line_bytes_max=LINE_BYTES_MAX)
    for block in lines.blocks(lambda _: None):
        longest = max(map(len, block))
        if longest >= LINE_BYTES_MAX:
            raise LimitError(
                f"expected lines of less than {LINE_BYTES_MAX} bytes (LINE_BYTES_MAX); found one "
                f"of {longest} or more. Those before it were sent; no broker takes such a record"
            )
        yield block


def _partitions(
    keys: pa.Array[Any] | None, count: int, partitions: int, fixed: int | None, sent: int
) -> np.ndarray:
    """The partition of each record: as given, by its key, or for those without one in turn."""
    import numpy as np

    if fixed is not None:
        return np.full(count, fixed)
    turn = (np.arange(sent, sent + count) // TURN_RECORDS) % partitions
    if keys is None:
        return turn
    from penstock.core.partitioner import murmur2_partitions

    by_key = murmur2_partitions(keys, partitions)
    return np.where(by_key < 0, turn, by_key)


def _records(
    lines: list[bytes], separator: str | None
) -> tuple[pa.Array[Any] | None, pa.Array[Any]]:
    import pyarrow as pa

    if separator is None:
        return None, pa.array(lines, pa.binary())
    keys: list[bytes | None] = []
    values = []
    for line in lines:
        key, found, value = line.partition(separator.encode())
        keys.append(key if found else None)
        values.append(value if found else line)
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
