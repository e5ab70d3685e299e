"""One client's connection: frames in, answers out in the order of the requests, bounded memory.

A frame is a 32-bit length and that many bytes. The receive buffer grows as bytes arrive, not as a
length promises. A connection is not read from while its reader is slow, while a request of it
blocks (a long poll, a join), or while too many of its requests await their answer; the peer's TCP
window then fills up. So a connection's memory is its receive buffer and one answer.

A client that is not authenticated yet (TLS, SASL) gets small frames and little time. The TLS handshake
happens here, on a connection that is already counted, so one that never ends takes one place for some
seconds. Encrypted data is handed over in pieces as the reader takes them; otherwise an answer from
mapped files would be copied to memory as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, Final

from penstock.broker.limits import FRAME_BYTES_MAX, IN_FLIGHT_MAX, WRITE_BYTES_MAX
from penstock.broker.listeners import Listener
from penstock.broker.protocol.connections import Connections
from penstock.broker.protocol.requests import Requests
from penstock.broker.security.guard import Verdicts
from penstock.broker.security.metering import Meter
from penstock.broker.security.model import ANONYMOUS
from penstock.broker.security.sasl import AUTHENTICATION_S_MAX, UNAUTHENTICATED_FRAME_BYTES_MAX
from penstock.broker.security.tls import principal_of
from penstock.errors import ProtocolError
from penstock.wire.batches import Buffer

__all__ = ["Connection", "Slot"]

BUFFER_BYTES: Final = 4 << 10
"""A receive buffer at rest: thousands of idle connections take little."""
BUFFER_BYTES_BUSY: Final = 64 << 10
"""A receive buffer once a read has filled it."""
TLS_PIECE_BYTES: Final = 128 << 10
"""How much is encrypted at a time; eight of TLS's records."""
TLS_WRITE_BYTES_MAX: Final = 256 << 10
"""Encrypted but unsent bytes of a connection from which on nothing more is encrypted."""
HANDSHAKE_S_MAX: Final = 10.0
"""How long a TLS handshake may take."""
FAREWELL_S_MAX: Final = 5.0
"""How long the last answer of a connection that is being closed may take to be sent."""
TOGETHER_BYTES_MAX: Final = 4 << 10
"""Largest answer that waits for those of the requests that arrived with its own, at most
`IN_FLIGHT_MAX` of them: one system call then sends all."""
TOGETHER_S_MAX: Final = 0.0001
"""How long it may wait for them: a client that has a few requests under way does its part while the
broker does the rest, so that neither waits for the other."""
SLICE_S: Final = 0.005
"""How long the requests of one connection are served at a stretch; then it is others' turn. Thousands
of requests may lie in one receive buffer."""
HEADER_BYTES_MIN: Final = 8
"""Least bytes of a request: API key, version, correlation id."""

_LENGTH = struct.Struct(">i")
_log = logging.getLogger(__name__)


