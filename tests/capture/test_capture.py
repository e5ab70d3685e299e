"""A database's changes in topics."""

from __future__ import annotations

import psycopg
import pytest

from penstock.capture import snapshot


def test_rows_that_were_there_and_changes_are_each_there_once(source) -> None:
    """A capture writes the rows of a table, then its changes, as Debezium's envelopes."""
    source.execute("CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL)")
    source.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute("INSERT INTO users VALUES (3, 'eve')")
        source.execute("UPDATE users SET name = 'anna' WHERE id = 1")
        source.execute("DELETE FROM users WHERE id = 2")
        topic = f"{source.name}.public.users"
        source.follows(capture, lambda: len(source.records(topic)) == 6)
    found = [(key, value and (value["op"], value["after"])) for key, value in source.records(topic)]
    assert found == [
        ({"id": 1}, ("r", {"id": 1, "name": "ann"})),
        ({"id": 2}, ("r", {"id": 2, "name": "bob"})),
        ({"id": 3}, ("c", {"id": 3, "name": "eve"})),
        ({"id": 1}, ("u", {"id": 1, "name": "anna"})),
        ({"id": 2}, ("d", None)),
        ({"id": 2}, None),
    ]


def test_it_goes_on_where_it_stopped(source) -> None:
    """What happens while nothing captures is captured by the next run, and nothing twice."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    source.run("t")
    for i in range(5):
        source.execute(f"UPDATE t SET v = {i} WHERE id % 5 = {i}")
        source.execute(f"DELETE FROM t WHERE id = {i + 1}")
        source.run("t")
        found = source.table(f"{source.name}.public.t", "id")
        assert {(one["id"], one["v"]) for one in found.values()} == {*source.rows("TABLE t")}


@pytest.mark.slow
def test_it_is_caught_up_once_all_came_that_had_committed(source) -> None:
    """Not while the server looks through changes of other tables and sends nothing."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")
    source.run("t")
    source.execute("INSERT INTO other SELECT generate_series(1, 300000)")
    source.execute("INSERT INTO t VALUES (1)")
    source.capture("t").run(until=lambda done: done.is_caught_up)
    assert [key for key, _ in source.records(f"{source.name}.public.t")] == [{"id": 1}]


@pytest.mark.slow
def test_a_large_transaction_comes_in_pieces_and_counts_when_it_commits(source) -> None:
    """What it rolls back, in part or as a whole, isn't captured; what commits first comes first."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute(f"ALTER DATABASE {source.database} SET logical_decoding_work_mem = '64kB'")
    source.run("t")
    many = "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series({}, {}) i"
    with psycopg.connect(source.url) as one, psycopg.connect(source.url) as other:
        one.execute(many.format(1, 1000))
        one.execute("SAVEPOINT s")
        one.execute(many.format(1001, 2000))
        one.execute("ROLLBACK TO s")
        one.execute("ALTER TABLE t ADD COLUMN w int")
        one.execute("INSERT INTO t VALUES (3000, 'y', 7)")
        one.rollback()
        one.execute(many.format(1, 1000))
        one.execute("SAVEPOINT s")
        one.execute(many.format(1001, 2000))
        one.execute("ROLLBACK TO s")
        one.execute(many.format(2001, 3000))
        other.execute("INSERT INTO t VALUES (5000, 'z')")
        other.commit()
    source.run("t")
    keys = [key["id"] for key, _ in source.records(f"{source.name}.public.t")]
    assert keys == [5000, *range(1, 1001), *range(2001, 3001)]
    slot = f"slot_name = 'penstock_{source.name}'"
    assert source.rows(f"SELECT stream_count FROM pg_stat_replication_slots WHERE {slot}")[0][0] > 1


@pytest.mark.slow
def test_it_says_that_large_values_are_left_out_and_how_to_have_them(source, caplog) -> None:
    """Where placeholders are asked for, once of each column; what the message advises gives whole rows."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, body text, raw bytea)")
    source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL")
    body = "x" * 5000
    source.execute(f"INSERT INTO t SELECT i, 0, '{body}', NULL FROM generate_series(1, 3) i")
    source.run("t", large_values="placeholder")
    assert "REPLICA IDENTITY" not in caplog.text
    source.execute("UPDATE t SET v = 1")
    source.run("t", large_values="placeholder")
    [warning] = [
        one.getMessage() for one in caplog.records if "REPLICA IDENTITY" in one.getMessage()
    ]
    assert f"{source.name}: expected an update of public.t to have all values" in warning
    assert "of the columns: body." in warning
    topic = f"{source.name}.public.t"
    found = [one["body"] for one in source.table(topic, "id").values()]
    assert found == ["__debezium_unavailable_value"] * 3
    _, _, advice = warning.partition("For whole rows: ")
    statement, _, command = advice.partition("; then ")
    assert command == f"penstock capture snapshot {source.name} --tables public.t"
    source.execute(statement)
    snapshot(source.name, ["public.t"], log=source.log)
    source.run("t", large_values="placeholder")
    source.execute("UPDATE t SET v = 2")
    source.run("t", large_values="placeholder")
    newest = {key["id"]: value["after"] for key, value in source.records(topic)}
    assert [(one["v"], one["body"]) for one in newest.values()] == [(2, body)] * 3
