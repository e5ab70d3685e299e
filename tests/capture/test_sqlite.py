"""Captures of SQLite: what triggers see, whoever writes, and whatever is killed."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import subprocess
import sys
import time

import pytest
from tests.capture.sources import SqliteSource
from tests.effort import rounds
from tests.killing import kill

from penstock.capture import Capture, Captured, drop, output, sqlite, status
from penstock.capture.databases.sqlite import database
from penstock.client import Client, Reader
from penstock.errors import SetupError, UserError
from penstock.formats.changelog import ChangelogDecoder

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=1, full=6)
PROGRAM = """
import sys
from penstock.capture import Capture, output
from penstock.capture.databases.sqlite import database
output.STEP_BYTES, database.TRIM_S = 4096, 0.05
url, to, log = sys.argv[1:]
Capture(url, ["*"], to=to, log=log, partitions=3).run()
"""
WRITER = """
import random, sqlite3, sys
random_ = random.Random(int(sys.argv[2]))
sql = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
while True:
    sql.execute("BEGIN IMMEDIATE")
    for _ in range(random_.randint(1, 5)):
        n = random_.randint(0, 100)
        sql.execute(random_.choice([
            "INSERT INTO account(balance, code) VALUES (0, abs(random()) % 1000) ON CONFLICT DO NOTHING",
            "REPLACE INTO account(id, balance, code) VALUES (?, 1, abs(random()) % 1000)",
            "UPDATE OR REPLACE account SET balance = balance + 1, code = code + 1 WHERE id % 7 = ? % 7",
            "UPDATE account SET id = 1000 + abs(random()) % 1000000 WHERE id = ?",
            "DELETE FROM account WHERE id % 90 = ?",
        ]).replace("?", str(n)))
    sql.execute("ROLLBACK" if random_.random() < 0.2 else "COMMIT")
"""


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )


def end(process: subprocess.Popen[bytes]) -> None:
    kill(process)


def test_no_kill_of_the_capture_or_of_a_writer_loses_or_doubles_a_change(sqlite_source) -> None:
    """The records make exactly the table that is in the file at the end."""
    source, seed = sqlite_source, random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    source.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INT, code INT UNIQUE)")
    random_ = random.Random(seed)
    writers = [start(WRITER, str(source.path), str(seed + i)) for i in range(2)]
    capture = start(PROGRAM, source.url, source.name, source.log)
    try:
        for i in range(KILLS):
            time.sleep(random_.uniform(0.5, 2.5))  # when it is killed is the input, not a wait
            end(capture)
            end(writers[i % 2])
            writers[i % 2] = start(WRITER, str(source.path), str(seed + 2 + i))
            capture = start(PROGRAM, source.url, source.name, source.log)
    finally:
        for one in [*writers, capture]:
            end(one)
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
    assert len(rows) > 10
    assert [tuple(found[id_].values()) for id_ in sorted(found)] == rows


def test_a_row_that_replace_deletes_is_deleted(sqlite_source) -> None:
    """SQLite fires no trigger for it, where it is in another row's way by a unique key."""
    source = sqlite_source
    source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, b INT, UNIQUE (b))")
    source.run()
    source.execute("INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)")
    source.execute("INSERT OR IGNORE INTO t VALUES (4, 'x', 9), (5, 'v', 5)")
    source.execute("REPLACE INTO t(a, b) VALUES ('x', 2)")  # deletes 1 and 2
    source.execute("UPDATE OR REPLACE t SET b = 5 WHERE id = 3")  # deletes 5
    source.execute("INSERT INTO t VALUES (3, 'u', 7) ON CONFLICT (id) DO UPDATE SET a = 'u'")
    source.execute(
        "PRAGMA recursive_triggers = 1; COMMIT; BEGIN; REPLACE INTO t VALUES (7, 'u', 8)"
    )
    source.run()
    found = source.table(source.topic("t"), "id")
    rows = [tuple(found[key].values()) for key in sorted(found)]
    assert rows == source.rows("SELECT * FROM t ORDER BY id") == [(6, "x", 2), (7, "u", 8)]


