"""Clients that mean harm: what they cost the broker's memory, and that others are served meanwhile."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.broker.security.users import Users
from penstock.wire.messages import request_codec
from penstock.wire.protocol import ApiKey

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is measured with Linux's /proc"
)

MIB: Final = 1 << 20
GROWTH_BYTES_MAX: Final = 64 * MIB
"""How much memory of its own (RssAnon) an attack may cost the broker."""


class Victim:
    """A broker with a listener in the clear and one with TLS and log-in."""

    def __init__(self, process: BrokerProcess, ca: Path) -> None:
        self.process = process
        self.addresses = [
            (host, int(port)) for host, _, port in (a.rpartition(":") for a in process.addresses)
        ]
        self.context = ssl.create_default_context(cafile=str(ca))
        self.sockets: list[socket.socket] = []

    def memory(self) -> int:
        """The broker's anonymous memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    def connect(self, listener: int = 0) -> socket.socket:
        """A connection that stays open until the test ends."""
        sock = socket.create_connection(self.addresses[listener], timeout=PATIENCE_S)
        self.sockets.append(sock)
        return sock

    def close(self) -> None:
        """Ends the attack."""
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()

    def check(self, before: int, growth_max: int = GROWTH_BYTES_MAX) -> None:
        """Another client is served meanwhile, and memory has not grown beyond the limit."""
        with socket.create_connection(self.addresses[0], timeout=PATIENCE_S) as sock:
            sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            assert len(sock.recv(4)) == 4
        growth = self.memory() - before
        assert growth < growth_max, f"the attack has cost {growth / MIB:.0f} MiB"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """The broker that is attacked."""
    directory = tmp_path_factory.mktemp("attacks")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(directory / "broker.pem")
    Users(directory / "data").add("ann", "a")
    arguments = ["--tls-cert", str(directory / "broker.pem"), "--log-level", "error"]
    listen = "127.0.0.1:0,SASL_SSL://127.0.0.1:0"
    with BrokerProcess(directory / "data", listen=listen, arguments=arguments) as process:
        yield Victim(process, directory / "ca.pem")


@pytest.fixture
def victim(running: Victim) -> Iterator[Victim]:
    """The broker, at rest before and after."""
    yield running
    running.close()
    time.sleep(0.3)


def fetch_request(topic: str, size: int) -> bytes:
    """A frame that asks for all of a topic."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": size}
    part |= {"current_leader_epoch": -1, "log_start_offset": -1}
    fields = {"max_wait": 0, "max_bytes": size, "session_epoch": -1}
    body = bytes(
        request_codec(1, 11).encode(fields | {"topics": [{"topic": topic, "partitions": [part]}]})
    )
    frame = struct.pack(">hhih", 1, 11, 1, -1) + body
    return struct.pack(">i", len(frame)) + frame


@pytest.fixture(scope="module")
def topic(
    running: Victim, connect: Callable[[str], Any], make_batch: Callable[..., bytearray]
) -> str:
    """A topic of 40 MB."""
    with connect(running.process.address) as raw:
        raw.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "big", "num_partitions": 1, "replication_factor": 1}],
        )
        for _ in range(40):
            assert raw.produce("big", make_batch(1, 1_000_000))["error_code"] == 0
    return "big"


@pytest.fixture(scope="module")
def connect() -> Callable[[str], Any]:
    """Makes raw connections."""
    from tests.broker.conftest import Raw

    return Raw


@pytest.fixture(scope="module")
def make_batch() -> Callable[..., bytearray]:
    """Makes batches of simple records."""
    from tests.broker.conftest import sample

    return sample


def test_thousands_of_connections(victim: Victim) -> None:
    """Two thousand idle connections take a few kilobytes each."""
    before = victim.memory()
    for _ in range(2000):
        victim.connect()
    time.sleep(0.5)
    victim.check(before, 2000 * 20_000)


def test_frames_that_never_end(victim: Victim) -> None:
    """Large requests that are begun and left lying take what was sent of them, no more."""
    before = victim.memory()
    for _ in range(30):
        victim.connect().sendall(struct.pack(">i", 90 * MIB) + bytes(MIB))
    time.sleep(0.5)
    victim.check(before, 30 * 3 * MIB)


@pytest.mark.slow
def test_slow_readers(victim: Victim, topic: str) -> None:
    """Readers that ask for everything and take nothing cost no copies of it."""
    before = victim.memory()
    request = fetch_request(topic, 50 * MIB)
    for _ in range(100):
        victim.connect().sendall(request * 3)
    time.sleep(1)
    victim.check(before)


@pytest.mark.slow
def test_slow_readers_with_tls(victim: Victim, topic: str) -> None:
    """Likewise where what is sent must be encrypted first."""
    before = victim.memory()
    request = fetch_request(topic, 50 * MIB)
    for _ in range(60):
        sock = victim.context.wrap_socket(victim.connect(1), server_hostname="localhost")
        victim.sockets.append(sock)
        name = b"PLAIN"
        hand = struct.pack(">hhihh", 17, 1, 1, -1, len(name)) + name
        word = b"\0ann\0a"
        auth = struct.pack(">hhihi", 36, 1, 2, -1, len(word)) + word
        for frame in (hand, auth):
            sock.sendall(struct.pack(">i", len(frame)) + frame)
        sock.recv(4)
        sock.sendall(request * 3)
    time.sleep(1)
    victim.check(before)


@pytest.mark.slow
def test_answers_that_nobody_reads(victim: Victim) -> None:
    """Small requests whose answers pile up are not served beyond a limit."""
    before = victim.memory()
    frame = struct.pack(">hhihi", 3, 1, 1, -1, -1)
    flood = (struct.pack(">i", len(frame)) + frame) * 5000
    for _ in range(12):
        sock = victim.connect()
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                sock.sendall(flood)
    victim.check(before)


@pytest.mark.slow
def test_handshakes_that_never_end(victim: Victim) -> None:
    """A thousand connections that never say who they are: the oldest give way, and who logs in is
    served.
    """
    before = victim.memory()
    for number in range(1000):
        sock = victim.connect(1)
        if number % 2:
            with contextlib.suppress(OSError):
                sock.sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
    raw = socket.create_connection(victim.addresses[1], timeout=PATIENCE_S)
    with victim.context.wrap_socket(raw, server_hostname="localhost") as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert len(sock.recv(4)) == 4
    victim.check(before, 512 * 150_000)


@pytest.mark.slow
def test_log_ins_by_the_hundred(victim: Victim) -> None:
    """Wrong passwords without end keep nobody else from being served."""
    before = victim.memory()
    word = b"\0ann\0wrong"
    frames = struct.pack(">ihhihh", 17, 17, 1, 1, -1, 5) + b"PLAIN"
    frames += struct.pack(">ihhihi", 14 + len(word), 36, 1, 2, -1, len(word)) + word
    for _ in range(150):
        sock = victim.context.wrap_socket(victim.connect(1), server_hostname="localhost")
        victim.sockets.append(sock)
        with contextlib.suppress(OSError):
            sock.sendall(frames)
    victim.check(before)
