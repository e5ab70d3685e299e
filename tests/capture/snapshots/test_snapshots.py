"""Tables are read in chunks while their changes flow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S, wait_until

from penstock.capture import drop, snapshot, status
from penstock.capture.chunked import Mark, Part, incremental, queue
from penstock.capture.chunked.queue import Chunks
from penstock.capture.databases.postgres.pgoutput import Begin
from penstock.capture.databases.postgres.server import Server
from penstock.capture.databases.postgres.snapshots import chunks as chunks_module
from penstock.capture.databases.postgres.snapshots import initial
from penstock.capture.notifications import Notifications
from penstock.capture.output import Captured, Output
from penstock.capture.progress import Log
from penstock.capture.snapshots import Progress
from penstock.capture.table_schemas import Schemas
from penstock.cli import main
from penstock.errors import SetupError, UserError


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_ROWS", 20)
    monkeypatch.setattr(incremental, "STEP_S", -1.0)  # changes are looked for after each chunk


def replayed(source, topic: str) -> dict[object, object]:
    """What a topic's records make of a table; rows of a snapshot may replace what is there."""
    rows: dict[object, object] = {}
    for key, value in source.records(topic):
        place = tuple(key.values())
        if value is None or value["after"] is None:
            rows.pop(place, None)
        else:
            rows[place] = tuple(value["after"].values())
    return rows


def reads(source, topic: str) -> list[object]:
    """The keys of rows that snapshots of chunks have read."""
    found = source.records(topic)
    marked = [k for k, v in found if v and v["source"]["snapshot"] == "incremental"]
    return [tuple(key.values()) for key in marked]


def test_rows_that_change_after_a_chunk_was_read_keep_the_newer_value(source, monkeypatch) -> None:
    """DBLog's window: what the chunk lacks is dropped from it, whatever it did to the row."""
    source.execute("CREATE TABLE t (a int, b text, v int, PRIMARY KEY (a, b))")
    source.execute("INSERT INTO t SELECT i, 'it''s ' || i, 0 FROM generate_series(1, 10) i")
    topic, rows_of = f"{source.name}.public.t", chunks_module.rows_of

    def late(*arguments: object) -> object:
        """The chunk was read, and isn't written until changes have been."""
        with psycopg.connect(source.url) as one:
            one.execute("UPDATE t SET v = 1 WHERE a = 1")
            one.execute("DELETE FROM t WHERE a = 2")
            one.execute("UPDATE t SET b = 'other' WHERE a = 3")
            one.execute("INSERT INTO t VALUES (4, 'new', 0), (11, 'x', 0)")
        source.follows(capture, lambda: len(source.records(topic)) == 18)
        return rows_of(*arguments)

    monkeypatch.setattr(chunks_module, "rows_of", late)
    with source.running("t") as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        snapshot(source.name, ["t"], log=source.log, where="v < 100")
        source.follows(capture, lambda: reads(source, topic))
        source.follows(capture, lambda: not status(source.name, source.log).snapshot)
    assert reads(source, topic) == [(i, f"it's {i}") for i in range(4, 11)]
    assert {*replayed(source, topic).values()} == {*source.rows("TABLE t")}


@pytest.mark.slow
def test_changes_of_another_table_leave_a_chunk_s_rows_alone(source, monkeypatch) -> None:
    """Two tables share a topic: keys that are the same are of different rows, and one may be emptied."""
    source.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v int); CREATE TABLE u (a int PRIMARY KEY, v int)"
    )
    source.execute(
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i; INSERT INTO u VALUES (5, 0)"
    )
    topic, rows_of = f"{source.name}.both", chunks_module.rows_of

    def late(*arguments: object) -> object:
        source.execute("UPDATE u SET v = 1")
        source.execute("TRUNCATE u")
        source.follows(capture, lambda: len(source.records(topic)) == 13)
        return rows_of(*arguments)

    monkeypatch.setattr(chunks_module, "rows_of", late)
    monkeypatch.setattr(type(source), "tables", {"public.t": topic, "public.u": topic})
    with source.running(to=None, name=source.name) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        snapshot(source.name, ["t"], log=source.log)
        source.follows(capture, lambda: reads(source, topic))
        source.follows(capture, lambda: not status(source.name, source.log).snapshot)
    assert reads(source, topic) == [(i,) for i in range(1, 11)]


