"""Clients over TLS, and clients that log in."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trustme
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.broker.security.users import Users
from penstock.client import Client, Producer, Reader, Security
from penstock.client.network.cluster import HANDSHAKES_MAX
from penstock.client.network.security import parse_target
from penstock.errors import BrokerError, UserError

pytestmark = pytest.mark.interpreter

PASSWORD = "sw=ord,fish"
PROTOCOLS = "SSL", "SASL_SSL", "SASL_PLAINTEXT"
Place = tuple[dict[str, str], Path, Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Addresses of a broker's listeners, the CA's certificate, a client's certificate."""
    directory = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    broker, client = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("ann")
    paths = [directory / name for name in ("ca.pem", "broker.pem", "client.pem")]
    authority.cert_pem.write_to_path(paths[0])
    broker.private_key_and_cert_chain_pem.write_to_path(paths[1])
    client.private_key_and_cert_chain_pem.write_to_path(paths[2])
    Users(directory / "data").add("ann", PASSWORD)
    arguments = ["--tls-cert", str(paths[1]), "--tls-client-ca", str(paths[0])]
    arguments += ["--session-lifetime-s", "1", "--log-level", "error"]
    listen = ",".join(f"{one}://127.0.0.1:0" for one in PROTOCOLS)
    with BrokerProcess(directory / "data", listen=listen, arguments=arguments) as process:
        yield dict(zip(PROTOCOLS, process.addresses, strict=True)), paths[0], paths[2]


def addresses(place: Place) -> dict[str, str]:
    """A URL for each way in."""
    at, ca, client = place
    return {
        "mutual": f"kafka+tls://{at['SSL']}?ca={ca}&certificate={client}",
        "scram": f"kafka+tls://ann@{at['SASL_SSL']}?ca={ca}",
        "sha-512": f"kafka+tls://ann@{at['SASL_SSL']}?ca={ca}&mechanism=SCRAM-SHA-512",
        "plain": f"kafka+sasl://ann@{at['SASL_PLAINTEXT']}?mechanism=PLAIN",
    }


@pytest.mark.parametrize("way", ["mutual", "scram", "sha-512", "plain"])
def test_records_travel(place: Place, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client, Producer and Reader work over each way in, with the password from the environment."""
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORD)
    url = addresses(place)[way]
    values = pa.array([bytes([n % 251]) * 10_000 for n in range(500)])
    with Client(url) as client, Producer(url) as producer, Reader(url) as reader:
        client.create_topic(way, 1, {"retention.ms": "-1"})
        producer.send(way, 0, None, values, np.arange(500, dtype=np.int64))
        assert client.wait_for_data({(way, 0): 0}, PATIENCE_S)
        read = list(reader.read(way, 0, 0, 500))
        assert sum(len(one) for one in read) == 500


def test_sessions_are_renewed(place: Place) -> None:
    """A client goes on when its session's lifetime is over."""
    import time

    at, _, _ = place
    security = Security(user="ann", password=PASSWORD)
    with Client(at["SASL_PLAINTEXT"], security=security, patience_s=30) as client:
        client.topics()
        time.sleep(1.1)
        client.topics()


def test_what_is_wrong_is_reported_at_once(place: Place) -> None:
    """A wrong password, an unknown CA, a listener of another kind: told without trying for long, and
    without the password.
    """
    at, ca, _ = place
    wrong = Security(user="ann", password="wrong-secret")
    cases = [
        (at["SASL_PLAINTEXT"], wrong, "SASL_AUTHENTICATION_FAILED.*PENSTOCK_PASSWORD"),
        (f"kafka+tls://{at['SASL_SSL']}", None, "certificate"),
        (f"kafka+tls://{at['SASL_PLAINTEXT']}?ca={ca}", None, "SSL|TLS"),
    ]
    for address, security, message in cases:
        with (
            Client(address, security=security, patience_s=PATIENCE_S) as client,
            pytest.raises(BrokerError, match=message) as caught,
        ):
            client.topics()
        assert "wrong-secret" not in str(caught.value)
        assert "tried for" not in str(caught.value)
        assert "no broker answering" not in str(caught.value)


HANDSHAKE = b"\x16"
"""What TLS's handshake begins with."""
LEAVE = bytes.fromhex("15 0303 0002 01 00")
"""TLS's alert close_notify. Up to Python 3.11.2 a connection that is merely closed looks like that."""


def test_a_peer_that_takes_its_leave_during_handshakes_is_reported_at_once() -> None:
    """A few handshakes that end so are enough of an answer, as with a peer that just hangs up."""
    handshakes = 0

    def peer(listener: socket.socket) -> None:
        nonlocal handshakes
        with contextlib.suppress(OSError):  # the listener is shut
            while True:
                connection, _ = listener.accept()
                with connection:
                    hello = connection.recv(1 << 16)
                    connection.sendall(LEAVE)
                # Clients that other tests left behind may try a port that was their broker's.
                handshakes += hello[:1] == HANDSHAKE

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=peer, args=[listener])
        thread.start()
        url = f"kafka+tls://127.0.0.1:{listener.getsockname()[1]}"
        with (
            Client(url, patience_s=PATIENCE_S) as client,
            pytest.raises(BrokerError, match=r"expected TLS at .* listener with TLS") as caught,
        ):
            client.topics()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "tried for" not in str(caught.value)
    assert handshakes == HANDSHAKES_MAX


def test_passwords_are_in_no_address_and_no_repr() -> None:
    """An address with a password is refused without repeating it; a repr shows none."""
    with pytest.raises(UserError, match="PENSTOCK_PASSWORD") as caught:
        parse_target("kafka+tls://ann:hush@a:1")
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(Security(user="ann", password="hush"))
    with pytest.raises(UserError, match="password"):
        Security(user="ann").secret({})
    assert Security(user="ann").secret({"PENSTOCK_PASSWORD": "x"}) == "x"


@pytest.mark.parametrize(
    "wrong",
    [
        "http://a:1",
        "kafka+tls://a:1?color=red",
        "kafka+sasl://a:1",
        "kafka://a:1?ca=x",
        "kafka+tls://u@a:1?mechanism=GSSAPI",
        "kafka+tls://",
    ],
)
def test_addresses_that_make_no_sense(wrong: str) -> None:
    """Each is refused with what was expected."""
    with pytest.raises(UserError, match="expected"):
        parse_target(wrong)
