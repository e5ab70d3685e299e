"""Tables that follow topics: the same tests for each kind of database."""

from __future__ import annotations

import contextlib
import sqlite3

import numpy as np
import orjson
import pyarrow as pa
import pytest

from penstock.client import Client, Producer
from penstock.client.topic_admin import TopicAdmin
from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.sinks import Sink, body, mysql, sqlite
from penstock.sinks.targets import mysql as mysql_target
from penstock.sinks.targets import postgres as postgres_target
from penstock.sinks.targets.contract import Batch, Rows

SCHEMA = "id BIGINT NOT NULL, name STRING, amount DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>"


def follow(place, topic, schema=SCHEMA, key="id", **settings):
    """Follows until everything was written."""
    sink = Sink(place.make(table="users"), topic.name, schema, key=key, log=topic.log, **settings)
    return sink.run(until=lambda done: done.lag == 0)


def test_a_table_has_the_newest_row_of_each_key(place, topic) -> None:
    """Rows are inserted, changed and deleted as the topic's records say; runs go on where they stopped."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 1, "name": "anna"})
    follow(place, topic)
    assert place.rows("SELECT id, name FROM users ORDER BY id") == [(1, "anna"), (2, "bob")]
    topic.send({"id": 3, "name": 'x"\\,\n'}, b"2", {"id": 1, "name": None}, {"id": 4, "name": ""})
    done = follow(place, topic)
    assert (done.upserts, done.deletes, done.dead) == (3, 1, 0)
    found = place.rows("SELECT id, name FROM users ORDER BY id")
    assert found == [(1, None), (3, 'x"\\,\n'), (4, "")]


def test_rows_of_all_types_are_kept(place, topic) -> None:
    """Of each type, values come as the database writes them."""
    schema = (
        "id BIGINT NOT NULL, b BOOLEAN, i INT, f FLOAT, d DOUBLE, n DECIMAL(10, 2), t TIMESTAMP, day DATE, "
        "clock TIME, raw BINARY, u UUID, span INTERVAL, list ARRAY<STRING>, lists ARRAY<ARRAY<BIGINT>>, "
        "s STRUCT<a BIGINT, raw BINARY, u UUID, m MAP<STRING, TIMESTAMP>>, p JSON"
    )
    row = {
        "id": 1,
        "b": True,
        "i": -5,
        "f": 0.5,
        "d": 1e300,
        "n": "12.50",
        "t": "2024-02-29T13:45:30.123456Z",
        "day": "2024-02-29",
        "clock": "13:45:30.5",
        "raw": "AP8=",
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "span": "PT1H",
        "list": ["a", None, 'q"\\'],
        "lists": [[1, 2], [], None, [3]],
        "s": {"a": 7, "raw": "AP8="},
    }
    row["s"] |= {"u": row["u"], "m": {"x": "2024-02-29T13:45:30.500Z"}}
    row["p"] = {"a": [12.50, None, "x"], "b": {}}
    topic.send(row, {"id": 2, "p": 'a "text"'})
    assert follow(place, topic, schema).dead == 0
    [(number, *rest)] = place.rows("SELECT count(*), count(t), count(list), count(u) FROM users")
    assert (number, *rest) == (2, 1, 1, 1)
    [(text,)] = place.rows(
        "SELECT CAST(n AS VARCHAR(20)) || ' ' || CAST(u AS VARCHAR(40)) FROM users WHERE id = 1"
    )
    assert text == "12.50 a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    [(struct,)] = place.rows("SELECT s FROM users WHERE id = 1")
    assert (orjson.loads(struct) if isinstance(struct, str) else struct) == row["s"]
    found = place.rows("SELECT p FROM users ORDER BY id")
    parsed = [
        orjson.loads(one) if isinstance(one, str) and one[0] in '{"' else one for (one,) in found
    ]
    assert parsed == [row["p"], 'a "text"']
    [(lists,)] = place.rows("SELECT lists FROM users WHERE id = 1")
    assert (orjson.loads(lists) if isinstance(lists, str) else lists) == row["lists"]


def test_rows_that_are_refused_are_dead_letters_and_hold_up_nothing(place, topic) -> None:
    """A row that breaks a constraint is put aside with the reason; those beside it are written."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'))")
    rows = [{"id": i, "name": "bad" if i in {7, 30} else "good"} for i in range(50)]
    topic.send(*rows, b"7")
    done = follow(place, topic, "id BIGINT NOT NULL, name STRING", name="refusing" + topic.name)
    assert place.rows("SELECT count(*) FROM users WHERE name = 'good'") == [(48,)]
    assert done.dead in {1, 2}  # 7 may have been deleted before it was tried
    with Client(topic.log) as client:
        assert client.offsets(f"refusing{topic.name}.dead-letters") == {0: done.dead}


