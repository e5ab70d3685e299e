"""Transactions whose outcome is in the journal, until their markers are durable; and how they
are read from the journal after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.transactions.machine import Place, Transaction
from penstock.broker.transactions.records import Ends, parse, with_added
from penstock.log.partition import Partition

__all__ = ["Prepared", "Replayed", "replayed"]


@dataclass(slots=True)
class Prepared:
    """A prepared transaction, until its markers are durable.

    Attributes:
        transaction: it.
        ends: how its partitions stood.
        left: which of them need a marker.
        is_recovered: whether a restart found it, so that markers may be there.
        was_staged: whether a restart found it staged.
        staged: the partitions whose records become durable together with its record.
        marked: the offsets behind its markers.
    """

    transaction: Transaction
    ends: Ends
    left: set[Place]
    is_recovered: bool = False
    was_staged: bool = False
    staged: dict[Place, Partition] = field(default_factory=dict)
    marked: dict[Place, int] = field(default_factory=dict)

    def cut(self, offsets: Mapping[Place, int]) -> None:
        """Logs ended there after a restart: what comes behind is of others."""
        for place in offsets.keys() & self.ends.keys():
            self.ends[place] = self.ends[place].cut(offsets[place])

    def forget(self, topic: str) -> list[Place]:
        """A topic was deleted, and its records with it: it needs nothing more there. Returns where."""
        gone = [place for place in self.ends if place[0] == topic]
        for place in gone:
            del self.ends[place]
            self.left.discard(place)
            self.staged.pop(place, None)
            self.marked.pop(place, None)
        return gone


class Replayed(NamedTuple):
    """What a journal says.

    Attributes:
        known: the transactional ids.
        last_serial: the greatest of a transaction.
        unsettled: by serial, the prepared ones whose markers may not be durable.
        staged: serials of those of them that may not count, as their records may be lost. Of one that
            doesn't count there is no later record, as it keeps its id busy.
    """

    known: dict[str, Transaction]
    last_serial: int
    unsettled: dict[int, Prepared]
    staged: list[int]


def replayed(bodies: Iterable[bytes]) -> Replayed:
    """Reads a journal's records."""
    known: dict[str, Transaction] = {}
    unsettled: dict[int, Prepared] = {}
    staged: dict[str, int] = {}
    last_serial = 0
    for said in bodies:
        kind, *rest = json.loads(said)
        match kind:
            case "id" | "staged":
                one, ends = parse(rest)
                known[one.id] = one
                staged.pop(one.id, None)
                if kind == "staged":
                    staged[one.id] = one.serial
                last_serial = max(last_serial, one.serial)
                if ends:
                    unsettled[one.serial] = Prepared(
                        one, ends, set(ends), is_recovered=True, was_staged=kind == "staged"
                    )
            case "add" if rest[0] in known:  # not so only where a damaged record was left out
                one = with_added(known[rest[0]], *rest[1:])
                known[one.id] = one
                staged.pop(one.id, None)
                last_serial = max(last_serial, one.serial)
            case "done":
                unsettled.pop(rest[0], None)
            case "cut":
                for prepared in unsettled.values():
                    prepared.cut({(topic, index): offset for topic, index, offset in rest[0]})
            case "gone":
                for prepared in unsettled.values():
                    prepared.forget(rest[0])
            case "forget":
                known.pop(rest[0], None)
    return Replayed(
        known, last_serial, unsettled, [one for one in staged.values() if one in unsettled]
    )
