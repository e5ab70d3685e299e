"""Tables, publications and types that PostgreSQL has besides plain ones: nothing is left out unsaid."""

from __future__ import annotations

import re
import threading

import pytest
from tests.capture.sources import PostgresSource
from tests.patience import wait_until

from penstock.capture import Capture, drop, snapshot
from penstock.capture.databases.postgres import stream
from penstock.errors import SetupError

PARTITIONED = (
    "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)"
)


def rows(source: PostgresSource, table: str) -> dict[int, object]:
    """A topic's newest rows."""
    found: dict[int, object] = {}
    for key, value in source.records(source.topic(table)):
        found.pop(key["id"], None)
        if value is not None and value["op"] != "d":
            found[key["id"]] = value["after"]
    return found


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("published", "what"),
    [
        ("TABLE p, t (id)", "only the columns id"),
        ("TABLE p, t WHERE (id > 1)", "rows only WHERE"),
        ("TABLE p, t WITH (publish = 'insert, delete')", "only some kinds"),
        ("TABLE p, t", "under its partitions' names"),
        ("ALL TABLES", "under its partitions' names"),
    ],
)
def test_a_publication_that_leaves_something_out_is_refused(source, published, what) -> None:
    """The server would pass over it without a word. The message's SQL makes it whole."""
    source.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int); {PARTITIONED}")
    root = "publish_via_partition_root = true"
    if "partitions" not in what:
        published = (
            published[:-1] + f", {root})" if "WITH" in published else f"{published} WITH ({root})"
        )
    source.execute(f"CREATE PUBLICATION mine FOR {published}")
    tables = ("public.t", "public.p")
    with pytest.raises(SetupError, match=what) as refused:
        source.run(*tables, publication="mine")
    found = re.search(r"As its owner: (.*); or name another", str(refused.value))
    assert found is not None
    source.execute(found[1])
    source.run(*tables, publication="mine")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET v = 3 WHERE id = 2")
    source.execute("INSERT INTO p VALUES (1, 1), (101, 1); UPDATE p SET id = 102 WHERE id = 1")
    source.run(*tables, publication="mine")
    assert rows(source, "t") == {1: {"id": 1, "v": 1}, 2: {"id": 2, "v": 3}}
    assert rows(source, "p") == {101: {"id": 101, "v": 1}, 102: {"id": 102, "v": 1}}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE t",
        "SET (publish = 'insert')",
        "SET (publish_via_partition_root = false)",
        "SET TABLE p, t WHERE (id > 1)",
    ],
)
def test_a_publication_that_is_changed_ends_the_capture(source, monkeypatch, change) -> None:
    """Changes are missing from then on; it doesn't go on, now or later."""
    source.execute(f"CREATE TABLE t (id int PRIMARY KEY); {PARTITIONED}")
    monkeypatch.setattr(stream, "STATUS_S", 0.1)
    capture, ended = source.capture("t", "p"), []

    def run() -> None:
        try:
            capture.run()
        except SetupError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: capture.done.phase == "streaming")
    source.execute(f"ALTER PUBLICATION penstock_{source.name} {change}")
    wait_until(lambda: ended)
    thread.join()
    again = f"penstock capture drop {source.name}"
    assert again in str(ended[0])
    with pytest.raises(SetupError, match=again):
        source.run("t", "p")


@pytest.mark.slow
def test_a_table_that_takes_another_one_s_name_is_read_at_once(source, monkeypatch) -> None:
    """Rows of the one before are deleted. As a migration does that builds a table anew."""
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 1)"
    )
    monkeypatch.setattr(stream, "STATUS_S", 0.1)
    with source.running("public.t") as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute(
            "CREATE TABLE n (id int PRIMARY KEY, v int); INSERT INTO n VALUES (2, 2), (3, 2); "
            "DROP TABLE t; ALTER TABLE n RENAME TO t"
        )
        source.follows(capture, lambda: rows(source, "t").keys() == {2, 3})
        source.execute("UPDATE t SET v = 4")
        new = {2: {"id": 2, "v": 4}, 3: {"id": 3, "v": 4}}
        source.follows(capture, lambda: rows(source, "t") == new)


