from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, until

from penstock.broker.config import BrokerConfig
from penstock.broker.protocol import connections
from penstock.broker.protocol.connection import BUFFER_BYTES
from penstock.broker.server import Broker
from penstock.wire.messages import request_codec, response_codec

ALIVE = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def with_broker(
    data: Path, session: Callable[[Broker], Awaitable[None]], listen: str = "127.0.0.1:0"
) -> None:
    """Runs a session against a broker in this process."""

    async def run() -> None:
        broker = Broker(BrokerConfig(data=data, listen=listen, allow_remote=True))
        await broker.start()
        try:
            await session(broker)
        finally:
            await broker.stop()

    asyncio.run(run())


async def is_served(
    broker: Broker, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
) -> bool:
    """Whether a connection gets answers."""
    try:
        writer.write(ALIVE)
        return len(await asyncio.wait_for(reader.readexactly(4), PATIENCE_S)) == 4
    except (OSError, asyncio.IncompleteReadError):
        return False


def test_connections_are_limited(tmp_path: Path) -> None:
    """One connection too many is closed at once; the others go on, and room that is given back
    counts.
    """

    async def session(broker: Broker) -> None:
        broker.connections.count_max = 2
        pairs = [await asyncio.open_connection(*broker.address) for _ in range(2)]
        for reader, writer in pairs:
            assert await is_served(broker, writer, reader)
        reader, writer = await asyncio.open_connection(*broker.address)
        assert not await is_served(broker, writer, reader)
        writer.close()
        pairs[0][1].close()
        await until(lambda: len(broker.connections) == 1)
        reader, writer = await asyncio.open_connection(*broker.address)
        assert await is_served(broker, writer, reader)
        for _, one in [*pairs, (reader, writer)]:
            one.close()

    with_broker(tmp_path, session)


def test_unfinished_requests_are_limited_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When half-sent requests take too much together, the one that would go beyond is closed."""
    monkeypatch.setattr(connections, "RECEIVE_BYTES_TOTAL_MAX", 600_000)

    async def session(broker: Broker) -> None:
        writers, ends = [], []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(*broker.address)
            writers.append(writer)
            ends.append(asyncio.ensure_future(reader.read()))
            writer.write(struct.pack(">i", 50_000_000) + bytes(200_000))
        await until(lambda: any(one.done() for one in ends))
        assert 1 <= len(broker.connections) < 4
        for writer in writers:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)
        await until(lambda: not len(broker.connections))
        assert broker.connections.receive_bytes == 0

    with_broker(tmp_path, session)


def test_large_buffers_are_given_back(tmp_path: Path) -> None:
    """After a large request a connection at rest keeps only a small buffer."""

    async def session(broker: Broker) -> None:
        reader, writer = await asyncio.open_connection(*broker.address)
        body = bytes(request_codec(42, 0).encode({"groups_names": ["g" * 30_000] * 60}))
        head = struct.pack(">hhih", 42, 0, 1, -1)
        writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        await reader.readexactly(4)
        (connection,) = broker.connections
        assert broker.connections.receive_bytes > 1_000_000
        connection.rest()
        assert broker.connections.receive_bytes == BUFFER_BYTES
        writer.close()

    with_broker(tmp_path, session)


def test_wildcard_address_is_not_advertised(tmp_path: Path) -> None:
    """A broker on all addresses tells each client the one that it has reached it by."""

    async def session(broker: Broker) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.address[1])
        writer.write(struct.pack(">ihhihi", 14, 3, 1, 1, -1, -1))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = response_codec(3, 1).decode((await reader.readexactly(size))[4:])
        assert answer["brokers"][0]["host"] == "127.0.0.1"
        assert answer["brokers"][0]["port"] == broker.address[1]
        writer.close()

    with_broker(tmp_path, session, "0.0.0.0:0")
