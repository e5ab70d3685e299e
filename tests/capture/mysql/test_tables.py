"""What MariaDB's binary log says otherwise than by rows, and how text is bytes: nothing is lost unsaid."""

from __future__ import annotations

import pymysql
import pytest
from tests.capture.sources import MysqlSource
from tests.mariadb import mariadb

from penstock.errors import SetupError, UserError

NEW = "CREATE TABLE n (id INT PRIMARY KEY, v INT)"
WITH_ACCENTS = {"latin1", "latin2", "cp850", "cp1250", "utf8mb4", "utf16", "ucs2", "macroman"}


def rows(source: MysqlSource, table: str = "t") -> dict[int, object]:
    """A topic's newest rows."""
    found: dict[int, object] = {}
    for key, value in source.records(source.topic(table)):
        found.pop(key["id"], None)
        if value is not None and value["op"] != "d":
            found[key["id"]] = value["after"]
    return found


def real(source: MysqlSource, table: str = "t") -> dict[int, object]:
    """A table's rows."""
    return {one[0]: {"id": one[0], "v": one[1]} for one in source.rows(f"SELECT * FROM {table}")}


def statement(source: MysqlSource, *commands: str) -> None:
    """Runs statements in one session, each by itself."""
    with source.server.session(source.database) as cursor:
        for command in commands:
            cursor.execute(command)


def test_text_is_what_the_server_says_it_is(mysql_source) -> None:
    """Of all character sets of one byte, each byte; of others some; in ENUM and SET too."""
    source = mysql_source
    sets = source.rows(
        "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS "
        "WHERE CHARACTER_SET_NAME <> 'binary'"
    )
    definitions = ", ".join(
        f"`{one}` VARCHAR(300) CHARACTER SET {one}, `{one} e` ENUM('a', '{label}') CHARACTER SET {one}, "
        f"`{one} s` SET('b', '{label}') CHARACTER SET {one}"
        for one, _ in sets
        for label in ["é" if one in WITH_ACCENTS else "c"]
    )
    source.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {definitions}) ENGINE = MyISAM")
    one_byte = bytes(range(1, 256)).hex()
    values = ", ".join(
        f"CONVERT(x'{one_byte}' USING {one}), 2, 3" if length == 1 else "'a9', 2, 3"
        for one, length in sets
    )
    source.execute(f"INSERT INTO t VALUES (1, {values})")
    source.run()
    source.execute(f"INSERT INTO t VALUES (2, {values})")
    source.run()
    found = rows(source)
    assert {**found[2], "id": 1} == found[1]
    assert (found[2]["latin1 e"], found[2]["latin1 s"]) == ("é", "b,é")
    assert found[2]["latin1"].endswith("ýþÿ")


@pytest.mark.parametrize(
    "commands",
    [
        [
            *(NEW, "INSERT INTO n VALUES (2, 5), (8, 5)", "RENAME TABLE t TO o, n TO t"),
            "INSERT INTO t VALUES (9, 9)",
        ],
        ["DROP TABLE t", f"{NEW[:13]}t{NEW[14:]}", "INSERT INTO t VALUES (2, 6)"],
        ["CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, v INT) AS SELECT 7 AS id, 7 AS v"],
        [NEW, "INSERT INTO n VALUES (8, 5)", "DROP TABLE t", "ALTER TABLE n RENAME TO t"],
        ["ALTER TABLE t DROP PARTITION a", "INSERT INTO t VALUES (12, 1)"],
        ["ALTER TABLE t TRUNCATE PARTITION a", "INSERT INTO t VALUES (3, 1)"],
        [NEW, "INSERT INTO n VALUES (4, 4)", "ALTER TABLE t EXCHANGE PARTITION a WITH TABLE n"],
    ],
    ids=["swapped", "created", "replaced", "renamed", "a part dropped", "emptied", "exchanged"],
)
@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it doesn't"])
def test_a_name_with_other_rows_is_read_again(mysql_source, commands, runs) -> None:
    """Rows of the table before are deleted, those that came without a change are there."""
    source = mysql_source
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))"
    )
    source.execute("INSERT INTO t VALUES (1, 1), (2, 1), (11, 1)")
    if runs:
        with source.running("t") as capture:
            source.follows(capture, lambda: capture.done.phase == "streaming")
            statement(source, *commands)
            source.follows(capture, lambda: rows(source) == real(source))
            source.execute("UPDATE t SET v = v + 100")
            source.follows(capture, lambda: rows(source) == real(source))
        return
    source.run("t")
    statement(source, *commands)
    source.run("t")
    source.run("t")
    assert rows(source) == real(source)


