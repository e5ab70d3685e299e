"""What the connections of a broker share: who lets them in and answers them, and what they take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from penstock.broker.limits import CONNECTIONS_MAX, RECEIVE_BYTES_TOTAL_MAX
from penstock.broker.protocol.requests import Requests
from penstock.broker.security.guard import Guard, Guarded

__all__ = ["Connections"]

_log = logging.getLogger(__name__)


class Member(Guarded, Protocol):
    """An open connection, as the others see it."""

    @property
    def buffer_bytes(self) -> int:
        """What its receive buffer takes."""
        ...

    @property
    def last_active_s(self) -> float:
        """When its last request came."""
        ...


C = TypeVar("C", bound=Member)


class Connections(Generic[C]):
    """The open connections.

    Args:
        loop: what they live in.
        guard: who decides which may enter.
        requests: where they are counted.
        handle: answers a request of a connection (a frame without its length). Raises ProtocolError
            where the connection is to be closed.

    Attributes:
        receive_bytes: what their receive buffers take.
        count_max: how many there may be.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Guard,
        requests: Requests,
        handle: Callable[[C, memoryview], None],
    ) -> None:
        self.loop = loop
        self.guard = guard
        self.requests = requests
        self.handle = handle
        self.receive_bytes = 0
        self.count_max = CONNECTIONS_MAX
        self._open: set[C] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._open))

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    def enter(self, connection: C) -> str | None:
        """Gives a connection a place; returns the reason if there is none."""
        if len(self._open) >= self.count_max:
            return f"expected at most {self.count_max} connections"
        fault = self.guard.enter(connection)
        if fault is None:
            self._open.add(connection)
            self.requests.connections_opened += 1
            self.receive_bytes += connection.buffer_bytes
        return fault

    def leave(self, connection: C) -> None:
        """Takes its place back, if it has one."""
        if connection in self._open:
            self._open.discard(connection)
            self.receive_bytes -= connection.buffer_bytes
            self.guard.leave(connection)

    def take_bytes(self, size: int, at_rest: int) -> None:
        """A receive buffer has grown. Where all take too much, those are closed that have taken
        longest over a request that is large: a client sends its own in seconds, an attacker lets
        them lie.

        Args:
            size: by how many bytes.
            at_rest: the size of a buffer that holds no large request.
        """
        self.receive_bytes += size
        if self.receive_bytes <= RECEIVE_BYTES_TOTAL_MAX:
            return
        large = [one for one in self._open if one.buffer_bytes > at_rest]
        for one in sorted(large, key=lambda one: one.last_active_s):
            if self.receive_bytes <= RECEIVE_BYTES_TOTAL_MAX:
                break
            _log.warning(
                "closed %s: expected at most %d bytes of unfinished requests over all connections",
                one.peer,
                RECEIVE_BYTES_TOTAL_MAX,
            )
            one.close()