@pytest.mark.slow
def test_a_table_that_is_dropped_is_reported(source, monkeypatch, caplog) -> None:
    """The others are captured on; its records stay."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    monkeypatch.setattr(stream, "STATUS_S", 0.1)
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute("DROP TABLE t")
        source.follows(capture, lambda: "public.t; found that it was dropped" in caplog.text)
        source.execute("INSERT INTO u VALUES (1)")
        source.follows(capture, lambda: rows(source, "u"))
    assert rows(source, "t") == {1: {"id": 1}}


def test_policies_that_hide_rows_are_refused(source) -> None:
    """A snapshot would lack rows that changes have. The message's SQL lets the role read them all."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    role = f"hidden_{source.database}"
    source.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON t TO {role};"
        f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY first ON t USING (id < 2);"
        f"CREATE PUBLICATION penstock_{source.name} FOR TABLE t"
    )
    url = source.server.url(source.database, role)

    def run() -> None:
        capture = Capture(url, ["t"], to=source.name, log=source.log)
        capture.run(until=lambda done: done.is_caught_up)

    with pytest.raises(SetupError, match="row-level security") as refused:
        run()
    found = re.search(r"As a superuser: (.*;)", str(refused.value))
    assert found is not None
    source.execute(found[1])
    run()
    assert rows(source, "t").keys() == {1, 2}


@pytest.mark.slow
def test_rows_of_tables_that_inherit_are_their_own(source, monkeypatch) -> None:
    """In a snapshot, in one in chunks, and in changes: each row is in one topic."""
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text); CREATE TABLE c (PRIMARY KEY (id)) INHERITS (t);"
        "ALTER TABLE t ALTER w SET STORAGE EXTERNAL; ALTER TABLE c ALTER w SET STORAGE EXTERNAL;"
        "INSERT INTO t VALUES (1, 1, repeat('t', 9000));"
        "INSERT INTO c VALUES (1, 2, repeat('c', 9000)), (2, 2, '')"
    )
    source.run()
    source.execute("UPDATE t SET v = v + 10")
    source.run()
    snapshot(source.name, log=source.log)
    source.capture().run(until=lambda done: done.is_caught_up)
    for table in "tc":
        real = source.rows(f"SELECT id, v, w FROM ONLY {table}")
        assert rows(source, table) == {
            one[0]: dict(zip(("id", "v", "w"), one, strict=True)) for one in real
        }
    # One that isn't captured isn't in the publication either, and needs no key.
    drop(source.name, source.log, url=source.url)
    source.execute("ALTER TABLE c DROP CONSTRAINT c_pkey")
    source.run("public.t")
    source.execute("UPDATE c SET v = 7")


@pytest.mark.slow
def test_types_with_the_names_of_others_are_their_own(source) -> None:
    """A composite type `money`, an enum `date`, an array of boxes, whose elements semicolons divide."""
    source.execute(
        "CREATE TYPE public.money AS (amount numeric, currency text);"
        "CREATE TYPE public.date AS ENUM ('old', 'new');"
        "CREATE TABLE t (id int PRIMARY KEY, m public.money, d public.date, b box[])"
    )
    insert = "INSERT INTO t VALUES ({}, '(12.5,EUR)', 'new', '{{(1,1),(0,0);(2,2),(1,1)}}')"
    source.execute(insert.format(1))
    source.run(values="readable")
    source.execute(insert.format(2))
    source.run(values="readable")
    expected = {"m": "(12.5,EUR)", "d": "new", "b": ["(1,1),(0,0)", "(2,2),(1,1)"]}
    assert rows(source, "t") == {i: {"id": i, **expected} for i in (1, 2)}
    drop(source.name, source.log, url=source.url)
    source.run(values="precise")
    assert rows(source, "t") == {i: {"id": i, "d": "new"} for i in (1, 2)}


