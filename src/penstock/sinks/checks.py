"""What is refused before a sink writes anything."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client import Reader
from penstock.errors import UserError
from penstock.formats.changelog import NEWEST_RECORDS, ChangelogDecoder, other_key
from penstock.formats.registered import RegisteredChangelog
from penstock.sinks.targets.contract import Rows

__all__ = ["check_batching", "check_key"]


def check_batching(pace_s: float | None, batch_records: int | None, most: int) -> None:
    """Checks how much is written at a time.

    Raises:
        UserError: it can't be so.
    """
    if pace_s is not None and pace_s < 0:
        raise UserError(f"expected pace_s to be 0 or more; found {pace_s!r}")
    if batch_records is not None and not 1 <= batch_records <= most:
        raise UserError(f"expected batch_records to be from 1 to {most:,}; found {batch_records!r}")


def check_key(
    rows: Rows,
    decoder: ChangelogDecoder | RegisteredChangelog,
    reader: Reader,
    first: Mapping[int, int],
    ends: Mapping[int, int],
) -> None:
    """Checks that the key of a new sink is the topic's, as far as its newest records show.

    Later records with another key are dead letters: a sink that runs isn't stopped by them.

    Args:
        rows: what the sink follows.
        decoder: of the records.
        reader: of the log.
        first: by partition, the first offset.
        ends: likewise, the next one.

    Raises:
        UserError: the topic's key has other columns as well.
    """
    for partition, end in ends.items():
        begin = max(first.get(partition, 0), end - NEWEST_RECORDS)
        chunks = reader.read(rows.topic, partition, begin, end, missing="skip")
        if (fault := other_key(decoder, chunks)) is not None:
            raise UserError(f"{rows.topic}[{partition}]: {fault}")
