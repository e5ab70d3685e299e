"""What damage to a log did to transactions, as far as the journal and the log show.

A marker that is lost leaves its transaction open: readers would stop there, or the producer's next
transaction would decide for both. A committed transaction that lost records stays committed, in this
partition and in the others. That is reported, because no reader could see it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence

from penstock.broker.transactions.records import End, Outcome
from penstock.log.partition import Partition
from penstock.log.recovery import Interrupted

__all__ = ["Fate", "ended_as", "fate", "lost_marker", "split_reports"]


class Fate(enum.Enum):
    """What a restart finds of a staged commit."""

    WHOLE = enum.auto()
    """All of its records are there: it counts."""
    COUNTED = enum.auto()
    """It counted before: one of its markers, which are written once it does, says so. Damage may have taken
    records since."""
    LOST = enum.auto()
    """Records are missing, and nothing says that it ever counted."""


def fate(producer_id: int, parts: Sequence[tuple[Partition, End]]) -> Fate:
    """Whether a staged commit counts.

    Args:
        producer_id: of its producer.
        parts: the partitions that it has records in, and how they stood when it was staged.
    """
    found = Fate.WHOLE
    for log, end in parts:
        if log.end_offset < end.end or any(
            first < end.end and end.first < following for first, following in log.holes()
        ):
            found = Fate.LOST
        elif ended_as(log, producer_id, end.first):  # an abort is not its own
            return Fate.COUNTED
    return found


def ended_as(log: Partition, producer_id: int, first: int) -> bool | None:
    """Whether a producer's transaction from an offset on was committed, as the log has it; None where it
    is open.
    """
    if log.producers.open_since(producer_id) == first:
        return None
    aborted = log.aborted(first, first + 1)
    return all((one.producer_id, one.first_offset) != (producer_id, first) for one in aborted)


def lost_marker(
    outcomes: Sequence[Outcome], began: int, last: int, unsettled: Collection[int]
) -> tuple[Outcome | None, bool]:
    """The outcome of what a producer has open, if it ended and its marker is lost.

    Args:
        outcomes: of the producer's transactions in the partition, in order.
        began: where it has one open.
        last: where its last batch is.
        unsettled: serials of transactions whose markers are to be written anyway.

    Returns:
        The outcome, and whether it can be written: several transactions that ended in different
        ways, or one that continues, can't be distinguished without the markers between them.
    """
    ended = [one for one in outcomes if one.end > began]
    if all(one.serial in unsettled for one in ended):
        return None, False
    ways = {one.is_commit for one in ended if one.first <= last}
    return ended[-1], last < ended[-1].end and len(ways) == 1


def split_reports(
    outcomes: Sequence[Outcome],
    interrupted: Sequence[Interrupted],
    holes: Sequence[tuple[int, int]],
    way_of: Callable[[int, int], bool | None],
) -> Iterator[str]:
    """The reports on transactions that may have lost records in a partition, or their end.

    Args:
        outcomes: of the partition's transactions.
        interrupted: those that were open where it is damaged.
        holes: first offset of each hole, and the first behind it.
        way_of: see `ended_as`.
    """
    for one in outcomes:
        for first, following in holes:
            if one.is_commit and first < one.end and one.first < following:
                yield (
                    f"the transaction of {one.id!r} with records at offsets {one.first} to {one.end - 1} was "
                    f"committed, and offsets {first} to {following - 1} are lost or damaged: it may no "
                    "longer be whole"
                )
    for cut in interrupted:
        known = [
            one
            for one in outcomes
            if one.producer_id == cut.producer_id and one.first <= cut.first_offset < one.end
        ]
        lost = f"offsets {cut.hole_first} to {cut.hole_next - 1} are lost or damaged"
        if not known:
            yield (
                f"producer {cut.producer_id} had a transaction open from offset {cut.first_offset} on, and "
                f"{lost}: if it is committed, or was, it may no longer be whole; if its end lies there, it "
                "ends as the producer's next one did"
            )
        elif way_of(cut.producer_id, cut.first_offset) is (not known[0].is_commit):
            way, effect = ("committed", "don't get") if known[0].is_commit else ("aborted", "get")
            yield (
                f"the transaction of {known[0].id!r} with records at offsets {known[0].first} to "
                f"{known[0].end - 1} was {way}, and {lost}, with its end: readers of committed data {effect} "
                "its records, as the producer's next transaction ended in the other way"
            )
