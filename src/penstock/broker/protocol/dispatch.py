"""Requests to those who serve them: each frame's head is read, and its answer framed.

Produce and Fetch are read by hand, where they are served; the others by their schemas, checked for
who may do what on the way.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.broker.handlers import API_TABLE, Call
from penstock.broker.limits import MESSAGE_BYTES_MAX
from penstock.broker.protocol import fetch, produce
from penstock.broker.protocol.connection import Connection
from penstock.broker.protocol.fetch import FetchApi
from penstock.broker.protocol.frames import skip_tags
from penstock.broker.protocol.produce import ProduceApi
from penstock.broker.protocol.requests import Requests
from penstock.broker.rules import table as access
from penstock.broker.security.metering import Meter
from penstock.broker.services import Services
from penstock.errors import ProtocolError
from penstock.wire import messages
from penstock.wire.batches import Buffer
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["Dispatcher", "advertised"]

PRODUCE, FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
"""Plain numbers, as each request is compared with them: to look up a member takes ten times as long."""
QUIET: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
"""What clients at rest repeat: at most it moves a time-out to later. A member's first heartbeat is
preceded by other requests."""
PRODUCE_VERSIONS: Final = (3, 13)
FETCH_VERSIONS: Final = (4, 18)

_HEAD = struct.Struct(">hhih")


def advertised() -> list[dict[str, int]]:
    """The request types that are served, and their versions."""
    ranges = {PRODUCE: PRODUCE_VERSIONS, FETCH: FETCH_VERSIONS}
    ranges |= {key: (api.first, api.last) for key, api in API_TABLE.items()}
    return [
        {"api_key": key, "min_version": first, "max_version": last}
        for key, (first, last) in sorted(ranges.items())
    ]


def _address(connection: Connection) -> tuple[str, int]:
    """The address that clients are given: as configured, or the one at which this client reached the
    broker.
    """
    listener = connection.listener
    return listener.advertise or (connection.local_host or listener.host, listener.port)


def _frame(key: int, version: int, corr: int, fields: dict[str, Any]) -> list[Buffer]:
    codec = messages.response_codec(key, version)
    out = bytearray(4) + corr.to_bytes(4, "big", signed=True)
    if codec.flexible and key != API_VERSIONS:
        out.append(0)
    codec.write(out, fields)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return [out]


class Dispatcher:
    """Brings requests to those who serve them.

    Args:
        broker: what handlers work with.
        produce: serves Produce.
        fetch: serves Fetch.
        requests: where they are counted.
        stir: called before each request that may set a time-out.
    """

    def __init__(
        self,
        broker: Services,
        produce: ProduceApi,
        fetch: FetchApi,
        requests: Requests,
        stir: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._produce = produce
        self._fetch = fetch
        self._requests = requests
        self._stir = stir
        self._clock_s = broker.loop.time

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Serves one request (a frame without its length).

        Raises:
            ProtocolError: it makes no sense; the connection is to be closed.
        """
        try:
            self._handle(connection, frame)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(
                f"expected a whole request in {len(frame)} bytes; found that it ends early or "
                f"holds no valid text ({error})"
            ) from None

    def _handle(self, connection: Connection, frame: memoryview) -> None:
        key, version, corr, client_size = _HEAD.unpack_from(frame)
        if connection.session is not None:
            connection.session.check(key, len(frame), self._clock_s())
        self._requests.began(key)
        if key not in QUIET:
            self._stir()
        at = _HEAD.size + max(client_size, 0)
        if at > len(frame):
            raise ProtocolError(f"expected a client id of {client_size} bytes; found fewer")
        quotas = self._broker.guard.quotas
        if not quotas.is_on:
            self._dispatch(connection, frame, at, key, version, corr)
            return
        client, size = bytes(frame[_HEAD.size : at]).decode(), len(frame)
        meter = Meter(quotas, connection, key, version, client, size, self._clock_s())
        connection.meter = meter
        try:
            self._dispatch(connection, frame, at, key, version, corr)
        finally:
            connection.meter = None
            meter.served(self._clock_s())

    def _dispatch(
        self,
        connection: Connection,
        frame: memoryview,
        at: int,
        key: int,
        version: int,
        corr: int,
    ) -> None:
        if key == PRODUCE and PRODUCE_VERSIONS[0] <= version <= PRODUCE_VERSIONS[1]:
            if version >= produce.FLEXIBLE_FROM:
                at = skip_tags(frame, at)
            self._produce.serve(connection, frame, at, version, corr)
            return
        if len(frame) > MESSAGE_BYTES_MAX:
            raise ProtocolError(
                f"expected a request of at most {MESSAGE_BYTES_MAX} bytes (Produce may be larger); "
                f"found {len(frame)}"
            )
        if key == FETCH and FETCH_VERSIONS[0] <= version <= FETCH_VERSIONS[1]:
            if version >= fetch.FLEXIBLE_FROM:
                at = skip_tags(frame, at)
            self._fetch.serve(connection, frame, at, version, corr)
            return
        client_id = bytes(frame[_HEAD.size : at]).decode()
        self._handle_described(connection, frame, at, key, version, corr, client_id)

    def _handle_described(
        self,
        connection: Connection,
        frame: memoryview,
        at: int,
        key: int,
        version: int,
        corr: int,
        client_id: str,
    ) -> None:
        api = API_TABLE.get(key)
        if api is None or not api.first <= version <= api.last:
            if key == API_VERSIONS:
                slot = connection.slot()
                fields = {
                    "error_code": ErrorCode.UNSUPPORTED_VERSION,
                    "api_keys": self._broker.advertised,
                }
                slot.send(_frame(key, 0, corr, fields))
                return
            raise ProtocolError(
                f"expected a request that was advertised; found {messages.api_name(key)} version "
                f"{version} from client {client_id!r}"
            )
        codec = messages.request_codec(key, version)
        if codec.flexible:
            at = skip_tags(frame, at)
        address = _address(connection)
        call = Call(
            self._broker,
            key,
            version,
            client_id,
            connection.client_host,
            address,
            connection,
            connection.principal,
        )
        slot = connection.slot()
        answer = access.serve(call, api, codec.decode(bytes(frame[at:])))
        if inspect.isawaitable(answer):

            async def work(later: Awaitable[dict[str, Any]] = answer) -> None:
                fields = await later
                self._requests.note_errors(key, fields)
                slot.send(_frame(key, version, corr, fields))

            connection.block_on(work())
        else:
            self._requests.note_errors(key, answer)
            slot.send(_frame(key, version, corr, answer))
