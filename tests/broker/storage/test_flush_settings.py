"""What `flush.messages` and `flush.ms` promise: the disk is asked before the answer is sent.

The broker runs in the test's process; its syncs wait at a gate, so that what is answered while it is
closed was answered without them.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, until

from penstock.broker.config import BrokerConfig
from penstock.broker.server import Broker
from penstock.log.partition import Partition, SyncTask
from penstock.wire.messages import request_codec, response_codec

NEVER_MS = 3_600_000
VERSION = 9
Records = Callable[..., bytearray]


class Gate:
    """Lets syncs pass, or holds them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []
        self.fails = False


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The gate that all syncs of partitions come to."""
    gate, run = Gate(), SyncTask.run

    def held(task: SyncTask) -> None:
        gate.asked.append(task.directory)
        assert gate.open.wait(PATIENCE_S)
        if gate.fails:
            raise OSError(5, "no such luck")
        run(task)

    monkeypatch.setattr(SyncTask, "run", held)
    return gate


class Client:
    """A connection within the broker's own loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def produce(self, acks: int, batches: dict[str, bytes]) -> None:
        """Sends a request with a batch for each of some topics."""
        topics = [
            {"name": name, "partition_data": [{"index": 0, "records": bytes(batch)}]}
            for name, batch in batches.items()
        ]
        out = bytearray(4) + struct.pack(">hhihb", 0, VERSION, 1, -1, 0)
        fields = {"acks": acks, "timeout": 1000, "topic_data": topics}
        request_codec(0, VERSION).write(out, fields)
        struct.pack_into(">i", out, 0, len(out) - 4)
        self.writer.write(out)

    async def answer(self) -> dict[str, int]:
        """The next answer's error codes by topic."""
        return {name: one["error_code"] for name, one in (await self.parts()).items()}

    async def parts(self) -> dict[str, Any]:
        """The next answer's partitions by topic."""
        size = int.from_bytes(await asyncio.wait_for(self.reader.readexactly(4), PATIENCE_S), "big")
        data = await self.reader.readexactly(size)
        found = response_codec(0, VERSION).decode(data[5:])["responses"]
        return {one["name"]: one["partition_responses"][0] for one in found}


def with_topics(
    data: Path,
    topics: dict[str, dict[str, str]],
    session: Callable[[Broker, Client], Awaitable[None]],
) -> None:
    """Runs a session against a broker that syncs only what it must."""

    async def run() -> None:
        broker = Broker(BrokerConfig(data, "127.0.0.1:0", flush_interval_ms=NEVER_MS))
        await broker.start()
        try:
            for name, settings in topics.items():
                broker.topics.create(name, 1, settings)
            client = Client(*await asyncio.open_connection(*broker.address))
            await session(broker, client)
            client.writer.close()
        finally:
            await broker.stop()

    asyncio.run(run())


def log_of(broker: Broker, name: str) -> Partition:
    """The partition of a topic that has one."""
    hosted = broker.topics.hosted(name, 0)
    assert hosted is not None
    return hosted.log


async def asked_for(gate: Gate, topic: str) -> None:
    """Waits until the disk was asked to keep a topic's records."""
    await until(lambda: gate.asked == [f"topics/{topic}/0"])


def test_an_answer_waits_for_the_sync_that_is_due(
    tmp_path: Path, gate: Gate, make_batch: Records
) -> None:
    """With flush.messages=3 the third record's answer (acks=1) comes after the sync, those before
    without one.
    """

    async def session(broker: Broker, client: Client) -> None:
        gate.open.clear()
        client.produce(1, {"t": make_batch(2)})
        assert await client.answer() == {"t": 0}
        assert gate.asked == []
        client.produce(1, {"t": make_batch(1)})
        await asked_for(gate, "t")
        assert not client.reader._buffer  # type: ignore[attr-defined]
        answer = asyncio.ensure_future(client.answer())
        await asyncio.sleep(0)
        assert not answer.done()
        assert log_of(broker, "t").durable_offset == 0
        gate.open.set()
        assert await answer == {"t": 0}
        assert log_of(broker, "t").durable_offset == 3

    with_topics(tmp_path, {"t": {"flush.messages": "3"}}, session)


