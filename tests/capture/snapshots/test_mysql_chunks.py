"""Tables of MariaDB are read in chunks while their changes flow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from tests.capture.snapshots.test_snapshots import reads, replayed
from tests.capture.test_mysql import ROWS, TYPES
from tests.effort import rounds
from tests.killing import kill
from tests.mariadb import pymysql
from tests.patience import wait_until

from penstock.capture import snapshot, status
from penstock.capture.chunked import Mark, Part, incremental
from penstock.capture.databases.mysql import chunks
from penstock.capture.databases.mysql import database as database_module
from penstock.capture.databases.mysql.binlog import Places

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=3, full=8)
SEEDS = rounds("PENSTOCK_CHUNK_SEEDS", quick=1, full=5)
PROGRAM = """
import sys
from penstock.capture import Capture, output
from penstock.capture.chunked import incremental
from penstock.capture.databases.mysql import chunks, database
output.STEP_BYTES, output.IDLE_STORE_S = 4096, 0.1
chunks.CHUNK_ROWS, database.LARGE_ROWS, incremental.STEP_S = 20, 100, -1.0
url, to, log = sys.argv[1:]
Capture(url, ["*"], to=to, log=log, partitions=3).run()
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 20)
    monkeypatch.setattr(incremental, "STEP_S", -1.0)  # changes are looked for after each chunk


@pytest.fixture(params=["place", "lock"])
def _way(request, monkeypatch) -> None:
    """MariaDB says at which place a snapshot is; with MySQL the table is locked."""
    if request.param == "lock":
        monkeypatch.setattr(chunks.Reader, "_tells_place", False)


def is_read(source) -> bool:
    """Whether a snapshot goes on."""
    return bool(status(source.name, source.log, url=source.url).snapshot)


@pytest.mark.usefixtures("_way")
def test_rows_that_change_after_a_chunk_was_read_keep_the_newer_value(
    mysql_source, monkeypatch
) -> None:
    """DBLog's window: what the chunk lacks is dropped from it, whatever it did to the row."""
    source = mysql_source
    source.execute("CREATE TABLE t (a INT, b VARCHAR(20), v INT, PRIMARY KEY (a, b))")
    source.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, {i}, 0)' for i in range(1, 11))}")
    topic, rows_of = source.topic("t"), chunks.Makes.rows

    def late(*arguments: object) -> object:
        """The chunk was read, and isn't written until changes have been."""
        source.execute("UPDATE t SET v = 1 WHERE a = 1; DELETE FROM t WHERE a = 2")
        source.execute("UPDATE t SET b = 'other' WHERE a = 3")
        source.execute("INSERT INTO t VALUES (4, 'new', 0), (11, 'x', 0)")
        source.follows(capture, lambda: len(source.records(topic)) == 18)
        return rows_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(chunks.Makes, "rows", late)
    with source.running("t") as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        snapshot(source.name, ["t"], log=source.log, where="v < 100")
        source.follows(capture, lambda: reads(source, topic))
        source.follows(capture, lambda: not is_read(source))
    assert reads(source, topic) == [(i, str(i)) for i in range(4, 11)]
    assert {*replayed(source, topic).values()} == {*source.rows("SELECT * FROM t")}


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_change_and_the_capture_stops_while_a_table_is_read(mysql_source, seed) -> None:
    """At the end the topic is the table; each row that stayed was read once."""
    source, random_ = mysql_source, random.Random(seed)
    source.execute(
        "CREATE TABLE t (a VARCHAR(9), n DECIMAL(9, 2), b VARBINARY(9), d DATETIME(3), v INT, "
        "PRIMARY KEY (a, n, b, d))"
    )
    row = "('It''s {x}', {n}, x'00{x:02x}', '2024-02-29 12:00:00.{x:03}', 0)"
    source.execute(
        "INSERT INTO t VALUES " + ", ".join(row.format(x=i % 9, n=i - 50) for i in range(150))
    )
    topic = source.topic("t")
    source.run("t")
    before = len(source.records(topic))
    snapshot(source.name, ["t"], log=source.log)
    touched: set[int] = set()
    for run in range(200):
        with source.running("t") as capture:
            source.follows(
                capture,
                lambda run=run: capture.done.snapshot_rows or (run and not is_read(source)),
            )
            for _ in range(random_.randint(0, 5)):
                one = random_.randrange(-60, 120)
                touched.add(one)
                change = [
                    f"UPDATE t SET v = v + 1 WHERE n = {one}",
                    f"DELETE FROM t WHERE n = {one}",
                    f"REPLACE INTO t VALUES ('new', {one}, x'ff', '2024-01-01', 9)",
                ]
                source.execute(random_.choice(change))
        if not is_read(source):
            break
    else:
        pytest.fail(f"the snapshot has no end: {status(source.name, source.log).snapshot}")
    source.run("t")
    records = source.records(topic)
    found = Counter(row[-1] for row in replayed(source, topic).values())
    assert found == Counter(v for (v,) in source.rows("SELECT v FROM t"))
    marked = [v["after"] for _, v in records[before:] if v and v["op"] == "r"]
    counts = Counter((one["a"], one["n"]) for one in marked)
    assert max(counts.values()) == 1
    stayed = {i - 50 for i in range(150)} - touched
    assert len(stayed) <= len(counts)