class Slot:
    """A place in the order of a connection's answers."""

    __slots__ = ("_connection", "_meter", "_requests", "answer", "api_key", "began_s")

    def __init__(self, connection: Connection, requests: Requests) -> None:
        self._connection = connection
        self._requests = requests
        self.api_key = requests.key
        self.began_s = perf_counter()
        self._meter = connection.meter
        self.answer: Sequence[Buffer] | None = None

    def send(self, answer: Sequence[Buffer]) -> None:
        """Sends the answer (a whole frame, in parts; empty: none is due) when its turn comes."""
        assert self.answer is None
        if self._meter is not None:
            self._connection.settle(self._meter, answer)
        self.answer = answer
        self._requests.answered(self.api_key, self.began_s)
        self._connection.flush()


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, connections: Connections[Connection], listener: Listener) -> None:
        self._connections = connections
        self._loop = connections.loop
        self._requests = connections.requests
        self.listener = listener
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        self._end = 0
        self._is_filled = False
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._slots: deque[Slot] = deque()
        self._outbox: deque[memoryview] = deque()  # with TLS alone
        self._task: asyncio.Task[None] | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._is_writable = True
        self._is_reading = True
        self._is_pumping = False
        self._is_waiting = False
        self._is_finishing = False
        self._is_secured = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""
        self.client_host = ""
        self.principal = ANONYMOUS
        self.session = connections.guard.session(listener)
        self.meter: Meter | None = None
        """Of the request that is being served, where there are quotas."""
        self._muted_until_s = 0.0
        self._mute_timer: asyncio.TimerHandle | None = None
        self.verdicts = Verdicts()
        self.local_host = ""
        self.last_active_s = self._loop.time()

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to serve."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment] # asserted above
        assert self._transport is not None
        if self.listener.protocol.has_tls:  # it has entered, and is encrypted by now
            self._handshake = None
            self._is_secured = True
            self._transport.set_write_buffer_limits(high=TLS_WRITE_BYTES_MAX)
            if self.session is None:
                self._trust_certificate(transport.get_extra_info("ssl_object"))
            return
        name, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not self._enter(name, local):
            self.close()
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)

    def secure(self, raw: socket.socket) -> None:
        """Begins with a TLS handshake; `connection_made` follows."""
        try:
            name, local = raw.getpeername(), raw.getsockname()
        except OSError:  # it is gone already
            raw.close()
            return
        if not self._enter(name, local):
            raw.close()
            return
        self._handshake = self._loop.create_task(self._secure(raw))

    async def _secure(self, raw: socket.socket) -> None:
        tls, is_mutual = self._connections.guard.tls, not self.listener.protocol.has_sasl
        assert tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self,
                raw,
                ssl=tls.mutual if is_mutual else tls.plain,
                ssl_handshake_timeout=HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=FAREWELL_S_MAX,
            )
        except (OSError, asyncio.CancelledError) as error:  # TLS's errors are OSErrors
            reason = "that it gave way" if isinstance(error, asyncio.CancelledError) else error
            _log.info("closed %s: expected a TLS handshake; found: %s", self.peer, reason)
            self.connection_lost(None)

    def _trust_certificate(self, encrypted: ssl.SSLObject) -> None:
        try:
            self.trust(principal_of(encrypted))
        except ProtocolError as error:
            _log.warning("closed %s: %s", self.peer, error)
            self.close()

    def _enter(self, name: tuple[str, int] | None, local: tuple[str, int] | None) -> bool:
        """Takes a place among the connections; False where there is none."""
        protocol = self.listener.protocol
        self.local_host = local[0] if local else ""
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self.client_host = name[0] if name else ""
        fault = self._connections.enter(self)
        if fault is not None:
            _log.warning("closed %s: %s", self.peer, fault)
            return False
        if protocol.has_tls or protocol.has_sasl:
            self._frame_bytes_max = UNAUTHENTICATED_FRAME_BYTES_MAX
            self._timer = self._loop.call_later(AUTHENTICATION_S_MAX, self._give_up)
        return True

    def _give_up(self) -> None:
        _log.info("closed %s: expected to know who it is by now", self.peer)
        self.close()

    def trust(self, principal: str) -> None:
        """The connection has said who it is, and proven it."""
        self.principal = principal
        self._frame_bytes_max = FRAME_BYTES_MAX
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connections.guard.trust(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Forgets everything."""
        self._transport = None
        self._connections.leave(self)
        self._slots.clear()
        self._outbox.clear()
        for timer in (self._timer, self._mute_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            # Not at once: a task that is cancelled before its first step drops its coroutines unrun.
            self._loop.call_soon(self._task.cancel)

    def pause_writing(self) -> None:
        """The reader is slow."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The reader has caught up."""
        self._is_writable = True
        self._drain()
        self._pump()

    def get_buffer(self, _: int) -> memoryview:
        """Room for the next bytes: at least one byte."""
        held = self._end - self._start
        if self._start and (held == 0 or self._end == len(self._buffer)):
            with memoryview(self._buffer) as whole:  # a slice of the buffer itself would be a copy
                whole[:held] = whole[self._start : self._end]
            self._start, self._end = 0, held
        if self._is_filled and len(self._buffer) < BUFFER_BYTES_BUSY:
            self._grow(BUFFER_BYTES_BUSY)
        elif self._end == len(self._buffer):
            self._grow(2 * len(self._buffer))
        self._is_filled = False
        return memoryview(self._buffer)[self._end :]

    def _grow(self, size: int) -> None:
        size = min(size, FRAME_BYTES_MAX + BUFFER_BYTES)
        assert size > self._end
        held = memoryview(self._buffer)[self._start : self._end]
        larger = bytearray(size)
        larger[: len(held)] = held
        grown = size - len(self._buffer)
        self._buffer, self._start, self._end = larger, 0, len(held)
        self._connections.take_bytes(grown, BUFFER_BYTES_BUSY)

    @property
    def buffer_bytes(self) -> int:
        """What the receive buffer takes."""
        return len(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        """Serves what has arrived."""
        self._end += nbytes
        self._is_filled = self._end == len(self._buffer)
        self._pump()

    def eof_received(self) -> bool:
        """The peer is done; so is the connection."""
        return False

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _may_serve(self) -> bool:
        return (
            self._is_writable
            and self._task is None
            and len(self._slots) < IN_FLIGHT_MAX
            and not self._outbox
            and not self._is_finishing
            and self._mute_timer is None
            and self._transport is not None
        )

    def _pump(self) -> None:
        """Serves whole frames while it may, and while it is its turn."""
        if self._is_pumping or self._is_waiting:
            return
        self._is_pumping = True
        until_s = perf_counter() + SLICE_S
        try:
            while True:
                while self._may_serve:
                    frame = self._next_frame()
                    if frame is None:
                        break
                    self.last_active_s = self._loop.time()
                    self._connections.handle(self, frame)
                    if perf_counter() >= until_s:
                        self._is_waiting = True
                        self._loop.call_soon(self._take_turn)
                        break
                if not self._send_ready() or self._is_waiting:
                    break
        except Exception as error:  # noqa: BLE001 - one request must not end the others
            self._fail(error)
        finally:
            self._is_pumping = False
        self._regulate()

    def _fail(self, error: Exception) -> None:
        """Ends the connection of a request that can't be answered."""
        if isinstance(error, ProtocolError):
            _log.warning("closed %s: %s", self.peer, error)
        else:
            _log.error("closed %s: a request failed unexpectedly", self.peer, exc_info=error)
        self.close()

    def _take_turn(self) -> None:
        self._is_waiting = False
        self._pump()

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not HEADER_BYTES_MIN <= size <= self._frame_bytes_max:
            raise ProtocolError(
                f"expected a request of {HEADER_BYTES_MIN} to {self._frame_bytes_max} bytes; found "
                f"a length of {size}; the peer does not speak Kafka's protocol, sends too much, or "
                "is not configured to log in"
            )
        if held < _LENGTH.size + size:
            return None
        self._requests.bytes_in += size
        begin = self._start + _LENGTH.size
        self._start = begin + size
        return memoryview(self._buffer)[begin : begin + size]

    def _regulate(self) -> None:
        """Reads on only when what it reads can be served."""
        if self._transport is None:
            return
        may_go_on = self._may_serve and not self._is_waiting
        wanted = may_go_on or self._end - self._start < BUFFER_BYTES_BUSY // 2
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def rest(self) -> None:
        """Gives a large, empty receive buffer back."""
        if self._start == self._end and len(self._buffer) > BUFFER_BYTES:
            self._connections.receive_bytes -= len(self._buffer) - BUFFER_BYTES
            self._buffer, self._start, self._end = bytearray(BUFFER_BYTES), 0, 0

    # -- answers -----------------------------------------------------------------------------------

    def slot(self) -> Slot:
        """The next place in the order of answers."""
        slot = Slot(self, self._requests)
        self._slots.append(slot)
        return slot

    def block_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Serves nothing more of this connection until `work` is done."""
        assert self._task is None
        self._task = self._loop.create_task(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - one request must not end the others
            self._fail(error)
        finally:
            self._task = None
        self._pump()

    def flush(self) -> None:
        """Sends the answers whose turn it is; small ones of requests that came together at once."""
        if self._is_pumping and self._slots:
            newest = self._slots[-1].answer
            is_small = (
                newest is not None and len(newest) == 1 and len(newest[0]) <= TOGETHER_BYTES_MAX
            )
            if is_small and perf_counter() - self._slots[0].began_s < TOGETHER_S_MAX:
                return
        self._send_ready()
        self._pump()

    def _send_ready(self) -> bool:
        """Sends the answers whose turn it is; whether there were any."""
        parts: list[Buffer] = []
        while self._slots and self._slots[0].answer is not None:
            parts += self._slots.popleft().answer or ()
        if self._transport is None:
            return False
        if parts and not self._transport.is_closing():
            self._requests.bytes_out += sum(map(len, parts))
            if self._is_secured:
                self._outbox.extend(memoryview(part) for part in parts if len(part))
                self._drain()
            else:
                self._transport.writelines(parts)
        self._end_if_finished()
        return bool(parts)

    def _drain(self) -> None:
        """Hands pieces over to be encrypted while the reader takes them."""
        while self._outbox and self._is_writable and self._transport is not None:
            piece = bytearray()
            while self._outbox and len(piece) < TLS_PIECE_BYTES:
                part, room = self._outbox.popleft(), TLS_PIECE_BYTES - len(piece)
                piece += part[:room]
                if len(part) > room:
                    self._outbox.appendleft(part[room:])
            self._transport.write(piece)
        self._end_if_finished()

    @property
    def muted_s(self) -> float:
        """For how many seconds nothing more is read."""
        return max(self._muted_until_s - self._loop.time(), 0.0)

    def mute(self, seconds: float) -> None:
        """Serves nothing more for a while: the client has taken more than its quota."""
        if seconds <= 0 or self._transport is None:
            return
        until_s = self._loop.time() + seconds
        self._muted_until_s = max(self._muted_until_s, until_s)
        if self._mute_timer is None:
            self._mute_timer = self._loop.call_at(self._muted_until_s, self._unmute)

    def _unmute(self) -> None:
        self._mute_timer = None
        if self.muted_s > 0 and self._transport is not None:
            self._mute_timer = self._loop.call_at(self._muted_until_s, self._unmute)
        self._pump()

    def settle(self, meter: Meter, answer: Sequence[Buffer]) -> None:
        """Counts an answer against its client's quotas."""
        if self._transport is not None:
            meter.settle(answer, self._loop.time())

    def finish(self) -> None:
        """Serves nothing more, and closes the connection once all answers are sent."""
        self._is_finishing = True
        self._end_if_finished()

    def _end_if_finished(self) -> None:
        is_due = self._is_finishing and not self._slots and not self._outbox
        if is_due and self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(FAREWELL_S_MAX, self.close)

    def close(self) -> None:
        """Closes the connection; what was not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()
        self._connections.leave(self)