def test_records_that_do_not_fit_are_dead_letters(place, topic) -> None:
    """A record that isn't a row of the schema is put aside."""
    topic.send({"id": 1, "name": "ann"}, {"id": "x"}, {"id": 2, "name": "bob"})
    assert follow(place, topic).dead == 1
    assert place.rows("SELECT id FROM users ORDER BY id") == [(1,), (2,)]


def wide(topic, id_: int, name: str | None, status: str = "open") -> None:
    """Sends a row of a table whose key is (id, status), or its tombstone."""
    key = orjson.dumps({"id": id_, "status": status})
    value = None if name is None else orjson.dumps({"id": id_, "name": name})
    with Producer(topic.log) as producer:
        columns = pa.array([key], pa.binary()), pa.array([value], pa.binary())
        producer.send(topic.name, 0, *columns, np.zeros(1, np.int64))


def test_a_new_sink_whose_key_is_not_the_topics_is_refused(tmp_path, topic) -> None:
    """What its newest records are keyed by is known before anything is written."""
    wide(topic, 1, "a")
    with pytest.raises(UserError, match=r"found status in it as well.*Use the topic's key: id"):
        Sink(
            sqlite(tmp_path / "t.db", table="users"), topic.name, SCHEMA, key="id", log=topic.log
        ).run()


def test_records_with_a_wider_key_are_dead_letters(tmp_path, topic) -> None:
    """A tombstone of one of a topic's rows doesn't delete another of its rows; the sink goes on."""
    topic.send({"id": 1, "name": "a"})
    target = sqlite(tmp_path / "t.db", table="users")
    sink = Sink(target, topic.name, SCHEMA, key="id", log=topic.log)
    sink.run(until=lambda done: done.lag == 0)
    for name in ("b", None):
        wide(topic, 1, name)
    done = Sink(target, topic.name, SCHEMA, key="id", log=topic.log).run(
        until=lambda done: done.lag == 0
    )
    assert (done.upserts, done.deletes, done.dead) == (0, 0, 2)
    with sqlite3.connect(tmp_path / "t.db") as sql:
        assert sql.execute("SELECT id, name FROM users").fetchall() == [(1, "a")]


def test_without_a_key_rows_are_appended(place, topic) -> None:
    """Each record is a row, once."""
    topic.send({"id": 1}, {"id": 1}, {"id": 2})
    follow(place, topic, "id BIGINT NOT NULL", key=())
    topic.send({"id": 2})
    follow(place, topic, "id BIGINT NOT NULL", key=())
    assert place.rows("SELECT id FROM users ORDER BY id") == [(1,), (1,), (2,), (2,)]


def test_a_second_sink_fences_the_first(place, topic) -> None:
    """Who has opened a target under a name before writes nothing more."""
    topic.send({"id": 1, "name": "ann"})
    sink = Sink(place.make(table="users"), topic.name, SCHEMA, key="id", log=topic.log)
    target = sink._target
    target.open(sink.name, sink._rows)
    place.execute("UPDATE penstock_sinks SET epoch = epoch + 1") if not hasattr(
        target, "_module"
    ) else target.execute("UPDATE penstock_sinks SET epoch = epoch + 1")
    with pytest.raises(FencedError):
        target.write(sink._body._nothing, {0: 5})
    target.close()
    assert place.rows("SELECT count(*) FROM penstock_sinks WHERE part = 0") == [(0,)]


@pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
def test_a_process_that_hangs_in_a_transaction_holds_up_no_other_for_long(
    request, place, topic, monkeypatch
) -> None:
    """The server ends its transaction; where it continues, it opens the target again, and is fenced."""
    module = {"postgres": postgres_target, "mysql": mysql_target}
    monkeypatch.setattr(module[request.node.callspec.params["place"]], "HUNG_S", 1)
    rows = Rows(topic.name, Schema.parse("id BIGINT NOT NULL, name STRING"), ("id",))
    none = rows.nothing()
    upserts = pa.RecordBatch.from_pylist([{"id": 2, "name": "ann"}], none.schema)
    batch = Batch(upserts, none.select(["id"]), np.zeros(1, np.int64), np.zeros(0, np.int64), 0)
    hangs, other = (place.make(table="users") for _ in range(2))
    hangs.open("sink", rows)
    load = hangs.load

    def hang(*arguments) -> None:
        other.open("sink", rows)
        load(*arguments)

    hangs.load = hang
    with pytest.raises(hangs.passing):
        hangs.write(batch, {0: 1})
    assert place.rows("SELECT id FROM users") == []
    other.write(batch, {0: 1})
    assert place.rows("SELECT id FROM users") == [(2,)]
    for one in (hangs, other):
        one.close()


