"""Bytes by chance, against everything that reads bytes: no crash, no surprise, no large allocation.

PENSTOCK_FUZZ_SECONDS=600 PENSTOCK_SEED=7 python -m pytest -s tests/broker/protocol/test_fuzz.py
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from mutations import a_batch, a_request, mutated, reseal
from tests import effort
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.broker.config import BrokerConfig
from penstock.broker.groups.offsets import GroupOffsets
from penstock.broker.protocol.connection import Connection
from penstock.broker.server import Broker
from penstock.errors import PenstockError
from penstock.log.disk.files import LocalFiles
from penstock.log.disk.journal import Journal
from penstock.log.disk.memory import MemoryFiles
from penstock.log.partition import Partition
from penstock.log.producers import Producers
from penstock.log.segments.index import SparseIndex
from penstock.log.validation import LogConfig
from penstock.wire import batches, columns, compression
from penstock.wire.protocol import ApiKey

SECONDS = effort.rounds("PENSTOCK_FUZZ_SECONDS", quick=3, full=10)
SEED = int(os.environ.get("PENSTOCK_SEED", "20261121"))
SHARES = {"requests": 0.4, "socket": 0.2, "segments": 0.2, "files": 0.1, "batches": 0.1}
"""How the time is shared out."""
GROWTH_BYTES_MAX = 200 << 20
"""How much more memory a process may hold after all that: a message is at most 16 MiB here."""
FRAMES_PER_CONNECTION = 3
CHECKED_EVERY = 500

pytestmark = pytest.mark.timeout(900 + 2 * SECONDS)


def rounds(what: str) -> Iterator[tuple[int, random.Random]]:
    """Numbered rounds, each with its own chances, until the time is up."""
    print(f"PENSTOCK_SEED={SEED} {what}")
    deadline = time.monotonic() + SECONDS * SHARES[what]
    for number in itertools.count():
        if time.monotonic() > deadline:
            print(f"{number} rounds")
            return
        yield number, random.Random(f"{SEED} {what} {number}")


class Alarm(logging.Handler):
    """Keeps what the broker calls unexpected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Takes note of it."""
        self.found.append(self.format(record))


class Wire:
    """A transport that leads nowhere."""

    def __init__(self) -> None:
        self.sent = 0
        self.is_open = True

    def get_extra_info(self, name: str, _: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name)

    def set_write_buffer_limits(self, **_: Any) -> None:
        """There is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, parts: Any) -> None:
        self.sent += sum(len(part) for part in parts)

    def write(self, data: Any) -> None:
        self.sent += len(data)

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    resume_reading = pause_reading


