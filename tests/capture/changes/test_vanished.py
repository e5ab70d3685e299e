"""Servers that vanish without a word, as when a cable is pulled, or whose address forgets connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql
import pytest
from tests.address import Address
from tests.capture.sources import Source

from penstock.capture.databases.mysql import server as mysql_server_module
from penstock.capture.databases.mysql import stream as mysql_stream
from penstock.capture.databases.mysql.server import Server
from penstock.capture.databases.postgres import stream as postgres_stream
from penstock.capture.databases.postgres.server import server as postgres_server
from penstock.follow import follower


@dataclass
class Behind:
    """A server that is talked to through an address."""

    address: Address
    database: str

    def url(self, database: str) -> str:
        """The address of a database."""
        scheme = "mysql://root" if self.database == "mysql" else "postgresql://postgres"
        return f"{scheme}@127.0.0.1:{self.address.port}/{database}"


@pytest.fixture(params=["mysql", "postgres"])
def kind(request, monkeypatch) -> str:
    """A kind of database; its servers are given up soon."""
    monkeypatch.setattr(follower, "BACKOFF_S", (0.1, 0.2))
    monkeypatch.setattr(mysql_server_module, "HEARTBEAT_S", 1)
    monkeypatch.setattr(mysql_server_module, "SILENCE_S", 10.0)
    monkeypatch.setattr(mysql_stream, "SILENCE_S", 10.0)
    monkeypatch.setattr(postgres_server, "ANSWER_S", 10.0)
    monkeypatch.setattr(postgres_stream, "STATUS_S", 0.5)
    monkeypatch.setattr(postgres_stream, "SILENCE_S", 10.0)
    return str(request.param)


def test_a_capture_goes_on_after_its_server_has_vanished(kind, request) -> None:
    """The stream says nothing any more: it connects again, and has what came meanwhile."""
    fixture = {"mysql": "mysql_source", "postgres": "source"}[kind]
    source: Source = request.getfixturevalue(fixture)
    source.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    server: Any = source.server  # type: ignore[attr-defined]
    with Address(server.port) as address:
        through = type(source)(source.log, source.name, Behind(address, kind), source.database)
        with through.running() as capture:
            through.follows(capture, lambda: capture.done.is_caught_up)
            address.vanish()
            source.execute("INSERT INTO t VALUES (2)")
            through.follows(capture, lambda: len(source.records(source.topic("t"))) == 2)
        assert [key["id"] for key, _ in source.records(source.topic("t"))] == [1, 2]


def test_a_question_to_a_server_that_has_vanished_ends(mysql_source, monkeypatch) -> None:
    """It says what it has waited for; so does one that is logged in to."""
    with Address(mysql_source.server.port) as address:
        server = Server(Behind(address, "mysql").url(mysql_source.database))
        assert server.system == f"7/{mysql_source.database}"
        address.vanish()
        server.sql._read_timeout = 1.0  # from here on: nothing answers, however long it takes
        with pytest.raises(ConnectionError, match="to answer within 1 s; found that it says"):
            server.position()
        assert not server.is_connected
        monkeypatch.setattr(mysql_server_module, "ANSWER_S", 1.0)
        address.vanish(also_later=True)
        with pytest.raises(pymysql.err.OperationalError, match="timed out"):
            server.connect()
