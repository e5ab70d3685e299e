"""A server that is killed while it writes its binary log leaves a file whose last event is cut."""

from __future__ import annotations

import pytest
from tests.capture.mysql.test_tables import real, rows
from tests.capture.sources import MysqlSource
from tests.mariadb import mariadb

from penstock.capture import Captured

LOG = {"server-id": "7", "log-bin": "mysql-bin", "binlog-format": "ROW"}


def caught_up(source: MysqlSource) -> Captured:
    """Captures as `--once` does."""
    return source.capture("t").run(until=lambda done: done.is_caught_up)


@pytest.mark.parametrize("cut_bytes", [1, 60, 100])
def test_a_file_that_is_cut_at_its_end_is_passed(log, caplog, cut_bytes) -> None:
    """Its last group was never committed; where it was, because the machine lost power, nothing is lost."""
    with mariadb(**LOG, binlog_row_metadata="FULL") as server:
        server.rows("CREATE DATABASE shop")
        source = MysqlSource(log, f"cut{cut_bytes}", server, "shop")
        source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (0, 0)")
        caught_up(source)
        source.execute("INSERT INTO t VALUES (1, 1)")
        source.execute("INSERT INTO t VALUES (2, 2)")
        server.kill()
        file = max((server._folder / "data").glob("mysql-bin.0*"))
        file.write_bytes(file.read_bytes()[:-cut_bytes])
        server.start()
        source.execute("INSERT INTO t VALUES (3, 3); DELETE FROM t WHERE id = 0")
        caught_up(source)
        assert rows(source) == real(source)
        assert "is cut, as when a server is killed" in caplog.text
        source.execute("INSERT INTO t VALUES (4, 4)")
        assert caught_up(source).snapshot_rows == 0
        assert rows(source) == real(source)
