"""A database's changes in topics."""

from __future__ import annotations


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
