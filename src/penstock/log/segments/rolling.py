"""When a segment is closed and a new one begun: by size, by age, and where its index or its offsets
have no more room. As in Kafka's LogSegment.shouldRoll.
"""

from __future__ import annotations

from penstock.log.segments.index import ENTRY_BYTES
from penstock.log.segments.segment import OFFSETS_MAX, Segment
from penstock.log.validation import LogConfig
from penstock.wire.batches import Header
from penstock.wire.checksum import crc32c

__all__ = ["must_roll"]


def must_roll(active: Segment, header: Header, config: LogConfig, now_ms: int) -> bool:
    """Whether a batch with that header goes into a new segment. The active one isn't empty."""
    return (
        active.size + header.size > config.segment_bytes
        or now_ms - active.created_ms > config.roll_ms - _jitter_ms(active, config)
        or header.next_offset - active.base_offset > OFFSETS_MAX
        or len(active.index) >= max(config.segment_index_bytes // ENTRY_BYTES, 1)
    )


def _jitter_ms(active: Segment, config: LogConfig) -> int:
    """How much sooner than others a segment is closed, so that those that were begun together aren't
    closed together. It is the segment's own, always the same, and as good as random.
    """
    span = min(config.segment_jitter_ms, config.roll_ms)
    return crc32c(active.path.encode()) * span >> 32 if span else 0
