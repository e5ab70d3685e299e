"""What was done about dead letters: a ledger in a topic of its own, and what it adds up to. Pure.

The dead letters of TOPIC are never changed. What is done about them is appended to the topic
`TOPIC.ledger` (one partition), as JSON:

    {"entry": "repair", "letter": [partition, offset], "value": base64 or null}
    {"entry": "drop", "letters": [[partition, offset], ...], "because": text}
    {"entry": "replay", "id": ..., "producer": [id, epoch], "letters": [...], "to_topic": name or null,
     "partitions": {topic: count}, "ends": {topic: {partition: offset}}}
    {"entry": "done", "id": ..., "released": [...]}

Invariant: the ledger's order decides. A letter belongs to the first replay or drop that names it
while it is open; a later replay of it gets nothing. So two who replay at once, or one who is killed
and starts again, replay each letter once: a replay is written down before its first record is sent,
with the producer id it sends as, and a process that finds it unfinished sends the same records in the same
batches as the same producer, of which the target keeps one (KIP-98).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from penstock.errors import CorruptError

__all__ = ["SUFFIX", "Ledger", "LetterId", "Replay", "State", "done", "drop", "repair", "replay"]

SUFFIX: Final = ".ledger"
LetterId: TypeAlias = tuple[int, int]
"""A dead letter's partition and offset."""


class State(Enum):
    """What has become of a dead letter."""

    OPEN = "open"
    REPAIRED = "repaired"
    REPLAYED = "replayed"
    DROPPED = "dropped"


@dataclass(slots=True)
class Replay:
    """A replay that was written down.

    Attributes:
        id: names it.
        producer_id: whom its records are sent as.
        producer_epoch: likewise.
        letters: what it replays, in order; of those that it named, those that were open.
        values: of letters that were repaired before: their new value.
        to_topic: where to; None: to each letter's origin.
        partitions: how many partitions each target had.
        ends: where each target's partitions ended before it.
        time_ms: when it was written down.
    """

    id: str
    producer_id: int
    producer_epoch: int
    letters: list[LetterId]
    values: dict[LetterId, bytes | None]
    to_topic: str | None
    partitions: dict[str, int]
    ends: dict[str, dict[int, int]]
    time_ms: int


@dataclass(slots=True)
class Ledger:
    """What all entries so far add up to."""

    repaired: dict[LetterId, bytes | None] = field(default_factory=dict)
    closed: dict[LetterId, State] = field(default_factory=dict)
    reasons: dict[LetterId, str] = field(default_factory=dict)
    unfinished: dict[str, Replay] = field(default_factory=dict)
    next_offset: int = 0

    def state(self, letter: LetterId) -> State:
        """What has become of a letter."""
        closed = self.closed.get(letter)
        if closed is not None:
            return closed
        return State.REPAIRED if letter in self.repaired else State.OPEN

    def is_open(self, letter: LetterId) -> bool:
        """Whether something can still be done about a letter."""
        return letter not in self.closed

    def apply(self, body: bytes, time_ms: int) -> None:
        """Takes the next entry in.

        Raises:
            CorruptError: it is no entry.
        """
        try:
            entry: dict[str, Any] = json.loads(body)
            match entry["entry"]:
                case "repair" | "mend":  # "mend" is how earlier versions wrote it
                    self._repair(entry)
                case "drop":
                    for letter in self._claim(entry["letters"], State.DROPPED):
                        self.reasons[letter] = str(entry.get("because", ""))
                case "replay":
                    self._replay(entry, time_ms)
                case "done":
                    self._done(entry)
                case other:
                    raise ValueError(f"an entry {other!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"expected an entry of a dead letters' ledger; found {body[:80]!r} ({error!r}); "
                "use the version of Penstock that wrote it, or one that is newer"
            ) from None

    def _repair(self, entry: dict[str, Any]) -> None:
        partition, offset = entry["letter"]
        if self.is_open((partition, offset)):
            value = entry["value"]
            self.repaired[partition, offset] = None if value is None else base64.b64decode(value)

    def _claim(self, letters: list[list[int]], state: State) -> list[LetterId]:
        mine = []
        for partition, offset in letters:
            if self.is_open((partition, offset)):
                self.closed[partition, offset] = state
                mine.append((partition, offset))
        return mine

    def _replay(self, entry: dict[str, Any], time_ms: int) -> None:
        producer_id, producer_epoch = entry["producer"]
        letters = self._claim(entry["letters"], State.REPLAYED)
        ends = {
            topic: {int(partition): offset for partition, offset in parts.items()}
            for topic, parts in entry["ends"].items()
        }
        self.unfinished[entry["id"]] = Replay(
            entry["id"],
            producer_id,
            producer_epoch,
            letters,
            {one: self.repaired[one] for one in letters if one in self.repaired},
            entry["to_topic"],
            dict(entry["partitions"]),
            ends,
            time_ms,
        )

    def _done(self, entry: dict[str, Any]) -> None:
        if self.unfinished.pop(entry["id"], None) is None:
            return  # another one said so first
        for partition, offset in entry["released"]:
            del self.closed[partition, offset]

    def check(self) -> None:
        """Asserts the invariant: no letter is in two unfinished replays, all of them are closed."""
        claimed = [letter for one in self.unfinished.values() for letter in one.letters]
        assert len(claimed) == len(set(claimed))
        assert all(self.closed[letter] is State.REPLAYED for letter in claimed)


def repair(letter: LetterId, value: bytes | None) -> bytes:
    """The entry that gives a letter a new value."""
    text = None if value is None else base64.b64encode(value).decode()
    return _entry("repair", letter=letter, value=text)


def drop(letters: Iterable[LetterId], because: str) -> bytes:
    """The entry that closes letters for good."""
    return _entry("drop", letters=list(letters), because=because)


def replay(
    replay_id: str,
    producer: tuple[int, int],
    letters: Iterable[LetterId],
    to_topic: str | None,
    partitions: dict[str, int],
    ends: dict[str, dict[int, int]],
) -> bytes:
    """The entry that claims letters for a replay."""
    return _entry(
        "replay",
        id=replay_id,
        producer=producer,
        letters=list(letters),
        to_topic=to_topic,
        partitions=partitions,
        ends=ends,
    )


def done(replay_id: str, released: Iterable[LetterId] = ()) -> bytes:
    """The entry that says that a replay is through; `released` letters are open again."""
    return _entry("done", id=replay_id, released=list(released))


def _entry(kind: str, **fields: Any) -> bytes:
    return json.dumps({"entry": kind, **fields}, separators=(",", ":")).encode()
