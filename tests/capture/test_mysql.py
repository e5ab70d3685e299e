"""Captures of MariaDB and MySQL: values, Debezium's records, what the server is told, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time

import orjson
import pytest
from tests.capture.test_debezium import FOLDER, captured, normal
from tests.effort import rounds
from tests.killing import kill
from tests.mariadb import pymysql
from tests.patience import wait_until

from penstock.capture import Capture, drop, mysql, schemas, status
from penstock.client import Client, Reader
from penstock.errors import SetupError, UserError
from penstock.formats.changelog import ChangelogDecoder

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=3, full=6)
PROGRAM = """
import sys
from penstock.capture import Capture, output
output.STEP_BYTES = 4096
url, to, log = sys.argv[1:]
Capture(url, ["*"], to=to, log=log, partitions=3).run()
"""
CHANGES = [
    "INSERT INTO account(balance, note) VALUES ({n}, md5(rand()))",
    "UPDATE account SET balance = balance + 1 WHERE id % 7 = {n} % 7",
    "UPDATE account SET id = id + 100000 WHERE id = {n}",
    "REPLACE INTO account VALUES ({n}, 1, 'replaced')",
    "DELETE FROM account WHERE id % 90 = {n}",
]

TYPES = """
CREATE TABLE t (
    id INT PRIMARY KEY, d1 DECIMAL(65, 30), d2 DECIMAL(9, 0), d3 DECIMAL(20, 9), f FLOAT, da DATE,
    dt DATETIME(5), ti TIME(1), t6 TIME(6), ts TIMESTAMP(2) NULL, u UUID, i6 INET6, i4 INET4,
    vl VARCHAR(400), cl CHAR(100) CHARACTER SET utf8mb4, l1 VARCHAR(9) CHARACTER SET latin1,
    u2 VARCHAR(9) CHARACTER SET ucs2, b64 BIT(64), st SET('a','b','it''s'), e ENUM('x'),
    m24 MEDIUMINT UNSIGNED, b BIGINT UNSIGNED, lb LONGBLOB, bi BINARY(4), v INT AS (id + 1) VIRTUAL,
    p INT AS (id + 2) PERSISTENT, j JSON, po POINT, y YEAR, bo BOOLEAN)
"""
ROWS = [
    """
    -99999999999999999999999999999999999.999999999999999999999999999999, -999999999, 0.000000001, 0.1,
    '9999-12-31', '1000-01-01 00:00:00.12345', '-00:00:00.1', '838:59:59', '2038-01-19 03:14:07.99',
    '123e4567-e89b-12d3-a456-426614174000', '::1', '10.0.0.1', repeat('é', 200), repeat('x', 100), 'é', 'é',
    b'1', 'a,it''s', 'x', 16777215, 18446744073709551615, repeat(x'00ff', 40000), x'01', DEFAULT, DEFAULT,
    '[1, 2]', POINT(1, 2), 1901, TRUE
    """,
    """
    -0.5, 0, -0.5, -3.4e38, '0000-00-00', '0000-00-00', '-838:59:59', '-00:00:01.5', '1970-01-01 00:00:01',
    '00000000-0000-0000-0000-000000000000', 'ffff::', '0.0.0.0', '', '', '', '', 0, '', '', 0, 0, '', '',
    DEFAULT, DEFAULT, '{}', NULL, 0, FALSE
    """,
]


def expected(name: str) -> dict[str, list]:
    """Debezium's records, by table."""
    found: dict[str, list] = {}
    for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines():
        one = orjson.loads(line)
        headers = {n: v for n, v in one["headers"] if not n.startswith("__debezium.context")}
        table = one["topic"].rpartition(".")[2]
        found.setdefault(table, []).append((one["key"], plain(normal(one["value"])), headers))
    return found


def plain(value):
    """A value without what is the server's alone."""
    if value is None:
        return None
    members = dict(value)
    source = dict(members["source"])
    own = ("connector", "file", "pos", "gtid", "server_id", "thread")
    members["source"] = [(n, None if n in own else v) for n, v in source.items()]
    return [*members.items()]


