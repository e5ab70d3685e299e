"""Tables that others own, drop and alter: what a sink does with them."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from tests.databases import Postgres
from tests.mariadb import MariaDB
from tests.patience import wait_until

import penstock as ps
from penstock.errors import SetupError, UserError
from penstock.sinks import Sink

SCHEMA = "id BIGINT NOT NULL, name STRING"


def follow(place, topic, schema=SCHEMA, key="id", **settings):
    """Follows until everything was written."""
    sink = Sink(place.make(table="users"), topic.name, schema, key=key, log=topic.log, **settings)
    return sink.run(until=lambda done: done.lag == 0)


@pytest.mark.quick_cases(1)
def test_a_table_that_was_dropped_is_written_from_the_first_record(place, topic, caplog) -> None:
    """Its rows are gone, and so are those behind the offsets; a warning says so."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    follow(place, topic)
    place.execute("DROP TABLE users")
    topic.send({"id": 3, "name": "eve"})
    assert follow(place, topic).upserts == 3
    assert place.rows("SELECT id FROM users ORDER BY id") == [(1,), (2,), (3,)]
    assert "Writing it again from the topic's first record" in caplog.text


@contextmanager
def running(sink, errors):
    """Runs it meanwhile."""

    def run() -> None:
        try:
            sink.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        sink.stop()
        thread.join()


@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite"], indirect=True)
def test_a_table_that_is_dropped_meanwhile_is_written_from_the_first_record(place, topic) -> None:
    """The next write finds that it is gone."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    sink, errors = Sink(place.make(table="users"), topic.name, SCHEMA, key="id", log=topic.log), []
    with running(sink, errors):
        wait_until(lambda: sink.done.lag == 0, "it to follow")
        place.execute("DROP TABLE users")
        topic.send({"id": 3, "name": "eve"})
        wait_until(lambda: sink.done.upserts == 5, lambda: f"the rows; {errors} {sink.done}")
    assert not errors
    assert place.rows("SELECT id FROM users ORDER BY id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE users DROP COLUMN name", "to have the columns name"),
        ("ALTER TABLE users DROP {key}", r"to have the key \(id\)"),
    ],
)
def test_a_table_that_is_altered_meanwhile_ends_the_sink_with_what_to_do(
    request, place, topic, change, message
) -> None:
    """It is looked at again, as when the sink begins."""
    kind = request.node.callspec.params["place"]
    if kind == "mysql" and "{key}" in change:
        pytest.skip("its statements don't need the key; the next run says so")
    topic.send({"id": 1, "name": "ann"})
    sink, errors = Sink(place.make(table="users"), topic.name, SCHEMA, key="id", log=topic.log), []
    with running(sink, errors):
        wait_until(lambda: sink.done.lag == 0, "it to follow")
        place.execute(change.format(key="CONSTRAINT users_pkey"))
        topic.send({"id": 2, "name": "bob"})
        wait_until(lambda: errors, "the error")
    with pytest.raises(UserError, match=message):
        raise errors[0]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_columns_that_the_database_would_number_are_written(place, topic) -> None:
    """As in a table with the source's own definition."""
    place.execute(
        "CREATE TABLE users (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)"
    )
    topic.send({"id": 7, "name": "ann"}, {"id": 7, "name": "Ann"})
    follow(place, topic)
    assert place.rows("SELECT * FROM users") == [(7, "Ann")]


@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite"], indirect=True)
def test_columns_that_the_database_computes_are_left_to_it(place, topic) -> None:
    """They aren't in the schema; where they are, the message names them."""
    place.execute(
        "CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(20),"
        " size INT GENERATED ALWAYS AS (length(name)) STORED)"
    )
    topic.send({"id": 1, "name": "ann", "size": 9})
    with pytest.raises(UserError, match="to have the columns size, to write them"):
        follow(place, topic, SCHEMA + ", size INT")
    follow(place, topic)
    assert place.rows("SELECT * FROM users") == [(1, "ann", 3)]


