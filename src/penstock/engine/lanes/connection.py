"""A connection between a driver and a lane: authenticated both ways, then frames.

The side that connects gets a nonce, answers it with an HMAC over the secret and sends a nonce of its own,
which is answered likewise. The secret itself never travels; it comes to the lanes in the closure that
Spark carries.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import threading
from typing import Final

from penstock.engine.lanes.messages import Frames, Message, frame
from penstock.errors import PenstockError

__all__ = ["Connection", "accept", "connect", "proof"]

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HANDSHAKE_S: Final = 10.0
"""How long a connection may take to say who it is."""


class Connection:
    """Frames over a blocking socket. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._frames = Frames()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        """Sends a message without a blob.

        Raises:
            OSError: the other side is gone.
        """
        data = frame(message)
        with self._sending:
            self.sock.sendall(data)

    def receive(self) -> Message:
        """The next message.

        Raises:
            EOFError: the other side has closed.
            OSError: it is gone, or took longer than the socket's timeout.
        """
        while True:
            found = self._frames.filled(self._received())
            if found is not None:
                return found[0]

    def is_closed(self) -> bool:
        """Whether the other side is gone, as far as it is known before anything is received."""
        looking = select.poll()
        looking.register(self.sock, select.POLLIN)
        try:
            return bool(looking.poll(0)) and not self.sock.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close(self) -> None:
        """Closes the socket; does it twice without harm."""
        self.sock.close()

    def _received(self) -> int:
        count = self.sock.recv_into(self._frames.space())
        if not count:
            raise EOFError("expected a message; found the connection closed")
        return count


def accept(sock: socket.socket, secret: bytes) -> Connection:
    """Proves the secret to the peer that has connected, and requires the same of it.

    Raises:
        PenstockError: the other side doesn't know the secret.
        OSError: it is gone, or too slow.
    """
    _prepare(sock)
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine)
    theirs = _exactly(sock, NONCE_BYTES)
    if not hmac.compare_digest(_exactly(sock, PROOF_BYTES), proof(secret, b"lane", mine, theirs)):
        raise PenstockError("expected a lane of this run; found a connection without its secret")
    sock.sendall(proof(secret, b"driver", theirs, mine))
    return _ready(sock)


def connect(address: tuple[str, int], secret: bytes) -> Connection:
    """Connects to the driver. Raises what `accept` raises."""
    sock = socket.create_connection(address, timeout=HANDSHAKE_S)
    try:
        _prepare(sock)
        theirs = _exactly(sock, NONCE_BYTES)
        mine = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(mine + proof(secret, b"lane", theirs, mine))
        answer = _exactly(sock, PROOF_BYTES)
        if not hmac.compare_digest(answer, proof(secret, b"driver", mine, theirs)):
            raise PenstockError(f"expected this run's driver at {address}; found another program")
    except BaseException:
        sock.close()
        raise
    return _ready(sock)


def proof(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """What only who knows the secret can compute of these parts."""
    return hmac.digest(secret, role + b"".join(parts), "sha256")


def _prepare(sock: socket.socket) -> None:
    sock.settimeout(HANDSHAKE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ready(sock: socket.socket) -> Connection:
    sock.settimeout(None)
    return Connection(sock)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("expected a handshake; found the connection closed")
        data += piece
    return bytes(data)
