"""Names of databases and schemas with dots: each table is itself, whatever another one is called."""

from __future__ import annotations

import pytest
from tests.capture.sources import MysqlSource

from penstock.capture import drop, mysql, postgres, snapshot, status, token
from penstock.errors import UserError


def newest(source, topic: str) -> dict[int, object]:
    """The newest row of each key."""
    found: dict[int, object] = {}
    for key, value in source.records(topic):
        if key is not None:  # TRUNCATE's own record has none
            found.pop(key["id"], None)
            if value is not None and value["op"] != "d":
                found[key["id"]] = value["after"]["v"]
    return found


def read_again(source, *tables: str) -> None:
    """Lets a table be read in chunks, and waits until that is done."""
    snapshot(source.name, tables, log=source.log, delete_missing=True)
    with source.running(*source.tables) as capture:
        source.follows(capture, lambda: capture.done.snapshot_rows)
        source.follows(capture, lambda: not status(source.name, source.log).snapshot)


def test_a_database_of_mysql_may_have_dots(mysql_source) -> None:
    """In the address and, in quotes, in names of tables: snapshots, changes, chunks, emptied tables."""
    name = mysql_source.database
    mysql_source.rows(f'CREATE DATABASE "{name}.x"')
    source = MysqlSource(mysql_source.log, f"{name}.dots", mysql_source.server, f"{name}.x")
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 1)"
    )
    mysql_source.execute('CREATE TABLE "x.t" (id int PRIMARY KEY, v int)')
    mysql_source.execute('INSERT INTO "x.t" VALUES (1, 9)')
    source.tables = (f'"{name}.x".t',)
    source.run(*source.tables)
    source.execute("UPDATE t SET v = 2 WHERE id = 2")
    source.run("t")
    topic = f"{source.name}.{name}.x.t"
    assert newest(source, topic) == {1: 1, 2: 2}
    read_again(source, "t")
    read_again(source, f'"{name}.x".t')
    assert newest(source, topic) == {1: 1, 2: 2}
    source.execute("TRUNCATE TABLE t; INSERT INTO t VALUES (3, 3)")
    mysql_source.rows(f'DROP TABLE {name}."x.t"')
    source.run("*")
    assert newest(source, topic) == {3: 3}
    assert mysql(source.url, table="t").describe()[1] == ("id",)
    with pytest.raises(UserError, match="Quote a database whose name has a"):
        source.run(f"{name}.x.t")


def test_a_schema_of_postgresql_may_have_dots(source) -> None:
    """A table with a dot in another schema, which looks the same with both in a row, is another one."""
    source.execute('CREATE SCHEMA "a.b"; CREATE SCHEMA a')
    source.execute('CREATE TABLE "a.b".c (id int PRIMARY KEY, v int)')
    source.execute('CREATE TABLE a."b.c" (id int PRIMARY KEY, v int)')
    source.execute('INSERT INTO "a.b".c VALUES (1, 1); INSERT INTO a."b.c" VALUES (1, 9)')
    source.tables = ('"a.b".c', '"a".*')
    source.run(*source.tables)
    source.execute('INSERT INTO "a.b".c VALUES (2, 2); INSERT INTO a."b.c" VALUES (3, 9)')
    source.run(*source.tables)
    topics = status(source.name, source.log, url=source.url).tables
    assert set(topics) == {'"a.b".c', "a.b.c"}
    assert newest(source, topics['"a.b".c']) == {1: 1, 2: 2}
    assert newest(source, topics["a.b.c"]) == {1: 9, 3: 9}
    read_again(source, '"a.b".c')
    assert newest(source, topics['"a.b".c']) == {1: 1, 2: 2}
    assert postgres(source.url, table='"a.b".c').describe()[1] == ("id",)
    assert token(
        source.name, source.rows("SELECT pg_current_wal_lsn()::text")[0][0], log=source.log
    )
    drop(source.name, source.log, url=source.url)
