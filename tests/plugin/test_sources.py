"""A kind of database of another distribution: from Python, SQL and the command line."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.client import Reader
from penstock.errors import FlowError, UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a table."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        con.execute("INSERT INTO users VALUES (1, 'Ada')")
    con.close()
    return path


@pytest.mark.usefixtures("plugin")
def test_a_program_reads_a_table_of_a_plugins_database(file, tmp_path) -> None:
    """By its word in SQL, and by its address in Python; the columns are the database's."""
    app = ps.App("shop", directory=tmp_path)
    app.sql(f"CREATE TABLE users FROM Ledger '{file}'")
    source = ps.capture.from_address(f"ledger:///{file}", table="users", name="own")
    app.table("people", source=source)
    assert [app.named[name].schema.names for name in ("users", "people")] == [("id", "name")] * 2
    assert {one.name for one in app.databases("127.0.0.1:1").captures} == {"shop", "own"}


@pytest.mark.usefixtures("plugin")
def test_the_command_line_captures_a_plugins_database(log, file) -> None:
    """By the scheme of its address."""
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "capture",
        f"ledger:///{file}",
        "--tables",
        "users",
    ]
    command += ["--to", "ledger", "--once", "--broker", log, "--format", "flat"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Reader(log) as reader:
        [records] = reader.read("ledger.users", 0, 0, 1)
    assert json.loads(records.values()[0].as_py()) == {"id": 1, "name": "Ada"}


def test_a_broken_plugin_is_named_where_no_kind_is_found(broken, file, tmp_path) -> None:
    """Of an address, and of a word; our own kinds need no plugin."""
    broken("penstock.sources", {"ledger": "broken_plugin:KIND"})
    app = ps.App("shop", directory=tmp_path)
    app.sql(f"CREATE TABLE users FROM SQLITE '{file}'")
    assert "broken_plugin" not in sys.modules
    reason = "'ledger' of the distribution penstock-broken 0.3 can't be loaded"
    with pytest.raises(UserError, match=reason):
        ps.capture.from_address("ledger:///x", table="users")
    with pytest.raises(FlowError, match=f"line 1, column 21.*{reason}"):
        app.sql("CREATE TABLE t FROM LEDGER 'x'")