def test_what_was_asked_for_before_it_began_is_done_before_it_is_caught_up(source) -> None:
    """`penstock capture snapshot`, and then `penstock capture --once`."""
    source.execute("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    source.run("t")
    snapshot(source.name, ["t"], log=source.log)
    source.capture("t").run(until=lambda done: done.is_caught_up)
    assert reads(source, f"{source.name}.public.t") == [(1,), (2,)]


@pytest.mark.slow
def test_a_chunk_that_is_read_within_a_transaction_does_not_end_the_wait(source) -> None:
    """The rest of the transaction is waited for; the chunk is written behind it."""
    source.execute("CREATE TABLE t (a int PRIMARY KEY)")
    source.run("t")
    capture = source.capture("t")
    database = capture._kind.open(capture._settings)
    log = Log(source.log, source.name)
    try:
        state = log.start()
        assert state is not None
        database.check()
        database.prepare(state, [("public", "t")], lambda _: False)
        parts = Schemas({}, "", None, ("", "", ""), "pass"), Notifications(None, "")
        stream = database.stream(Output(log, state, Captured(), "", *parts))
        while stream.take(0.2):
            pass
        stream._begin = Begin(0, 0, 1)  # a transaction of which no more has come yet
        stream._incremental._ring()
        with ThreadPoolExecutor() as pool:
            taken = pool.submit(stream.take, PATIENCE_S)
            source.execute("INSERT INTO t VALUES (1)")
            assert taken.result()
    finally:
        database.close()
        log.close()


def test_reads_end_though_the_server_doesn_t(source, monkeypatch) -> None:
    """A process of the server that hangs isn't waited for."""
    monkeypatch.setattr(queue, "CLOSE_S", 0.2)
    source.execute("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with psycopg.connect(source.url) as holder:
        holder.execute("LOCK TABLE t")
        marked = {"mark": lambda: Mark(0), "ready": lambda: None}
        chunks = Chunks(
            [chunks_module.Reader(Server(source.url), "precise")], Part("public.t"), **marked
        )
        query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        [(pid,)] = wait_until(lambda: source.rows(query))
        os.kill(pid, signal.SIGSTOP)
        try:
            closing = threading.Thread(target=chunks.close, daemon=True)
            closing.start()
            closing.join(PATIENCE_S)
            assert not closing.is_alive()
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_server_with_few_connections_is_read_by_those_that_there_are(source) -> None:
    """Of three connections it takes one."""
    source.execute(
        "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 200)"
    )
    source.execute(f"CREATE ROLE {source.database} LOGIN CONNECTION LIMIT 1")
    source.execute(f"GRANT SELECT ON t TO {source.database}")
    url, ready = source.server.url(source.database, source.database), threading.Event()
    part = Part("public.t")
    readers = [chunks_module.Reader(Server(url), "precise") for _ in range(3)]
    chunks = Chunks(readers, part, mark=lambda: Mark(0), ready=ready.set)
    keys: list[bytes] = []
    try:
        while True:
            while (chunk := chunks.first()) is None:
                assert ready.wait(PATIENCE_S)
                ready.clear()
            keys += chunk.rows.keys.to_pylist()
            chunks.pop()
            if chunk.is_last:
                break
    finally:
        chunks.close()
    assert keys == [b'{"a":%d}' % i for i in range(1, 201)]


def test_a_table_that_is_rewritten_loses_no_rows(source) -> None:
    """To snapshots from before it is empty: they are taken when the table is locked."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 30) i")
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    server, part = Server(source.url), Part("public.t")
    reader = chunks_module.Reader(server, "precise")
    reads: tuple[Callable[[], object], ...] = (
        lambda: reader.opened(part).last,
        lambda: reader.end(Part("public.t", last=("30",)), ()),
        lambda: reader.read(part, (), ("30",), Mark(0)).count,
    )
    try:
        with ThreadPoolExecutor() as pool:
            for read, type_, expected in zip(
                reads, ("text", "int", "text"), [("30",), ("20",), 30], strict=True
            ):
                with psycopg.connect(source.url) as one:
                    one.execute(f"ALTER TABLE t ALTER v TYPE {type_} USING v::{type_}")
                    found = pool.submit(read)
                    wait_until(lambda: source.rows(waiting), "a read that waits for the table")
                assert found.result(PATIENCE_S) == expected
    finally:
        server.close()


@pytest.mark.slow
def test_a_table_that_is_rewritten_before_it_is_read_is_read_as_it_is(source, monkeypatch) -> None:
    """To the snapshot it is empty: another one is taken. A partition's rows are its table's."""
    source.execute("CREATE TABLE t (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE p PARTITION OF t DEFAULT; INSERT INTO t VALUES (1, 10), (2, 20)")
    read, left = initial.Snapshot.read, ["ALTER TABLE t ALTER v TYPE text"]

    def later(*arguments: Any) -> Any:
        if left:
            source.execute(left.pop())
        return read(*arguments)

    monkeypatch.setattr(initial.Snapshot, "read", later)
    source.run("t")
    rows = [value["after"] for _, value in source.records(f"{source.name}.public.t")]
    assert rows == [{"id": 1, "v": "10"}, {"id": 2, "v": "20"}]


def test_a_large_table_is_read_in_chunks_that_go_on_after_a_restart(source, monkeypatch) -> None:
    """Each row is read once, over several runs, while it changes; at the end the tables are equal."""
    monkeypatch.setattr(initial, "LARGE_ROWS", 100)
    source.execute("CREATE TABLE t (id text PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT md5(i::text), 0 FROM generate_series(1, 200) i; ANALYZE t")
    topic, end = f"{source.name}.public.t", threading.Event()

    def write() -> None:
        with psycopg.connect(source.url, autocommit=True) as one:
            for i in range(10_000):
                if end.is_set():
                    return
                # Few of the rows: chunks leave out those that change meanwhile, and don't count them.
                one.execute("UPDATE t SET v = %s WHERE id = md5(%s)", (i, str(i % 20 + 1)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            rows = source.capture("t").run(until=lambda done: done.snapshot_rows > 30).snapshot_rows
            assert 30 < rows < 200
        assert " %" in status(source.name, source.log).snapshot
    finally:
        end.set()
        writer.join()
    # As `--once` does: while a table is read it isn't caught up, though no changes come.
    one = source.capture("t", snapshot_connections=1)
    one.run(until=lambda done: done.is_caught_up)
    assert not status(source.name, source.log).snapshot
    keys = reads(source, topic)
    assert len(keys) == len({*keys})
    assert {*replayed(source, topic).values()} == {*source.rows("TABLE t")}


@pytest.mark.slow
def test_a_large_table_that_is_read_anew_loses_what_is_gone(source, monkeypatch) -> None:
    """Once its last chunk is written: keys that no row and no change has had since then are deleted."""
    monkeypatch.setattr(initial, "LARGE_ROWS", 10)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i; ANALYZE t")
    topic, ask = f"{source.name}.public.t", {"log": source.log}
    for _ in range(2):
        with source.running("t", notifications=True) as capture:
            source.follows(capture, lambda: capture.done.phase == "streaming")
            source.follows(capture, lambda: not status(source.name, source.log).snapshot)
            source.execute("UPDATE t SET v = v + 1 WHERE id % 10 = 0")
            rows = {*source.rows("TABLE t")}
            source.follows(capture, lambda: {*replayed(source, topic).values()} == rows)  # noqa: B023
        drop(source.name, **ask)
        source.execute("DELETE FROM t WHERE id % 7 = 0")
    notes = [value for _, value in source.records(f"{source.name}.notifications")]
    notifications = [one for one in notes if one["aggregate_type"] == "Incremental Snapshot"]
    assert [one["type"] for one in notifications[:5]] == [
        *3 * ["IN_PROGRESS"],
        "TABLE_SCAN_COMPLETED",
        "COMPLETED",
    ]
    keys = ("maximum_key", "last_processed_key", "current_collection_in_progress")
    assert [notifications[1]["additional_data"][one] for one in keys] == ["50", "40", "public.t"]
    assert notifications[3]["additional_data"]["total_rows_scanned"] == "50"


@pytest.mark.slow
def test_a_chunk_s_rows_have_their_version_before_a_change_has_it(source) -> None:
    """The server tells what a table looks like with its next change, which may come later, or never."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 3) i")
    source.run("t")
    source.execute("ALTER TABLE t ALTER v TYPE text")
    snapshot(source.name, ["t"], log=source.log)
    one = source.capture("t", on_schema_change="stop")
    with pytest.raises(SetupError, match=r"public\.t.*found: v: integer is text now"):
        one.run(until=lambda done: done.snapshot_rows == 3)
    assert reads(source, f"{source.name}.public.t") == []


def test_a_table_is_read_again_from_its_beginning() -> None:
    """Asked for again, or created anew while it is read: its cursor isn't gone on with."""
    reading = Progress(tables=("a", "b"), cursor=("5",), last=("9",), rows=5, where={"a": "x"})
    again = reading.with_tables(["a"])
    assert (again.tables, again.cursor, again.last, again.rows) == (("b", "a"), (), (), 0)
    assert again.where["a"] == ""
    later = reading.with_tables(["b", "c"], "v > 0")
    assert (later.tables, later.cursor) == (("a", "b", "c"), ("5",))
    assert later.where == {"a": "x", "b": "", "c": "v > 0"}  # b is read for all rows already
    assert reading.with_tables(["a"], "y").where["a"] == "(x) OR (y)"
    assert reading.with_tables(["a"], "x").where["a"] == "x"


def test_snapshots_are_paused_stopped_and_refused(source, caplog) -> None:
    """A condition that the server refuses ends the snapshot, not the capture; tables must be captured."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (v int)")
    source.execute("INSERT INTO t SELECT generate_series(1, 50)")
    topic, name = f"{source.name}.public.t", source.name
    ask = ("capture", "snapshot", name, "--broker", source.log)
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        with pytest.raises(UserError, match=r"public.keyless, public.t; found public.other"):
            snapshot(name, ["other"], log=source.log)
        snapshot(name, ["keyless", "t"], log=source.log, where="nonsense")
        source.follows(capture, lambda: caplog.text.count("no snapshot of it") == 2)
        snapshot(name, log=source.log, what="pause")
        assert CliRunner().invoke(main, [*ask, "-t", "t"]).exit_code == 0
        source.follows(capture, lambda: "(paused)" in status(name, source.log).snapshot)
        assert reads(source, topic) == []
        assert CliRunner().invoke(main, [*ask, "--resume"]).exit_code == 0
        source.follows(capture, lambda: len(reads(source, topic)) == 50)
