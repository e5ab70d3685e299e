"""Kafka's own administration tools against a secured broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from penstock.broker import BrokerProcess
from penstock.broker.security.users import Users

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
from peers import cache, kafka

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(kafka.available() is not None, reason=str(kafka.available())),
]
TOOL_S_MAX = 120
Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a tool, logged in over TLS with SCRAM-SHA-512; gives back what it prints."""
    directory = tmp_path_factory.mktemp("tools")
    authority = trustme.CA()
    issued, key = authority.issue_cert("localhost", "127.0.0.1"), directory / "broker.pem"
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(key)
    key.chmod(0o600)
    data, settings = directory / "data", directory / "client.properties"
    Users(data).add("admin", "adm")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={login} required username="admin" password="adm";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={directory / 'ca.pem'}\n"
    )
    arguments = ["--tls-cert", str(key), "--super-user", "User:admin", "--authorize"]
    with BrokerProcess(data, listen="SASL_SSL://127.0.0.1:0", arguments=arguments) as process:

        def tool(main: str, *more: str) -> str:
            java = [str(cache.java()), "-Xmx200m", "-XX:TieredStopAtLevel=1"]
            command = [*java, "-cp", cache.classpath("kafka"), main]
            command += ["--bootstrap-server", process.address, "--command-config", str(settings)]
            ended = subprocess.run(
                [*command, *more], capture_output=True, text=True, timeout=TOOL_S_MAX
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr
            return ended.stdout

        yield tool


def test_acls(run: Run) -> None:
    """Kafka's kafka-acls adds, lists and removes rules."""
    main = "org.apache.kafka.tools.AclCommand"
    rule = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", "orders")
    assert "operation=READ" in run(main, "--add", *rule)
    assert "principal=User:bob, host=*, operation=READ" in run(main, "--list")
    run(main, "--remove", "--force", *rule)
    assert "User:bob" not in run(main, "--list")


def test_users_and_quotas(run: Run) -> None:
    """Kafka's kafka-configs sets a user's password and quota, and shows both."""
    main, who = "kafka.admin.ConfigCommand", ("--entity-type", "users", "--entity-name", "bob")
    secret = "SCRAM-SHA-256=[iterations=8192,password=bobs]"
    run(main, "--alter", *who, "--add-config", secret)
    run(main, "--alter", *who, "--add-config", "producer_byte_rate=1000000")
    shown = run(main, "--describe", *who)
    assert "iterations=8192" in shown
    assert "producer_byte_rate=1000000" in shown
