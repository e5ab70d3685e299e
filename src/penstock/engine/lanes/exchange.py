"""How lanes hand each other parcels, level by level: straight from lane to lane, nothing by the driver.

Each lane listens; who has something to send connects. One thread does it all: while a lane waits for the
others it sends, receives and listens to its driver at once, so two lanes that send each other more than
sockets hold don't wait for each other. What a lane sends to itself is handed on as it is.

A level ends when every other lane has said so. Parcels come in any order; who takes them sorts them by
origin.
"""

from __future__ import annotations

import hmac
import selectors
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.engine.lanes.connection import proof
from penstock.engine.lanes.messages import Frames, LevelEnd, Parcel, Peer, frame
from penstock.engine.tasks import Handed
from penstock.errors import PenstockError

__all__ = ["Exchange"]

BACKLOG: Final = 128
PIECES_AT_ONCE: Final = 64  # of one sendmsg: below every system's IOV_MAX
CONNECT_S: Final = 10.0
BUFFER_BYTES: Final = 4 << 20
"""Of a socket, each way: fewer turns of the loop for large parcels (the system may give less)."""


@dataclass
class _Level:
    """What has arrived of a level so far."""

    handed: list[Handed] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)


class Exchange:
    """A lane's end of the exchange.

    Args:
        lane: its number, of `lanes`.
        host: to listen at.
        secret: of this run.
        is_called: readable when the driver has something to say; `on_call` then reads it, and may raise.
    """

    def __init__(
        self,
        lane: int,
        lanes: int,
        host: str,
        secret: bytes,
        is_called: Any,
        on_call: Callable[[], None],
    ) -> None:
        self.lane, self.lanes = lane, lanes
        self._secret, self._on_call = secret, on_call
        self._listener = socket.create_server((host, 0), backlog=BACKLOG)
        self._listener.settimeout(0.0)
        self.host, self.port = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(is_called, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._outgoing: dict[int, _Outgoing] = {}
        self._ticket = 0
        self._levels: dict[tuple[int, int], _Level] = defaultdict(_Level)

    def begin(self, ticket: int, peers: Iterable[tuple[str, int]]) -> None:
        """Forgets what belongs to older attempts, and takes note of where the lanes are now."""
        self._ticket = ticket
        for key in [key for key in self._levels if key[0] < ticket]:
            del self._levels[key]
        for lane, address in enumerate(peers):
            known = self._outgoing.get(lane)
            if known is not None and (known.address != address or known.has_unsent):
                known.close(self._selector)
                known = None
            if known is None and lane != self.lane:
                self._outgoing[lane] = _Outgoing(address)

    def swap(
        self, level: int, parcels: Iterable[tuple[int, Handed, Callable[[], bytes]]]
    ) -> list[Handed]:
        """Sends a level's parcels and its end; what the other lanes, and this one, sent here.

        Args:
            level: its number.
            parcels: each with the lane that it is for, and what gives its bytes.

        Raises:
            OSError: a lane is gone. The driver hears of it as well.
        """
        arrived = self._levels[self._ticket, level]
        for lane, handed, data in parcels:
            if lane == self.lane:
                arrived.handed.append(handed)
                continue
            blob = data()
            head = Parcel(
                self._ticket, level, handed.operator, handed.port, handed.shard, handed.origin
            )
            self._to(lane).queue(frame(head, len(blob)), blob)
        for lane in range(self.lanes):
            if lane != self.lane:
                self._to(lane).queue(frame(LevelEnd(self._ticket, level, self.lane)))
                self._flush(self._to(lane))
        while len(arrived.ended) < self.lanes - 1 or any(
            out.has_unsent for out in self._outgoing.values()
        ):
            self._turn()
        del self._levels[self._ticket, level]
        return arrived.handed

    def close(self) -> None:
        """Closes all sockets."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        for out in self._outgoing.values():
            out.close(self._selector)
        self._selector.close()

    def _to(self, lane: int) -> _Outgoing:
        out = self._outgoing[lane]
        if out.sock is None:
            out.connect()
            address = f"{out.address[0]}:{out.address[1]}".encode()
            out.queue(frame(Peer(self.lane, proof(self._secret, b"peer", address).hex())))
        return out

    def _turn(self) -> None:
        """Waits until something can be sent, received or heard, and does it."""
        for key, _ in self._selector.select():
            if key.data is None:
                self._on_call()
            else:
                key.data()

    def _flush(self, out: _Outgoing) -> None:
        """Sends what the socket takes; watches it while there is more."""
        out.send()
        assert out.sock is not None
        watched = out.sock in self._selector.get_map()
        if out.has_unsent and not watched:
            self._selector.register(out.sock, selectors.EVENT_WRITE, lambda: self._flush(out))
        elif watched and not out.has_unsent:
            self._selector.unregister(out.sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the peer has disconnected
            return
        sock.settimeout(0.0)
        _enlarge(sock)
        incoming = _Incoming(sock)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._read(incoming))

    def _read(self, incoming: _Incoming) -> None:
        try:
            while (found := incoming.received()) is not None:
                self._take(incoming, *found)
        except BlockingIOError:
            return
        except (OSError, EOFError, PenstockError):
            # A lane that is lost is the driver's business; a stranger's loss doesn't matter.
            self._selector.unregister(incoming.sock)
            incoming.sock.close()

    def _take(self, incoming: _Incoming, message: object, blob: memoryview) -> None:
        if not incoming.frames.is_known:
            address = f"{self.host}:{self.port}".encode()
            wanted = proof(self._secret, b"peer", address).hex()
            if not isinstance(message, Peer) or not hmac.compare_digest(message.proof, wanted):
                raise PenstockError("expected a lane of this run; found a stranger")
            incoming.frames.is_known = True
            return
        match message:
            case Parcel(ticket, level, operator, port, shard, origin) if ticket >= self._ticket:
                handed = Handed(operator, port, shard, origin, blob)
                self._levels[ticket, level].handed.append(handed)
            case LevelEnd(ticket, level, lane) if ticket >= self._ticket:
                self._levels[ticket, level].ended.add(lane)
            case _:
                pass  # of an attempt that was given up


class _Outgoing:
    """What is being sent to one lane."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.sock: socket.socket | None = None
        self._pieces: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        return bool(self._pieces)

    def connect(self) -> None:
        self.sock = socket.create_connection(self.address, timeout=CONNECT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _enlarge(self.sock)
        self.sock.settimeout(0.0)

    def queue(self, *pieces: bytes) -> None:
        self._pieces.extend(memoryview(piece) for piece in pieces if piece)

    def send(self) -> None:
        """Sends what the socket takes."""
        assert self.sock is not None
        while self._pieces:
            some = [self._pieces[i] for i in range(min(len(self._pieces), PIECES_AT_ONCE))]
            try:
                sent = self.sock.sendmsg(some)
            except BlockingIOError:
                return
            while sent:
                piece = self._pieces.popleft()
                if sent < len(piece):
                    self._pieces.appendleft(piece[sent:])
                    break
                sent -= len(piece)

    def close(self, selector: selectors.BaseSelector) -> None:
        self._pieces.clear()
        if self.sock is not None:
            if self.sock.fileno() >= 0 and self.sock in selector.get_map():
                selector.unregister(self.sock)
            self.sock.close()
            self.sock = None


class _Incoming:
    """What is being received from one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = Frames(is_known=False)

    def received(self) -> tuple[object, memoryview] | None:
        """The next message. Raises BlockingIOError where it isn't there yet, EOFError at the end."""
        while True:
            count = self.sock.recv_into(self.frames.space())
            if not count:
                raise EOFError
            found = self.frames.filled(count)
            if found is not None:
                return found


def _enlarge(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