def frame(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    """A request with its length before it."""
    head = struct.pack(">hhih", api_key, version, 1, 4) + b"fuzz" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def frames(
    advertised: list[dict[str, int]], number: int, chance: random.Random
) -> list[tuple[str, bytes]]:
    """Some requests; all types and versions come by in turn."""
    every = [
        (one["api_key"], version)
        for one in advertised
        for version in range(one["min_version"], one["max_version"] + 1)
    ]
    picked = [every[number % len(every)]]
    picked += [chance.choice(every) for _ in range(FRAMES_PER_CONNECTION - 1)]
    found = []
    for api_key, version in picked:
        body, flexible = a_request(api_key, version, chance)
        data = frame(api_key, version, body, flexible=flexible)
        if chance.random() < 0.03:
            data = bytes(mutated(data[:4], chance)) + data[4:]
        found.append((f"{api_key} v{version} {data.hex()}", data))
    return found


def feed(connection: Connection, data: bytes) -> None:
    """Lets the connection receive bytes."""
    while data:
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def attack(broker: Broker, alarm: Alarm, number: int, chance: random.Random) -> None:
    """A connection that sends some requests and goes."""
    wire = Wire()
    connection = Connection(broker.connections, broker.listeners[0])
    connection.connection_made(wire)  # type: ignore[arg-type]
    sent = []
    for what, data in frames(broker.services.advertised, number, chance):
        sent.append(what)
        if wire.is_open:
            feed(connection, data)
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not alarm.found, "\n".join([f"round {number}", *sent, *alarm.found])


def test_requests(tmp_path: Path) -> None:
    """Whatever a client sends, the broker answers or closes the connection; nothing unexpected."""
    alarm, log = Alarm(), logging.getLogger("penstock")
    log.addHandler(alarm)
    log.propagate = False  # pytest would keep every line, and that would be what grows
    own = psutil.Process()

    async def run() -> None:
        broker = Broker(BrokerConfig(data=tmp_path / "data", listen="127.0.0.1:0"))
        await broker.start()
        broker.topics.create("t", 2, {})
        before = 0
        try:
            for number, chance in rounds("requests"):
                await attack(broker, alarm, number, chance)
                if number == CHECKED_EVERY:
                    before = own.memory_info().rss
                if number > CHECKED_EVERY and number % CHECKED_EVERY == 0:
                    assert own.memory_info().rss - before < GROWTH_BYTES_MAX
        finally:
            await broker.stop()

    try:
        asyncio.run(run())
    finally:
        log.removeHandler(alarm)
        log.propagate = True


def test_sockets(own_broker: BrokerProcess, connect: Any) -> None:
    """A broker process lives through it all, and stays small."""
    own_broker.start()
    with connect(own_broker.address) as raw:
        advertised = raw.call(ApiKey.API_VERSIONS, 0)["api_keys"]
    host, _, port = own_broker.address.rpartition(":")
    process = psutil.Process(own_broker.pid)
    before = process.memory_info().rss
    for number, chance in rounds("socket"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
            line.settimeout(5)
            for _, data in frames(advertised, number, chance):
                with contextlib.suppress(OSError):
                    line.sendall(data)
        if number % CHECKED_EVERY == 0:
            assert own_broker.is_running()
            assert process.memory_info().rss - before < GROWTH_BYTES_MAX
    with connect(own_broker.address) as raw:
        assert raw.call(ApiKey.API_VERSIONS, 0)["error_code"] == 0
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX


def a_log(chance: random.Random) -> MemoryFiles:
    """A partition's files: several segments, some with a checkpoint."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(segment_bytes=1500), 0)
    for n in range(chance.randint(1, 25)):
        batch = batches.build(
            [(b"k", chance.randbytes(chance.randrange(200)))],
            timestamps_ms=[n],
            producer_id=7,
            producer_epoch=0,
            base_sequence=n,
        )
        log.append(batch, n)
        if chance.random() < 0.1:
            log.sync(checkpoint=chance.random() < 0.5)
    if chance.random() < 0.5:
        log.close()
    return files


def test_segments() -> None:
    """A partition whose files were changed anywhere opens, and says what it can't read."""
    for number, chance in rounds("segments"):
        files = a_log(chance)
        for _ in range(chance.randint(1, 3)):
            name = "p/" + chance.choice(files.list("p"))
            changed = mutated(files.load(name) or b"", chance)
            if number % 3 == 0 and name.endswith(".log") and len(changed) > batches.HEADER_BYTES:
                with contextlib.suppress(struct.error):
                    reseal_first(changed)
            files.store(name, changed)
        try:
            read_through(files)
        except Exception as error:
            raise AssertionError(f"round {number}: {error!r}") from error


def reseal_first(data: bytearray) -> None:
    """Makes the first batch's checksum fit, so that what is in it is looked at."""
    header = batches.parse(data)
    if batches.HEADER_BYTES <= header.size <= len(data):
        first = data[: header.size]
        reseal(first)
        data[: header.size] = first


def read_through(files: MemoryFiles) -> None:
    """Opens and reads everything; our own errors are answers, others aren't."""
    try:
        log = Partition(files, "p", LogConfig(segment_bytes=1500), 100)
    except PenstockError:
        return
    assert 0 <= log.start_offset <= log.end_offset
    for offset in range(log.start_offset, min(log.end_offset, log.start_offset + 40)):
        with contextlib.suppress(PenstockError):
            log.read(offset, 1000)
        with contextlib.suppress(PenstockError):
            log.find_time(offset)
    with contextlib.suppress(PenstockError):
        log.append(batches.build([(b"k", b"v")], timestamps_ms=[1]), 100)
    with contextlib.suppress(PenstockError):
        log.close()


def test_small_files(tmp_path: Path) -> None:
    """Indexes, producers' snapshots and journals that were changed are refused or read, no more."""
    files = MemoryFiles()
    log = Partition(files, "p", LogConfig(), 0)
    for n in range(9):
        batch = batches.build(
            [(b"k", bytes(5000))],
            timestamps_ms=[n],
            producer_id=n,
            producer_epoch=0,
            base_sequence=0,
        )
        log.append(batch, n)
    log.close()
    index = next(name for name in files.list("p") if name.endswith(".index"))
    index_bytes = files.load(f"p/{index}") or b""
    snapshot = files.load("p/producers") or b""
    local = LocalFiles(tmp_path)
    offsets = GroupOffsets(local)
    for group in ("a", "b"):
        offsets.forget_topic(group)
    journal = Journal(local, "journal")
    for n in range(5):
        journal.append(b"%d" % n * 10)
    journal.close()
    journal_bytes = local.load("journal") or b""
    for number, chance in rounds("files"):
        with contextlib.suppress(PenstockError):
            SparseIndex.load(bytes(mutated(index_bytes, chance)))
        with contextlib.suppress(PenstockError):
            Producers.restore(bytes(mutated(snapshot, chance)))
        hurt = MemoryFiles()
        hurt.store("journal", mutated(journal_bytes, chance))
        known = [b"%d" % n * 10 for n in range(5)]
        assert all(body in known for body in Journal(hurt, "journal")), f"round {number}"


def test_batches() -> None:
    """Batches of any bytes are validated, decoded and decompressed, or refused with our errors."""
    for number, chance in rounds("batches"):
        batch = bytearray(a_batch(chance))
        try:
            with contextlib.suppress(PenstockError):
                Partition(MemoryFiles(), "p", LogConfig(), 0).append(bytearray(batch), 1000)
            with contextlib.suppress(PenstockError):
                columns.decode(bytes(batch), verify_crc=chance.random() < 0.5)
            for at, header in batches.iterate(batch):
                with contextlib.suppress(PenstockError):
                    list(batches.record_times(batch, at, header))
            data = np.frombuffer(bytes(mutated(batch, chance)), np.uint8)
            with contextlib.suppress(PenstockError):
                compression.decompress(chance.randint(1, 4), data, bytes_max=1 << 20)
        except Exception as error:
            raise AssertionError(f"round {number}: {batch.hex()}") from error
