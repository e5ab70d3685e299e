"""The endpoint's sockets: clients that come too many, too slow, or send what makes no sense."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.patience import PATIENCE_S

from penstock.serve import Queries
from penstock.serve.postgres import server as module
from penstock.serve.postgres.server import PostgresServer

STARTUP = struct.pack("!ii", 9, 3 << 16) + b"\0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    """An endpoint without views; none is asked for."""
    queries = Queries(tmp_path)
    server = PostgresServer(tmp_path, password="tiger", queries=queries)
    yield server
    server.close()
    queries.close()


def connected(server: PostgresServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def rest(client: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    found = b""
    try:
        while part := client.recv(1024):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_what_makes_no_sense_is_reported_and_ends(server: PostgresServer) -> None:
    """A length, a version or a password that can't be ends the connection, with an error; so does silence."""
    for data, error in (
        (struct.pack("!i", -1), b"C08P01\0"),
        (struct.pack("!i", 1 << 30), b"C08P01\0"),
        (struct.pack("!ii", 9, 2 << 16) + b"\0", b"C08P01\0"),
        (struct.pack("!ii", 10, 3 << 16) + b"ab", b"C08P01\0"),
        (STARTUP + b"Q" + struct.pack("!i", 5) + b"\0", b"C08P01\0"),
        (STARTUP + b"p" + struct.pack("!i", 1 << 30), b"C08P01\0"),
        (STARTUP + b"p" + struct.pack("!i", 5) + b"\0", b"C28P01\0"),
        (STARTUP + b"p\0\0", b""),
    ):
        with connected(server) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            assert error in rest(client), data


def test_a_log_in_has_its_time_however_slowly_it_comes(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends a byte now and then doesn't keep its place beyond the time of a log-in."""
    monkeypatch.setattr(module, "LOG_IN_S_MAX", 0.05)
    with connected(server) as client:
        client.settimeout(0.01)
        client.sendall(struct.pack("!i", 9_000))
        for _ in range(int(PATIENCE_S / 0.01)):
            try:
                client.sendall(b"\0")
                if not client.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        pytest.fail("the connection is still there")


def test_places_are_limited_and_given_back(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit a client is hung up on; when another one goes, there is room again."""
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(module, "STARTING_MAX", 1)
    with connected(server) as first, connected(server) as second:
        first.sendall(STARTUP)
        assert first.recv(1) == b"R"
        second.sendall(STARTUP)
        assert b"C53300\0" in rest(second)
    while True:
        with connected(server) as third:
            try:
                third.sendall(STARTUP)
                if third.recv(1) == b"R":
                    return
            except OSError:
                continue


def test_what_sessions_keep_is_limited_together(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there is room for is refused, less than before never; who goes gives all back."""
    monkeypatch.setattr(module, "SESSIONS_BYTES_MAX", 100)
    first, second = object(), object()
    hold: Any = server.hold
    assert hold(first, 60)
    assert not hold(second, 50)
    assert hold(second, 40)
    monkeypatch.setattr(module, "SESSIONS_BYTES_MAX", 10)
    assert hold(first, 50)
    assert not hold(first, 51)
    gone = Mock(spec=module._Connection)
    assert hold(gone, 0)
    server.leave(gone)
    assert list(server._held.values()) == [50, 40]


def test_clients_are_accepted_after_one_that_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that is out of files for a moment doesn't end the endpoint."""
    listening = module._listening

    class Exhausted(socket.socket):
        """Its first client can't be accepted."""

        left = 1

        def accept(self) -> tuple[socket.socket, object]:
            if self.left:
                self.left = 0
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    def exhausted(host: str, port: int) -> socket.socket:
        made = listening(host, port)
        return Exhausted(made.family, made.type, fileno=made.detach())

    monkeypatch.setattr(module, "_listening", exhausted)
    monkeypatch.setattr(module, "ACCEPT_PAUSE_S", 0.0)
    queries = Queries(tmp_path)
    server = PostgresServer(tmp_path, queries=queries)
    try:
        with connected(server) as client:
            client.sendall(STARTUP)
            assert client.recv(1) == b"R"
    finally:
        server.close()
        queries.close()