@pytest.mark.slow
def test_a_role_of_postgresql_needs_no_more_than_to_write(server: Postgres, topic) -> None:
    """Where both tables exist; else, and without that right, the message says what to grant."""
    server.execute("CREATE DATABASE least")
    server.execute("CREATE ROLE writer LOGIN")
    topic.send({"id": 1, "name": "ann"})

    def run(user: str) -> int:
        target = ps.sinks.postgres(server.url("least", user), table="users")
        sink = Sink(target, topic.name, SCHEMA, key="id", log=topic.log)
        return sink.run(until=lambda done: done.lag == 0).upserts

    with pytest.raises(SetupError, match="Create it as a role that may"):
        run("writer")
    run("postgres")
    topic.send({"id": 2, "name": "bob"})
    granted = "GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO writer"
    server.execute(granted.format("penstock_sinks"), "least")
    with pytest.raises(SetupError, match="Grant SELECT, INSERT, UPDATE, DELETE on users"):
        run("writer")
    server.execute(granted.format("users"), "least")
    assert run("writer") == 1


def test_a_user_of_mysql_needs_no_more_than_to_write(mysql_server: MariaDB, topic) -> None:
    """Where both tables exist. A table that it may not read isn't taken for one that is gone."""
    mysql_server.rows("CREATE DATABASE least")
    mysql_server.rows("CREATE USER writer@localhost")
    mysql_server.rows("CREATE USER writer@'127.0.0.1'")
    topic.send({"id": 1, "name": "ann"})

    def sink(user: str) -> Sink:
        url = mysql_server.url("least").replace("root@", f"{user}@")
        target = ps.sinks.mysql(url, table="users")
        return Sink(target, topic.name, SCHEMA, key="id", log=topic.log)

    sink("root").run(until=lambda done: done.lag == 0)
    topic.send({"id": 2, "name": "bob"})
    for host in ("localhost", "127.0.0.1"):
        rights = "SELECT, INSERT, UPDATE, DELETE ON least.penstock_sinks"
        mysql_server.rows(f"GRANT {rights} TO writer@'{host}'")
        mysql_server.rows(f"GRANT CREATE TEMPORARY TABLES ON least.* TO writer@'{host}'")
    one = sink("writer")
    done = one.run(until=lambda done: done.retries == 2)
    assert "SELECT command denied" in done.last_error
    for host in ("localhost", "127.0.0.1"):
        rights = "SELECT, INSERT, UPDATE, DELETE ON least.users"
        mysql_server.rows(f"GRANT {rights} TO writer@'{host}'")
    assert sink("writer").run(until=lambda done: done.lag == 0).upserts == 1
    assert mysql_server.rows("SELECT id FROM users ORDER BY id", "least") == [(1,), (2,)]


def test_times_and_numbers_in_sqlite_are_texts_that_sort(tmp_path, topic) -> None:
    """Years have four digits, and decimals no exponent."""
    path = tmp_path / "t.db"
    topic.send({"id": 1, "at": "0001-02-03T04:05:06Z", "n": "0.0000000001"}, {"id": 2, "n": 0})
    target = ps.sinks.sqlite(path, table="users")
    schema = "id BIGINT NOT NULL, at TIMESTAMP, n DECIMAL(38, 10)"
    Sink(target, topic.name, schema, key="id", log=topic.log).run(until=lambda done: done.lag == 0)
    with closing(sqlite3.connect(path)) as one:
        assert one.execute("SELECT at, n FROM users ORDER BY id").fetchall() == [
            ("0001-02-03T04:05:06.000000Z", "0.0000000001"),
            (None, "0.0000000000"),
        ]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("key", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("more", [", name text", ""])
def test_a_table_with_a_deferrable_key_is_written(place, topic, key, more) -> None:
    """ON CONFLICT doesn't take such a key: rows that there are are updated, others are inserted."""
    place.execute(f"CREATE TABLE users (id bigint{more}, PRIMARY KEY (id) {key})")
    schema = SCHEMA if more else "id BIGINT NOT NULL"
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    follow(place, topic, schema)
    topic.send({"id": 2, "name": "eve"}, {"id": 3, "name": "zoe"})
    follow(place, topic, schema)
    found = place.rows("SELECT * FROM users ORDER BY id")
    assert found == ([(1, "ann"), (2, "eve"), (3, "zoe")] if more else [(1,), (2,), (3,)])
