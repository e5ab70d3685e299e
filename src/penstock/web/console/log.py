"""Topics, groups and dead letters of a broker, as plain values for the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Protocol

from penstock.client import Client, Reader
from penstock.client.groups import GroupAdmin, GroupInfo, GroupPosition
from penstock.client.letters.dead_letters import TOPIC_SUFFIX, DeadLetters, Letter, Where
from penstock.client.letters.lateness import Mark, late_again
from penstock.client.letters.ledger import State
from penstock.client.share import ShareClient
from penstock.client.topic_admin import TopicAdmin
from penstock.core.time import instant_text
from penstock.errors import BrokerError, UserError
from penstock.web.console.avro import AvroTexts
from penstock.web.console.connections import all_connections
from penstock.web.console.records import Page, Tail, Wanted, read_page, read_tail, shown

PATIENCE_S: Final = 3.0  # a page that waits longer looks dead
LETTERS_MAX: Final = 100  # shown at a time
SHARE: Final = "share"


class Marks(Protocol):
    """The watermarks of the pipelines that read from a broker."""

    def marks(self, topic: str) -> Sequence[Mark]:
        """Those of a topic."""
        ...

    def unknown(self, topic: str) -> str | None:
        """Why it can't be said which records of a topic lie behind its watermark; None: it can."""
        ...


