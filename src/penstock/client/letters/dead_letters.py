"""Dead letters as work to be done: look at them, repair them, replay them, drop them.

    with DeadLetters("127.0.0.1:9092", "shop.dead-letters") as dead:
        dead.summary()                                  # by reason, origin and state
        for letter in dead.letters(Where(reason="*no such field*")): ...
        dead.repair({(0, 17): b'{"user": 1}'})
        dead.replay(Where())                            # to where they came from, each once

A dead letter is a record with headers that say why it is one and where it came from. What is done
about it is written to a ledger next to the topic (see `penstock.client.letters.ledger`, which also says
why a replay stores each letter once, however often it is run or killed).
"""

from __future__ import annotations

import fnmatch
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.client import Client
from penstock.client.letters import ledger as entries
from penstock.client.letters.ledger import Ledger, LetterId, Replay, State
from penstock.client.letters.reasons import kind_of
from penstock.client.producer import Producer
from penstock.client.reader import Reader
from penstock.core.closing import Closing
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import SetupError, UserError
from penstock.wire.columns import Records, header
from penstock.wire.headers import header_values

__all__ = [
    "CUT_HEADER",
    "REPLAYED_HEADER",
    "TOPIC_SUFFIX",
    "DeadLetters",
    "Group",
    "Letter",
    "Where",
]

TOPIC_SUFFIX: Final = ".dead-letters"
SHARE_PREFIX: Final = "dlq."
"""Of topics of share groups' dead letters, whose records need have no headers (KIP-1191)."""
REPLAYED_HEADER: Final = "penstock.replayed"
"""Of a replayed record: which dead letter it was, TOPIC/PARTITION/OFFSET."""
PLAN_LETTERS_MAX: Final = 1_000
"""Letters of one replay: what is in memory at a time, and what an entry of the ledger names."""
PLAN_BYTES_MAX: Final = 64 << 20
"""Bytes of letters of one replay; a single larger one has a replay of its own."""
PRODUCER_MEMORY_MS: Final = 12 * 3600 * 1000
"""Plans older than this are not repeated as their producer, whom the target may have forgotten (Kafka
does after a day): what arrived is looked up instead."""
ENTRY_BYTES_MAX: Final = 64 << 20
"""Largest entry of a ledger, its topic's max.message.bytes: a repaired value, in base64."""

# Names of the headers: the pipelines' own, and those of share groups' dead letters (KIP-1191).
_HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "reason": ("penstock.reason", "__dlq.errors.message"),
    "topic": ("penstock.topic", "__dlq.errors.topic"),
    "partition": ("penstock.partition", "__dlq.errors.partition"),
    "offset": ("penstock.offset", "__dlq.errors.offset"),
}
CUT_HEADER: Final = "penstock.cut"
"""Of a letter of which only the beginning is here: how long it was."""
NODE_HEADER: Final = "penstock.node"
"""Of a letter that was no record: the part of the program that refused the row, or the group."""
_log = logging.getLogger(__name__)
_OWN_PREFIXES: Final = ("penstock.", "__dlq.errors.")


def _is_cut(letter: Letter) -> bool:
    return any(name == CUT_HEADER for name, _ in letter.headers)


@dataclass(frozen=True, slots=True)
class Where:
    """Which dead letters are meant; what is left out doesn't matter.

    Attributes:
        ids: these alone.
        reason: a pattern (`*`, `?`) that the reason matches, or a kind of reason as `summary` gives it.
        origin: the topic they come from.
        partition: the partition they come from.
        states: what has become of them.
        since_ms: records of this time or later.
    """

    ids: frozenset[LetterId] | None = None
    reason: str | None = None
    origin: str | None = None
    partition: int | None = None
    states: frozenset[State] | None = None
    since_ms: int | None = None