def test_values_of_chunks_are_those_of_the_first_snapshot(mysql_source, monkeypatch) -> None:
    """All types; long rows make chunks shorter."""
    source = mysql_source
    source.rows(TYPES)
    for i, one in enumerate(ROWS):
        source.rows(f"INSERT INTO t VALUES ({i}, {one})")
    source.rows("INSERT INTO t(id) VALUES (2), (3)")
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    source.run("t")
    snapshot(source.name, ["t"], log=source.log)
    with source.running("t") as capture:
        source.follows(capture, lambda: len(source.records(source.topic("t"))) == 8)
    rows = [value["after"] for _, value in source.records(source.topic("t"))]
    assert rows[:4] == rows[4:]


def test_requests_are_paused_stopped_and_refused(mysql_source, caplog) -> None:
    """Some rows; a table that can't be read in the order of its key, or a wrong condition, is left out."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT); CREATE TABLE keyless (v INT)")
    source.execute("CREATE TABLE e (id ENUM('b', 'a') PRIMARY KEY)")
    source.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, {i % 2})' for i in range(50))}")
    topic, name, log = source.topic("t"), source.name, source.log
    with source.running(snapshot_connections=1) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        snapshot(name, ["keyless", "e", "t"], log=log, where="nonsense")
        source.follows(capture, lambda: caplog.text.count("no snapshot of it") == 3)
        snapshot(name, log=log, what="pause")
        snapshot(name, ["t"], log=log, where="v = 1")
        source.follows(capture, lambda: "(paused)" in status(name, log).snapshot)
        assert reads(source, topic) == []
        snapshot(name, log=log, what="resume")
        source.follows(capture, lambda: not is_read(source))
        snapshot(name, log=log, what="pause")
        snapshot(name, ["t"], log=log)
        source.follows(capture, lambda: "(paused)" in status(name, log).snapshot)
        snapshot(name, log=log, what="stop")
        source.follows(capture, lambda: not is_read(source))
    assert reads(source, topic) == [(i,) for i in range(1, 50, 2)]
    assert "found id enum" in caplog.text
    assert "Unknown column" in caplog.text


def test_a_chunk_of_another_server_is_refused(mysql_source) -> None:
    """An address may lead elsewhere after a failover, where places are others."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    part = Part(f"{source.database}.t", last=("1",))
    for system, count in ((f"7/{source.database}", 1), (f"8/{source.database}", None)):
        reader = chunks.Reader(source.url, "precise", Places("mysql-bin"), system)
        try:
            if count is None:
                with pytest.raises(ConnectionError, match="another server"):
                    reader.read(part, (), ("1",), Mark(0))
            else:
                found = reader.read(part, (), ("1",), Mark(0))
                assert found is not None
                assert found.count == count
                late = reader.read(part, (), ("1",), Mark(0, None, (found.high,)))
                assert late is None  # it lacks a group that was sent
        finally:
            reader.close()


def test_a_table_that_is_altered_while_it_is_read_is_read_as_it_is(mysql_source) -> None:
    """Between chunks, and before its rows are read: a chunk has the columns of its place."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, {i})' for i in range(50))}")
    source.run("t")
    snapshot(source.name, ["t"], log=source.log)
    source.capture("t").run(until=lambda done: done.snapshot_rows > 0)
    source.rows("ALTER TABLE t ADD COLUMN w INT DEFAULT 5, MODIFY v VARCHAR(9)")
    with source.running("t") as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.follows(capture, lambda: not is_read(source))
    rows = [v["after"] for k, v in source.records(source.topic("t")) if k["id"] == 49]
    assert rows == [{"id": 49, "v": 49}, {"id": 49, "v": "49", "w": 5}]


def write(source, seed: int, end: threading.Event) -> None:
    """Changes of few rows, one after another; goes on while the server is away."""
    random_ = random.Random(seed)
    while not end.is_set():
        try:
            with source.server.session(source.database) as cursor:
                while not end.is_set():
                    n = random_.randint(1, 2000)
                    one = random_.choice(
                        [
                            f"UPDATE t SET v = v + 1 WHERE id = {n}",
                            f"DELETE FROM t WHERE id = {n}",
                            f"REPLACE INTO t VALUES ({n}, 0, md5(rand()))",
                            f"UPDATE t SET id = id + 2000 WHERE id = {n}",
                        ]
                    )
                    cursor.execute(one)
        except pymysql.err.MySQLError:
            end.wait(0.05)


def test_no_kill_loses_a_row_of_a_large_table(mysql_source, monkeypatch) -> None:
    """The capture and the server are killed while chunks are read: each key is read once at most."""
    source, seed = mysql_source, random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, note VARCHAR(99))")
    source.rows("INSERT INTO t SELECT seq, 0, md5(seq) FROM seq_1_to_2000")
    source.rows("ANALYZE TABLE t")
    random_, end = random.Random(seed), threading.Event()
    writer = threading.Thread(target=write, args=(source, seed, end))
    writer.start()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", PROGRAM, source.url, source.name, source.log]
        return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})

    process = start()
    try:
        for _ in range(KILLS):
            time.sleep(random_.uniform(0.5, 2.0))  # when it is killed is the input, not a wait
            if random_.random() < 0.3:
                source.server.kill()
                source.server.start()
            kill(process)
            process = start()
    finally:
        end.set()
        writer.join()
        process.kill()
        process.wait()
    monkeypatch.setattr(database_module, "LARGE_ROWS", 100)
    with source.running(partitions=3) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        wait_until(lambda: not is_read(source))
    source.run(partitions=3)
    topic = source.topic("t")
    assert {*replayed(source, topic).values()} == {*source.rows("SELECT * FROM t")}
    keys = Counter(reads(source, topic))
    assert keys
    assert max(keys.values()) == 1
