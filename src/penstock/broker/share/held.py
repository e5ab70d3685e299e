"""A partition as a share group holds it: its state, and those who wait for its records."""

from __future__ import annotations

import asyncio

from penstock.broker.share.journal import Key
from penstock.broker.share.partition import SharePartition
from penstock.broker.storage.topics import Hosted

__all__ = ["Held"]


class Held:
    """A partition as a share group's, and those who wait for its records."""

    __slots__ = ("hosted", "is_burying", "key", "producer_id", "state", "waiters")

    def __init__(self, key: Key, hosted: Hosted, state: SharePartition) -> None:
        self.key = key
        self.hosted = hosted
        self.state = state
        self.producer_id = -1
        self.is_burying = False
        self.waiters: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Notifies the waiters that records may be available."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
