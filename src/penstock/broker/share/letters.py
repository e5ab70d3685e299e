"""Dead letters: records that a share group could not deliver, in a topic of their own (KIP-1191).

Each rejected record gets exactly one letter, whatever crashes. Letters of a share partition are
numbered without gaps in the order in which they come up; the number is in the share journal and is
the record's sequence number under a producer id that belongs to this share partition alone. So the
dead-letter log itself says which letters it has: those up to the producer's last sequence. A letter
is forgotten here only once it is durable there.

A topic takes dead letters if its name begins with `dlq.` and its setting
errors.deadletterqueue.group.enable is true. Where the topic is not there or doesn't take them, the
records are archived without letters, as in Kafka, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from penstock.broker.logs import Seldom
from penstock.broker.share.held import Held
from penstock.broker.share.model import Letter
from penstock.broker.share.policy import Policy
from penstock.broker.storage.flusher import Durable, made_durable
from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.errors import CorruptError, LimitError
from penstock.log.disk.journal import Journal
from penstock.log.errors import AppendError, DamagedError, OffsetRangeError, StorageError
from penstock.wire import batches
from penstock.wire.batches import Record
from penstock.wire.protocol import ErrorCode

__all__ = ["PREFIX", "Letters"]

PREFIX: Final = "dlq."
"""How a dead-letter topic's name begins: Kafka's errors.deadletterqueue.topic.name.prefix."""
ENABLE: Final = "errors.deadletterqueue.group.enable"
ROUND_MAX: Final = 100
"""Letters that are written between two syncs."""
_SEQUENCES: Final = 1 << 31
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Letters:
    """Writes dead letters.

    Attributes:
        topics: where they go.
        journal: what must be durable before them.
        policy: a group's settings for dead letters.
        save: records a partition's change in the journal.
        loaded: gives what reads a log, once what it needs is at hand.
        make_durable: see `Flusher`.
        new_producer_id: gives out an id that was never given out before.
        clock_ms: the time.
        written: letters since the start.
        dropped: records that were archived without one.
        faults: logs what is tried again and again.
    """

    topics: Topics
    journal: Journal
    _: KW_ONLY
    policy: Callable[[str], Policy]
    save: Callable[[Held], None]
    loaded: Callable[[Callable[[], Record | None]], Awaitable[Record | None]]
    make_durable: Callable[[Iterable[Durable]], Awaitable[None]]
    new_producer_id: Callable[[], int]
    clock_ms: Callable[[], int]
    written: int = 0
    dropped: int = 0
    faults: Seldom = field(default_factory=lambda: Seldom(_log))

    async def write(self, held: Held) -> None:
        """Writes a partition's letters that are due; those that can't be written now stay due."""
        while letters := held.state.letters(ROUND_MAX):
            policy = self.policy(held.key.group)
            try:
                topic, fault = self._topic(policy.letter_topic)
                if topic is not None and not await self._write(held, topic, letters, policy):
                    continue
            except StorageError as error:
                self.faults.say(f"could not write dead letters of group {held.key.group}", error)
                return
            if topic is None:
                _log.warning(
                    "dropped %d dead letters of group %s: %s", len(letters), held.key.group, fault
                )
                self.dropped += len(letters)
            held.state.bury(letters[-1].number + 1)
            try:
                self.save(held)
            except StorageError as error:
                _log.warning("could not keep note of dead letters: %s", error)
                return
            held.wake()

    def _topic(self, name: str) -> tuple[Topic | None, str]:
        topic = self.topics.get(name)
        if not name.startswith(PREFIX):
            return None, f"expected a topic whose name begins with {PREFIX!r}; found {name!r}"
        if topic is None:
            if name in self.topics.refused:
                raise StorageError(self.topics.refused[name])
            return None, f"expected the topic {name!r}; found none"
        if not topic.config.takes_dead_letters:
            return None, f"expected {ENABLE}=true of topic {name!r}"
        return topic, ""

    async def _write(self, held: Held, topic: Topic, letters: list[Letter], policy: Policy) -> bool:
        """Appends letters and makes them durable: after the rejections, or a power failure could
        take those back and leave the letters, and their numbers to others.

        Returns:
            False if the letters got other numbers instead.
        """
        if held.producer_id < 0:
            held.producer_id = self.new_producer_id()
            held.state.rewrite()
            self.save(held)
        await self._sync([self.journal])
        target = topic.partitions[held.hosted.index % len(topic.partitions)]
        there = _last_number(topic, held.producer_id, letters[0].number)
        due = [letter for letter in letters if letter.number > there]
        if due and not _follow(there, due):
            held.producer_id = self.new_producer_id()
            held.state.bury(due[0].number)
            held.state.number_letters(due[0].number)
            held.state.rewrite()
            self.save(held)
            return False
        for letter in due:
            await self._append(held, target, letter, copies=policy.copies_record)
            self.written += 1
        target.wake()
        await self._sync([one.log for one in topic.partitions])
        return True

    async def _sync(self, wanted: Sequence[Durable]) -> None:
        if not await made_durable(self.make_durable, wanted):
            faults = {one.failure for one in wanted if one.failure}
            raise StorageError("; ".join(sorted(faults)) or "the disk was not synced")

    async def _append(self, held: Held, target: Hosted, letter: Letter, *, copies: bool) -> None:
        source = None
        if copies:
            source = await self.loaded(lambda: _source(held.hosted, letter.offset))
        now_ms = self.clock_ms()
        try:
            target.log.append(_batch(held, letter, source, now_ms), now_ms)
        except AppendError as error:
            if source is None or error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise StorageError(f"expected to append a dead letter; found: {error}") from error
            target.log.append(_batch(held, letter, None, now_ms), now_ms)  # too large to be copied


def _follow(there: int, due: list[Letter]) -> bool:
    """Whether the numbers follow each other, and what is there. They don't where a power failure undid
    rejections that were never acknowledged, or where the letters went to another topic for a while. A
    new producer may begin with any number.
    """
    first = due[0].number
    return (there < 0 or first == there + 1) and due[-1].number == first + len(due) - 1


def _last_number(topic: Topic, producer_id: int, near: int) -> int:
    """The number of the last letter that the topic has of this producer; -1 if it has none."""
    last = -1
    for hosted in topic.partitions:
        for known, _, sequence, *_ in hosted.log.producers.describe():
            if known == producer_id:
                ahead = (sequence - near + _SEQUENCES // 2) % _SEQUENCES - _SEQUENCES // 2
                last = max(last, near + ahead)
    return last


def _source(hosted: Hosted, offset: int) -> Record | None:
    """The record itself, if it is still there."""
    try:
        buffer = hosted.log.read(offset, 1)
        for at, header in batches.iterate(buffer):
            for record in batches.records(buffer, at, header):
                if record.offset == offset:
                    return record
    except (OffsetRangeError, DamagedError, CorruptError, LimitError):
        pass
    return None


def _batch(held: Held, letter: Letter, source: Record | None, now_ms: int) -> bytearray:
    """One letter as a batch, under its number."""
    texts = {
        "topic": held.hosted.topic.name,
        "partition": str(held.hosted.index),
        "offset": str(letter.offset),
        "group": held.key.group,
        "delivery.count": str(letter.deliveries),
        "message": letter.reason,
    }
    headers = list(source.headers) if source is not None else []
    headers += [(f"__dlq.errors.{name}", text.encode()) for name, text in texts.items()]
    pair = (source.key, source.value) if source is not None else (None, None)
    return batches.build(
        [pair],
        timestamps_ms=[now_ms],
        producer_id=held.producer_id,
        producer_epoch=0,
        base_sequence=letter.number % _SEQUENCES,
        headers=[headers],
    )
