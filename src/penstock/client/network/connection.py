"""One blocking connection to a broker: frames out, frames in, answers matched to their requests."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeAlias

from penstock.client.network.login import log_in
from penstock.client.network.security import Security
from penstock.errors import BrokerError, ProtocolError
from penstock.wire.protocol import ApiKey

Part: TypeAlias = bytes | bytearray | memoryview

# An answer is allocated as its length says: more than any sensible fetch, less than would hurt.
RESPONSE_BYTES_MAX: Final = (1 << 30) + (1 << 20)
SMALL_BYTES: Final = 1 << 16  # of a frame: clearing so much costs less than loading NumPy
CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0  # as Kafka's own clients wait
REAUTHENTICATE_SHARE: Final = 0.85
"""Of a session's lifetime, after which a connection is not used again."""

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")  # API, version, correlation, client id's length
# What a peer that closes the connection during the handshake raises depends on the interpreter: up to Python
# 3.11.2 the error of one that has ended TLS properly (CPython's issue 95494).
_HUNG_UP: Final = ssl.SSLEOFError, ssl.SSLZeroReturnError


class HandshakeError(BrokerError):
    """The peer hung up during a TLS handshake: it dies, or speaks no TLS, as Kafka's and our own
    listeners without TLS do.
    """


class Aside(Protocol):
    """What else happens while a broker is waited for."""

    def filenos(self) -> Sequence[int]:
        """Descriptors; one becomes readable when there is something to attend to."""
        ...

    def attend(self) -> None:
        """Attends to all there is; may raise, which ends the wait."""
        ...


class Connection:
    """A connection; not to be shared between threads.

    Requests may be sent ahead of their answers. Any exception but a timeout of `receive` leaves the
    connection unusable: close it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float,
        security: Security | None = None,
    ) -> None:
        self.address = (host, port)
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._correlation = 0
        self._awaited: dict[int, bool] = {}  # correlation -> is the answer still wanted, in order
        self._arrived: dict[int, memoryview] = {}
        self._versions: dict[int, tuple[int, int]] | None = None
        self._socket: socket.socket = socket.create_connection(
            self.address, min(timeout_s, CONNECT_TIMEOUT_S)
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout_s)
        self._expires_s = float("inf")
        if security is not None:
            try:
                self._secure(security)
            except BaseException:
                self.close()
                raise

    def _secure(self, security: Security) -> None:
        """Encrypts the connection and logs in, as far as that is wanted."""
        if security.tls:
            try:
                self._socket = security.context().wrap_socket(
                    self._socket, server_hostname=self.address[0]
                )
            except ssl.SSLCertVerificationError as error:
                raise BrokerError(
                    f"expected a certificate of {self.name} that is trusted; found: "
                    f"{error.verify_message}. Name who has issued it: kafka+tls://…?ca=FILE"
                ) from None
            except ssl.SSLError as error:
                if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}:
                    raise BrokerError(
                        f"expected TLS at {self.name}; found another protocol ({error.reason}). "
                        "Is this the address of the listener with TLS?"
                    ) from None
                if not isinstance(error, _HUNG_UP):
                    raise
                raise self._hung_up() from None
            except (ConnectionError, EOFError):
                raise self._hung_up() from None
        if security.user is not None:
            lifetime_ms = log_in(self._ask, security, self.name)
            if lifetime_ms > 0:
                self._expires_s = time.monotonic() + lifetime_ms / 1000 * REAUTHENTICATE_SHARE

    def _hung_up(self) -> HandshakeError:
        return HandshakeError(
            f"expected TLS at {self.name}; found that it closes the connection. Is this the address "
            "of the listener with TLS?",
            retriable=True,
        )

    def _ask(self, api: ApiKey, version: int, body: bytes) -> memoryview:
        return self.receive(self.send(api, version, [body], flexible=False))

    def fileno(self) -> int:
        """The socket's descriptor, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket; answers that are under way are lost."""
        with contextlib.suppress(OSError):
            self._socket.close()
        self._awaited.clear()
        self._arrived.clear()

    def interrupt(self) -> None:
        """Ends what another thread waits for here: that raises OSError. From any thread."""
        with contextlib.suppress(OSError):
            # TLS's own `shutdown` would take the state that the other thread reads by.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @property
    def is_usable(self) -> bool:
        """Whether the socket is open, and its session does not end soon (or an answer is due)."""
        is_current = bool(self._awaited) or time.monotonic() < self._expires_s
        return self._socket.fileno() >= 0 and is_current

    def versions(self) -> dict[int, tuple[int, int]]:
        """The first and last version of each API that the broker serves (asked once)."""
        if self._versions is None:
            frame = self.receive(self.send(ApiKey.API_VERSIONS, 0, (), flexible=False))
            self._versions = _read_versions(frame)
        return self._versions

    def send(self, api: ApiKey, version: int, parts: Sequence[Part], *, flexible: bool) -> int:
        """Sends a request.

        Args:
            api: which.
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
            ProtocolError: an answer without a request, or one of an absurd size.
        """
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        while correlation not in self._arrived:
            self._receive_one()
        return self._arrived.pop(correlation)

    def has(self, correlation: int) -> bool:
        """Whether an answer is there; takes in what has come, and waits for nothing else.

        Raises:
            OSError, ProtocolError: as `receive`.
        """
        while correlation not in self._arrived and self._has_come:
            self._receive_one()
        return correlation in self._arrived

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is due, and the peer hasn't closed the connection as far as is known."""
        return not self._awaited and not self._has_come

    @property
    def _has_come(self) -> bool:
        """Whether there is something to read, be it the end."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

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
                f"length of {size}. Is this the address of a Kafka broker, and does it want TLS "
                "(kafka+tls://…)?"
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
        view = _memory(size)
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
            sent = (
                self._socket.send(views[0])
                if isinstance(self._socket, ssl.SSLSocket)
                else self._socket.sendmsg(views)
            )
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]


def wait_for_any(
    connections: Collection[Connection], timeout_s: float, aside: Aside | None = None
) -> list[Connection]:
    """The connections that have something to read, as soon as there are any; none after so long.

    Args:
        connections: to wait for.
        timeout_s: how long.
        aside: what is attended to meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    by_fileno = {one.fileno(): one for one in connections}
    while True:
        poll = select.poll()
        for fileno in (*by_fileno, *(aside.filenos() if aside is not None else ())):
            poll.register(fileno, select.POLLIN)
        rest_s = max(deadline - time.monotonic(), 0.0)
        events = [fileno for fileno, _ in poll.poll(1_000 * rest_s)]
        ready = [by_fileno[fileno] for fileno in events if fileno in by_fileno]
        if ready or not events or not rest_s or aside is None:
            return ready
        aside.attend()


def _memory(size: int) -> memoryview:
    """Memory for a frame. A large one is not cleared first; only that needs NumPy."""
    if size < SMALL_BYTES:
        return memoryview(bytearray(size))
    import numpy as np

    return np.empty(size, np.uint8).data


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