def run(source, name: str, **settings) -> dict[str, list]:
    """Captures what the statements do."""
    text = (FOLDER / f"{name}.sql").read_text()
    setup, steps = text.replace("golden", source.database).split("-- steps (streaming)\n")
    source.rows(f"DROP DATABASE {source.database}")

    def do(commands: str) -> None:
        with source.server.session() as cursor:
            cursor.execute("SET sql_mode = DEFAULT")
            cursor.execute(f"USE {source.database}" if commands is steps else "SELECT 1")
            for command in commands.split(";\n"):
                if command.strip() and not command.startswith("--"):
                    cursor.execute(command)
            cursor.execute("COMMIT")

    do(setup)
    with source.running(**settings) as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        do(steps)
        end = source.end()
        source.follows(capture, lambda: capture.done.position >= end)
    source.run()  # a table that came meanwhile
    return {
        topic.rpartition(".")[2]: [(key, plain(value), headers) for key, value, headers in records]
        for topic, records in captured(source).items()
    }


def test_records_are_debezium_s(mysql_source) -> None:
    """Of each statement come the same records, in the same order: rows, keys, types, columns that change."""
    mine = run(mysql_source, "20_mysql_on_mariadb", schema_changes=True)
    theirs = expected("20_mysql_on_mariadb")
    # Tables that are created later are captured after a restart; this one is gone by then.
    del theirs["created"]
    # Debezium writes a comma within an ENUM as two characters, in changes alone.
    for _, value, _ in theirs["types"]:
        row = dict(value)["after"]
        row["en"] = row["en"] and row["en"].replace("\\,", ",")
    assert mine == theirs
    check_schema_changes(mysql_source)


def check_schema_changes(source) -> None:
    """Statements that define tables are told as Debezium tells them; columns are the catalog's.

    MariaDB adds a comment to DROP TABLE, which Debezium's parser leaves out.
    """
    lines = (FOLDER / "22_mysql_schema_changes.jsonl").read_text().splitlines()
    theirs = [orjson.loads(one.replace("golden", source.database))["value"] for one in lines]
    mine = [value for _, value in source.records(source.name) if value["ddl"]]

    def summary(one) -> tuple:
        [change] = one["tableChanges"]
        return (*one, *one["source"], one["databaseName"], change["type"], change["id"])

    assert [summary(one) for one in mine] == [summary(one) for one in theirs]
    assert [one["ddl"] for one in mine[:-1]] == [one["ddl"] for one in theirs[:-1]]
    assert mine[-1]["ddl"].startswith("DROP TABLE `created`")

    def columns(one) -> list:
        names = ("name", "typeName", "position", "optional", "jdbcType")
        table = one["tableChanges"][0]["table"]
        return [table["primaryKeyColumnNames"], *([c[n] for n in names] for c in table["columns"])]

    assert columns(mine[2]) == columns(theirs[2])
    version = schemas(source.name, source.log)[f"{source.database}.customers"]
    assert version.number == 4
    assert [one.type for one in version.shape.columns][-2:] == ["timestamp(3)", "bigint"]


def test_the_snapshot_and_the_binary_log_have_the_same_values(mysql_source) -> None:
    """Extremes, zero dates, character sets, MariaDB's own types, readable or not."""
    source = mysql_source
    source.execute(TYPES)
    rows = [*ROWS, f"{'NULL, ' * 23} DEFAULT, DEFAULT, NULL, NULL, NULL, NULL"]

    def insert(first: int) -> None:
        for i, row in enumerate(rows):
            with source.server.session(source.database) as cursor:
                cursor.execute("SET sql_mode = 'ANSI', time_zone = '+00:00'")
                cursor.execute(f"INSERT INTO t VALUES ({first + i}, {row})")

    insert(10)
    for values in ("precise", "readable"):
        name = f"{source.name}{values}"
        source.run(to=name, values=values)
        insert(20 if values == "precise" else 30)
        source.run(to=name, values=values)
        found = source.table(f"{name}.{source.database}.t", "id")
        base = 20 if values == "precise" else 30
        for i in range(3):
            own = {"id": 0, "v": None, "p": 0}
            read, changed = found[10 + i,], found[base + i,]
            assert {**changed, **own} == {**read, **own}, values
            assert changed["p"] == base + i + 2
    one = found[30,]
    assert (one["d1"], one["d3"], one["f"], one["b"]) == (
        *(
            "-99999999999999999999999999999999999.999999999999999999999999999999",
            "0.000000001",
            0.1,
        ),
        "18446744073709551615",
    )
    assert (one["dt"], one["ti"], one["u"], one["l1"], one["u2"], one["st"]) == (
        *("1000-01-01T00:00:00.12345Z", "-00:00:00.1", "123e4567-e89b-12d3-a456-426614174000"),
        *("é", "é", "a,it's"),
    )
    settings = {
        "to": None,
        "name": f"{source.name}p",
        "tables": {f"{source.database}.t": source.name},
    }
    end = source.end()
    Capture(source.url, log=source.log, format="flat", values="readable", **settings).run(
        until=lambda done: done.position >= end
    )
    schema, key = mysql(source.url, table="t").describe()
    decoder = ChangelogDecoder(schema, key, "json")
    with Client(source.log) as client, Reader(source.log) as reader:
        for records in reader.read(source.name, 0, 0, client.offsets(source.name)[0]):
            assert decoder.decode(records).reasons == []