class Letter(NamedTuple):
    """A dead letter; `value` is the repaired one where there is one.

    One that was no record is of a row, or of a group, that a pipeline made: `key` is its key as JSON (None
    where nothing identifies it), and `origin` what the row was made for.
    """

    id: LetterId
    state: State
    reason: str
    origin: str
    origin_partition: int
    origin_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    note: str

    @property
    def was_record(self) -> bool:
        """Whether a topic has it, so that it can be sent there again."""
        return ("penstock.offset", b"-1") not in self.headers

    @property
    def node(self) -> str:
        """What refused it, where it was no record; empty where that isn't known."""
        return next(
            (text or b"" for name, text in self.headers if name == NODE_HEADER), b""
        ).decode(errors="replace")


class Group(NamedTuple):
    """Dead letters that have the kind of reason, origin and state in common.

    Attributes:
        reason: without times and values (see `penstock.client.letters.reasons`).
        example: one of the letters.
        example_reason: why that one is here.
    """

    reason: str
    origin: str
    state: State
    letters: int
    first_ms: int
    last_ms: int
    example: LetterId
    example_reason: str


class DeadLetters(Closing):
    """The dead letters of one topic.

    Args:
        bootstrap: "host:port[,host:port]".
        topic: the topic that they are in.
        clock_ms: what time it is.
        settings: as for `Client`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        **settings: Any,
    ) -> None:
        self.topic = topic
        self._clock_ms = clock_ms
        self._client = Client(bootstrap, **settings)
        self._reader = Reader(bootstrap, **settings)
        self._producer = Producer(bootstrap, acks="all", **settings)
        self._ledger = Ledger()
        self._has_letters = topic.endswith(TOPIC_SUFFIX) or topic.startswith(SHARE_PREFIX)

    def close(self) -> None:
        """Closes the connections."""
        for part in (self._client, self._reader, self._producer):
            part.close()

    # -- the ledger --------------------------------------------------------------------------------

    @property
    def ledger_topic(self) -> str:
        """The topic that says what was done."""
        return self.topic + entries.SUFFIX

    def ledger(self) -> Ledger:
        """What was done so far, by anybody."""
        if self.ledger_topic not in self._client.topics():
            return self._ledger
        end = self._client.offsets(self.ledger_topic, "latest")[0]
        for records in self._reader.read(self.ledger_topic, 0, self._ledger.next_offset, end):
            values, times = records.values().to_pylist(), records.timestamp_ms.tolist()
            for body, time_ms in zip(values, times, strict=True):
                self._ledger.apply(body or b"", time_ms)
        self._ledger.next_offset = end
        return self._ledger

    def _write(self, bodies: list[bytes]) -> Ledger:
        """Appends entries; what the ledger says then, theirs and others' included."""
        if self.ledger_topic not in self._client.topics():
            settings = {"retention.ms": "-1", "max.message.bytes": str(ENTRY_BYTES_MAX)}
            self._client.create_topic(self.ledger_topic, 1, settings, exists_ok=True)
        now = np.full(len(bodies), self._clock_ms(), np.int64)
        self._producer.send(self.ledger_topic, 0, None, pa.array(bodies, pa.binary()), now)
        return self.ledger()

    # -- reading -----------------------------------------------------------------------------------

    def summary(self, where: Where | None = None) -> list[Group]:
        """How many letters there are, by kind of reason, origin and state; most first."""
        where = where or Where()
        groups: dict[tuple[str, str, State], Group] = {}
        for partition, records in self._chunks(where):
            for index, reason, origin, state in self._matching(partition, records, where):
                key = kind_of(reason), origin, state
                at = int(records.timestamp_ms[index])
                group = groups.get(key)
                if group is None:
                    place = partition, int(records.offset[index])
                    groups[key] = Group(*key, 1, at, at, place, reason)
                else:
                    first, last = min(group.first_ms, at), max(group.last_ms, at)
                    groups[key] = group._replace(
                        letters=group.letters + 1, first_ms=first, last_ms=last
                    )
        return sorted(groups.values(), key=lambda group: -group.letters)

    def letters(self, where: Where | None = None) -> Iterator[Letter]:
        """The letters meant, by partition and offset."""
        where = where or Where()
        for partition, records in self._chunks(where):
            for index, reason, origin, state in self._matching(partition, records, where):
                yield self._letter(partition, records, index, (reason, origin, state))

    def _chunks(self, where: Where) -> Iterator[tuple[int, Records]]:
        self.ledger()
        first = self._client.offsets(self.topic, "earliest")
        for partition, last in self._client.offsets(self.topic, "latest").items():
            start, end = first[partition], last
            if where.ids is not None:
                mine = [offset for p, offset in where.ids if p == partition]
                start = max(min(mine, default=end), start)
                end = min(max(mine, default=0) + 1, end)
            if start < end:
                for records in self._reader.read(self.topic, partition, start, end, missing="skip"):
                    self._check_letters(records)
                    yield partition, records

    def _check_letters(self, records: Records) -> None:
        """Refuses a topic by its first records.

        Raises:
            UserError: they are no dead letters: neither they nor the topic's name say so.
        """
        if not self._has_letters:
            names = (one for row in range(len(records)) for one, _ in header(records, row))
            if not any(one.startswith(_OWN_PREFIXES) for one in names):
                raise UserError(
                    f"expected a topic of dead letters; found {self.topic!r}, whose records don't say why "
                    "they would be ones. `penstock dlq list` lists the topics of dead letters, and "
                    f"`penstock consume {self.topic}` prints records"
                )
            self._has_letters = True

    def _matching(
        self, partition: int, records: Records, where: Where
    ) -> Iterator[tuple[int, str, str, State]]:
        """Index, reason, origin and state of the records meant."""
        reasons, topics, parts = (_header(records, one) for one in ("reason", "topic", "partition"))
        offsets = records.offset.tolist()
        matches: dict[str, bool] = {}  # reasons repeat: each is matched once
        for index, (reason, topic, part) in enumerate(zip(reasons, topics, parts, strict=True)):
            letter = partition, offsets[index]
            if where.ids is not None and letter not in where.ids:
                continue
            if where.origin is not None and topic != where.origin:
                continue
            if where.partition is not None and part != str(where.partition):
                continue
            if where.since_ms is not None and records.timestamp_ms[index] < where.since_ms:
                continue
            if where.reason is not None:
                found = matches.get(reason)
                if found is None:
                    found = matches[reason] = (
                        fnmatch.fnmatchcase(reason, where.reason) or kind_of(reason) == where.reason
                    )
                if not found:
                    continue
            state = self._ledger.state(letter)
            if where.states is None or state in where.states:
                yield index, reason, f"{topic}/{part}" if topic else "", state

    def _letter(
        self, partition: int, records: Records, index: int, found: tuple[str, str, State]
    ) -> Letter:
        reason, origin, state = found
        one = records.slice(index, index + 1)
        letter = partition, int(one.offset[0])
        topic, _, part = origin.rpartition("/")
        offset = _header(one, "offset")[0]
        value = one.values()[0].as_py()
        return Letter(
            letter,
            state,
            reason,
            topic,
            int(part) if part.isdigit() else -1,
            int(offset) if offset.isdigit() else -1,
            int(one.timestamp_ms[0]),
            one.keys()[0].as_py(),
            self._ledger.repaired.get(letter, value),
            header(one, 0),
            self._ledger.reasons.get(letter, ""),
        )

    # -- doing -------------------------------------------------------------------------------------

    def repair(self, values: Mapping[LetterId, bytes | None]) -> int:
        """Gives letters new values; returns how many were still open."""
        ledger = self.ledger()
        repaired = {one: value for one, value in values.items() if ledger.is_open(one)}
        for letter, value in repaired.items():  # one at a time: a value may be large
            self._write([entries.repair(letter, value)])
        return len(repaired)

    def drop(self, where: Where, because: str) -> int:
        """Closes letters for good; returns how many. The records stay where they are."""
        dropped = 0
        wanted = _only_open(where)
        for chunk in _portions(one.id for one in self.letters(wanted)):
            before = sum(state is State.DROPPED for state in self._ledger.closed.values())
            after = self._write([entries.drop(chunk, because)]).closed
            dropped += sum(state is State.DROPPED for state in after.values()) - before
        return dropped

    def replay(
        self,
        where: Where,
        to_topic: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Sends open letters to where they came from (or to a topic), each once.

        First it finishes what an earlier run left unfinished. Letters of which only the beginning is here
        stay open, unless they were repaired: a replay of the log (`penstock replay`) has the whole record.
        So do letters that were no records, as no topic has them, unless `to_topic` names one.

        Returns:
            How many letters reached their topic through this call.

        Raises:
            UserError: a letter doesn't say where it comes from, or all of them were no records.
        """
        sent = self.finish(progress)
        before = sent
        waiting: list[Letter] = []
        size = cut = 0
        rows, first_row = 0, None
        for letter in self.letters(_only_open(where)):
            if not self.is_sent(letter, to_topic):
                if letter.was_record or to_topic is not None:
                    cut += 1
                else:
                    rows, first_row = rows + 1, first_row or letter
                continue
            grown = size + len(letter.key or b"") + len(letter.value or b"")
            if waiting and (len(waiting) >= PLAN_LETTERS_MAX or grown > PLAN_BYTES_MAX):
                sent += self._replay(waiting, to_topic)
                progress(sent)
                waiting, grown = [], grown - size
            waiting.append(letter)
            size = grown
        if waiting:
            sent += self._replay(waiting, to_topic)
            progress(sent)
        if cut:
            _log.warning(
                "expected whole records; found %d dead letters that were cut, as they are too large. "
                "They stay open: correct them with penstock dlq repair, or replay the original records",
                cut,
            )
        if first_row is not None:
            self._say_rows(rows, first_row, is_all=sent == before and not cut)
        return sent

    def is_sent(self, letter: Letter, to_topic: str | None = None) -> bool:
        """Whether a replay sends an open letter; see `replay`."""
        is_whole = letter.id in self._ledger.repaired or not _is_cut(letter)
        return is_whole and (letter.was_record or to_topic is not None)

    def _say_rows(self, count: int, first: Letter, *, is_all: bool) -> None:
        """Refuses a replay of letters that were no records; where others were sent, says what stays open."""
        found = (
            f"expected dead letters that were records; found {count:,} of rows that the pipeline made, such "
            f"as {first.id[0]}/{first.id[1]} of {first.origin!r}. No topic has them. Correct the program, or "
            "the records that they were made of, and close them with penstock dlq drop; --to-topic sends "
            "them to a topic"
        )
        if is_all:
            raise UserError(found)
        _log.warning("%s. They stay open", found)

    def _replay(self, letters: list[Letter], to_topic: str | None) -> int:
        """Writes a replay down, and carries out what it then has."""
        targets = {self._target(letter, to_topic) for letter in letters}
        ends = self._client.end_offsets_many(targets)
        replay_id = uuid.uuid4().hex
        entry = entries.replay(
            replay_id,
            self._client.init_producer_id(),
            [letter.id for letter in letters],
            to_topic,
            {topic: len(parts) for topic, parts in ends.items()},
            ends,
        )
        replay = self._write([entry]).unfinished.get(replay_id)
        return 0 if replay is None else self._carry_out(replay)

    @staticmethod
    def _target(letter: Letter, to_topic: str | None) -> str:
        target = to_topic or letter.origin
        if not target:
            raise UserError(
                f"expected dead letter {letter.id[0]}/{letter.id[1]} to say which topic it comes "
                "from; found no such header; name the target: --to-topic"
            )
        return target

    def finish(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Carries out replays that were begun in the ledger and not finished."""
        sent = 0
        for replay in list(self.ledger().unfinished.values()):
            if self._clock_ms() - replay.time_ms > PRODUCER_MEMORY_MS:
                sent += self._settle_old(replay)
            else:
                sent += self._carry_out(replay)
            progress(sent)
        return sent

    def _carry_out(self, replay: Replay) -> int:
        """Sends a replay's letters as its producer: any repetition sends the same batches."""
        places: dict[tuple[str, int], list[Letter]] = {}
        for letter in self._replayed(replay):
            topic = self._target(letter, replay.to_topic)
            places.setdefault((topic, _partition(letter, replay, topic)), []).append(letter)
        for (topic, partition), letters in sorted(places.items()):
            self._producer.send(
                topic,
                partition,
                pa.array([letter.key for letter in letters], pa.binary()),
                pa.array([letter.value for letter in letters], pa.binary()),
                np.array([letter.timestamp_ms for letter in letters], np.int64),
                headers=[self._replayed_headers(letter) for letter in letters],
                producer_id=replay.producer_id,
                producer_epoch=replay.producer_epoch,
            )
        self._write([entries.done(replay.id)])
        return len(replay.letters)

    def _replayed(self, replay: Replay) -> list[Letter]:
        """A replay's letters with the values that they had when it was written down."""
        found = {letter.id: letter for letter in self.letters(Where(ids=frozenset(replay.letters)))}
        missing = [one for one in replay.letters if one not in found]
        if missing:
            raise SetupError(
                f"expected dead letters {missing[:3]} of {self.topic}, which a replay was about to "
                "send; found that they were removed; a longer retention keeps them: "
                f"penstock topics describe {self.topic}"
            )
        return [
            found[one]._replace(value=replay.values[one]) if one in replay.values else found[one]
            for one in replay.letters
        ]

    def _name(self, letter: LetterId) -> str:
        return f"{self.topic}/{letter[0]}/{letter[1]}"

    def _replayed_headers(self, letter: Letter) -> list[tuple[str, bytes | None]]:
        kept = [pair for pair in letter.headers if not pair[0].startswith(_OWN_PREFIXES)]
        return [*kept, (REPLAYED_HEADER, self._name(letter.id).encode())]

    def _settle_old(self, replay: Replay) -> int:
        """Looks up what of an old replay arrived; the rest is open again."""
        names = {self._name(one): one for one in replay.letters}
        arrived: set[LetterId] = set()
        for topic, parts in replay.ends.items():
            ends = self._client.offsets(topic, "latest")
            for partition, start in parts.items():
                for records in self._reader.read(
                    topic, partition, start, ends[partition], missing="skip"
                ):
                    found = header_values(records, REPLAYED_HEADER).to_pylist()
                    texts = (one.decode(errors="replace") for one in found if one is not None)
                    arrived.update(names[text] for text in texts if text in names)
        self._write(
            [entries.done(replay.id, [one for one in replay.letters if one not in arrived])]
        )
        return len(arrived)


def _partition(letter: Letter, replay: Replay, topic: str) -> int:
    """Where a letter goes: to its own partition of its own topic, else by key as Kafka does."""
    count = replay.partitions[topic]
    if topic == letter.origin and 0 <= letter.origin_partition < count:
        return letter.origin_partition
    if letter.key is not None:
        return int(murmur2_partitions(pa.array([letter.key], pa.binary()), count)[0])
    return max(letter.origin_partition, 0) % count


def _header(records: Records, what: str) -> list[str]:
    """A header's text of each record, under whichever of its names it has."""
    found: list[str | None] = [None] * len(records)
    for name in _HEADERS[what]:
        values = header_values(records, name)
        if values.null_count == len(values):
            continue
        words: dict[bytes, str] = {}
        for index, value in enumerate(values.to_pylist()):
            if value is not None and found[index] is None:
                text = words.get(value)
                if text is None:
                    text = words[value] = value.decode(errors="replace")
                found[index] = text
    return [text or "" for text in found]


def _only_open(where: Where) -> Where:
    states = frozenset({State.OPEN, State.REPAIRED})
    chosen = states if where.states is None else where.states & states
    return Where(where.ids, where.reason, where.origin, where.partition, chosen, where.since_ms)


def _portions(ids: Iterable[LetterId]) -> Iterator[list[LetterId]]:
    portion: list[LetterId] = []
    for one in ids:
        portion.append(one)
        if len(portion) == PLAN_LETTERS_MAX:
            yield portion
            portion = []
    if portion:
        yield portion
