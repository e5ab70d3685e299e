"""Tables of databases in programs in SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import FlowError


@pytest.fixture
def path(tmp_path) -> Path:
    """A file with a table."""
    made = tmp_path / "shop.db"
    with sqlite3.connect(made) as sql:
        sql.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, city TEXT)")
    return made


def test_a_table_is_captured_from_a_database(path) -> None:
    """Columns and key are the database's, or what is said; options say the rest."""
    app = ps.App("shop")
    app.sql(
        f"CREATE TABLE users FROM SQLITE '{path}';"
        f"CREATE TABLE people (id INT PRIMARY KEY) FROM SQLITE 'sqlite:///{path}' "
        "WITH (table = 'users', topic = 'p', format = 'debezium', capture = 'own', partitions = 3);"
        "CREATE MATERIALIZED VIEW cities AS SELECT city, count(*) AS n FROM users GROUP BY city;"
    )
    assert app.named["users"].schema.text == "id BIGINT NOT NULL, city STRING"
    assert app.named["people"].schema.text == "id INT NOT NULL"
    captures = {one.name: one for one in app.databases("127.0.0.1:1").captures}
    assert captures.keys() == {"shop", "own"}
    run = ps.testing.run(app)
    run.send("users", id=1, city="Ulm")
    assert run.view("cities").rows() == [{"city": "Ulm", "n": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t FROM ORACLE 'x'", "expected FROM POSTGRES, MYSQL, MARIADB, SQLITE"),
        ("CREATE TABLE t FROM SQLITE x", "expected the database's address in quotes"),
        ('CREATE TABLE t FROM POSTGRES "postgresql://a:b@c/d"', "found 'postgresql://a@c/d'"),
        ("CREATE TABLE t FROM SQLITE '{path}' WITH (tabel = 'x')", "found 'tabel'"),
        ("CREATE TABLE t FROM SQLITE '{path}' WITH (format = 'avro')", "expected format = 'flat'"),
    ],
)
def test_what_cannot_be_read_is_said(path, text, message) -> None:
    """Each message names the line."""
    with pytest.raises(FlowError, match=message) as raised:
        ps.App("shop").sql(text.replace("{path}", str(path)))
    assert str(raised.value).startswith("line 1")