def test_without_names_in_the_binary_log_the_catalog_has_them(mysql_source) -> None:
    """binlog_row_metadata = NO_LOG, the default: rows are read by the catalog, or it stops."""
    source = mysql_source
    source.rows("SET GLOBAL binlog_row_metadata = NO_LOG")
    try:
        source.execute("CREATE TABLE t (k INT, id INT UNSIGNED PRIMARY KEY, e ENUM('a', 'b'))")
        source.run()
        source.execute("INSERT INTO t VALUES (1, 4294967295, 'b')")
        source.run()
        assert source.table(source.topic("t"), "id") == {
            (4294967295,): {"k": 1, "id": 4294967295, "e": "b"}
        }
        source.execute("INSERT INTO t VALUES (1, 2, 'b')")
        source.execute("ALTER TABLE t DROP COLUMN k")
        with pytest.raises(SetupError, match="binlog_row_metadata = FULL"):
            source.run()
    finally:
        source.rows("SET GLOBAL binlog_row_metadata = FULL")


def test_a_table_that_is_emptied_is_reported(mysql_source) -> None:
    """TRUNCATE is a record `t`, also of a quoted name; then its keys are deleted."""
    source = mysql_source
    source.execute("CREATE TABLE `o d` (id INT PRIMARY KEY)")
    source.run()
    source.execute("INSERT INTO `o d` VALUES (1)")
    source.execute(f"TRUNCATE TABLE /* all */ {source.database}.`o d`")
    source.execute("INSERT INTO `o d` VALUES (1)")
    source.run()
    ops = [value and value["op"] for _, value in source.records(source.topic("o_d"))]
    assert ops == ["c", "t", None, "c"]


def test_what_is_rolled_back_in_part_is_what_the_tables_have(mysql_source) -> None:
    """Tables with and without transactions in one: savepoints and ROLLBACK leave what they don't undo."""
    source = mysql_source
    source.execute("CREATE TABLE a (id INT PRIMARY KEY) ENGINE = InnoDB")
    source.execute("CREATE TABLE b (id INT PRIMARY KEY) ENGINE = MyISAM")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        with source.server.session(source.database) as cursor:
            for command in (
                *("BEGIN", "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)", "ROLLBACK"),
                *("BEGIN", "INSERT INTO a VALUES (2)", "SAVEPOINT s", "INSERT INTO a VALUES (3)"),
                *(
                    "INSERT INTO b VALUES (2)",
                    "INSERT INTO b SELECT id + 10 FROM a",
                    "ROLLBACK TO s",
                ),
                *("INSERT INTO a VALUES (4)", "COMMIT", "BEGIN", "INSERT INTO a VALUES (5)"),
                *("CREATE TEMPORARY TABLE c (id INT)", "DROP TABLE c", "ROLLBACK"),
            ):
                cursor.execute(command)
        end = source.end()
        source.follows(capture, lambda: capture.done.position >= end)
        for table in "ab":
            found = {key[0] for key in source.table(source.topic(table), "id")}
            assert found == {int(id_) for (id_,) in source.rows(f"SELECT id FROM {table}")}


