"""Accepts the connections of a listener with TLS, and counts them before their handshake.

asyncio's own server reports a connection only after its handshake has succeeded; connections before
that would not be counted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from penstock.broker.listeners import Listener
from penstock.broker.protocol.connection import Connection
from penstock.broker.protocol.connections import Connections

__all__ = ["Acceptor"]

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""
PAUSE_S: Final = 0.1
"""How long to wait where the system has no descriptor to give."""

_log = logging.getLogger(__name__)


class Acceptor:
    """A listening socket and the task that accepts from it.

    Raises:
        OSError: the address can't be bound.
    """

    def __init__(self, connections: Connections[Connection], listener: Listener) -> None:
        self._connections = connections
        self._listener = listener
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        address = (listener.host, listener.port)
        self._socket = socket.create_server(address, family=family, backlog=BACKLOG)
        self._socket.settimeout(0)
        self.sockets = (self._socket,)
        self._task = connections.loop.create_task(self._accept())

    async def _accept(self) -> None:
        loop = self._connections.loop
        while True:
            try:
                raw, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                _log.warning("did not accept a connection: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Connection(self._connections, self._listener).secure(raw)

    def close(self) -> None:
        """Accepts nothing more."""
        self._task.cancel()
        self._connections.loop.remove_reader(self._socket)
        self._socket.close()
