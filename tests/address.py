"""A port that leads to a server: to another one from some time on, or to one that says nothing any more."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Self


class Address:
    """A port that leads to a server; a context manager.

    Args:
        behind: the server's port; one that is set later counts for connections from then on.
    """

    def __init__(self, behind: int) -> None:
        self.port_behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._count = self._silent = 0

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def vanish(self, *, also_later: bool = False) -> None:
        """The server behind the connections that there are vanishes: nothing comes through them any more,
        also not that they end. Later ones are as before, or vanish as well.
        """
        self._silent = sys.maxsize if also_later else self._count

    def _begin(self, what: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.port_behind))
                except OSError:  # nothing is there now
                    near.close()
                    continue
                self._ends += [near, far]
                self._count += 1
                self._begin(self._pass_on, near, far, self._count)
                self._begin(self._pass_on, far, near, self._count)

    def _pass_on(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if number > self._silent:
                    sink.sendall(data)
        if number > self._silent:
            with contextlib.suppress(OSError):  # also where the other end has reset the connection
                sink.shutdown(socket.SHUT_RDWR)
