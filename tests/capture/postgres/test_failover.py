"""Captures of PostgreSQL that go on at a standby that was promoted."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.address import Address
from tests.capture.sources import PostgresSource
from tests.capture.test_kills import PROGRAM, write
from tests.databases import Postgres, postgres
from tests.effort import rounds
from tests.killing import kill
from tests.patience import wait_until

from penstock.capture import status
from penstock.capture.databases.postgres.server import Server
from penstock.capture.progress import Log, State
from penstock.errors import SetupError

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=1, full=3)
STORES_OFTEN = "from penstock.capture import output\noutput.IDLE_STORE_S = 0.1\n"
_numbers = itertools.count()


@dataclass
class Moving(PostgresSource):
    """A database whose address leads to whichever server is meant."""

    address: Address

    @property
    def url(self) -> str:
        """Its address, at the server that it leads to."""
        return f"postgresql://postgres@127.0.0.1:{self.address.port}/{self.database}"


class Pair:
    """Two servers, of which one follows the other."""

    def __init__(self, log: str, address: Address, leader: Postgres, settings: dict[str, str]):
        self.leader, self._settings = leader, settings
        name = f"failover{next(_numbers)}"
        self.source = Moving(log, name, leader, "postgres", address=address)
        self.follower = self._followed()

    def _followed(self) -> Postgres:
        version = int(self.leader.rows("SHOW server_version_num")[0][0]) // 10_000
        return Postgres(version, self.leader, hot_standby_feedback="on", **self._settings)

    @property
    def slot(self) -> str:
        """The capture's slot."""
        return f"penstock_{self.source.name}"

    def synchronize(self) -> None:
        """Waits until the follower has the capture's slot, also if it is promoted. It has to begin behind
        what the follower began with: the capture goes on meanwhile.
        """
        what = "FROM pg_replication_slots WHERE synced AND NOT temporary AND slot_name"

        def look() -> object:
            self.leader.execute("SELECT pg_log_standby_snapshot()")  # something that it gets to
            return self.follower.rows(f"SELECT 1 {what} = '{self.slot}'")

        wait_until(look, "the slot at the standby")

    def catch_up(self) -> None:
        """Waits until the follower has all that was committed."""
        [(all_,)] = self.leader.rows("SELECT pg_current_wal_flush_lsn()::text")
        has = f"SELECT pg_last_wal_replay_lsn() >= '{all_}'"
        wait_until(lambda: self.follower.rows(has) == [(True,)], "the standby to have all")

    def fail_over(self) -> None:
        """The leader is killed, and the address leads to the follower, which is promoted a moment later."""
        self.leader.kill()
        self.leader.stop()
        self.source.address.port_behind = self.follower.port
        self.leader = self.source.server = self.follower
        self.leader.promote()

    def follow(self) -> None:
        """The leader gets a follower again."""
        self.follower = self._followed()

    def stop(self) -> None:
        """Ends both."""
        for one in (self.leader, self.follower):
            one.stop()

    @property
    def state(self) -> State:
        """What the capture has stored."""
        with Log(self.source.log, self.source.name) as log:
            found = log.load()
        assert found is not None
        return found


@contextlib.contextmanager
def pair_of(
    log: str, version: int = 18, *, waits: bool = True, takes: bool = True
) -> Iterator[Pair]:
    """Two servers.

    Args:
        log: where captures write to.
        version: PostgreSQL's.
        waits: whether slots get what the follower has, and no more.
        takes: whether the follower takes slots along.
    """
    settings = {"sync_replication_slots": "on"} if takes else {}
    with postgres(version) as leader, Address(leader.port) as address:
        pair = Pair(log, address, leader, settings)
        try:
            if waits:
                for one in (pair.leader, pair.follower):
                    one.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
                    one.execute("SELECT pg_reload_conf()")
            yield pair
        finally:
            pair.stop()


def keys(pair: Pair) -> list[int]:
    """Of the records that were captured."""
    return [key["id"] for key, _ in pair.source.records(pair.source.topic("t"))]


def test_a_capture_goes_on_at_the_standby_that_is_promoted(log) -> None:
    """It waits while the address leads to a standby; nothing is lost or doubled."""
    with pair_of(log) as pair:
        source = pair.source
        source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
        with source.running() as capture:
            for turn in (1, 2):
                source.follows(capture, lambda: capture.done.phase == "streaming")
                pair.synchronize()
                source.execute(f"INSERT INTO t VALUES ({10 * turn})")
                pair.catch_up()
                pair.leader.kill()
                source.address.port_behind = pair.follower.port
                source.follows(capture, lambda: "found a standby" in capture.done.trouble)
                pair.fail_over()
                source.execute(f"INSERT INTO t VALUES ({10 * turn + 1})")
                pair.follow()
                wanted = 2 * turn + 1
                source.follows(capture, lambda n=wanted: len(keys(pair)) >= n)
        assert keys(pair) == [0, 10, 11, 20, 21]
        assert pair.state.details["timeline"] == 3
        assert status(source.name, source.log, url=source.url).slot == "reserved"


@pytest.mark.slow
@pytest.mark.parametrize("version", [18, 16])
def test_a_slot_that_the_standby_has_not_is_an_error(log, version) -> None:
    """Older servers have no failover slots, and others need a setting; the changes between are unknown."""
    with pair_of(log, version, waits=False, takes=False) as pair:
        source = pair.source
        source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        source.run()
        pair.catch_up()
        pair.fail_over()
        source.execute("INSERT INTO t VALUES (2)")
        for _ in range(2):  # what the first one finds doesn't change what the second one does
            with pytest.raises(SetupError, match=r"hadn't synchronized the slot.*capture drop"):
                source.capture().run()
        assert keys(pair) == [1]


