"""Captures of MariaDB that go on at another server, by GTIDs."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pymysql
import pytest
from tests.address import Address
from tests.capture.sources import MysqlSource
from tests.capture.test_mysql import PROGRAM, write
from tests.effort import rounds
from tests.killing import kill
from tests.mariadb import MariaDB, mariadb
from tests.patience import wait_until

from penstock.capture import status, token
from penstock.capture.databases.mysql.server import Server
from penstock.capture.progress import Log, State
from penstock.errors import SetupError

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=1, full=3)

_numbers = itertools.count()


class Pair:
    """Two servers, of which one follows the other, and is ready to take its place."""

    def __init__(self, first: MariaDB, second: MariaDB, log: str, name: str) -> None:
        self.leader, self._follower = first, second
        self._log, self._name = log, name
        self._follow(second, first)
        for _ in range(3):  # the files of one have other numbers than those of the other
            first.rows("FLUSH BINARY LOGS")
        first.rows("CREATE DATABASE shop CHARACTER SET utf8mb4")
        self.catch_up()

    @property
    def source(self) -> MysqlSource:
        """The database, at the server that leads."""
        return MysqlSource(self._log, self._name, self.leader, "shop")

    @staticmethod
    def _follow(follower: MariaDB, leader: MariaDB) -> None:
        follower.rows(
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {leader.port}, "
            "master_user = 'root', master_connect_retry = 1, master_use_gtid = current_pos"
        )
        follower.rows("START SLAVE")

    def catch_up(self) -> None:
        """Waits until the follower has all: what it was sent, and what it wrote when it led itself."""
        [(all_,)] = self.leader.rows("SELECT @@gtid_binlog_pos")

        def has_all() -> bool:
            [(its,)] = self._follower.rows("SELECT @@gtid_current_pos")
            return {*all_.split(",")} <= {*its.split(",")}

        wait_until(has_all, f"the follower to have {all_}")

    def fail_over(self) -> None:
        """The leader is killed; the follower leads. The one before follows then."""
        self.catch_up()
        self.leader.kill()
        self._follower.rows("STOP SLAVE")
        self._follower.rows("RESET SLAVE ALL")
        self.leader, self._follower = self._follower, self.leader
        self._follower.start()
        self._follow(self._follower, self.leader)


def state_of(source: MysqlSource) -> State:
    """What a capture has stored."""
    with Log(source.log, source.name) as log:
        found = log.load()
    assert found is not None
    return found


def go_on(source: MysqlSource, *tables: str) -> None:
    """Captures what a server has that the one before hadn't."""
    with source.running(*tables) as capture:
        source.follows(capture, lambda: capture.done.is_caught_up)


@pytest.fixture
def pair(log) -> Iterator[Pair]:
    """Two servers."""
    settings = {"binlog-format": "ROW", "log-slave-updates": "ON", "binlog_row_metadata": "FULL"}
    with (
        mariadb(**settings, **{"server-id": "7", "log-bin": "first-bin"}) as first,
        mariadb(**settings, **{"server-id": "8", "log-bin": "second-bin"}) as second,
    ):
        yield Pair(first, second, log, f"takeover{next(_numbers)}")


def test_a_capture_goes_on_at_the_server_that_takes_over(pair) -> None:
    """Whatever its files are called; also what the first one wrote last, and back again."""
    pair.source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    pair.source.execute("INSERT INTO t VALUES (1, 0), (2, 0)")
    pair.source.run()
    pair.source.execute("UPDATE t SET v = 1 WHERE id = 1")
    pair.source.run()
    for i in range(3, 9):
        pair.source.execute(f"INSERT INTO t VALUES ({i}, 0)")
        pair.fail_over()
        source = pair.source
        source.execute("UPDATE t SET v = v + 1 WHERE id <= 2")
        before = state_of(source)
        with source.running() as capture:
            source.follows(capture, lambda: capture.done.is_caught_up)
            [(file, place, *_)] = source.rows("SHOW MASTER STATUS")
            waits_for = token(source.name, f"{file}:{place}", log=source.log)
        assert waits_for.startswith(source.topic("t"))
        after = state_of(source)
        assert (before.system, after.system) in {("7/shop", "8/shop"), ("8/shop", "7/shop")}
        assert after.position > before.position
        found = status(source.name, source.log, url=source.url)
        assert (found.lag_bytes, found.slot) == (0, "reserved")
        assert found.position == f"{file.rpartition('.')[2]}:{place}"
        rows = source.table(source.topic("t"), "id").values()
        assert {(one["id"], one["v"]) for one in rows} == {*source.rows("SELECT * FROM t")}
    keys = [key["id"] for key, _ in source.records(source.topic("t"))]
    assert keys == [1, 2, 1, *(k for i in range(3, 9) for k in (i, 1, 2))]


