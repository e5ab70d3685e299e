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
from typing import TYPE_CHECKING, Final

from penstock.broker.share.model import Letter
from penstock.broker.topics import Hosted, Topic
from penstock.errors import CorruptError, LimitError
from penstock.log.errors import AppendError, DamagedError, OffsetRangeError, Refusal, StorageError
from penstock.wire import batches
from penstock.wire.batches import Record

if TYPE_CHECKING:
    from penstock.broker.share.shares import Held, Shares

__all__ = ["PREFIX", "write_letters"]

PREFIX: Final = "dlq."
"""How a dead-letter topic's name begins: Kafka's errors.deadletterqueue.topic.name.prefix."""
ENABLE: Final = "errors.deadletterqueue.group.enable"
ROUND_MAX: Final = 100
"""Letters that are written between two syncs."""
_SEQUENCES: Final = 1 << 31
_log = logging.getLogger(__name__)


async def write_letters(shares: Shares, held: Held) -> None:
    """Writes the letters that are due; those that can't be written now stay due."""
    while letters := held.state.letters(ROUND_MAX):
        policy = shares.policy(held.key.group)
        topic, fault = _topic(shares, policy.letter_topic)
        if topic is None:
            _log.warning(
                "dropped %d dead letters of group %s: %s", len(letters), held.key.group, fault
            )
            shares.letters_dropped += len(letters)
        else:
            try:
                is_written = await _write(shares, held, topic, letters, copies=policy.copies_record)
            except StorageError as error:
                _log.warning("could not write dead letters of group %s: %s", held.key.group, error)
                return
            if not is_written:
                continue
        held.state.bury(letters[-1].number + 1)
        try:
            shares.save(held)
        except StorageError as error:
            _log.warning("could not keep note of dead letters: %s", error)
            return
        held.wake()


def _topic(shares: Shares, name: str) -> tuple[Topic | None, str]:
    topic = shares.broker.topics.get(name)
    if not name.startswith(PREFIX):
        return None, f"expected a topic whose name begins with {PREFIX!r}, found {name!r}"
    if topic is None:
        return None, f"expected the topic {name!r}, found none"
    if not topic.config.takes_dead_letters:
        return None, f"expected {ENABLE}=true of topic {name!r}"
    return topic, ""


async def _write(
    shares: Shares, held: Held, topic: Topic, letters: list[Letter], *, copies: bool
) -> bool:
    """Appends letters and makes them durable: after the rejections, or a power failure could take
    those back and leave the letters, and their numbers to others.

    Returns:
        False if the letters got other numbers instead.
    """
    if held.producer_id < 0:
        held.producer_id = shares.broker.next_producer_id()
        held.state.rewrite()
        shares.save(held)
    await shares.broker.flusher.make_durable([shares.journal])
    if shares.journal.failure is not None:
        raise StorageError(shares.journal.failure)
    target = topic.partitions[held.hosted.index % len(topic.partitions)]
    there = _last_number(topic, held.producer_id, letters[0].number)
    due = [letter for letter in letters if letter.number > there]
    if due and not _follow(there, due):
        held.producer_id = shares.broker.next_producer_id()
        held.state.bury(due[0].number)
        held.state.number_letters(due[0].number)
        held.state.rewrite()
        shares.save(held)
        return False
    for letter in due:
        await _append(shares, held, target, letter, copies=copies)
        shares.letters_written += 1
    target.wake()
    await shares.broker.flusher.make_durable(one.log for one in topic.partitions)
    for one in topic.partitions:
        if one.log.failure is not None:
            raise StorageError(one.log.failure)
    return True


def _follow(there: int, due: list[Letter]) -> bool:
    """Whether the numbers follow each other, and what is there. They don't where a power failure
    took rejections back that nobody was told of, or where the letters went elsewhere for a while;
    a new producer may begin with any number.
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


async def _append(
    shares: Shares, held: Held, target: Hosted, letter: Letter, *, copies: bool
) -> None:
    source = None
    if copies:
        source = await shares.loaded(lambda: _source(held.hosted, letter.offset))
    now_ms = shares.broker.clock_ms()
    try:
        target.log.append(_batch(held, letter, source, now_ms), now_ms)
    except AppendError as error:
        if source is None or error.code is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise StorageError(f"expected to append a dead letter, found: {error}") from error
        target.log.append(_batch(held, letter, None, now_ms), now_ms)  # too large to be copied


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
