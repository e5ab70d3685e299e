"""What is to be made of bytes that are no whole batch, where no checkpoint vouches for them.

A write that is cut short leaves a part of a batch at the end of the file, and nothing behind it. So
bad bytes with whole batches behind them are *damage*: the batches behind stay, and what is missing
between them is a hole. Likewise a last batch that is all there but doesn't match its checksum.

Only a machine that goes down may leave a place in the middle unwritten, as disks write in any order.
Such a place reads as zeros, in units of what a disk writes at once, and nothing behind it had been
synced: then it is the log's *torn end*, as the whole batches behind it were never said to be durable.

A damaged header doesn't say where the next batch begins, so that is looked for. Records may hold
batches, too: what is found counts if batch follows on batch from there up to the end, or up to a
header that follows on them; or if there are several, and what is found further behind may follow on
them. A last batch that nothing confirms in this way is not served, as its offset may be a damaged one;
but what it says is not given out again.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from penstock.log.segments.verification import LEADER_EPOCH, Walk
from penstock.wire import batches
from penstock.wire.batches import HEADER_BYTES, Buffer

__all__ = ["UNIT_BYTES", "Gap", "find_gap"]

UNIT_BYTES: Final = 512
"""What a disk writes at once, at least: it is old or new as a whole."""
SEARCH_BYTES: Final = 1 << 20
"""Bytes that are searched at a time."""
CHECKED_TIMES_MAX: Final = 4
"""How often as many bytes as are searched may be read for checksums: records that look like batches
must not hold up a start.
"""
_MARK: Final = b"\0\0\0\0\2"
"""Of each batch in a log: the leader epoch and the format."""
_MARK_AT: Final = 12
_ZEROS_MIN: Final = 8


class Gap(NamedTuple):
    """Bad bytes at the beginning of some: how many, the first offset behind them, and whether a whole
    batch has it.
    """

    size: int
    next_offset: int
    is_followed: bool


def find_gap(
    data: Buffer,
    position: int,
    offset: int,
    offset_max: int,
    *,
    has_gaps: bool,
    may_be_torn: bool,
) -> Gap | None:
    """What is damaged at the beginning of the rest of a segment; None where it is the torn end.

    Args:
        data: the rest; it begins with something else than the whole batch that is expected.
        position: of the rest in the file.
        offset: that the batch there should have.
        offset_max: the greatest offset that can follow.
        has_gaps: whether compaction may have left gaps between offsets.
        may_be_torn: whether the machine may have gone down since it was written.
    """
    gap = _next_whole(data, offset, offset_max, has_gaps=has_gaps) or _last(data, offset)
    if gap is None or (may_be_torn and _is_unwritten(data, gap.size, position)):
        return None
    return gap


class _Chain(NamedTuple):
    """Whole batches that follow on each other."""

    at: int
    end: int
    first: int
    next_offset: int
    is_confirmed: bool
    ends_well: bool

    @property
    def gap(self) -> Gap:
        """What lies before it, if its offsets can be believed; else it is part of what is bad."""
        if self.is_confirmed:
            return Gap(self.at, self.first, is_followed=True)
        return Gap(self.end, self.next_offset, is_followed=False)


def _next_whole(data: Buffer, offset: int, offset_max: int, *, has_gaps: bool) -> Gap | None:
    """Up to where whole batches begin again: where the damaged one's header says, if it is right;
    else where they follow on each other.
    """
    look = partial(_chain_at, data, offset=offset, offset_max=offset_max, has_gaps=has_gaps)
    chain = look(_declared_size(data))
    if chain is not None and chain.is_confirmed:
        return chain.gap
    left = CHECKED_TIMES_MAX * len(data)
    first = None
    at = _next_mark(data, 1)
    while at >= 0 and left > 0:
        chain = look(at)
        left -= _checked(data, at) if chain is None else chain.end - at
        if chain is not None and chain.ends_well:
            return first.gap if first and first.next_offset <= chain.first else chain.gap
        if chain is not None and chain.is_confirmed and first is None:
            first = chain
        at = _next_mark(data, at + 1 if chain is None else chain.end)
    return None if first is None else first.gap


def _declared_size(data: Buffer) -> int:
    """How large the damaged batch says that it is, if another one may lie behind; else 0."""
    if len(data) < 2 * HEADER_BYTES:
        return 0
    header = batches.parse(data)
    is_within = header.fault() is None and header.size + HEADER_BYTES <= len(data)
    return header.size if is_within else 0


def _chain_at(
    data: Buffer, at: int, *, offset: int, offset_max: int, has_gaps: bool
) -> _Chain | None:
    """The chain that begins there. Offsets lie outside the checksums: that they are its own is
    confirmed by another batch that follows, or by the headers of the damaged ones around it.
    """
    if not at:
        return None
    header = batches.parse(data, at)
    if (
        header.fault() is not None
        or header.leader_epoch != LEADER_EPOCH
        or not offset < header.base_offset <= offset_max
        or header.record_count > header.last_offset_delta + 1
        or at + header.size > len(data)
    ):
        return None
    walk = Walk(header.base_offset, 0, has_gaps=has_gaps)
    end = walk.go(data, at)
    if end == at:
        return None
    is_over = len(data) - end < HEADER_BYTES
    following = None if is_over else batches.parse(data, end)
    is_followed = following is not None and (
        following.fault() is None and following.base_offset == walk.offset
    )
    bad = batches.parse(data)
    follows = header.base_offset - offset in {bad.last_offset_delta + 1, bad.record_count}
    return _Chain(
        at,
        end,
        header.base_offset,
        walk.offset,
        is_confirmed=follows or is_followed or end > at + header.size,
        ends_well=is_followed or is_over,
    )


def _checked(data: Buffer, at: int) -> int:
    """Bytes that were read to find that no chain begins there."""
    size = batches.parse(data, at).size
    return size if HEADER_BYTES <= size <= len(data) - at else HEADER_BYTES


def _next_mark(data: Buffer, at: int) -> int:
    """The next place from there on where a whole header may begin; -1 if there is none."""
    last = len(data) - HEADER_BYTES
    while at <= last:
        begin = at + _MARK_AT
        chunk = bytes(data[begin : begin + SEARCH_BYTES])
        found = chunk.find(_MARK)
        if found >= 0:
            return at + found if at + found <= last else -1
        at += max(len(chunk) - len(_MARK) + 1, 1)
    return -1


def _last(data: Buffer, offset: int) -> Gap | None:
    """The bad batch itself, if it is the last one and all of it is there: what of its header can be
    compared agrees.
    """
    if len(data) < HEADER_BYTES:
        return None
    header = batches.parse(data)
    if (
        header.fault() is not None
        or header.size > len(data)
        or header.record_count != header.last_offset_delta + 1
        or not (header.base_offset == offset or batches.checksum_matches(data, 0, header))
    ):
        return None
    return Gap(header.size, offset + header.last_offset_delta + 1, is_followed=False)


def _is_unwritten(data: Buffer, size: int, position: int) -> bool:
    """Whether a unit that these bytes have a part in reads as zeros, from their beginning on. A part
    that is no longer than the zeros that a base offset begins with says nothing.
    """
    at = 0
    while at < size:
        end = min(at + UNIT_BYTES - (position + at) % UNIT_BYTES, len(data))
        if end - at >= _ZEROS_MIN and bytes(data[at:end]).count(0) == end - at:
            return True
        at = end
    return False
