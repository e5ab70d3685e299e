"""What a stream of changes is about: tables that are captured, and further topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.capture.databases.postgres.outboxes import Router
from penstock.capture.databases.postgres.rows import Table

__all__ = ["Extras", "Watch"]


class Watch(NamedTuple):
    """A table that is captured: how its rows are read, its topic, from which position on it counts, its
    name, and where its rows go if they are events.
    """

    table: Table
    topic: str
    since: int
    name: str
    router: Router | None = None


@dataclass(frozen=True)
class Extras:
    """Further topics of a capture.

    Attributes:
        messages: where messages go; None: nowhere.
        transactions: where records of transactions go; None: nowhere.
        heartbeats: where heartbeats go; None: nowhere.
        heartbeat_s: how often.
        outbox: the table whose rows are events; empty: none.
        source_name: the source's, in heartbeats.
    """

    messages: str | None = None
    transactions: str | None = None
    heartbeats: str | None = None
    heartbeat_s: float = 0.0
    outbox: str = ""
    source_name: str = ""

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(one for one in (self.messages, self.transactions, self.heartbeats) if one)