@pytest.mark.slow
def test_a_table_that_its_publication_makes_read_only_is_reported(source, caplog) -> None:
    """Without a replica identity the database refuses to update its rows; the message's SQL lets it."""
    source.execute("CREATE TABLE t (v int); CREATE TABLE n (id int PRIMARY KEY, v int)")
    source.execute("ALTER TABLE n REPLICA IDENTITY NOTHING; INSERT INTO n VALUES (1, 1)")
    source.run()
    commands = re.findall(r"As its owner: (.*;)", caplog.text)
    assert len(commands) == 2
    for command in commands:
        source.execute(command)
    source.execute("INSERT INTO t VALUES (1); UPDATE t SET v = 2; UPDATE n SET v = 2")
    source.run()
    assert rows(source, "n") == {1: {"id": 1, "v": 2}}


NESTED = (
    f"{PARTITIONED};"
    "CREATE TABLE q PARTITION OF p FOR VALUES FROM (200) TO (400) PARTITION BY RANGE (id);"
    "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (200) TO (300);"
    "INSERT INTO p VALUES (1, 1), (2, 1), (101, 1), (201, 1), (202, 1)"
)
STANDALONE = "CREATE TABLE x (id int PRIMARY KEY, v int); INSERT INTO x VALUES (301, 1), (302, 1);"
WITHOUT_RECORDS = {
    "emptied": "TRUNCATE p1; INSERT INTO p VALUES (2, 2)",
    "detached": "ALTER TABLE p DETACH PARTITION p2",
    "dropped": "DROP TABLE q1",
    "a branch detached": "ALTER TABLE p DETACH PARTITION q",
    "attached": f"{STANDALONE} ALTER TABLE q ATTACH PARTITION x FOR VALUES FROM (300) TO (400)",
    "attached again": (
        "ALTER TABLE p DETACH PARTITION p1; DELETE FROM p1 WHERE id = 1; UPDATE p1 SET v = 3;"
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)"
    ),
    "a branch attached again": (
        "ALTER TABLE p DETACH PARTITION q; DELETE FROM q WHERE id = 201;"
        "ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (200) TO (400)"
    ),
}


def truth(source: PostgresSource) -> dict[int, object]:
    """The rows that the table has."""
    return {id_: {"id": id_, "v": v} for id_, v in source.rows("SELECT id, v FROM p")}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("commands", WITHOUT_RECORDS.values(), ids=[*WITHOUT_RECORDS])
def test_rows_that_come_or_go_with_a_partition_are_captured(source, monkeypatch, commands) -> None:
    """The server sends nothing of them; the capture notices it, and reads the table again."""
    source.execute(NESTED)
    monkeypatch.setattr(stream, "STATUS_S", 0.1)
    with source.running("public.p") as capture:
        source.follows(capture, lambda: rows(source, "p") == truth(source))
        source.execute(commands)
        source.follows(capture, lambda: rows(source, "p") == truth(source))


@pytest.mark.slow
def test_partitions_that_change_while_nothing_is_captured_are_noticed(source) -> None:
    """The next run reads the table before it has caught up."""
    source.execute(NESTED)
    source.run("public.p")
    source.execute(";".join(WITHOUT_RECORDS[one] for one in ("emptied", "detached", "attached")))
    done = source.capture("public.p").run(until=lambda done: done.is_caught_up)
    assert rows(source, "p") == truth(source)
    assert done.snapshot_rows == len(truth(source))


@pytest.mark.slow
def test_only_rows_of_an_attached_partition_are_read(source) -> None:
    """A new partition that was empty has none that weren't sent: nothing is read."""
    source.execute(NESTED)
    source.run("public.p")
    source.execute("CREATE TABLE p5 PARTITION OF p FOR VALUES FROM (500) TO (600)")
    done = source.capture("public.p").run(until=lambda done: done.is_caught_up)
    assert done.snapshot_rows == 0
    source.execute(f"INSERT INTO p VALUES (501, 1); {WITHOUT_RECORDS['attached']}")
    done = source.capture("public.p").run(until=lambda done: done.is_caught_up)
    assert rows(source, "p") == truth(source)
    assert done.snapshot_rows == 2