@pytest.mark.slow
def test_a_server_that_lacks_what_was_captured_is_refused(pair) -> None:
    """Where one that had fallen behind takes over, changes of the first one were lost."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    pair.catch_up()
    other = replace(source, server=pair._follower)
    other.rows("STOP SLAVE")
    source.execute("INSERT INTO t VALUES (1)")
    source.run()
    other.execute("INSERT INTO t VALUES (2), (3)")
    with pytest.raises(SetupError, match=r"found that it lacks 0-7-\d+\. Wait until it has"):
        other.run()
    other.rows("CREATE DATABASE other")
    with pytest.raises(SetupError, match="found another one"):
        replace(other, database="other").run("shop.t")
    source.run()
    assert [key for key, _ in source.records(source.topic("t"))] == [{"id": 1}]


@pytest.mark.slow
def test_a_state_without_gtids_gets_them(pair) -> None:
    """A former release has stored the place alone: it is gone on with, and a failover follows."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    source.run()
    with Log(source.log, source.name) as log:
        state = log.start()
        assert state is not None
        known = {n: v for n, v in state.details.items() if n not in {"gtids", "gtid", "shift"}}
        log.commit(replace(state, details=known))
    source.execute("INSERT INTO t VALUES (2)")
    source.run()
    assert state_of(source).details["gtids"] == source.rows("SELECT @@gtid_binlog_pos")[0][0]
    source.execute("INSERT INTO t VALUES (3)")
    pair.fail_over()
    pair.source.run()
    assert [key["id"] for key, _ in source.records(source.topic("t"))] == [1, 2, 3]


@pytest.mark.slow
def test_a_server_that_lacks_a_domain_is_refused_before_anything_is_stored(pair) -> None:
    """It would send the domain's groups from the beginning, also those that it gets later."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.execute("CREATE TABLE u (id INT PRIMARY KEY)")
    pair.catch_up()
    other = replace(source, server=pair._follower)
    other.rows("STOP SLAVE")
    with source.server.session("shop") as cursor:
        cursor.execute("SET gtid_domain_id = 5")
        cursor.execute("INSERT INTO t VALUES (1)")
    source.run("t")
    other.execute("INSERT INTO u VALUES (2)")
    before = state_of(source)
    found = status(source.name, source.log, url=other.url)
    assert (found.slot, found.lag_bytes) == ("another server", None)
    with pytest.raises(SetupError, match=r"lacks 5-7-1\. "):
        other.run("t", "u")
    after = state_of(source)
    assert (after.system, after.position, after.tables) == (
        before.system,
        before.position,
        before.tables,
    )


@pytest.mark.slow
def test_numbers_of_a_domain_may_go_back_at_the_same_server(pair) -> None:
    """There the place says where to go on, and not the GTIDs."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.run()
    with source.server.session("shop") as cursor:
        for i, number in enumerate((50, 10)):
            cursor.execute(f"SET gtid_domain_id = 9, gtid_seq_no = {number}")
            cursor.execute(f"INSERT INTO t VALUES ({i})")
    source.run()
    assert "9-7-10" in state_of(source).details["gtids"]
    source.execute("INSERT INTO t VALUES (2)")
    source.run()
    assert [key["id"] for key, _ in source.records(source.topic("t"))] == [0, 1, 2]


@pytest.mark.slow
def test_a_capture_that_begins_without_gtids_gets_them(pair) -> None:
    """A log without a group has no GTIDs, which is known; without one, no other server is gone on at."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    pair.catch_up()
    other = replace(source, server=pair._follower)
    other.rows("STOP SLAVE")
    source.rows("RESET MASTER")
    source.run()
    assert state_of(source).details["gtids"] == ""
    with pytest.raises(SetupError, match="aren't known"):
        other.run()
    source.execute("INSERT INTO t VALUES (1)")
    source.run()
    assert state_of(source).details["gtids"] == "0-7-1"


@pytest.mark.slow
def test_what_a_snapshot_begins_anew_has_the_gtids_of_its_place(pair) -> None:
    """Where all tables of a capture are replaced, changes that the new snapshot has aren't captured again."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.execute("CREATE TABLE u (id INT PRIMARY KEY)")
    source.run("t")
    source.execute("INSERT INTO u VALUES (1), (2)")
    source.run("u")
    assert state_of(source).details["gtids"] == source.rows("SELECT @@gtid_binlog_pos")[0][0]
    pair.fail_over()
    pair.source.execute("INSERT INTO u VALUES (3)")
    go_on(pair.source, "u")
    assert [key["id"] for key, _ in source.records(source.topic("u"))] == [1, 2, 3]