def test_a_table_that_lacks_columns_is_an_error(place, topic) -> None:
    """The message names the columns."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY)")
    with pytest.raises(UserError, match="to have the columns name"):
        follow(place, topic)


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_values_that_mysql_calls_operational_are_dead_letters(place, topic) -> None:
    """Also where the rows are staged: they don't look like a server that is away."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, at TIMESTAMP NULL)")
    topic.send(*({"id": i, "at": f"{year}-01-01T00:00:00Z"} for i, year in ((2, 1900), (4, 2024))))
    done = follow(place, topic, "id BIGINT NOT NULL, at TIMESTAMP")
    assert (done.upserts, done.dead) == (1, 1)


def test_a_key_may_have_its_columns_in_any_order(place, topic) -> None:
    """As those of a windowed table: its start comes before the group, whatever they are called."""
    schema, key = (
        "start TIMESTAMP NOT NULL, Zoe STRING NOT NULL, an INT NOT NULL, n INT",
        ("start", "Zoe", "an"),
    )
    row = {"start": "2026-01-01T00:00:00Z", "Zoe": "x", "an": 4, "id": 4}
    for n in (1, 2):
        topic.send({**row, "n": n})
        follow(place, topic, schema, key)
    assert place.rows("SELECT n FROM users") == [(2,)]


def test_keys_of_text_differ_in_each_character(place, topic) -> None:
    """In large letters, accents, and spaces at the end."""
    keys = ["a", "A", "ä", "a "]
    topic.send(*({"id": one, "name": one} for one in keys))
    assert follow(place, topic, "id STRING NOT NULL, name STRING").dead == 0
    assert sorted(place.rows("SELECT id, name FROM users")) == sorted((k, k) for k in keys)


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_names_differ_in_small_and_large_letters(place, topic) -> None:
    """Each has offsets of its own, whatever the server's collation."""
    topic.send({"id": 1, "name": "ann"})
    for name in ("one", "ONE"):
        assert follow(place, topic, name=name).upserts == 1


@pytest.mark.parametrize("query", ["ssl_mode=REQUIRED", "charset=latin1"])
def test_what_an_address_of_mysql_says_is_not_ignored(query) -> None:
    """Else a connection might not be what it is taken for."""
    with pytest.raises(UserError, match="in the address; found"):
        mysql(f"mysql://ann@localhost/shop?{query}", table="t")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("killed_at", range(1, 4))
def test_appended_rows_beside_a_refused_one_are_there_once_after_a_kill(
    place, topic, monkeypatch, killed_at
) -> None:
    """The parts of a batch are transactions of their own; each has the offset behind it."""
    monkeypatch.setattr(body, "SORTED_MAX", 3)
    place.execute("CREATE TABLE users (id BIGINT CHECK (id <> 14))")
    topic.send(*({"id": 2 * i} for i in range(10)))
    source = (topic.name, "id BIGINT NOT NULL")
    sink = Sink(place.make(table="users"), *source, log=topic.log)
    written = []

    def killed_behind(write):
        def killed(*arguments):
            made = write(*arguments)
            written.append(arguments)
            if len(written) == killed_at:
                raise KeyboardInterrupt
            return made

        return killed

    sink.target.write = killed_behind(sink.target.write)
    sink.target.write_rest = killed_behind(sink.target.write_rest)
    with contextlib.suppress(KeyboardInterrupt):
        sink.run(until=lambda done: done.lag == 0)
    follow(place, topic, "id BIGINT NOT NULL", key=())
    assert place.rows("SELECT id FROM users ORDER BY id") == [(2 * i,) for i in range(10) if i != 7]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_records_that_retention_removed_are_skipped_with_a_warning(place, topic, caplog) -> None:
    """It says how many; the rows after them are written."""
    topic.send({"id": 0})
    follow(place, topic, "id BIGINT NOT NULL")
    topic.send({"id": 2}, {"id": 4}, {"id": 6})
    with TopicAdmin(topic.log) as admin:
        admin.trim(topic.name, {0: 3})
    follow(place, topic, "id BIGINT NOT NULL")
    assert place.rows("SELECT id FROM users ORDER BY id") == [(0,), (6,)]
    assert "begins at 3: retention has removed 2" in caplog.text