def test_a_statement_that_leaves_a_table_as_it_is_reads_nothing(mysql_source) -> None:
    """One that creates what is there, a temporary table of its name, another column."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)")
    source.run()
    statement(
        source,
        "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)",
        "CREATE TEMPORARY TABLE t (id INT)",
        "DROP TEMPORARY TABLE t",
        "ALTER TABLE t ADD COLUMN w VARCHAR(30) COMMENT 'RENAME TO t'",
        "ALTER TABLE t RENAME COLUMN w TO x",
        "INSERT INTO t VALUES (2, 2, NULL)",
    )
    source.run()
    assert [value["op"] for _, value in source.records(source.topic("t"))] == ["r", "c"]


@pytest.mark.parametrize(
    "command",
    [
        "UPDATE t SET v = 2",
        "/* c */ UPDATE t SET v = 2",
        "# c\nUPDATE t SET v = 2",
        "SET STATEMENT lock_wait_timeout = 9 FOR UPDATE t SET v = 2",
        "ANALYZE UPDATE t SET v = 2",
        "EXECUTE IMMEDIATE 'UPDATE t SET v = 2'",
        "LOAD DATA LOCAL INFILE '{file}' INTO TABLE t",
    ],
)
def test_a_statement_that_changes_rows_ends_the_capture(mysql_source, command, tmp_path) -> None:
    """However it is spelled: what it has changed isn't in the binary log."""
    source, file = mysql_source, tmp_path / "rows"
    file.write_text("5\t5\n")
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)")
    source.run()
    if "LOAD" in command:
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=source.server.port,
                user="root",
                database=source.database,
                local_infile=True,
                autocommit=True,
            ) as one,
            one.cursor() as cursor,
        ):
            cursor.execute("SET SESSION binlog_format = STATEMENT")
            cursor.execute(command.format(file=file))
    else:
        statement(source, "SET SESSION binlog_format = STATEMENT", command)
    with pytest.raises(SetupError, match="binlog_format = STATEMENT: set ROW"):
        source.run()


@pytest.mark.parametrize("restarts", [False, True])
def test_an_xa_transaction_counts_once_it_commits(mysql_source, restarts) -> None:
    """One that is rolled back after it was prepared doesn't; others go on meanwhile, also over restarts."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)")
    source.run()
    for name, i in (("a", 10), ("b", 20)):
        statement(
            source,
            *(f"XA START '{name}'", f"INSERT INTO t VALUES ({i}, {i})", f"XA END '{name}'"),
            f"XA PREPARE '{name}'",
        )
        source.execute(f"INSERT INTO t VALUES ({i + 1}, 0)")
        if restarts:
            source.run()
            assert rows(source).keys() == {1, *(x for x in (11, 21) if x <= i + 1)}
    statement(source, "XA START 'c'", "INSERT INTO t VALUES (30, 30)", "XA END 'c'")
    statement(source, "XA COMMIT 'a'", "XA ROLLBACK 'b'")
    statement(
        source,
        *("XA START 'd'", "INSERT INTO t VALUES (40, 40)", "XA END 'd'"),
        "XA COMMIT 'd' ONE PHASE",
    )
    source.run()
    source.run()
    assert rows(source) == real(source)
    assert [key["id"] for key, _ in source.records(source.topic("t"))] == [1, 11, 21, 10, 40]


def test_a_snapshot_waits_for_xa_transactions_that_are_prepared(mysql_source) -> None:
    """It would lack their changes, which the binary log has before its place."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    statement(source, "XA START 'w'", "INSERT INTO t VALUES (1, 1)", "XA END 'w'", "XA PREPARE 'w'")
    with source.running() as capture:
        source.follows(capture, lambda: "XA RECOVER" in capture.done.trouble)
        statement(source, "XA COMMIT 'w'")
        source.follows(capture, lambda: rows(source) == real(source) != {})


def test_a_database_that_the_binary_log_leaves_out_is_refused(log) -> None:
    """The server's settings say which it has."""
    settings = {"server-id": "7", "log-bin": "mysql-bin", "binlog-format": "ROW"}
    with mariadb(**settings, **{"binlog-ignore-db": "shop"}) as server:
        for name in ("shop", "other"):
            server.rows(f"CREATE DATABASE {name}")
            server.rows(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
        with pytest.raises(SetupError, match="binlog_ignore_db = 'shop'"):
            MysqlSource(log, "leftout", server, "shop").run()
        MysqlSource(log, "notleftout", server, "other").run()


def test_a_table_with_versions_is_left_out_and_that_is_said(mysql_source, caplog) -> None:
    """WITH SYSTEM VERSIONING keeps former rows in the table, which are no rows of it."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")
    with pytest.raises(UserError, match="system versioning"):
        source.run("t")
    source.execute("CREATE TABLE u (id INT PRIMARY KEY, v INT); INSERT INTO u VALUES (1, 1)")
    source.run()
    assert rows(source, "u") == real(source, "u")
    assert f"{source.database}.t has system versioning" in caplog.text
