"""Handing out records: from the log, through a share partition's state, into an answer.

Whole batches are sent as they lie in the log (a view, not a copy), with the ranges of their records
that the member has acquired. Offsets that can't be read (see `DamagedError`) are skipped, like those
that compaction removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.logs import Seldom
from penstock.broker.share.held import Held
from penstock.broker.share.model import Acquired, Span
from penstock.broker.share.shares import Shares
from penstock.errors import CorruptError, LimitError
from penstock.log.errors import DamagedError, OffsetRangeError, StorageError
from penstock.log.partition import Partition
from penstock.log.tier import NotLoadedError
from penstock.wire import batches
from penstock.wire.batches import Buffer, Header
from penstock.wire.checksum import crc32c
from penstock.wire.protocol import ErrorCode

__all__ = ["Portion", "Wanted", "has_more", "portion"]

READ_BYTES_MAX: Final = 1 << 20
"""Most bytes of one partition in one answer, unless its first batch is larger."""
READS_MAX: Final = 32
"""Most reads of a partition for one answer, where there is nothing for members in what was read."""
_faults = Seldom(logging.getLogger(__name__))


@dataclass(slots=True)
class Wanted:
    """What is left of what a request asks for."""

    member: str
    bytes_left: int
    records_left: int
    is_strict: bool


@dataclass(slots=True)
class Portion:
    """One partition's part of an answer."""

    code: ErrorCode = ErrorCode.NONE
    records: Buffer = b""
    acquired: list[Acquired] = field(default_factory=list)


def _stable_end(log: Partition, *, is_committed: bool) -> int:
    return log.last_stable_offset if is_committed else log.end_offset


def has_more(shares: Shares, held: Held) -> bool:
    """Whether there may be records to hand out now."""
    offset = held.state.next_offset()
    committed = shares.policy(held.key.group).is_committed
    return offset is not None and offset < _stable_end(held.hosted.log, is_committed=committed)


def portion(shares: Shares, held: Held, wanted: Wanted) -> Portion:
    """Acquires some records of a partition for a member.

    Raises:
        NotLoadedError: what is to be read lies in the tier, and isn't at hand.
        StorageError: the acquisition can't be written to the journal.
    """
    state, log = held.state, held.hosted.log
    now_ms = shares.now_ms()
    state.skip_to(log.start_offset)
    state.tick(now_ms)
    found = Portion()
    try:
        if state.lacks_keys and state.rules.in_key_order:
            state.learn_keys(_keys_between(log, state.start_offset, state.end_offset))
        for _ in range(READS_MAX):
            if not has_more(shares, held) or _acquire(shares, held, wanted, found):
                break
    except NotLoadedError:
        shares.save(held)
        raise
    except OffsetRangeError:
        found.code = ErrorCode.NONE  # the log was cut at its end; what is lost can't be handed out
    except (StorageError, CorruptError, LimitError):
        found.code = ErrorCode.KAFKA_STORAGE_ERROR
    shares.save(held)
    return found


def _acquire(shares: Shares, held: Held, wanted: Wanted, found: Portion) -> bool:
    """Reads once and acquires; whether there was something."""
    state, log = held.state, held.hosted.log
    offset = state.next_offset()
    assert offset is not None
    is_committed = shares.policy(held.key.group).is_committed
    limit = min(wanted.bytes_left, READ_BYTES_MAX)
    try:
        buffer = log.read(offset, limit, upto=_stable_end(log, is_committed=is_committed))
    except DamagedError as damage:
        _pass_over(shares, held, offset, damage)
        return False
    heads: list[tuple[int, Header]] = []
    keyed = state.rules.in_key_order
    spans = _spans(log, buffer, heads, is_committed=is_committed, keyed=keyed)
    found.acquired = state.acquire(
        shares.now_ms(),
        wanted.member,
        offset,
        spans,
        wanted.records_left,
        is_strict=wanted.is_strict,
    )
    if not heads:
        raise StorageError(f"expected a batch at offset {offset} of {log.directory}; found none")
    if not found.acquired:
        return False
    found.records = _cut(buffer, heads, found.acquired[0].first, found.acquired[-1].last)
    wanted.records_left -= sum(one.last - one.first + 1 for one in found.acquired)
    wanted.bytes_left -= len(found.records)
    return True


def _pass_over(shares: Shares, held: Held, offset: int, damage: DamagedError) -> None:
    """Offsets that can't be read are no records for members, as those that compaction removed."""
    shares.unreadable += held.state.pass_over(offset, damage.next_offset - 1)
    _faults.say(f"share group {held.key.group!r} passed over damaged records", damage)


def _cut(buffer: Buffer, heads: list[tuple[int, Header]], first: int, last: int) -> Buffer:
    """The batches that hold these offsets."""
    begin = min(at for at, one in heads if one.next_offset > first)
    end = max(at + one.size for at, one in heads if one.base_offset <= last)
    return memoryview(buffer)[begin:end]


def _spans(
    log: Partition,
    buffer: Buffer,
    heads: list[tuple[int, Header]],
    *,
    is_committed: bool,
    keyed: bool,
) -> Iterator[Span]:
    """The batches, one by one as they are asked for, and into `heads`."""
    for at, one in batches.iterate(buffer):
        heads.append((at, one))
        is_deliverable = not one.is_control and not (is_committed and _is_aborted(log, one))
        keys = _keys(buffer, at, one) if keyed and is_deliverable else {}
        yield Span(one.base_offset, one.next_offset - 1, is_deliverable, keys)


def _is_aborted(log: Partition, head: Header) -> bool:
    return head.is_transactional and any(
        one.producer_id == head.producer_id
        and one.first_offset <= head.base_offset <= one.last_offset
        for one in log.aborted(head.base_offset, head.next_offset)
    )


def _keys(buffer: Buffer, at: int, header: Header) -> dict[int, int]:
    """Hashes of the records' keys; two keys with one hash only wait for each other in vain."""
    return {
        one.offset: crc32c(one.key)
        for one in batches.records(buffer, at, header)
        if one.key is not None
    }


def _keys_between(log: Partition, start: int, end: int) -> dict[int, int]:
    found: dict[int, int] = {}
    offset = max(start, log.start_offset)
    while offset < min(end, log.end_offset):
        try:
            buffer = log.read(offset, READ_BYTES_MAX)
        except DamagedError as damage:
            offset = damage.next_offset
            continue
        before = offset
        for at, one in batches.iterate(buffer):
            if not one.is_control:
                found |= _keys(buffer, at, one)
            offset = one.next_offset
        if offset == before:
            break
    return found