class LogView:
    """What lies in a log.

    Args:
        address: gives the broker's address; raises `PenstockError` while it doesn't run.
        avro: decodes values that are Avro.
        marks: gives the watermarks of the broker with an address; None: nobody knows them.
    """

    def __init__(
        self,
        address: Callable[[], str],
        avro: AvroTexts | None = None,
        marks: Callable[[str], Marks] | None = None,
    ) -> None:
        self.address, self._avro, self._marks = address, avro or AvroTexts(), marks

    @property
    def _settings(self) -> dict[str, Any]:
        return {"client_id": "penstock-ui", "patience_s": PATIENCE_S}

    # Topics

    def topics(self) -> list[dict[str, Any]]:
        """Every topic with its partitions, records and bytes, by name."""
        with GroupAdmin(self.address(), **self._settings) as admin:
            counts = admin.topics()
            sizes = admin.sizes((t, p) for t, n in counts.items() for p in range(n))
            ranges = admin.ranges_many(counts)
            found = []
            for name, partitions in counts.items():
                records = sum(end - first for first, end in ranges[name].values())
                known = [sizes[name, p] for p in range(partitions) if (name, p) in sizes]
                found.append(
                    {
                        "name": name,
                        "partitions": partitions,
                        "records": records,
                        "bytes": sum(known) if known else None,
                    }
                )
        return found

    def topic(self, name: str) -> dict[str, Any]:
        """A topic's partitions and configs.

        Raises:
            BrokerError: there is no such topic.
        """
        with GroupAdmin(self.address(), **self._settings) as admin:
            starts, ends = admin.offsets(name, "earliest"), admin.offsets(name, "latest")
            sizes = admin.sizes((name, p) for p in ends)
        with TopicAdmin(self.address(), **self._settings) as topics:
            configs = topics.configs(name)
        parts = [
            {
                "partition": p,
                "first": starts[p],
                "next": end,
                "records": end - starts[p],
                "bytes": sizes.get((name, p)),
            }
            for p, end in sorted(ends.items())
        ]
        return {"name": name, "partitions": parts, "configs": [one._asdict() for one in configs]}

    def records(self, wanted: Wanted, from_ms: int | None = None) -> Page:
        """A page of records; see `read_page`.

        Args:
            wanted: which.
            from_ms: where given, the oldest first from this time on.
        """
        address = self.address()
        with (
            Client(address, **self._settings) as client,
            Reader(address, **self._settings) as reader,
        ):
            if from_ms is not None:
                positions = client.offsets(wanted.topic, from_ms)
                wanted = replace(wanted, newest=False, positions=positions)
            return read_page(client, reader, wanted, self._avro.of(client, reader, wanted.topic))

    def tail(self, wanted: Wanted) -> Tail:
        """The records that are new since a look at the topic; see `read_tail`."""
        address = self.address()
        with (
            Client(address, **self._settings) as client,
            Reader(address, **self._settings) as reader,
        ):
            return read_tail(client, reader, wanted, self._avro.of(client, reader, wanted.topic))

    # Groups

    def groups(self) -> list[dict[str, Any]]:
        """Consumer and share groups with their lag, by name."""
        found = []
        for one, lags, lost in self._behind():
            about = {"name": one.name, "kind": one.kind, "state": one.state}
            lag = sum(lags.values())
            found.append({**about, "topics": sorted(lags), "lag": lag, "lost": lost})
        return found

    def lags(self, most: int) -> dict[str, dict[str, int]]:
        """The lag of each group by topic, of at most so many groups."""
        return {one.name: lags for one, lags, _ in islice(self._behind(), most)}

    def _behind(self) -> Iterator[tuple[GroupInfo, dict[str, int], int]]:
        """Each group with its lag by topic, and how many records it lost, by name."""
        address = self.address()
        with (
            GroupAdmin(address, **self._settings) as admin,
            ShareClient(address, **self._settings) as shares,
        ):
            for one in admin.list_groups():
                lags: dict[str, int] = {}
                lost = 0
                if one.kind == SHARE:
                    for part in shares.share_offsets(one.name):
                        lags[part.topic] = lags.get(part.topic, 0) + max(part.waiting, 0)
                else:
                    for position in admin.positions(one.name):
                        lags[position.topic] = lags.get(position.topic, 0) + position.lag
                        lost += position.lost
                yield one, lags, lost

    def group(self, name: str) -> dict[str, Any]:
        """A group's positions and members; of a consumer group also the time that retention leaves it.

        Raises:
            UserError: there is no such group.
        """
        address = self.address()
        with GroupAdmin(address, **self._settings) as admin:
            info = admin.info(name)
            if info.kind == SHARE:
                return {**info._asdict(), **self._share(name)}
            with Reader(address, **self._settings) as reader:
                positions = admin.positions(name, reader, time.time_ns() // 1_000_000)
            members = [one._asdict() for one in admin.members(info)]
        return {
            **info._asdict(),
            "positions": [_position(one) for one in positions],
            "members": members,
        }

    def _share(self, name: str) -> dict[str, Any]:
        with ShareClient(self.address(), **self._settings) as shares:
            positions = [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "committed": one.start_offset,
                    "lag": max(one.waiting, 0),
                }
                for one in shares.share_offsets(name)
            ]
            members = shares.share_members(name)
        return {"positions": positions, "members": [], "members_count": members}

    # Captures, sinks, queues

    def connections(self) -> dict[str, Any]:
        """What brings records in and takes them out; see `all_connections`."""
        return all_connections(self.address(), **self._settings)

    # Dead letters

    def letter_groups(self) -> list[dict[str, Any]]:
        """Dead letters of all topics by kind of reason, origin and state, most first."""
        with Client(self.address(), **self._settings) as client:
            topics = [name for name in client.topics() if name.endswith(TOPIC_SUFFIX)]
        found = []
        for topic in topics:
            with self._dead(topic) as dead:
                found += [
                    {
                        "topic": topic,
                        "reason": one.reason,
                        "origin": one.origin,
                        "state": one.state.value,
                        "letters": one.letters,
                        "first": instant_text(one.first_ms * 1_000),
                        "last": instant_text(one.last_ms * 1_000),
                        "example": one.example_reason,
                    }
                    for one in dead.summary()
                ]
        return sorted(found, key=lambda one: -one["letters"])

    def letters(self, topic: str, where: Where, skip: int = 0) -> dict[str, Any]:
        """Some letters, by partition and offset."""
        with self._dead(topic) as dead:
            some = list(islice(dead.letters(where), skip, skip + LETTERS_MAX + 1))
        page = some[:LETTERS_MAX]
        marks = None if self._marks is None else self._marks(self.address())
        return {
            "letters": [_letter(one, marks) for one in page],
            "more": len(some) > LETTERS_MAX,
            "unknown": [
                f"How many letters of {topic} are before its watermark isn't known: {why}."
                for topic in sorted({one.origin for one in page if _may_be_behind(one)})
                if marks is not None and (why := marks.unknown(topic)) is not None
            ],
        }

    def repair(self, topic: str, values: Mapping[tuple[int, int], str]) -> dict[str, Any]:
        """Gives letters new values."""
        with self._dead(topic) as dead:
            return {"repaired": dead.repair({one: text.encode() for one, text in values.items()})}

    def replay(self, topic: str, where: Where) -> dict[str, Any]:
        """Sends open letters to where they came from, each once."""
        with self._dead(topic) as dead:
            return {"replayed": dead.replay(where)}

    def drop(self, topic: str, where: Where, because: str) -> dict[str, Any]:
        """Closes open letters for good."""
        with self._dead(topic) as dead:
            return {"dropped": dead.drop(where, because)}

    def _dead(self, topic: str) -> DeadLetters:
        if not topic.endswith(TOPIC_SUFFIX):
            raise UserError(f"expected a topic of dead letters (*{TOPIC_SUFFIX}); found {topic!r}")
        with Client(self.address(), **self._settings) as client:
            if topic not in client.topics():
                raise BrokerError(f"expected the topic {topic!r}; found none of that name")
        return DeadLetters(self.address(), topic, **self._settings)


