"""What journals know of partitions' ends: a broker that starts compares logs with it, and so does `doctor`.

`penstock.broker.recovery` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from penstock.broker.groups import offsets
from penstock.broker.share import journal as share
from penstock.broker.transactions import records as transactions
from penstock.log.disk.journal import bodies_in

__all__ = ["TRANSACTIONS", "KnownEnd", "known_ends"]

OFFSETS: Final = "groups/offsets.journal"
SHARE: Final = "share/state.journal"
TRANSACTIONS: Final = "transactions/state.journal"


class KnownEnd(NamedTuple):
    """An offset up to which a partition once had records, and what knows that."""

    offset: int
    what: str


def known_ends(
    load: Callable[[str], bytes | None], topics: Mapping[str, str]
) -> dict[tuple[str, int], KnownEnd]:
    """What a data directory's journals know of partitions' ends, by topic and number.

    Args:
        load: a file's content by its path, None where it is missing.
        topics: names by id (hexadecimal digits).
    """
    found: dict[tuple[str, int], KnownEnd] = {}

    def note(topic: str | None, index: int, offset: int, what: str) -> None:
        known = None if topic is None else found.get((topic, index))
        if topic is not None and (known is None or known.offset < offset):
            found[topic, index] = KnownEnd(offset, what)

    def bodies(path: str) -> Iterable[bytes]:
        return bodies_in(load(path) or b"")

    for (topic, index), (offset, group) in offsets.reached_in(bodies(OFFSETS)).items():
        note(topic, index, offset, f"group {group!r} has committed")
    for (topic_id, index), (offset, group) in share.reached_in(bodies(SHARE)).items():
        note(topics.get(topic_id), index, offset, f"share group {group!r} was given records up to")
    for (topic, index), offset in transactions.reached_in(bodies(TRANSACTIONS)).items():
        note(topic, index, offset, "the transactions' journal has seen durable")
    return found