def test_without_acks_the_sync_is_asked_for_all_the_same(
    tmp_path: Path, gate: Gate, make_batch: Records
) -> None:
    """With flush.messages=1 a write with acks=0 gets to the disk, though nobody waits for it."""

    async def session(broker: Broker, client: Client) -> None:
        client.produce(0, {"t": make_batch(1)})
        await until(lambda: log_of(broker, "t").durable_offset == 1)

    with_topics(tmp_path, {"t": {"flush.messages": "1"}}, session)


def test_a_failed_sync_refuses_just_what_waited_for_it(
    tmp_path: Path, gate: Gate, make_batch: Records
) -> None:
    """Of two topics in one request (acks=1), the one with flush.messages=1 is refused where the disk
    fails.
    """

    async def session(_: Broker, client: Client) -> None:
        gate.fails = True
        client.produce(1, {"eager": make_batch(1), "lazy": make_batch(1)})
        assert await client.answer() == {"eager": 56, "lazy": 0}
        assert gate.asked == ["topics/eager/0"]

    with_topics(tmp_path, {"eager": {"flush.messages": "1"}, "lazy": {}}, session)


def test_records_get_to_the_disk_in_time(tmp_path: Path, gate: Gate, make_batch: Records) -> None:
    """With flush.ms a topic is synced long before the broker's own interval, again and again; others
    are not.
    """

    async def session(broker: Broker, client: Client) -> None:
        for count in (1, 2, 3):
            client.produce(1, {"timed": make_batch(1), "lazy": make_batch(1)})
            await client.answer()
            await until(lambda count=count: log_of(broker, "timed").durable_offset == count)
        assert log_of(broker, "lazy").durable_offset == 0
        assert set(gate.asked) == {"topics/timed/0"}

    with_topics(tmp_path, {"timed": {"flush.ms": "1"}, "lazy": {}}, session)


def test_a_setting_counts_from_the_next_write_on(
    tmp_path: Path, gate: Gate, make_batch: Records
) -> None:
    """A topic that gets flush.messages later is synced with its next record, all before it as well."""

    async def session(broker: Broker, client: Client) -> None:
        client.produce(1, {"t": make_batch(4)})
        await client.answer()
        topic = broker.topics.get("t")
        assert topic is not None
        broker.topics.configure(topic, {"flush.messages": "5"})
        client.produce(1, {"t": make_batch(1)})
        assert await client.answer() == {"t": 0}
        assert log_of(broker, "t").durable_offset == 5

    with_topics(tmp_path, {"t": {}}, session)


@pytest.mark.parametrize("seed", range(3))
def test_never_are_so_many_answered_records_off_the_disk(
    tmp_path: Path, gate: Gate, make_batch: Records, seed: int
) -> None:
    """Whatever is written with whatever acks, by several at once: fewer than flush.messages of what
    was answered is not durable.
    """
    chance, most = random.Random(seed), 5

    async def session(broker: Broker, first: Client) -> None:
        log = log_of(broker, "t")
        others = [Client(*await asyncio.open_connection(*broker.address)) for _ in range(2)]

        async def write(client: Client) -> None:
            for _ in range(40):
                count = chance.randint(1, 4)
                client.produce(chance.choice([-1, 1, 1, 1]), {"t": make_batch(count)})
                part = (await client.parts())["t"]
                assert not part["error_code"]
                assert part["base_offset"] + count - log.durable_offset < most

        await asyncio.gather(*(write(one) for one in [first, *others]))
        for one in others:
            one.writer.close()

    with_topics(tmp_path, {"t": {"flush.messages": str(most)}}, session)


def test_nothing_is_synced_unless_it_is_set(
    tmp_path: Path, gate: Gate, make_batch: Records
) -> None:
    """A topic as it is made is not synced for writes with acks=1."""

    async def session(_: Broker, client: Client) -> None:
        for _n in range(20):
            client.produce(1, {"t": make_batch(10)})
            assert await client.answer() == {"t": 0}
        assert gate.asked == []

    with_topics(tmp_path, {"t": {}}, session)