@pytest.mark.slow
def test_groups_captured_before_a_failover_are_not_captured_again_after_a_restart(pair) -> None:
    """Domains are in another order at the new server: its place alone doesn't say what is behind it."""
    source = pair.source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    pair.catch_up()
    other = replace(source, server=pair._follower)
    other.rows("STOP SLAVE")
    with other.server.session("shop") as cursor:  # in its log before what it gets from the leader
        cursor.execute("SET gtid_domain_id = 5")
        cursor.execute("INSERT INTO t VALUES (1)")
    source.run()
    with source.server.session("shop") as cursor:
        cursor.execute("INSERT INTO t VALUES (2)")
    source.run()
    other.rows("START SLAVE")
    pair.catch_up()
    with other.running() as capture:
        other.follows(capture, lambda: len(source.records(source.topic("t"))) == 2)
    other.execute("INSERT INTO t VALUES (3)")
    go_on(other)
    assert [key["id"] for key, _ in source.records(source.topic("t"))] == [2, 1, 3]
    assert state_of(source).system == "8/shop"


def test_a_connection_to_another_server_is_not_used(pair) -> None:
    """Where the address moves between two connections, neither rows nor the log come from the second."""
    with Address(pair.leader.port) as address:
        server = Server(f"mysql://root@127.0.0.1:{address.port}/shop")
        assert server.system == "7/shop"
        file, position = server.position()
        address.port_behind = pair._follower.port
        with pytest.raises(ConnectionError, match="expected 7/shop; found 8/shop"):
            server.another()
        with pytest.raises(ConnectionError, match="expected 7/shop; found 8/shop"):
            server.dump(99, file, position)
        server.close()


@pytest.mark.slow
def test_a_query_is_not_cancelled_at_another_server(pair) -> None:
    """There a stranger's connection may have the number."""
    other = pair._follower
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def sleep() -> None:
        with other.session() as cursor:
            numbers.put(cursor.connection.thread_id())
            with contextlib.suppress(pymysql.err.Error):
                cursor.execute("SELECT SLEEP(600)")

    thread = threading.Thread(target=sleep)
    thread.start()
    number = numbers.get()
    sleeps = (
        f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {number} AND INFO LIKE '%SLEEP%'"
    )
    wait_until(lambda: other.rows(sleeps))
    with Address(other.port) as address:
        server = Server(f"mysql://root@127.0.0.1:{address.port}/shop")
        server.kill_query(number, "7/shop")
        assert other.rows(sleeps)
        server.kill_query(number, "8/shop")
        thread.join()


@pytest.mark.slow
def test_no_kill_and_no_failover_loses_or_doubles_a_change(pair) -> None:
    """The capture is killed while tables are written to, and servers take over from each other."""
    seed = random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    pair.source.execute(
        "CREATE TABLE account (id INT AUTO_INCREMENT PRIMARY KEY, balance INT, note VARCHAR(99))"
    )
    random_ = random.Random(seed)

    def start() -> subprocess.Popen[bytes]:
        source = pair.source
        command = [sys.executable, "-c", PROGRAM, source.url, source.name, source.log]
        return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})

    process: Any = start()
    try:
        for turn in range(4):
            end = threading.Event()
            writers = [
                threading.Thread(target=write, args=(pair.source, seed + 2 * turn + i, end))
                for i in range(2)
            ]
            for one in writers:
                one.start()
            try:
                for _ in range(KILLS):
                    time.sleep(
                        random_.uniform(0.5, 2.5)
                    )  # when it is killed is the input, not a wait
                    kill(process)
                    process = start()
            finally:
                end.set()
                for one in writers:
                    one.join()
            pair.fail_over()
            process.kill()
            process.wait()
            process = start()
    finally:
        process.kill()
        process.wait()
    source = pair.source
    source.run(partitions=3)
    found: dict[int, dict] = {}
    for key, value in source.records(source.topic("account")):
        if value is None:
            assert key["id"] not in found
        elif value["op"] == "d":
            assert found.pop(key["id"]) == value["before"]
        else:
            assert found.get(key["id"]) == value["before"], (value["op"], key)
            found[key["id"]] = value["after"]
    rows = source.rows("SELECT * FROM account ORDER BY id")
    assert [tuple(found[id_].values()) for id_ in sorted(found)] == rows
