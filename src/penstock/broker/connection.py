"""One client's connection: frames in, answers out in the order of the requests, bounded memory.

A frame is a 32-bit length and that many bytes. The receive buffer grows as bytes arrive, not as a
length promises. A connection is not read from while its reader is slow, while a request of it
blocks (a long poll, a join), or while too many of its requests await their answer; the peer's TCP
window then fills up. So a connection's memory is its receive buffer and one answer.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.config import (
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    IN_FLIGHT_MAX,
    RECEIVE_BYTES_TOTAL_MAX,
    WRITE_BYTES_MAX,
)
from penstock.broker.security.model import ANONYMOUS
from penstock.errors import ProtocolError
from penstock.wire.batches import Buffer

if TYPE_CHECKING:
    from penstock.broker.server import Broker

__all__ = ["Connection", "Slot"]

BUFFER_BYTES: Final = 64 << 10
"""A receive buffer at rest."""
HEADER_BYTES_MIN: Final = 8
"""Least bytes of a request: API key, version, correlation id."""

_LENGTH = struct.Struct(">i")
_log = logging.getLogger(__name__)


class Slot:
    """A place in the order of a connection's answers."""

    __slots__ = ("_connection", "answer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.answer: Sequence[Buffer] | None = None

    def send(self, answer: Sequence[Buffer]) -> None:
        """Sends the answer (a whole frame, in parts; empty: none is due) when its turn comes."""
        assert self.answer is None
        self.answer = answer
        self._connection.flush()


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        self._end = 0
        self._slots: deque[Slot] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_writable = True
        self._is_reading = True
        self._is_pumping = False
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self.client_host = ""
        self.principal = ANONYMOUS
        self.local_host = ""
        self.last_active_s = broker.loop.time()

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to serve."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        self.local_host = local[0] if local else ""
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self.client_host = name[0] if name else ""
        if len(self._broker.connections) >= CONNECTIONS_MAX:
            _log.warning("closed %s: expected at most %d connections", self.peer, CONNECTIONS_MAX)
            self.close()
            return
        self._broker.connections.add(self)
        self._broker.receive_bytes += len(self._buffer)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)

    def connection_lost(self, _: Exception | None) -> None:
        """Forgets everything."""
        self._transport = None
        if self in self._broker.connections:
            self._broker.connections.discard(self)
            self._broker.receive_bytes -= len(self._buffer)
        self._slots.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The reader is slow."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The reader has caught up."""
        self._is_writable = True
        self._pump()

    def get_buffer(self, _: int) -> memoryview:
        """Room for the next bytes: at least one byte."""
        held = self._end - self._start
        if self._start and (held == 0 or self._end == len(self._buffer)):
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        if self._end == len(self._buffer):
            self._grow(2 * len(self._buffer))
        return memoryview(self._buffer)[self._end :]

    def _grow(self, size: int) -> None:
        size = min(size, FRAME_BYTES_MAX + BUFFER_BYTES)
        assert size > self._end
        held = memoryview(self._buffer)[self._start : self._end]
        larger = bytearray(size)
        larger[: len(held)] = held
        self._broker.receive_bytes += size - len(self._buffer)
        self._buffer, self._start, self._end = larger, 0, len(held)
        if self._broker.receive_bytes > RECEIVE_BYTES_TOTAL_MAX:
            _log.warning(
                "closed %s: expected at most %d bytes of unfinished requests over all connections",
                self.peer,
                RECEIVE_BYTES_TOTAL_MAX,
            )
            self.close()

    def buffer_updated(self, nbytes: int) -> None:
        """Serves what has arrived."""
        self._end += nbytes
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
            and self._transport is not None
        )

    def _pump(self) -> None:
        """Serves whole frames while it may."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._may_serve:
                frame = self._next_frame()
                if frame is None:
                    break
                self.last_active_s = self._broker.loop.time()
                self._broker.handle(self, frame)
        except ProtocolError as error:
            _log.warning("closed %s: %s", self.peer, error)
            self.close()
        except Exception:  # noqa: BLE001 - one request must not end the others
            _log.exception("closed %s: a request failed unexpectedly", self.peer)
            self.close()
        finally:
            self._is_pumping = False
        self._regulate()

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not HEADER_BYTES_MIN <= size <= FRAME_BYTES_MAX:
            raise ProtocolError(
                f"expected a request of {HEADER_BYTES_MIN} to {FRAME_BYTES_MAX} bytes, found a "
                f"length of {size}; the peer does not speak Kafka's protocol or sends too much"
            )
        if held < _LENGTH.size + size:
            return None
        begin = self._start + _LENGTH.size
        self._start = begin + size
        return memoryview(self._buffer)[begin : begin + size]

    def _regulate(self) -> None:
        """Reads on only when what it reads can be served."""
        if self._transport is None:
            return
        wanted = self._may_serve or self._end - self._start < BUFFER_BYTES // 2
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def rest(self) -> None:
        """Gives a large, empty receive buffer back."""
        if self._start == self._end and len(self._buffer) > BUFFER_BYTES:
            self._broker.receive_bytes -= len(self._buffer) - BUFFER_BYTES
            self._buffer, self._start, self._end = bytearray(BUFFER_BYTES), 0, 0

    # -- answers -----------------------------------------------------------------------------------

    def slot(self) -> Slot:
        """The next place in the order of answers."""
        slot = Slot(self)
        self._slots.append(slot)
        return slot

    def block_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Serves nothing more of this connection until `work` is done."""
        assert self._task is None
        self._task = self._broker.loop.create_task(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except ProtocolError as error:
            _log.warning("closed %s: %s", self.peer, error)
            self.close()
        except Exception:  # noqa: BLE001 - one request must not end the others
            _log.exception("closed %s: a request failed unexpectedly", self.peer)
            self.close()
        finally:
            self._task = None
        self._pump()

    def flush(self) -> None:
        """Sends the answers whose turn it is."""
        parts: list[Buffer] = []
        while self._slots and self._slots[0].answer is not None:
            parts += self._slots.popleft().answer or ()
        if self._transport is None:
            return
        if parts and not self._transport.is_closing():
            self._transport.writelines(parts)
        self._pump()

    def close(self) -> None:
        """Closes the connection; what was not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()
