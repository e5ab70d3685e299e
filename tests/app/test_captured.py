"""Tables of databases in programs in SQL, and sinks."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.errors import FlowError, SchemaError


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
        ("CREATE TABLE t FROM ORACLE 'x'", "expected FROM MYSQL, MARIADB, POSTGRES, SQLITE"),
        ("CREATE TABLE t FROM SQLITE x", "expected the database's address in quotes"),
        ('CREATE TABLE t FROM POSTGRES "postgresql://a:b@c/d"', "found 'postgresql://a@c/d'"),
        ("CREATE TABLE t FROM SQLITE '{path}' WITH (tabel = 'x')", "found 'tabel'"),
        ("CREATE TABLE t FROM SQLITE '{path}' WITH (format = 'avro')", "expected format = 'flat'"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, more AS id + 1) FROM SQLITE '{path}' WITH (table = 'users')",
            r"found more AS id \+ 1, which is computed. Compute it in a view",
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, WATERMARK FOR at) FROM SQLITE '{path}'",
            "'at'",
        ),
    ],
)
def test_what_cannot_be_read_is_said(path, text, message) -> None:
    """Each message names the line."""
    with pytest.raises((FlowError, SchemaError), match=message) as raised:
        ps.App("shop").sql(text.replace("{path}", str(path)))
    assert str(raised.value).startswith("line 1")


SINKS = """
CREATE STREAM clicks (user_id INT, at TIMESTAMP, WATERMARK FOR at);
CREATE VIEW busy AS SELECT user_id, count(*) AS n FROM clicks GROUP BY user_id;
CREATE SINK per_user INTO '{}/out.sqlite' WITH (table = 'users', partitions = 2) AS
  SELECT user_id, n FROM busy;
CREATE SINK again INTO '{}/out.duckdb' WITH (topic = 'shop.per_user', sink = 'again') AS
  SELECT user_id, n FROM busy;
CREATE SINK minutes INTO 'redis://localhost/0' AS
  SELECT window_start, user_id, count(*) AS n FROM TUMBLE(clicks, at, INTERVAL 1 MINUTE)
  GROUP BY window_start, user_id EMIT UPSERTS;
CREATE SINK raw INTO 'https://ann:secret@host/clicks' AS SELECT user_id FROM clicks;
CREATE SINK plain INTO "out.db" AS SELECT user_id FROM clicks
"""


def test_a_sink_in_sql_is_one_of_the_program(tmp_path) -> None:
    """It follows a topic that several may share; a name in double quotes is a topic."""
    app = ps.App("shop", directory=tmp_path)
    app.sql(SINKS.format(tmp_path, tmp_path))
    found = {one.name: one for one in app.databases("127.0.0.1:1").sinks}
    assert {name: (one.rows.topic, one.rows.key) for name, one in found.items()} == {
        "shop.per_user": ("shop.per_user", ("user_id",)),
        "again": ("shop.per_user", ("user_id",)),
        "shop.minutes": ("shop.minutes", ("window_start", "user_id")),
        "shop.raw": ("shop.raw", ()),
    }
    assert found["shop.per_user"].target.table == "users"
    graph = app.graph()
    assert {one.topic: one.emission for one in graph.outputs} == {
        "shop.per_user": "upserts", "shop.minutes": "upserts", "shop.raw": "rows", "out.db": "rows"
    }  # fmt: skip
    text = explain(compile_graph(graph, {"clicks": 1}, 2), targets=app.targets())
    assert f"-> sink again: {tmp_path}/out.duckdb again" in text
    assert "secret" not in text


HEAD = "CREATE STREAM s (x INT);\nCREATE SINK o "
WRONG_SINKS = {
    "INTO 'redis://a:pw@b/0?colour=1' AS SELECT x FROM s": "line 2, column 20, SINK o: expected value=",
    "INTO 'x.db' WITH (tabel = 'u') AS SELECT x FROM s": "line 2, column 33, SINK o: expected the options",
    "INTO 'ftp://a:pw@b/c' AS SELECT x FROM s": "line 2, column 20, SINK o: expected a target such as",
    "INTO AS SELECT": "line 2, column 23: expected AS; found 'SELECT'",
    "INTO 'x.db' AS SELECT x, count(*) AS n FROM s GROUP BY x EMIT CHANGES": "column 1, SINK o: expected",
    "INTO 'x.db' AS SELECT x FROM s EMIT UPSERTS": "column 1, SINK o: expected emit",
    "INTO 'x.db' 'postgres://a:pw@b/c' AS SELECT x FROM s": "found 'postgres://a@b/c'",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_SINKS)
def test_a_wrong_sink_is_found_at_its_line_and_column(text) -> None:
    """Messages have no password."""
    with pytest.raises(FlowError) as raised:
        ps.App("shop").sql(HEAD + text)
    assert WRONG_SINKS[text] in str(raised.value)
    assert "pw" not in str(raised.value)


def test_a_column_of_json_is_read_from_text(path) -> None:
    """Of a captured table, rows and envelopes have JSON as text; tests send values."""
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, p TEXT)")
    app = ps.App("shop")
    app.sql(
        f"CREATE TABLE events (id BIGINT PRIMARY KEY, p JSON) FROM SQLITE '{path}';"
        "CREATE MATERIALIZED VIEW v AS SELECT id, p, p->>'a' AS a FROM events;"
    )
    run = ps.testing.run(app)
    run.send("events", id=1, p={"a": [1, "x"]})
    run.send("events", id=2, p="text")
    run.send_raw("events", b'{"id": 3, "p": "{\\"a\\": 1.00}"}', key=b"3")
    run.send_raw("events", b'{"id": 4, "p": "no JSON"}', key=b"4")
    assert run.view("v").rows() == [
        {"id": 1, "p": {"a": [1, "x"]}, "a": '[1,"x"]'},
        {"id": 2, "p": "text", "a": None},
        {"id": 3, "p": {"a": 1.0}, "a": "1.0"},
    ]
    [letter] = run.dead_letters()
    assert "expected JSON (any value, or the text of one)" in letter.headers["penstock.reason"]
