"""Checkpoints by time.

Until a checkpoint vouches for what was appended, a file that loses its end between two batches looks
whole. So each partition gets one after a while, however little was written; where nothing was, there is
nothing to do. Kafka's log.flush.offset.checkpoint.interval.ms.
"""

from __future__ import annotations

import asyncio

from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.topics import Topics

__all__ = ["checkpoint"]


async def checkpoint(topics: Topics, flusher: Flusher, interval_s: float) -> None:
    """Writes checkpoints for as long as the broker serves."""
    while True:
        await asyncio.sleep(interval_s)
        logs = [one.log for one in topics.partitions() if one.log.unvouched_bytes]
        for log in logs:
            log.want_checkpoint()
        await flusher.make_durable_by_the_way(logs)
