"""TLS and SASL, as clients that we did not write use them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from tests.patience import PATIENCE_S, until, wait_until

from penstock.broker import BrokerProcess
from penstock.broker.config import BrokerConfig
from penstock.broker.listeners import TlsFiles, parse_listeners
from penstock.broker.security import sasl
from penstock.broker.security.names import subject_of
from penstock.broker.security.users import Users
from penstock.errors import PenstockError, SetupError, UserError
from penstock.wire.messages import request_codec, response_codec

pytestmark = pytest.mark.interpreter

PASSWORD = "swordfish, with = and \N{SNOWMAN}"
PROTOCOLS = "PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"


@dataclass
class Secured:
    """A broker with a listener of each kind."""

    process: BrokerProcess
    ca: Path
    client: Path
    at: dict[str, str]
    authority: trustme.CA


def certificates(directory: Path) -> tuple[trustme.CA, TlsFiles, Path]:
    """A CA, what a broker is given, and a client's certificate with its key."""
    authority = trustme.CA()
    broker, client = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("ann")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    broker.private_key_and_cert_chain_pem.write_to_path(directory / "broker.pem")
    client.private_key_and_cert_chain_pem.write_to_path(directory / "client.pem")
    for name in ("broker.pem", "client.pem"):
        (directory / name).chmod(0o600)
    files = TlsFiles(directory / "broker.pem", None, directory / "ca.pem")
    return authority, files, directory / "client.pem"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with a listener of each kind and the users ann and bob."""
    directory = tmp_path_factory.mktemp("secured")
    authority, files, client = certificates(directory)
    users = Users(directory / "data")
    users.add("ann", PASSWORD)
    users.add("bob", "b")
    arguments = ["--tls-cert", str(files.certificate), "--tls-client-ca", str(files.client_ca)]
    listen = ",".join(f"{protocol}://127.0.0.1:0" for protocol in PROTOCOLS)
    with BrokerProcess(directory / "data", listen=listen, arguments=arguments) as process:
        at = dict(zip(PROTOCOLS, process.addresses, strict=True))
        yield Secured(process, directory / "ca.pem", client, at, authority)


def connect(secured: Secured, protocol: str) -> socket.socket:
    """A socket to a listener, with TLS where it has that."""
    host, _, port = secured.at[protocol].rpartition(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    if not protocol.endswith("SSL"):
        return raw
    context = ssl.create_default_context(cafile=str(secured.ca))
    if protocol == "SSL":
        context.load_cert_chain(secured.client)
    return context.wrap_socket(raw, server_hostname="localhost")


def call(sock: socket.socket, key: int, version: int, **fields: Any) -> dict[str, Any]:
    """One request and its answer."""
    codec = request_codec(key, version)
    head = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if codec.flexible else b"")
    body = head + bytes(codec.encode(fields))
    sock.sendall(struct.pack(">i", len(body)) + body)
    data = exactly(sock, int.from_bytes(exactly(sock, 4), "big"))
    answer = response_codec(key, version)
    return answer.decode(data[5 if answer.flexible and key != 18 else 4 :])


def exactly(sock: socket.socket, size: int) -> bytes:
    """The next `size` bytes."""
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def log_in(sock: socket.socket, user: str, password: str) -> dict[str, Any]:
    """A log-in with PLAIN; the last answer."""
    assert call(sock, 17, 1, mechanism="PLAIN")["error_code"] == 0
    return call(sock, 36, 2, auth_bytes=f"\0{user}\0{password}".encode())


def settings(secured: Secured, protocol: str, mechanism: str = "") -> dict[str, Any]:
    """confluent-kafka's settings for a listener."""
    found: dict[str, Any] = {
        "bootstrap.servers": secured.at[protocol],
        "security.protocol": protocol,
        "ssl.ca.location": str(secured.ca),
    }
    if protocol == "SSL":
        found |= {"ssl.certificate.location": str(secured.client)}
        found |= {"ssl.key.location": str(secured.client)}
    if mechanism:
        found |= {"sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": PASSWORD}
    return found


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "PLAIN"),
    ],
)
def test_librdkafka(secured: Secured, protocol: str, mechanism: str) -> None:
    """Librdkafka writes and reads over each kind of listener, with each mechanism."""
    from confluent_kafka import Consumer, Producer

    topic = f"rd-{protocol}-{mechanism}"
    values = [os.urandom(100_000) for _ in range(40)]  # several of TLS's pieces
    producer = Producer(settings(secured, protocol, mechanism))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    more = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings(secured, protocol, mechanism) | more)
    consumer.subscribe([topic])
    found = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < len(values) and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    assert found == values


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    """kafka-python logs in with each mechanism over TLS, and is refused with a wrong password."""
    program = """
import sys
from kafka import KafkaAdminClient
client = KafkaAdminClient(bootstrap_servers=sys.argv[1], security_protocol="SASL_SSL",
    ssl_cafile=sys.argv[2], sasl_mechanism=sys.argv[3], sasl_plain_username="ann",
    sasl_plain_password=sys.argv[4], request_timeout_ms=20_000, bootstrap_timeout_ms=int(sys.argv[5]))
print(len(client.list_topics()))
"""
    command = [sys.executable, "-c", program, secured.at["SASL_SSL"], str(secured.ca), mechanism]
    right = subprocess.run(
        [*command, PASSWORD, "60000"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert right.stdout.strip().isdigit(), right.stderr
    wrong = subprocess.run(
        [*command, "x", "1000"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert wrong.returncode


def test_wrong_password_is_reported_late_and_ends_the_connection(secured: Secured) -> None:
    """A failed log-in is answered with Kafka's error after a pause; unknown users look the same."""
    for user in ("ann", "nobody"):
        with connect(secured, "SASL_SSL") as sock:
            began = time.monotonic()
            answer = log_in(sock, user, "wrong")
            assert answer["error_code"] == 58
            assert answer["error_message"] == "Authentication failed: Invalid username or password"
            assert time.monotonic() - began >= sasl.FAILURE_DELAY_S
            with pytest.raises(OSError):
                call(sock, 18, 0)


def test_scram_does_not_tell_who_exists(secured: Secured) -> None:
    """An unknown user is asked for a proof like a known one, with a salt that stays the same."""
    answers = []
    for user in ("ann", "nobody", "nobody"):
        with connect(secured, "SASL_PLAINTEXT") as sock:
            call(sock, 17, 1, mechanism="SCRAM-SHA-256")
            first = call(sock, 36, 1, auth_bytes=f"n,,n={user},r=abc".encode())
            assert first["error_code"] == 0
            answers.append(first["auth_bytes"].split(b",")[1:])
    known, unknown, again = answers
    assert unknown == again
    assert len(known[0]) == len(unknown[0])
    assert known[1] == unknown[1]


def test_nothing_is_served_before_the_log_in(secured: Secured) -> None:
    """Other requests, large frames and a second handshake close a connection that has not logged in;
    an unknown mechanism is answered with those that are offered.
    """
    for attack in (
        lambda sock: call(sock, 3, 1, topics=None),
        lambda sock: sock.sendall(struct.pack(">i", 1 << 20) + bytes(100)) or exactly(sock, 1),
        lambda sock: call(sock, 36, 1, auth_bytes=b"\0ann\0x"),
        lambda sock: [call(sock, 17, 1, mechanism="PLAIN") for _ in range(2)],
    ):
        with connect(secured, "SASL_PLAINTEXT") as sock, pytest.raises(OSError):
            attack(sock)
    with connect(secured, "SASL_PLAINTEXT") as sock:
        assert call(sock, 18, 3, client_software_name="x")["error_code"] == 0
        answer = call(sock, 17, 1, mechanism="GSSAPI")
        assert answer["error_code"] == 33
        assert answer["mechanisms"] == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    with connect(secured, "PLAINTEXT") as sock:
        assert call(sock, 17, 1, mechanism="PLAIN")["error_code"] == 34


def test_a_connection_keeps_its_user(secured: Secured) -> None:
    """Logging in again works as the same user, and ends the connection as another."""
    with connect(secured, "SASL_PLAINTEXT") as sock:
        assert log_in(sock, "ann", PASSWORD)["error_code"] == 0
        assert log_in(sock, "ann", PASSWORD)["error_code"] == 0
        assert call(sock, 3, 1, topics=None)["controller_id"] == 1
        assert log_in(sock, "bob", "b")["error_code"] == 58


def test_a_client_certificate_is_asked_for(secured: Secured) -> None:
    """Without a certificate of the client CA's nothing is served; old TLS versions are refused."""
    host, _, port = secured.at["SSL"].rpartition(":")
    context = ssl.create_default_context(cafile=str(secured.ca))
    address = host, int(port)

    def ask() -> None:
        raw = socket.create_connection(address, timeout=PATIENCE_S)
        with raw, context.wrap_socket(raw, server_hostname="localhost") as sock:
            call(sock, 18, 0)

    with pytest.raises(OSError):
        ask()
    context.load_cert_chain(secured.client)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        ask()


def test_scram_credentials_are_administered(secured: Secured) -> None:
    """Kafka's requests describe, set and remove credentials; each mistake has its error."""
    import hashlib

    salted = hashlib.pbkdf2_hmac("sha256", b"new", b"salt", 4096)
    change = {"name": "carl", "mechanism": 1, "iterations": 4096, "salt": b"salt"}
    with connect(secured, "PLAINTEXT") as sock:
        answer = call(
            sock,
            51,
            0,
            deletions=[{"name": "nobody", "mechanism": 1}],
            upsertions=[
                change | {"salted_password": salted},
                change | {"name": "few", "iterations": 100, "salted_password": salted},
                change | {"name": "odd", "mechanism": 9, "salted_password": salted},
            ],
        )
        codes = {one["user"]: one["error_code"] for one in answer["results"]}
        assert codes == {"nobody": 91, "carl": 0, "few": 93, "odd": 33}
        answer = call(sock, 50, 0, users=[{"name": "carl"}, {"name": "ann"}, {"name": "no"}])
        found = {one["user"]: one for one in answer["results"]}
        assert found["carl"]["credential_infos"] == [{"mechanism": 1, "iterations": 4096}]
        assert {one["mechanism"] for one in found["ann"]["credential_infos"]} == {1, 2}
        assert found["no"]["error_code"] == 91
        with connect(secured, "SASL_SSL") as other:
            assert log_in(other, "carl", "new")["error_code"] == 0
        call(sock, 51, 0, deletions=[{"name": "carl", "mechanism": 1}], upsertions=[])
        with connect(secured, "SASL_SSL") as other:
            assert log_in(other, "carl", "new")["error_code"] == 58


def test_passwords_are_not_stored(secured: Secured) -> None:
    """The users' file is its owner's alone and holds no password."""
    path = secured.process.data / "security" / "users.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert b"swordfish" not in path.read_bytes()


def test_users_that_the_command_line_adds_count_at_once(secured: Secured) -> None:
    """A user who is added to the directory of a running broker can log in within seconds."""
    Users(secured.process.data).add("dora", "d")

    def is_known() -> bool:
        with connect(secured, "SASL_PLAINTEXT") as sock:
            return bool(log_in(sock, "dora", "d")["error_code"] == 0)

    wait_until(is_known, "a log-in")


def test_a_renewed_certificate_is_taken_up(tmp_path: Path) -> None:
    """SIGHUP makes new connections use the new certificate; open ones go on; a broken file changes
    nothing.
    """
    _, files, _ = certificates(tmp_path)
    arguments = ["--tls-cert", str(files.certificate), "--log-level", "error"]
    with BrokerProcess(
        tmp_path / "data", listen="SASL_SSL://127.0.0.1:0", arguments=arguments
    ) as process:
        secured = Secured(process, tmp_path / "ca.pem", Path(), {"SASL_SSL": process.address}, None)
        old = connect(secured, "SASL_SSL")
        shutil.copy(tmp_path / "ca.pem", files.certificate)  # no key in it
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(0.3)
        connect(secured, "SASL_SSL").close()
        certificates(tmp_path)
        os.kill(process.pid, signal.SIGHUP)

        def is_trusted() -> bool:
            with contextlib.suppress(ssl.SSLError), connect(secured, "SASL_SSL"):
                return True
            return False

        wait_until(is_trusted, "the new certificate")
        assert call(old, 18, 0)["error_code"] == 0
        old.close()


@pytest.mark.parametrize(
    "name",
    [
        "CN=ann,OU=ops,O=Acme,C=DE",
        'CN=a\\,b\\+c\\"d\\\\e\\;f\\<g\\>,O=\\ x\\ ',
        "CN=\\#ann=1",
        "CN=Ann+UID=ann,DC=example,DC=org",
        "CN=\N{SNOWMAN},STREET=Long Lane,L=Town,ST=State",
    ],
)
def test_names_of_certificates(name: str) -> None:
    """A subject is written as RFC 2253 has it, which cryptography does as well."""
    import datetime as dt

    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name.from_rfc4514_string(name)
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    assert subject_of(certificate.public_bytes(Encoding.DER)) == name


def test_odd_certificates_are_refused() -> None:
    """Bytes that are no certificate are a protocol error, whatever they are."""
    import random

    rng = random.Random(7)
    der = trustme.CA().cert_pem.bytes()
    for _ in range(300):
        data = bytearray(ssl.PEM_cert_to_DER_cert(der.decode()))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(min(len(data), 200))] = rng.randrange(256)
        with contextlib.suppress(PenstockError):
            subject_of(bytes(data[: rng.randrange(1, len(data))]))


def test_listeners_beyond_loopback_ask_for_authentication(tmp_path: Path) -> None:
    """Beyond loopback a listener must authenticate, unless told otherwise."""
    _, files, _ = certificates(tmp_path)
    server_only = TlsFiles(files.certificate)
    for listen, tls in (("0.0.0.0:1", None), ("SSL://0.0.0.0:1", server_only)):
        with pytest.raises(SetupError, match="allow-remote"):
            BrokerConfig(tmp_path, listen, tls=tls)
        assert BrokerConfig(tmp_path, listen, tls=tls, allow_remote=True)
    with pytest.raises(UserError, match="tls-cert"):
        BrokerConfig(tmp_path, "SASL_SSL://0.0.0.0:1")
    assert BrokerConfig(tmp_path, "SSL://0.0.0.0:1,127.0.0.1:2", tls=files)
    assert BrokerConfig(tmp_path, "SASL_SSL://0.0.0.0:1", tls=server_only)
    for wrong in ("HTTP://a:1", "a", "SSL://a", ",".join(["a:1"] * 17)):
        with pytest.raises(UserError):
            parse_listeners(wrong)
    with pytest.raises(UserError, match="mechanisms"):
        BrokerConfig(tmp_path, mechanisms=("GSSAPI",))
    with pytest.raises(UserError, match="advertised"):
        parse_listeners("a:1,b:2", "c:3")


def test_strangers_are_limited_in_number_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that never say who they are give way to newer ones, and are closed in time; TLS
    handshakes that never end are no exception.
    """
    from penstock.broker.protocol import connection as connection_module
    from penstock.broker.security import guard as guard_module
    from penstock.broker.server import Broker

    monkeypatch.setattr(guard_module, "STRANGERS_MAX", 3)
    _, files, _ = certificates(tmp_path)

    async def visit(broker: Broker, listener: Any, left: int, limit_s: float) -> None:
        monkeypatch.setattr(connection_module, "AUTHENTICATION_S_MAX", limit_s)
        monkeypatch.setattr(connection_module, "HANDSHAKE_S_MAX", limit_s)
        pairs = [await asyncio.open_connection(listener.host, listener.port) for _ in range(5)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in pairs]
        await until(lambda: sum(one.done() for one in ended) >= 5 - left)
        await until(lambda: len(broker.connections) <= left)
        assert len(broker.connections) == left
        for _, writer in pairs:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)
        await until(lambda: not broker.connections)
        assert broker.connections.receive_bytes == 0

    async def run() -> None:
        listen = "SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
        broker = Broker(BrokerConfig(tmp_path / "data", listen, tls=files))
        await broker.start()
        try:
            for listener in broker.listeners:
                await visit(broker, listener, left=3, limit_s=600.0)
                await visit(broker, listener, left=0, limit_s=0.5)
        finally:
            await broker.stop()

    asyncio.run(run())


@pytest.mark.slow
def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    """One address gets no more connections than is configured."""
    with BrokerProcess(
        tmp_path, arguments=["--connections-per-address", "2", "--log-level", "error"]
    ) as process:
        host, _, port = process.address.rpartition(":")
        socks = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(3)]
        for sock in socks[:2]:
            call(sock, 18, 0)
        with pytest.raises(OSError):
            call(socks[2], 18, 0)
        for sock in socks:
            sock.close()


def test_failures_are_delayed_more_and_more() -> None:
    """Each failed log-in of an address takes longer, up to a limit, until a minute has passed."""
    failures = sasl.Failures()
    delays = [failures.add("a", 0.0) for _ in range(9)]
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert max(delays) == sasl.FAILURE_DELAY_S_MAX
    assert failures.add("b", 0.0) == 0.1
    assert failures.add("a", 61.0) == 0.1


@pytest.mark.slow
def test_a_session_has_a_lifetime(tmp_path: Path, make_batch: Callable[..., bytearray]) -> None:
    """Where sessions end, the client is told when; one that does not log in again is closed."""
    Users(tmp_path).add("ann", "a")
    arguments = ["--session-lifetime-s", "5", "--log-level", "error"]
    with BrokerProcess(
        tmp_path, listen="SASL_PLAINTEXT://127.0.0.1:0", arguments=arguments
    ) as process:
        secured = Secured(process, Path(), Path(), {"SASL_PLAINTEXT": process.address}, None)
        with connect(secured, "SASL_PLAINTEXT") as sock:
            assert log_in(sock, "ann", "a")["session_lifetime"] == 5000
            call(sock, 3, 1, topics=None)
            time.sleep(5.1)  # a lifetime that a busy machine doesn't use up between two calls
            assert log_in(sock, "ann", "a")["error_code"] == 0
            call(sock, 3, 1, topics=None)
            time.sleep(5.1)
            with pytest.raises(OSError):
                call(sock, 3, 1, topics=None)