def test_values_are_those_that_are_stored(sqlite_source) -> None:
    """Snapshot and changes have the same; numbers are exact; blobs are base64."""
    source = sqlite_source
    row = "9007199254740993, 0.1 + 0.2, 'x\"', x'00ff', NULL, 9e999, 'text in an int'"
    source.execute("CREATE TABLE t (k TEXT PRIMARY KEY, a, b, c, d, e, f, g INT) WITHOUT ROWID")
    source.execute(f"INSERT INTO t VALUES ('1', {row})")
    source.run()
    source.execute(f'INSERT INTO t VALUES (\'2\', {row}); CREATE TABLE "o d\'d" ("a ""b" INT)')
    source.run()
    source.execute('INSERT INTO "o d\'d" VALUES (1)')
    source.run()
    one, two = source.table(source.topic("t"), "k").values()
    assert {**one, "k": "2"} == two
    assert [*one.values()][1:] == [
        *(9007199254740993, 0.1 + 0.2, 'x"', "AP8=", None, "Infinity", "text in an int")
    ]
    [(_, value)] = source.records(f"{source.name}.o_d_d")
    assert value["after"] == {'a "b': 1}
    assert [value["source"][name] for name in ("connector", "db", "table")] == [
        *("sqlite", "shop", "o d'd")
    ]


def test_a_table_is_one_of_a_program(sqlite_source) -> None:
    """Columns are derived from what is declared; rows fit them."""
    source = sqlite_source
    source.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, ok BOOLEAN, d DATE, at DATETIME, n DECIMAL(8, 2), "
        "f REAL, b BLOB, s TEXT)"
    )
    source.execute(
        "INSERT INTO t VALUES (1, 1, '2024-02-29', '2024-02-29 13:45:30.5', 12.5, 0.5, x'ff', 'x')"
    )
    one = sqlite(source.path, table="t")
    Capture(
        *(one.url, {"t": source.name}),
        name=source.name,
        log=source.log,
        format="flat",
        values="readable",
    ).run(until=lambda done: done.is_caught_up)
    schema, key = one.describe()
    decoder = ChangelogDecoder(schema, key, "json")
    with Client(source.log) as client, Reader(source.log) as reader:
        [records] = reader.read(source.name, 0, 0, client.offsets(source.name)[0])
        changes = decoder.decode(records)
    assert changes.reasons == []
    [row] = changes.columns.to_pylist()
    assert [str(value) for value in row.values()] == [
        *(
            "1",
            "True",
            "2024-02-29",
            "2024-02-29 13:45:30.500000+00:00",
            "12.50",
            "0.5",
            "b'\\xff'",
        ),
        "x",
    ]


def test_changes_that_are_stored_are_removed(sqlite_source, monkeypatch) -> None:
    """The table of changes doesn't grow; nothing is removed before it is in the log."""
    source = sqlite_source
    monkeypatch.setattr(database, "TRIM_S", 0.0)
    monkeypatch.setattr(database, "TRIM_ROWS", 7)
    source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute(
            "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 50) "
            "INSERT INTO t SELECT i FROM s"
        )
        count = f"SELECT count(*) FROM _penstock_{source.name}"
        source.follows(capture, lambda: source.rows(count) == [(0,)])
    assert len(source.records(source.topic("t"))) == 50
    found = status(source.name, source.log)
    assert (found.state, found.lag_bytes, found.lag_s) == ("unknown", None, None)


def test_a_dropped_capture_leaves_others_their_triggers(sqlite_source) -> None:
    """Names of triggers begin alike where one capture's name begins as another's."""
    source = sqlite_source
    source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    other = SqliteSource(source.log, f"{source.name}_2", source.path)
    source.run()
    other.run()
    drop(source.name, source.log, url=source.url)
    source.execute("INSERT INTO t VALUES (1)")
    assert other.run().transactions == 1


