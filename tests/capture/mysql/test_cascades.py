"""What foreign keys' actions change isn't in the binary log; topics have it all the same."""

from __future__ import annotations

import pytest
from tests.capture.mysql.test_tables import rows, statement
from tests.capture.sources import MysqlSource

from penstock.capture import Captured
from penstock.errors import UserError

TABLES = (
    "CREATE TABLE p (id INT PRIMARY KEY, v INT);"
    "CREATE TABLE t (id INT PRIMARY KEY, v INT, CONSTRAINT of_p FOREIGN KEY (v) REFERENCES p (id) "
    "ON DELETE CASCADE ON UPDATE CASCADE);"
    "CREATE TABLE u (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES t (id) ON DELETE SET NULL);"
    "INSERT INTO p VALUES (1, 1), (2, 2), (3, 3); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3);"
    "INSERT INTO u VALUES (1, 1), (2, 2), (3, 3)"
)
CHANGES = (
    "DELETE FROM p WHERE id = 1",
    "UPDATE p SET id = 4 WHERE id = 2",
    "REPLACE INTO p VALUES (3, 4)",
)


def real(source: MysqlSource, table: str) -> dict[int, object]:
    """A table's rows."""
    return {one[0]: {"id": one[0], "v": one[1]} for one in source.rows(f"SELECT * FROM {table}")}


def equal(source: MysqlSource, *tables: str) -> bool:
    """Whether topics have the tables' rows."""
    return all(rows(source, one) == real(source, one) for one in tables or ("t", "u"))


def caught_up(source: MysqlSource, *tables: str, **settings: str) -> Captured:
    """Captures as `--once` does."""
    capture = source.capture(*tables, **settings)
    return capture.run(until=lambda done: done.is_caught_up)


def test_topics_have_what_foreign_keys_change(mysql_source) -> None:
    """Children of deleted and of changed rows, and the children of these."""
    source = mysql_source
    source.execute(TABLES)
    with source.running() as capture:
        source.follows(capture, lambda: equal(source))
        for command in CHANGES:
            statement(source, command)
        source.follows(capture, lambda: equal(source))
    assert rows(source, "u") == {one: {"id": one, "v": {2: 2}.get(one)} for one in (1, 2, 3)}


@pytest.mark.parametrize("commands", [CHANGES, (CHANGES[0], "ALTER TABLE t DROP FOREIGN KEY of_p")])
def test_what_changed_while_nothing_was_captured_is_read(mysql_source, commands) -> None:
    """Parents that aren't captured count, and foreign keys that are gone by now."""
    source = mysql_source
    source.execute(TABLES)
    caught_up(source, "t", "u")
    statement(source, *commands)
    caught_up(source, "t", "u")
    assert equal(source)
    assert rows(source, "p") == {}


def test_tables_that_nothing_has_changed_are_not_read(mysql_source) -> None:
    """Updates of other columns than the referenced ones, and sessions that don't check foreign keys."""
    source = mysql_source
    source.execute(TABLES)
    caught_up(source)
    statement(source, "UPDATE p SET v = v + 1", "INSERT INTO p VALUES (9, 9)")
    statement(source, "SET foreign_key_checks = 0", "DELETE FROM p WHERE id = 3")
    done = caught_up(source)
    assert (done.snapshot_rows, equal(source, "p", "t", "u")) == (0, True)


def test_an_xa_transaction_counts_once_it_has_committed(mysql_source) -> None:
    """While it is prepared, its children still have their rows."""
    source = mysql_source
    source.execute(TABLES)
    caught_up(source)
    statement(source, "XA START 'c'", CHANGES[0], "XA END 'c'", "XA PREPARE 'c'")
    assert caught_up(source).snapshot_rows == 0
    statement(source, "XA COMMIT 'c'")
    caught_up(source)
    assert equal(source, "p", "t", "u")


def test_tables_that_are_not_read_again_are_reported(mysql_source, sqlite_source, caplog) -> None:
    """Because they can't be, or because it isn't wanted."""
    source = mysql_source
    source.execute(
        "CREATE TABLE p (id INT PRIMARY KEY); CREATE TABLE t (id FLOAT PRIMARY KEY, v INT, "
        "FOREIGN KEY (v) REFERENCES p (id) ON DELETE CASCADE); INSERT INTO p VALUES (1)"
    )
    caught_up(source)
    assert "found id float). Let the application" in caplog.text
    source.execute("ALTER TABLE t MODIFY id INT; INSERT INTO t VALUES (1, 1)")
    caplog.clear()
    caught_up(source, cascades="ignore")
    assert "(--cascades ignore). Let the application" in caplog.text
    statement(source, "DELETE FROM p")
    assert caught_up(source, cascades="ignore").snapshot_rows == 0
    assert not equal(source, "t")
    with pytest.raises(UserError, match="found cascades"):
        sqlite_source.capture(cascades="read")
