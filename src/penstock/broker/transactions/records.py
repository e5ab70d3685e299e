"""The records of the transactions' journal, and what they say about partitions.

["id", id, producer, ..., places, groups, ends]     a transactional id's whole state; a prepared one
                                                    with an end for each of its partitions:
                                                    [topic, index, end, first, durable]
["staged", ...]                                     the same of a commit, some of whose records may not be
                                                    durable yet: it counts once all of them are
["add", id, serial, ..., places, groups]            partitions and groups joined a transaction
["done", serial, [[topic, index, offset], ...]]     all markers of a prepared transaction are
                                                    durable, and all before these offsets with them
["forget", id]
["cut", [[topic, index, offset], ...]]              logs ended there after a restart: offsets
                                                    behind in earlier records are of lost records
["reached", [[topic, index, offset], ...]]          logs were durable up to there: what rewriting
                                                    the journal leaves of the former
["gone", topic]                                     the topic was deleted: earlier records don't apply
to a new one of that name
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.broker.transactions.machine import Change, Place, State, Transaction

__all__ = [
    "ROWS",
    "End",
    "Ends",
    "Outcome",
    "body",
    "listed",
    "outcomes_in",
    "parse",
    "reached_in",
    "record",
    "row",
    "staged_in",
    "unsettled_in",
    "with_added",
]

ROWS: Final = frozenset(("id", "staged"))
"""Kinds of records that have a transactional id's whole state."""


class End(NamedTuple):
    """How a partition stood when a transaction was prepared.

    Attributes:
        end: the log's end.
        first: where the producer's open transaction began; -1 where none was open.
        durable: up to where the log was on the disk.
    """

    end: int = 0
    first: int = -1
    durable: int = 0

    def cut(self, offset: int) -> End:
        """The same, of a log that has lost what was behind an offset."""
        return self._replace(
            end=min(self.end, offset), first=self.first if self.first < offset else -1
        )


Ends = dict[Place, End]
"""By partition."""


class Outcome(NamedTuple):
    """How a transaction ended in a partition: its records there lie between two offsets."""

    id: str
    serial: int
    producer_id: int
    is_commit: bool
    first: int
    end: int


def body(*record: object) -> bytes:
    """A record's bytes."""
    return json.dumps(record, separators=(",", ":")).encode()


def listed(offsets: Mapping[Place, int]) -> list[list[object]]:
    """Offsets of partitions, as records have them."""
    return [[*place, offset] for place, offset in offsets.items()]


def record(change: Change, ends: Ends | None, *, is_staged: bool = False) -> bytes:
    """What a change is in the journal.

    Args:
        change: the change.
        ends: of a prepared transaction's partitions.
        is_staged: whether it counts only once the records before these ends are durable.
    """
    before, after = change.before, change.after
    if after is None:
        return body("forget", change.id)
    if after.state is not State.ONGOING or before is None:
        return row(after, ends, is_staged=is_staged)
    is_new = before.serial != after.serial
    places = after.places if is_new else after.places - before.places
    groups = after.groups if is_new else after.groups - before.groups
    when = after.serial, after.started_ms, after.updated_ms
    return body("add", after.id, *when, sorted(places), sorted(groups))


def row(one: Transaction, ends: Ends | None, *, is_staged: bool = False) -> bytes:
    """A transactional id's whole state; see `record`."""
    by_place = None if ends is None else [[*place, *end] for place, end in ends.items()]
    return body(
        "staged" if is_staged else "id",
        one.id,
        one.producer_id,
        one.epoch,
        one.timeout_ms,
        one.updated_ms,
        one.last_epoch,
        one.previous_producer_id,
        one.next_producer_id,
        one.state.value,
        one.serial,
        one.started_ms,
        sorted(one.places),
        sorted(one.groups),
        by_place,
    )


def parse(fields: list[Any]) -> tuple[Transaction, Ends]:
    """A transactional id's state, and the ends of its partitions if it is prepared."""
    *head, state, serial, started_ms, places, groups, ends = fields
    transactional_id, producer_id, epoch, timeout_ms, updated_ms, *others = head
    last_epoch, previous_id, next_id = others
    one = Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        updated_ms,
        last_epoch,
        previous_id,
        next_id,
        state=State(state),
        serial=serial,
        started_ms=started_ms,
        places=frozenset((topic, index) for topic, index in places),
        groups=frozenset(groups),
    )
    return one, {(topic, index): End(*end) for topic, index, *end in ends or ()}


def with_added(
    known: Transaction,
    serial: int,
    started_ms: int,
    updated_ms: int,
    places: list[tuple[str, int]],
    groups: list[str],
) -> Transaction:
    """A transaction that partitions and groups have joined."""
    is_new = known.serial != serial
    more = frozenset((topic, index) for topic, index in places)
    return replace(
        known,
        state=State.ONGOING,
        serial=serial,
        started_ms=started_ms,
        updated_ms=updated_ms,
        places=more if is_new else known.places | more,
        groups=frozenset(groups) if is_new else known.groups.union(groups),
    )


# -- what they say about partitions ----------------------------------------------------------------


def outcomes_in(bodies: Iterable[bytes]) -> dict[Place, list[Outcome]]:
    """How transactions ended, in order, as far as the journal still has them."""
    found: dict[Place, dict[int, Outcome]] = {}
    for kind, *rest in map(json.loads, bodies):
        if kind in ROWS:
            one, ends = parse(rest)
            for place, end in ends.items():
                if end.first >= 0:  # of a staged one that was aborted the last record counts
                    who = one.id, one.serial, one.producer_id
                    outcome = Outcome(*who, one.is_commit, end.first, end.end)
                    found.setdefault(place, {})[one.serial] = outcome
        elif kind == "cut":
            for topic, index, offset in rest[0]:
                known = found.get((topic, index), {})
                for serial, outcome in list(known.items()):
                    if outcome.first >= offset:
                        del known[serial]
                    elif outcome.end > offset:
                        known[serial] = outcome._replace(end=offset)
        elif kind == "gone":
            _forget_topic(found, rest[0])
    return {place: [*by_serial.values()] for place, by_serial in found.items() if by_serial}


def unsettled_in(bodies: Iterable[bytes]) -> set[int]:
    """The serials of transactions whose markers aren't known to be durable."""
    found: set[int] = set()
    for kind, *rest in map(json.loads, bodies):
        if kind in ROWS:
            one, ends = parse(rest)
            found.update([one.serial] if ends else ())
        elif kind == "done":
            found.discard(rest[0])
    return found


def staged_in(bodies: Iterable[bytes]) -> set[str]:
    """The transactional ids whose last whole state is staged."""
    kinds = {rest[0]: kind for kind, *rest in map(json.loads, bodies) if kind in ROWS}
    return {one for one, kind in kinds.items() if kind == "staged"}


def reached_in(bodies: Iterable[bytes]) -> dict[Place, int]:
    """Up to where the journal knows that partitions were durable."""
    found: dict[Place, int] = {}

    def note(place: Place, offset: int) -> None:
        found[place] = max(found.get(place, 0), offset)

    for kind, *rest in map(json.loads, bodies):
        if kind in ROWS:
            for place, end in parse(rest)[1].items():
                note(place, end.durable)
        elif kind in {"done", "reached"}:
            for topic, index, offset in rest[-1] if kind == "reached" or len(rest) > 1 else ():
                note((topic, index), offset)
        elif kind == "gone":
            _forget_topic(found, rest[0])
    return found


def _forget_topic(found: dict[Place, Any], topic: str) -> None:
    for place in [one for one in found if one[0] == topic]:
        del found[place]
