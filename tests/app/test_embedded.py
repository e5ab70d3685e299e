"""The embedded broker: where it is, whose it is, and who is told."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import pytest
from tests.patience import wait_until
from tests.ports import free_port

import penstock as ps
from penstock.app.embedded import EmbeddedBroker, Exposed, address_of
from penstock.broker.process import BrokerProcess
from penstock.broker.storage.data_lock import owner_of
from penstock.client import Client
from penstock.errors import FlowError, SetupError, UserError


def topics(address: str) -> list[str]:
    """What a broker has."""
    with Client(address) as client:
        return list(client.topics())


def free_address() -> str:
    """An address that nobody listens on."""
    return f"127.0.0.1:{free_port()}"


def test_it_stays_where_it_was_and_is_shared(tmp_path: Path) -> None:
    """A second process joins the first's broker; a later one listens where that did."""
    first = EmbeddedBroker(tmp_path, command="penstock run shop.py")
    address = first.start()
    try:
        owner = owner_of(tmp_path / "log")
        assert owner is not None
        assert owner.listeners == (f"PLAINTEXT://{address}",)
        assert (
            json.loads((tmp_path / "broker.json").read_bytes())["command"] == "penstock run shop.py"
        )
        second = EmbeddedBroker(tmp_path)
        assert second.start() == address
        second.stop()
        assert topics(address) == []
    finally:
        first.stop()
    assert owner_of(tmp_path / "log") is None
    assert address_of(tmp_path) == address
    third = EmbeddedBroker(tmp_path)
    try:
        assert third.start() == address
    finally:
        third.stop()


@pytest.mark.slow
def test_whoever_has_taken_its_port_is_not_taken_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another log's broker at the address of before is left alone; the change is told."""
    with BrokerProcess(tmp_path / "other") as other:
        with Client(other.address) as client:
            client.create_topic("theirs", 1)
        (tmp_path / "broker.json").write_text(json.dumps({"address": other.address, "pid": 1}))
        broker = EmbeddedBroker(tmp_path)
        try:
            with caplog.at_level(logging.WARNING):
                address = broker.start()
            assert address != other.address
            assert topics(address) == []
            assert other.address in caplog.text
        finally:
            broker.stop()


def test_it_listens_where_it_is_asked_to(tmp_path: Path) -> None:
    """The address of `listen` is kept to; where it is taken, the message says what to do."""
    address = free_address()
    broker = EmbeddedBroker(tmp_path / "a", listen=address)
    try:
        assert broker.start() == address
        with pytest.raises(SetupError, match=rf"expected to listen on {address}.*--listen"):
            EmbeddedBroker(tmp_path / "b", listen=address).start()
    finally:
        broker.stop()


@pytest.mark.slow
def test_a_broker_that_dies_is_started_again_where_it_was(tmp_path: Path) -> None:
    """Clients find it again; so does a process that only shares it."""
    first, second = EmbeddedBroker(tmp_path), EmbeddedBroker(tmp_path)
    address = first.start()
    try:
        assert second.start() == address
        owner = owner_of(tmp_path / "log")
        assert owner is not None
        os.kill(owner.pid, signal.SIGKILL)

        def is_back() -> bool:
            now = owner_of(tmp_path / "log")
            return now is not None and now.pid != owner.pid and bool(now.listeners)

        wait_until(is_back)
        now = owner_of(tmp_path / "log")
        assert now is not None
        assert now.listeners == (f"PLAINTEXT://{address}",)
    finally:
        second.stop()
        first.stop()


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "example.org:9092", "9092", "127.0.0.1:70000"])
def test_it_serves_this_machine_alone(listen: str) -> None:
    """An address that others reach, or none, is refused where it is written."""
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9092"):
        ps.App("p", listen=listen)


def test_an_app_has_one_log() -> None:
    """Where the log is elsewhere, nothing listens here."""
    with pytest.raises(FlowError, match="found both"):
        ps.App("p", log="kafka://h:9092", listen="127.0.0.1:9092")


@pytest.mark.slow
def test_an_exposed_broker_has_an_address_for_others(tmp_path: Path) -> None:
    """It listens there as well, and tells its clients the address that they can reach; here all stays."""
    outside, published = free_address(), "127.0.0.1:1"
    exposed = Exposed(outside.replace("127.0.0.1", "0.0.0.0"), published)
    (tmp_path / "broker.json").write_text(json.dumps({"address": outside, "pid": 1}))
    broker = EmbeddedBroker(tmp_path, exposed=exposed)
    try:
        address = broker.start()
        assert address.startswith("127.0.0.1:")
        assert address != outside
        assert [known(one) for one in (address, outside)] == [address, published]
        with pytest.raises(SetupError, match=r"expected to listen on 0\.0\.0\.0:"):
            EmbeddedBroker(tmp_path / "b", exposed=exposed).start()
    finally:
        broker.stop()


def known(address: str) -> str:
    """What a broker says to a client about its own address."""
    with Client(address) as client:
        client._cluster.refresh(None)
        [(host, port)] = client._cluster._nodes.values()
    return f"{host}:{port}"


def test_only_an_embedded_log_is_exposed() -> None:
    """A broker of its own, or a cluster, has its own listeners."""
    with pytest.raises(FlowError, match="expected an embedded log to expose; found the log at a:1"):
        ps.App("p", log="kafka://a:1").expose("0.0.0.0:9092")
    with pytest.raises(UserError, match="HOST:PORT"):
        ps.App("p").expose("0.0.0.0")
