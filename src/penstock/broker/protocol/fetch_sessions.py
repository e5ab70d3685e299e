"""Fetch sessions (KIP-227): the broker remembers what a client reads, so that a request names only
what has changed, and an answer only what there is to say.

Invariant (see `check`): at most `SESSIONS_MAX` sessions with `PARTITIONS_MAX` partitions in all; a
session has at least one partition. A session is only a convenience: who finds that the broker has
forgotten it begins a new one. One that was not used for `IDLE_S` makes room for another; while all
are in use, newcomers do without. The clock and the ids are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from penstock.wire.protocol import ErrorCode

__all__ = ["FINAL_EPOCH", "INITIAL_EPOCH", "FetchSessions", "Key", "Session"]

SESSIONS_MAX: Final = 1_000
"""Kafka's max.incremental.fetch.session.cache.slots."""
PARTITIONS_MAX: Final = 100_000
"""Partitions of all sessions; each takes some 300 bytes."""
IDLE_S: Final = 120.0
"""As Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS."""
FINAL_EPOCH: Final = -1
"""The epoch of a request that wants no session, or ends the one it names."""
INITIAL_EPOCH: Final = 0
"""The epoch of a request that begins a session."""
_EPOCHS: Final = (1 << 31) - 1

Key = tuple[bytes, int]
"""A topic's name or id, as requests have it, and a partition's number."""
T = TypeVar("T")


@dataclass(slots=True)
class Session(Generic[T]):
    """What one client reads.

    Attributes:
        id: as the client names it.
        form: how topics are named in it; requests must name them so.
        parts: what is wanted of each partition; the one that was served last comes last.
        epoch: of the next request.
        used_s: when it was last used.
    """

    id: int
    form: int
    parts: dict[Key, T]
    used_s: float
    epoch: int = 1

    def topics(self) -> list[tuple[bytes, list[T]]]:
        """What is wanted, as requests have it."""
        found: list[tuple[bytes, list[T]]] = []
        for (name, _), wanted in self.parts.items():
            if not found or found[-1][0] != name:
                found.append((name, []))
            found[-1][1].append(wanted)
        return found

    def served(self, keys: Iterable[Key]) -> None:
        """These partitions got records: the others have precedence next time."""
        for key in keys:
            if key in self.parts:
                self.parts[key] = self.parts.pop(key)


@dataclass(slots=True)
class FetchSessions(Generic[T]):
    """All sessions, the one that was used last at the end.

    Attributes:
        new_id: makes an id from 1 to 2**31 - 1 that can't be guessed.
    """

    new_id: Callable[[], int]
    partition_count: int = 0
    _sessions: dict[int, Session[T]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session[T]]:
        return iter(self._sessions.values())

    def get(self, number: int) -> Session[T] | None:
        """The session of that number."""
        return self._sessions.get(number)

    def begin(self, now_s: float, form: int, parts: dict[Key, T]) -> Session[T] | None:
        """A new session; None where there is no room, or nothing to remember."""
        if not parts or len(parts) > PARTITIONS_MAX or not self._make_room(now_s, len(parts)):
            return None
        number = self.new_id()
        while number in self._sessions:
            number = self.new_id()
        session = self._sessions[number] = Session(number, form, parts, now_s)
        self.partition_count += len(parts)
        return session

    def _make_room(self, now_s: float, parts: int) -> bool:
        while len(self._sessions) >= SESSIONS_MAX or self.partition_count + parts > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_s < IDLE_S:
                return False
            self.end(oldest.id)
        return True

    def go_on(
        self,
        now_s: float,
        number: int,
        epoch: int,
        form: int,
        changed: dict[Key, T],
        forgotten: Collection[Key],
    ) -> Session[T] | ErrorCode:
        """The session as a request changes it, or why it can't be continued with. It is over where
        nothing is left in it.
        """
        session = self._sessions.get(number)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.form != form:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        before = len(session.parts)
        more = sum(key not in session.parts for key in changed)
        if self.partition_count + more > PARTITIONS_MAX:
            self.end(number)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.parts.update(changed)
        for key in forgotten:
            session.parts.pop(key, None)
        self.partition_count += len(session.parts) - before
        session.epoch = session.epoch % _EPOCHS + 1
        session.used_s = now_s
        self._sessions[number] = self._sessions.pop(number)
        if not session.parts:
            self.end(number)
        return session

    def end(self, number: int) -> None:
        """Forgets a session, if there is one."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.partition_count -= len(session.parts)

    def check(self) -> None:
        """Asserts the invariant."""
        assert len(self._sessions) <= SESSIONS_MAX
        assert self.partition_count == sum(len(one.parts) for one in self._sessions.values())
        assert self.partition_count <= PARTITIONS_MAX
        assert all(one.parts and 1 <= one.epoch <= _EPOCHS for one in self._sessions.values())
        used = [one.used_s for one in self._sessions.values()]
        assert used == sorted(used)