def test_a_log_that_was_reset_is_an_error_and_not_a_gap(mysql_source) -> None:
    """Also where the new file of the same name is long enough by now; begun anew, it is the table."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    source.execute("INSERT INTO t VALUES (1, ''), (2, '')")
    source.run()
    source.execute("INSERT INTO t VALUES (3, '')")
    source.run()
    size = max(int(one[1]) for one in source.rows("SHOW BINARY LOGS"))
    now_s = int(time.time())
    wait_until(lambda: int(time.time()) > now_s)  # the log says in seconds when a file was begun
    source.rows("RESET MASTER")
    source.execute(f"DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (4, repeat('x', {size}))")
    with pytest.raises(SetupError, match=r"Changes\s+between were lost"):
        source.run()
    drop(source.name, source.log, url=source.url)
    source.run()
    newest = {key["id"]: value for key, value in source.records(source.topic("t"))}
    assert sorted(id_ for id_, value in newest.items() if value) == [1, 3, 4]


def test_what_is_wrong_is_reported(mysql_source) -> None:
    """A purged binary log, privileges, settings, statements: with what to do."""
    source = mysql_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.run()
    source.rows("SET GLOBAL binlog_row_image = MINIMAL")
    with pytest.raises(SetupError, match="SET GLOBAL binlog_row_image = 'FULL'"):
        source.run()
    source.rows("SET GLOBAL binlog_row_image = FULL")
    for host in ("localhost", "%"):
        source.rows(f"CREATE USER IF NOT EXISTS ann@'{host}' IDENTIFIED BY 'secret7'")
        source.rows(f"GRANT SELECT ON *.* TO ann@'{host}'")
    url = source.url.replace("root@", "ann:secret7@")
    with pytest.raises(SetupError, match="GRANT SELECT, REPLICATION SLAVE"):
        Capture(url, ["t"], to=f"{source.name}a", log=source.log).run()
    with pytest.raises(SetupError, match="expected to log in at mysql://ann@") as raised:
        Capture(url.replace("secret7", "secret8"), ["t"], to="b", log=source.log).run()
    assert "secret" not in str(raised.value)
    with pytest.raises(UserError, match="expected a table"):
        source.run("none")
    with source.server.session(source.database) as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(SetupError, match="found a statement: 'INSERT INTO t"):
        source.run()
    source.rows("FLUSH BINARY LOGS")
    source.rows("FLUSH BINARY LOGS")
    [*_, (newest, _)] = source.rows("SHOW BINARY LOGS")
    dumps = "SELECT id FROM information_schema.PROCESSLIST WHERE command = 'Binlog Dump'"

    def is_lost() -> bool:
        # The server hasn't noticed that its replicas are gone, whose files it keeps.
        for (number,) in source.rows(dumps):
            with contextlib.suppress(pymysql.err.MySQLError):
                source.rows(f"KILL {number}")
        source.rows(f"PURGE BINARY LOGS TO '{newest}'")
        return status(source.name, source.log, url=source.url).slot == "lost"

    wait_until(is_lost)
    with pytest.raises(SetupError, match="Changes between were lost"):
        source.run()


def write(source, seed: int, end: threading.Event) -> None:
    """Transactions of one to five changes, some of them rolled back; goes on while the server is away."""
    random_ = random.Random(seed)
    while not end.is_set():
        try:
            with source.server.session(source.database) as cursor:
                while not end.is_set():
                    cursor.execute("BEGIN")
                    for _ in range(random_.randint(1, 5)):
                        n = random_.randint(1, 100)
                        cursor.execute(random_.choice(CHANGES).format(n=n))
                    cursor.execute("ROLLBACK" if random_.random() < 0.2 else "COMMIT")
        except pymysql.err.MySQLError:
            end.wait(0.05)


def test_no_kill_of_the_capture_or_the_server_loses_or_doubles_a_change(mysql_source) -> None:
    """The records make exactly the table that is there at the end."""
    source, seed = mysql_source, random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    source.execute(
        "CREATE TABLE account (id INT AUTO_INCREMENT PRIMARY KEY, balance INT, note VARCHAR(99))"
    )
    random_, end = random.Random(seed), threading.Event()
    writers = [threading.Thread(target=write, args=(source, seed + i, end)) for i in range(2)]
    for one in writers:
        one.start()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", PROGRAM, source.url, source.name, source.log]
        return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})

    process = start()
    try:
        for _ in range(KILLS):
            time.sleep(random_.uniform(0.5, 2.5))  # when it is killed is the input, not a wait
            if random_.random() < 0.3:
                source.server.kill()
                source.server.start()
            kill(process)
            process = start()
    finally:
        end.set()
        for one in writers:
            one.join()
        process.kill()
        process.wait()
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
    assert [tuple(found[id_].values()) for id_ in sorted(found)] == rows
