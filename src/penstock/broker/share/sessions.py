"""Share sessions: what a member fetches from, kept between its requests (KIP-932).

A session begins with epoch 0, continues with 1, 2, ... and ends with -1. It belongs to a connection
and ends with it. When it ends, what its member has acquired is given back: then, or when a lock
ends, and not when the member leaves its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.wire.protocol import ErrorCode

__all__ = ["Session", "Sessions"]

SESSIONS_MAX: Final = 2_000
"""Most sessions, Kafka's group.share.max.share.sessions."""
PARTITIONS_MAX: Final = 10_000
"""Most partitions of a session."""
FINAL: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class Session:
    """One member's session.

    Attributes:
        partitions: (topic id, index), the next to be served first.
        faults: of these, as last reported to the member.
    """

    group: str
    member: str
    connection: Any
    epoch: int = 0
    partitions: dict[tuple[bytes, int], None] = field(default_factory=dict)
    faults: dict[tuple[bytes, int], ErrorCode] = field(default_factory=dict)

    def rotate(self) -> None:
        """Lets another partition be the first next time."""
        if len(self.partitions) > 1:
            first = next(iter(self.partitions))
            del self.partitions[first]
            self.partitions[first] = None


class Sessions:
    """All sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group: str, member: str, connection: Any) -> Session | ErrorCode:
        """A new session, in place of one that the member had; the caller ends that one first."""
        if len(self._sessions) >= SESSIONS_MAX and (group, member) not in self._sessions:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = self._sessions[group, member] = Session(group, member, connection)
        session.epoch = 1
        return session

    def get(self, group: str, member: str) -> Session | None:
        """The session of a member."""
        return self._sessions.get((group, member))

    def next(self, group: str, member: str, epoch: int, connection: Any) -> Session | ErrorCode:
        """The session that a request continues with (or ends, with epoch -1)."""
        session = self._sessions.get((group, member))
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL:
            return session
        if epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch = epoch + 1 if epoch < _EPOCH_MAX else 1
        session.connection = connection
        return session

    def end(self, session: Session) -> None:
        """Forgets a session."""
        if self._sessions.get((session.group, session.member)) is session:
            del self._sessions[session.group, session.member]