@pytest.mark.slow
def test_a_standby_that_lacks_what_was_captured_is_refused(log) -> None:
    """Its positions are the same numbers: its own changes up to there would be passed over."""
    with pair_of(log, waits=False) as pair:
        source = pair.source
        source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        source.run()
        source.execute("INSERT INTO t VALUES (2)")
        with source.running() as capture:
            source.follows(capture, lambda: capture.done.phase == "streaming")
            pair.synchronize()
        pair.catch_up()
        pair.follower.kill()
        source.execute("INSERT INTO t SELECT generate_series(3, 999)")
        source.run()
        captured = pair.state.position
        pair.leader.kill()
        pair.follower.start()
        pair.fail_over()
        assert source.rows("SELECT max(id) FROM t") == [(2,)]
        source.execute("INSERT INTO t SELECT generate_series(1000, 9999)")
        assert source.end() > captured
        with pytest.raises(SetupError, match="the database lacks"):
            source.capture().run()
        assert keys(pair) == [*range(1, 1000)]
        assert pair.state.position == captured


@pytest.mark.slow
def test_an_older_copy_of_a_server_is_refused(log) -> None:
    """It has the same timeline, and less of it than was captured."""
    with postgres() as server:
        source = PostgresSource(log, f"failover{next(_numbers)}", server, "postgres")
        source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        source.run()
        server.kill()
        copy = f"{server.folder}/copy"
        subprocess.run(["cp", "-a", f"{server.folder}/data", copy], check=True)
        server.start()
        source.execute("INSERT INTO t SELECT generate_series(2, 999)")
        source.run()
        server.kill()
        subprocess.run(["rm", "-r", f"{server.folder}/data"], check=True)
        subprocess.run(["mv", copy, f"{server.folder}/data"], check=True)
        server.start()
        with pytest.raises(SetupError, match="older copy"):
            source.capture().run()


@pytest.mark.slow
def test_an_invalidated_slot_is_refused_with_the_reason(log) -> None:
    """The server has removed its log because it was to keep no more of it."""
    with postgres(max_slot_wal_keep_size="1MB", max_wal_size="32MB") as server:
        source = PostgresSource(log, f"failover{next(_numbers)}", server, "postgres")
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        source.run()
        for _ in range(3):  # two segments and more
            source.execute("SELECT pg_logical_emit_message(false, 'x', 'x')")
            source.steps("SELECT pg_switch_wal();\nCHECKPOINT")
        with pytest.raises(SetupError, match=r"has removed it.*wal_removed"):
            source.capture().run()


@pytest.mark.slow
def test_a_connection_to_another_server_is_not_used(log) -> None:
    """Where the address moves between two connections, neither rows nor changes come from the second."""
    with pair_of(log, waits=False) as pair:
        server = Server(pair.source.url)
        server.check()
        assert server.place.timeline == 1
        pair.source.address.port_behind = pair.follower.port
        for one in (server, server.another()):
            with pytest.raises(ConnectionError, match=r"expected timeline 1 of .*; found 0 of"):
                one.connect(replication=one is server)
        server.close()


def test_a_server_that_a_timeline_does_not_come_from_has_another_log(server) -> None:
    """The first timeline has no history to ask for."""
    one = Server(server.url())
    one.check()
    assert one.place.timeline == 1
    assert one.end_of(1) is not None
    assert one.end_of(2) is None
    one.close()


@contextlib.contextmanager
def writing(source: Moving, seed: int) -> Iterator[None]:
    """Two write meanwhile."""
    end = threading.Event()
    writers = [threading.Thread(target=write, args=(source, seed + i, end)) for i in range(2)]
    for one in writers:
        one.start()
    try:
        yield
    finally:
        end.set()
        for one in writers:
            one.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_kill_and_no_failover_loses_or_doubles_a_change(log) -> None:
    """The capture is killed while tables are written to, and so are the servers, at any moment."""
    seed = random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    random_ = random.Random(seed)
    with pair_of(log) as pair:
        source = pair.source
        source.execute(
            "CREATE TABLE account (id serial PRIMARY KEY, balance int, note text);"
            "CREATE TABLE entry (id serial PRIMARY KEY, account int, at timestamptz);"
            "CREATE TABLE cart (id int PRIMARY KEY, v int);"
        )
        source.run(partitions=3)

        def start() -> subprocess.Popen[bytes]:
            command = [
                sys.executable,
                "-c",
                STORES_OFTEN + PROGRAM,
                source.url,
                source.name,
                source.log,
                "",
            ]
            return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})

        process: Any = start()
        try:
            for turn in range(3):
                with writing(source, seed + 4 * turn):
                    for _ in range(KILLS):
                        # When it is killed is the input, not a wait.
                        time.sleep(random_.uniform(0.5, 2.5))
                        kill(process)
                        process = start()
                pair.synchronize()
                with writing(source, seed + 4 * turn + 2):
                    time.sleep(random_.uniform(0.2, 1.0))
                    if random_.random() < 0.5:
                        process.kill()
                        process.wait()
                        process = start()
                    pair.fail_over()
                pair.follow()
        finally:
            process.kill()
            process.wait()
        source.run(partitions=3)
        for table in ("account", "entry", "cart"):
            rows = dict(source.rows(f"SELECT id, to_jsonb({table}) FROM {table}"))
            found = {key["id"]: value for key, value in source.records(source.topic(table)) if key}
            there = {key: value["after"] for key, value in found.items() if value is not None}
            assert {*there} == {*rows}
            if table != "entry":
                assert there == rows
        for table in ("account", "entry"):  # each change fits what was there
            source.table(source.topic(table), "id")