def letter_ids(texts: Iterable[object]) -> frozenset[tuple[int, int]]:
    """Letters' ids.

    Raises:
        UserError: a text is none.

    >>> sorted(letter_ids(["0/17", "1/2"]))
    [(0, 17), (1, 2)]
    """
    found = set()
    for text in texts:
        partition, slash, offset = str(text).partition("/")
        if not slash or not partition.isdecimal() or not offset.isdecimal():
            raise UserError(f"expected a letter as PARTITION/OFFSET, such as 0/17; found {text!r}")
        found.add((int(partition), int(offset)))
    return frozenset(found)


def where_of(
    ids: Sequence[object] | None, reason: str | None, origin: str | None, states: Sequence[str]
) -> Where:
    """Which letters are meant.

    Args:
        ids: PARTITION/OFFSET of these alone.
        reason: a kind of reason, as `letter_groups` has it.
        origin: TOPIC/PARTITION that they come from, as `letter_groups` has it.
        states: theirs; none is any.

    Raises:
        UserError: an id or a state is none.
    """
    unknown = set(states) - {one.value for one in State}
    if unknown:
        known = ", ".join(one.value for one in State)
        raise UserError(f"expected states among {known}; found {min(unknown)!r}")
    topic, _, partition = (origin or "").rpartition("/")
    return Where(
        None if ids is None else letter_ids(ids),
        reason or None,
        topic or None,
        int(partition) if partition.isdecimal() else None,
        frozenset(State(one) for one in states) or None,
    )


def _may_be_behind(one: Letter) -> bool:
    """Whether a letter that isn't late by its reason may lie behind a watermark: a topic has its record."""
    return bool(one.origin) and one.origin_offset >= 0 and not late_again(one.reason, one.value)


def _letter(one: Letter, marks: Marks | None) -> dict[str, Any]:
    known = marks.marks(one.origin) if marks is not None and _may_be_behind(one) else ()
    return {
        "id": f"{one.id[0]}/{one.id[1]}",
        "state": one.state.value,
        "reason": one.reason,
        "origin": f"{one.origin}/{one.origin_partition}" if one.origin else "",
        "origin_offset": one.origin_offset,
        "was_record": one.was_record,
        "node": one.node,
        "at": instant_text(one.timestamp_ms * 1_000),
        "key": shown(one.key),
        "value": shown(one.value),
        "headers": [[name, shown(text)] for name, text in one.headers],
        "because": one.note,
        "late_again": one.was_record and late_again(one.reason, one.value),
        "behind": one.was_record
        and any(mark.is_after(one.value, one.timestamp_ms) for mark in known),
    }


def _position(one: GroupPosition) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "committed": one.committed,
        "end": one.end,
        "lag": one.lag,
        "lost": one.lost,
        "time_left_ms": one.time_left_ms,
    }
