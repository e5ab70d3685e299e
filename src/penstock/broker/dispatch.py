"""Requests to those who serve them: each frame's head is read, and its answer framed.

Produce and Fetch are read by hand, where they are served; the others by their schemas, checked for
who may do what on the way.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker import fetch, produce
from penstock.broker.config import MESSAGE_BYTES_MAX
from penstock.broker.connection import Connection
from penstock.broker.handlers import API_TABLE, Call
from penstock.broker.security import access
from penstock.broker.security.metering import Meter
from penstock.errors import ProtocolError
from penstock.wire import messages
from penstock.wire.batches import Buffer
from penstock.wire.kafka import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.server import Broker

__all__ = ["advertised", "handle"]

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
PRODUCE_VERSIONS: Final = (3, 13)
FETCH_VERSIONS: Final = (4, 18)

_HEAD = struct.Struct(">hhih")


def advertised() -> list[dict[str, int]]:
    """What is served, in which versions."""
    ranges = {PRODUCE: PRODUCE_VERSIONS, FETCH: FETCH_VERSIONS}
    ranges |= {key: (api.first, api.last) for key, api in API_TABLE.items()}
    return [
        {"api_key": key, "min_version": first, "max_version": last}
        for key, (first, last) in sorted(ranges.items())
    ]


def handle(broker: Broker, connection: Connection, frame: memoryview) -> None:
    """Serves one request (a frame without its length).

    Raises:
        ProtocolError: it makes no sense; the connection is to be closed.
    """
    try:
        _handle(broker, connection, frame)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"expected a whole request in {len(frame)} bytes, found that it ends early or "
            f"holds no valid text ({error})"
        ) from None


def _handle(broker: Broker, connection: Connection, frame: memoryview) -> None:
    key, version, corr, client_size = _HEAD.unpack_from(frame)
    if connection.session is not None:
        connection.session.check(key, len(frame), broker.loop.time())
    broker.requests.began(key)
    at = _HEAD.size + max(client_size, 0)
    if at > len(frame):
        raise ProtocolError(f"expected a client id of {client_size} bytes, found fewer")
    quotas = broker.guard.quotas
    if not quotas.is_on:
        _dispatch(broker, connection, frame, at, key, version, corr)
        return
    client, size = bytes(frame[_HEAD.size : at]).decode(), len(frame)
    meter = Meter(quotas, connection, key, version, client, size, broker.loop.time())
    connection.meter = meter
    try:
        _dispatch(broker, connection, frame, at, key, version, corr)
    finally:
        connection.meter = None
        meter.served(broker.loop.time())


def _dispatch(
    broker: Broker,
    connection: Connection,
    frame: memoryview,
    at: int,
    key: int,
    version: int,
    corr: int,
) -> None:
    if key == PRODUCE and PRODUCE_VERSIONS[0] <= version <= PRODUCE_VERSIONS[1]:
        if version >= produce.FLEXIBLE_FROM:
            at = produce.skip_tags(frame, at)
        produce.serve(broker, connection, frame, at, version, corr)
        return
    if len(frame) > MESSAGE_BYTES_MAX:
        raise ProtocolError(
            f"expected a request of at most {MESSAGE_BYTES_MAX} bytes (Produce may be larger), "
            f"found {len(frame)}"
        )
    if key == FETCH and FETCH_VERSIONS[0] <= version <= FETCH_VERSIONS[1]:
        if version >= fetch.FLEXIBLE_FROM:
            at = produce.skip_tags(frame, at)
        fetch.serve(broker, connection, frame, at, version, corr)
        return
    client_id = bytes(frame[_HEAD.size : at]).decode()
    _handle_described(broker, connection, frame, at, key, version, corr, client_id)


def _handle_described(
    broker: Broker,
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
                "error_code": ErrorCode.unsupported_version,
                "api_keys": broker.advertised,
            }
            slot.send(_frame(key, 0, corr, fields))
            return
        raise ProtocolError(
            f"expected a request that was advertised, found {messages.api_name(key)} version "
            f"{version} from client {client_id!r}"
        )
    codec = messages.request_codec(key, version)
    if codec.flexible:
        at = produce.skip_tags(frame, at)
    address = _address(connection)
    call = Call(
        broker,
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
            broker.requests.note_errors(key, fields)
            slot.send(_frame(key, version, corr, fields))

        connection.block_on(work())
    else:
        broker.requests.note_errors(key, answer)
        slot.send(_frame(key, version, corr, answer))


def _address(connection: Connection) -> tuple[str, int]:
    """Where clients are told to connect: as configured, or where this one has reached us."""
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
