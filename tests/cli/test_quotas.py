"""`penstock quotas`, `acl` and `users` of a broker that is named by its address."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from penstock.broker.process import BrokerProcess
from penstock.broker.security.users import Users
from penstock.client import Client
from penstock.errors import PenstockError

Penstock = Callable[..., object]
ADMIN = "secret of the admin"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with authorization, a super user, and a listener that asks who one is."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    Users(data).add("admin", ADMIN)
    arguments = ["--authorize", "--super-user", "User:admin"]
    with BrokerProcess(data, listen="SASL_PLAINTEXT://127.0.0.1:0", arguments=arguments) as process:
        yield process


@pytest.fixture
def admin(guarded: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What to say to be its administrator."""
    monkeypatch.setenv("PENSTOCK_PASSWORD", ADMIN)
    return "--broker", f"kafka+sasl://admin@{guarded.address}"


def test_quotas_come_and_go(broker, penstock) -> None:
    """Quotas of users, client ids, both, and defaults are set, listed and removed."""
    at = ("quotas", "--broker", broker)
    assert "no quotas" in penstock(*at).err
    assert penstock(*at, "set", "--user", "ann", "--produce", 1000, "--request", 50).code == 0
    assert penstock(*at, "set", "--client", "*", "--consume", 2000).code == 0
    assert penstock(*at, "set", "--user", "ann", "--client", "c", "--consume", 5).code == 0
    found = [
        json.loads(line) for line in penstock(*at, "list", "--format", "json").out.splitlines()
    ]
    limits = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    assert [(one["user"], one["client_id"], *map(one.get, limits)) for one in found] == [
        ("", "*", None, 2000.0, None),
        ("ann", "", 1000.0, None, 50.0),
        ("ann", "c", None, 5.0, None),
    ]
    assert "producer_byte_rate" in penstock(*at, "remove", "--user", "ann", "--produce").err
    assert penstock(*at, "remove", "--user", "ann").err == "removed request_percentage\n"
    assert penstock(*at, "remove", "--user", "ann", "--client", "c").code == 0
    assert penstock(*at, "remove", "--client", "*").code == 0
    assert "no quotas" in penstock(*at).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "--user", "ann"), "expected a limit"),
        (("set", "--produce", 1), "--user, --client, or both"),
        (("set", "--user", "ann", "--produce", 0), "not in the range"),
        (("remove", "--user", "nobody"), "expected a quota that is set"),
    ],
)
def test_mistakes_are_reported(broker, penstock, arguments, said) -> None:
    """A quota without a limit or an owner, and one that isn't there."""
    result = penstock("quotas", "--broker", broker, *arguments)
    assert result.code != 0
    assert said in result.err


def test_rules_of_a_broker_elsewhere(admin, penstock) -> None:
    """Rules are added, listed and removed by the broker's address."""
    rule = ("User:ann", "--topic", "t", "--operation", "read", *admin)
    assert penstock("acl", "add", *rule).err == "added 1 rule\n"
    more = ("--prefix", "--host", "10.0.0.1", "--deny", "--operation", "all")
    assert penstock("acl", "add", "User:bob", "--group", "g-", *more, *admin).code == 0
    assert penstock("acl", "list", *admin).out.splitlines() == [
        "User:ann\t*\tallow read\ttopic t",
        "User:bob\t10.0.0.1\tdeny all\tgroup g-…",
    ]
    assert penstock("acl", "list", "User:bob", *admin).out.count("\n") == 1
    assert "such as User:ann" in penstock("acl", "add", "ann", *rule[1:]).err
    assert "--data or --broker" in penstock("acl", "list", "--data", "here", *admin).err
    assert penstock("acl", "remove", "User:ann", *admin).err == "removed 1 rule\n"
    assert penstock("acl", "remove", "--all", *admin).err == "removed 1 rule\n"
    assert penstock("acl", "list", *admin).out == ""


def test_rules_where_there_is_no_authorization(broker, penstock) -> None:
    """A broker without authorization says so."""
    result = penstock("acl", "list", "--broker", broker)
    assert result.code != 0
    assert "SECURITY_DISABLED" in result.err


def test_users_of_a_broker_elsewhere(guarded, admin, penstock, monkeypatch) -> None:
    """Users are added, listed, given another password and removed by the broker's address."""
    assert penstock("users", "add", "ann", *admin, stdin=b"first\n").err == "added ann\n"
    assert Users(guarded.data).fits("ann", "first")
    again = penstock("users", "add", "ann", *admin, stdin=b"second\n")
    assert again.err == "changed the password of ann\n"
    assert Users(guarded.data).fits("ann", "second")
    listed = penstock("users", "list", *admin).out
    assert "ann\tSCRAM-SHA-256, SCRAM-SHA-512\n" in listed
    assert penstock("users", "remove", "ann", *admin).err == "removed ann\n"
    assert "found 'ann'" in penstock("users", "remove", "ann", *admin).err
    monkeypatch.setenv("PENSTOCK_PASSWORD", "wrong")
    assert penstock("users", "list", *admin).code != 0


@pytest.mark.parametrize("way", ["protocol", "directory"])
def test_removed_users_are_disconnected(guarded, admin, penstock, monkeypatch, way) -> None:
    """A user who is removed, by whichever way, loses open connections, and can't come back."""
    Users(guarded.data).add("eve", "e")
    monkeypatch.setenv("PENSTOCK_PASSWORD", "e")
    client = Client(f"kafka+sasl://eve@{guarded.address}", client_id="t", patience_s=PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while True:  # the broker takes the new user up within seconds
        try:
            client.topics()
            break
        except PenstockError:
            assert time.monotonic() < until
    (connection,) = client._cluster._connections.values()
    sock: socket.socket = connection._socket
    sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    monkeypatch.setenv("PENSTOCK_PASSWORD", ADMIN)
    if way == "protocol":
        assert penstock("users", "remove", "eve", *admin).code == 0
    else:
        assert penstock("users", "remove", "eve", "--data", Path(guarded.data)).code == 0
    sock.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionResetError):
        assert sock.recv(1) == b""
    with pytest.raises(PenstockError):
        client.topics()
    client.close()