def test_a_capture_that_is_stopped_leaves_no_transaction_open(sqlite_source, monkeypatch) -> None:
    """Stopped within a large one, it lets go of readers of committed records at once."""
    source = sqlite_source
    monkeypatch.setattr(output, "STEP_BYTES", 2000)
    source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source.run()
    source.execute(
        "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 500) "
        "INSERT INTO t SELECT i FROM s"
    )
    calls = itertools.count()

    def is_within(done: Captured) -> bool:
        return done.phase == "streaming" and next(calls) > 3

    source.capture().run(until=is_within)
    topic = source.topic("t")
    with Client(source.log) as client:
        written = client.offsets(topic, uncommitted=True)
        assert written[0] > 10
        assert client.offsets(topic) == written
    assert source.records(topic) == []


def test_what_is_wrong_is_reported(sqlite_source, tmp_path) -> None:
    """No file, no table, a file that was restored: with what to do."""
    source = sqlite_source
    with pytest.raises(SetupError, match="found no file"):
        Capture(f"sqlite:///{tmp_path}/none.db", ["t"], to="a", log=source.log).run()
    with pytest.raises(UserError, match="such as sqlite:///shop"):
        sqlite("sqlite://", table="t").describe()
    source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    with pytest.raises(UserError, match=r"expected a table 'u\*'.*found t"):
        source.run("u*")
    with pytest.raises(UserError, match="found slot, which it hasn't"):
        source.capture(slot="s")
    source.run()
    own = SqliteSource(source.log, f"{source.name}own", tmp_path / "own.db")
    own.execute("CREATE TABLE capture (id INTEGER PRIMARY KEY)")
    with pytest.raises(SetupError, match="topics aren't the capture's own; found capture"):
        own.run()
    source.execute("INSERT INTO t VALUES (2)")
    copy = SqliteSource(source.log, source.name, tmp_path / "copy.db")
    with source.connect() as sql, sqlite3.connect(copy.path) as other:
        sql.backup(other)
    source.execute("INSERT INTO t VALUES (3)")
    source.run()
    with pytest.raises(SetupError, match="the file was restored"):
        copy.run()


@pytest.mark.parametrize("op", "cud?!")
def test_a_trigger_that_is_dropped_lets_nothing_pass(sqlite_source, op) -> None:
    """Whichever it is: the table is read again, and triggers are made."""
    source = sqlite_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT UNIQUE)")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    source.run()
    made = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    [name] = [name for (name,) in source.rows(made) if name.endswith(f"_{op}")]
    source.execute(f'DROP TRIGGER "{name}"')
    source.execute(
        "UPDATE t SET v = 20 WHERE id = 2; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (3, 3);"
        "REPLACE INTO t VALUES (4, 3); UPDATE OR REPLACE t SET v = 3 WHERE id = 2"
    )
    source.run()
    assert newest(source) == {2: {"id": 2, "v": 3}}
    assert len(source.rows(made)) == len("cud?!")
    source.execute("UPDATE t SET v = 4")
    source.run()
    assert newest(source) == {2: {"id": 2, "v": 4}}


def test_a_unique_key_that_comes_later_is_watched(sqlite_source) -> None:
    """Rows that REPLACE deletes because of it are deleted; those before it was seen, too."""
    source = sqlite_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    source.run()
    source.execute("CREATE UNIQUE INDEX one ON t(v); REPLACE INTO t VALUES (4, 1)")
    source.run()
    source.execute("REPLACE INTO t VALUES (5, 2)")
    source.run()
    assert newest(source).keys() == {3, 4, 5}


def newest(source: SqliteSource) -> dict[int, object]:
    """The rows of the topic of `t`."""
    found: dict[int, object] = {}
    for key, value in source.records(source.topic("t")):
        found.pop(key["id"], None)
        if value is not None and value["op"] != "d":
            found[key["id"]] = value["after"]
    return found
