"""One blocking connection to a broker: frames out, frames in, answers matched to their requests."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from penstock.errors import ProtocolError, UserError

Part: TypeAlias = bytes | bytearray | memoryview

# An answer is allocated as its length says: more than any sensible fetch, less than would hurt.
RESPONSE_BYTES_MAX: Final = (1 << 30) + (1 << 20)
CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0  # as Kafka's own clients wait
DEFAULT_PORT: Final = 9092

API_VERSIONS: Final = 18
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")  # API, version, correlation, client id's length


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """The addresses in "host:port[,host:port]"; the port is 9092 where it is left out.

    Raises:
        UserError: it isn't of that form.

    >>> parse_bootstrap("kafka://a:1,[::1]:2,b")
    [('a', 1), ('::1', 2), ('b', 9092)]
    """
    addresses = []
    for item in text.removeprefix("kafka://").split(","):
        host, colon, port = item.strip().rpartition(":")
        if not colon or "]" in port:
            host, port = item.strip(), str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UserError(
                f"expected broker addresses as host:port[,host:port]; found {text!r}. "
                "Name a host and a port from 1 to 65535, for example 127.0.0.1:9092"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


class Connection:
    """A connection; not to be shared between threads.

    Requests may be sent ahead of their answers. Any exception but a timeout of `receive` leaves the
    connection unusable: close it.
    """

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        self.address = (host, port)
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._correlation = 0
        self._awaited: dict[int, bool] = {}  # correlation -> is the answer still wanted, in order
        self._arrived: dict[int, memoryview] = {}
        self._versions: dict[int, tuple[int, int]] | None = None
        self._socket = socket.create_connection(self.address, min(timeout_s, CONNECT_TIMEOUT_S))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout_s)

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket; answers that are under way are lost."""
        with contextlib.suppress(OSError):
            self._socket.close()
        self._awaited.clear()
        self._arrived.clear()

    @property
    def is_usable(self) -> bool:
        """Whether the socket is open."""
        return self._socket.fileno() >= 0

    def versions(self) -> dict[int, tuple[int, int]]:
        """The first and last version of each API that the broker serves (asked once)."""
        if self._versions is None:
            frame = self.receive(self.send(API_VERSIONS, 0, (), flexible=False))
            self._versions = _read_versions(frame)
        return self._versions

    def send(self, api: int, version: int, parts: Sequence[Part], *, flexible: bool) -> int:
        """Sends a request.

        Args:
            api: the API's key.
            version: its version.
            parts: the body, in pieces that are not copied.
            flexible: whether this version's messages have tagged fields.

        Returns:
            A number to `receive` the answer by.
        """
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        head = _HEADER.pack(api, version, self._correlation, len(self._client_id))
        head += self._client_id + (b"\0" if flexible else b"")
        size = len(head) + sum(len(part) for part in parts)
        self._send_all([_SIZE.pack(size) + head, *parts])
        self._awaited[self._correlation] = True
        return self._correlation

    def receive(self, correlation: int, timeout_s: float | None = None) -> memoryview:
        """The answer's frame, after its correlation id, in a buffer of its own.

        Raises:
            OSError: the connection broke, or nothing came in time.
            ProtocolError: an answer that nobody asked for, or one of an absurd size.
        """
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        while correlation not in self._arrived:
            self._receive_one()
        return self._arrived.pop(correlation)

    def discard(self, correlation: int) -> None:
        """Gives up an answer: it is dropped when it comes."""
        if self._arrived.pop(correlation, None) is None and correlation in self._awaited:
            self._awaited[correlation] = False

    def _receive_one(self) -> None:
        """Reads the next frame and keeps it if it is wanted."""
        size = _SIZE.unpack(self._read(4))[0]
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise ProtocolError(
                f"expected an answer of 4 to {RESPONSE_BYTES_MAX} bytes from {self.name}; found a "
                f"length of {size}. Is this the address of a Kafka broker (without TLS)?"
            )
        frame = self._read(size)
        correlation = _SIZE.unpack_from(frame)[0]
        expected = next(iter(self._awaited), None)
        if correlation != expected:
            raise ProtocolError(
                f"expected the answer to request {expected} from {self.name}; found one to "
                f"{correlation}. Reconnect; if it happens again, the broker is at fault"
            )
        if self._awaited.pop(correlation):
            self._arrived[correlation] = frame[4:]

    @property
    def name(self) -> str:
        """The address as text."""
        return f"{self.address[0]}:{self.address[1]}"

    def _read(self, size: int) -> memoryview:
        """Exactly this many bytes; a timeout within a frame breaks the connection."""
        view = np.empty(size, np.uint8).data  # unlike bytearray's, not cleared first
        at = 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if got == 0:
                raise ConnectionResetError(f"{self.name} closed the connection")
            at += got
        return view

    def _send_all(self, parts: list[Part]) -> None:
        """Writes all pieces without joining them."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        self._socket.settimeout(self._timeout_s)
        while views:
            sent = self._socket.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]


def _read_versions(frame: memoryview) -> dict[int, tuple[int, int]]:
    """Reads an ApiVersions answer, version 0."""
    try:
        error, count = struct.unpack_from(">hi", frame)
        if error or not 0 <= count <= len(frame):
            raise ProtocolError(
                f"expected a list of API versions; found error {error}, count {count}"
            )
        rows = (struct.unpack_from(">hhh", frame, 6 + 6 * i) for i in range(count))
        return {api: (low, high) for api, low, high in rows}
    except struct.error as e:
        raise ProtocolError(f"expected a whole list of API versions; found it cut: {e}") from e
