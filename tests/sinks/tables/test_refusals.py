"""Rows that a target refuses, for whatever reason, are dead letters: whole, and nothing waits for them."""

from __future__ import annotations

import orjson
import pytest
from tests.sinks.conftest import Topic

from penstock.client import Client, Reader
from penstock.client.letters.dead_letters import DeadLetters, Where
from penstock.client.topic_admin import TopicAdmin
from penstock.errors import UserError
from penstock.sinks import Sink, pause, resume, sqlite
from penstock.sinks.letters import Letters

SCHEMA = "id BIGINT NOT NULL, name STRING"
TRIGGERS = {
    "postgres": """
        CREATE FUNCTION check_name() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.name = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER check_name BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION check_name()""",
    "mysql": """
        CREATE TRIGGER check_name BEFORE INSERT ON users FOR EACH ROW
        IF NEW.name = 'bad' THEN SIGNAL SQLSTATE '{code}' SET MESSAGE_TEXT = 'no'; END IF""",
    "sqlite": """
        CREATE TRIGGER check_name BEFORE INSERT ON users WHEN NEW.name = 'bad'
        BEGIN SELECT RAISE(ABORT, 'no'); END""",
}


def follow(place, topic, schema=SCHEMA, key="id", table="users", **settings):
    """Follows until everything was written."""
    sink = Sink(place.make(table=table), topic.name, schema, key=key, log=topic.log, **settings)
    return sink.run(until=lambda done: done.lag == 0)


@pytest.mark.parametrize(
    ("place", "code"),
    [("postgres", "P0001"), ("postgres", "ZZ001"), ("mysql", "45000"), ("sqlite", "")],
    indirect=["place"],
)
def test_rows_that_a_trigger_refuses_are_dead_letters(request, place, topic, code) -> None:
    """Whatever it calls its error; the driver may call that one of the program, or of the connection."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT)")
    place.execute(TRIGGERS[request.node.callspec.params["place"]].format(code=code))
    topic.send(*({"id": i, "name": "bad" if i == 3 else "x"} for i in range(6)))
    assert follow(place, topic).dead == 1
    assert place.rows("SELECT id FROM users ORDER BY id") == [(0,), (1,), (2,), (4,), (5,)]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_rows_that_break_a_deferred_constraint_are_dead_letters(place, topic) -> None:
    """Such a constraint is checked by the commit."""
    place.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, name text,"
        " boss bigint REFERENCES users DEFERRABLE INITIALLY DEFERRED)"
    )
    topic.send({"id": 2, "boss": 4}, {"id": 4, "boss": 2}, {"id": 6, "boss": 77}, {"id": 8})
    assert follow(place, topic, SCHEMA + ", boss BIGINT").dead == 1
    assert place.rows("SELECT id, boss FROM users ORDER BY id") == [(2, 4), (4, 2), (8, None)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite"], indirect=True)
def test_many_rows_that_are_refused_take_few_transactions(place, topic, monkeypatch) -> None:
    """Of the database and of the log: each of them takes as long as hundreds of rows."""
    place.execute(
        "CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(9), CHECK (name <> 'bad'))"
    )
    bad = [{"id": 2 * i, "name": "good" if i % 50 == 0 else "bad"} for i in range(300)]
    topic.send(*bad)
    target = place.make(table="users")
    statements, execute, sent, send = [], target.execute, [], Letters.send
    target.execute = lambda *arguments: (statements.append(arguments[0]), execute(*arguments))[1]
    monkeypatch.setattr(
        Letters, "send", lambda *arguments: (sent.append(arguments), send(*arguments))[1]
    )
    sink = Sink(target, topic.name, "id BIGINT NOT NULL, name STRING", key="id", log=topic.log)
    done = sink.run(until=lambda done: done.lag == 0)
    assert (done.upserts, done.dead) == (6, 294)
    assert statements.count("COMMIT") + len(sent) < 10
    assert all(reason for *_, reasons, _ in sent for reason in reasons)
    assert place.rows("SELECT count(*) FROM users WHERE name = 'good'") == [(6,)]


@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite"], indirect=True)
def test_rows_may_exchange_the_values_of_a_unique_column(place, topic) -> None:
    """The last row of each key breaks the constraint while both are written; the records' order doesn't."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(20) UNIQUE)")
    topic.send({"id": 2, "name": "ann"}, {"id": 4, "name": "bob"})
    follow(place, topic)
    topic.send({"id": 4, "name": "x"}, {"id": 2, "name": "bob"}, {"id": 4, "name": "ann"})
    assert follow(place, topic).dead == 0
    assert place.rows("SELECT id, name FROM users ORDER BY id") == [(2, "bob"), (4, "ann")]


@pytest.mark.parametrize(
    ("place", "size"), [("postgres", 12_000), ("mysql", 40_000)], indirect=["place"]
)
def test_rows_that_are_too_large_are_dead_letters(place, topic, request, size) -> None:
    """For an index of PostgreSQL, and for a packet of MySQL, after which it ends the connection."""
    if request.node.callspec.params["place"] == "mysql":
        place.execute("SET GLOBAL max_allowed_packet = 32768")
        request.addfinalizer(lambda: place.execute("SET GLOBAL max_allowed_packet = 16777216"))
    text = "".join(chr(0x4E00 + i % 20_000) for i in range(size // 3))
    topic.send({"id": "a"}, {"id": "b", "name": "x" * 100}, {"id": "c"})
    big = {"id": text} if size < 20_000 else {"id": "d", "name": text}
    topic.send(big, *({"id": f"e{i}", "name": "x" * 500} for i in range(100)))
    assert follow(place, topic, "id STRING NOT NULL, name STRING").dead == 1
    assert place.rows("SELECT count(*) FROM users") == [(103,)]


def test_a_key_without_a_value_is_a_dead_letter(tmp_path, topic) -> None:
    """Also a part of a key, whether the schema says NOT NULL or not, and of rows that are deleted."""
    topic.send({"id": 1, "part": "x"}, {"id": 2, "part": None}, {"id": 4}, b'{"id":6,"part":null}')
    target = sqlite(tmp_path / "t.db", table="users")
    sink = Sink(target, topic.name, "id BIGINT, part STRING", key=("id", "part"), log=topic.log)
    done = sink.run(until=lambda done: done.lag == 0)
    assert (done.upserts, done.deletes, done.dead) == (1, 0, 3)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_dead_letter_is_the_record_and_can_be_sent_again(place, topic) -> None:
    """Key, value and place are the record's: envelopes stay envelopes, columns beyond the schema stay."""
    place.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'))")
    bad = {"type": "insert", "data": {"id": 4, "name": "bad", "more": 7}, "id": 4}
    topic.send({"type": "insert", "data": {"id": 2, "name": "x"}, "id": 2}, bad, {"id": 6})
    assert follow(place, topic, format="maxwell").dead == 2
    letters = f"{topic.name}.users.dead-letters"
    with DeadLetters(topic.log, letters) as dead:
        found = {
            (one.key, one.value, one.origin, one.origin_partition, one.origin_offset)
            for one in dead.letters(Where())
        }
        places = [(topic.name, sum(key) % 2, at) for key, at in ((b"4", 1), (b"6", 2))]
        assert found == {
            (b"4", orjson.dumps(bad), *places[0]),
            (b"6", orjson.dumps({"id": 6}), *places[1]),
        }
        place.execute("DROP TABLE users")  # without the constraint, it is written from the start
        dead.replay(Where(reason="*CHECK*"))
    assert follow(place, topic, format="maxwell").dead == 1
    assert place.rows("SELECT id, name FROM users ORDER BY id") == [(2, "x"), (4, "bad")]


@pytest.mark.slow
def test_a_record_of_megabytes_that_does_not_fit_is_a_dead_letter(tmp_path, topic) -> None:
    """Their topic takes larger records than topics do by default; what is too long is cut, and says so."""
    with TopicAdmin(topic.log) as admin:
        admin.change_configs(topic.name, {"max.message.bytes": str(16 << 20)})
    for size in (3 << 20, 9 << 20):
        topic.send({"id": 1, "amount": "x" * size})
    topic.send({"id": 2})
    name, schema = f"long{topic.name}", "id BIGINT NOT NULL, amount DECIMAL(10, 2)"
    target = sqlite(tmp_path / "own.sqlite", table="users")
    sink = Sink(target, topic.name, schema, key="id", log=topic.log, name=name)
    done = sink.run(until=lambda done: done.lag == 0)
    assert (done.upserts, done.dead) == (1, 2)
    with Reader(topic.log) as reader:
        found = [*reader.read(f"{name}.dead-letters", 0, 0, 2)]
    assert [len(one) for records in found for one in records.values().to_pylist()] == [
        (3 << 20) + len('{"id":1,"amount":""}'),
        8 << 20,
    ]
    with DeadLetters(topic.log, f"{name}.dead-letters") as dead:
        assert dead.replay(Where()) == 1  # of the other one, only the beginning is here


@pytest.mark.parametrize("place", ["postgres", "sqlite"], indirect=True)
def test_a_table_may_have_any_name(place, log) -> None:
    """A sink is called like its table; its topics have the characters that a topic may have."""
    topic, table = Topic(log), "Meine Kunden ü"
    place.execute(
        f"CREATE TABLE \"{table}\" (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'))"
    )
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bad"})
    assert follow(place, topic, table=table).dead == 1
    name = f"{topic.name}.{table}"
    pause(log, name)
    sink = Sink(place.make(table=table), topic.name, SCHEMA, key="id", log=log)
    assert sink.run(until=lambda done: done.phase == "paused").phase == "stopped"
    resume(log, name)
    [letters] = [t for t in client_topics(log) if t.startswith(topic.name) and "dead" in t]
    assert letters.startswith(f"{topic.name}.Meine_Kunden___")
    assert letters == sink.figures()["letters_topic"]


def client_topics(log: str) -> list[str]:
    """The topics of a log."""
    with Client(log) as client:
        return list(client.topics())


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
@pytest.mark.parametrize("type_", ["INTERVAL", "ARRAY<BIGINT>"])
def test_a_key_that_duckdb_can_not_index_is_refused(place, topic, type_) -> None:
    """Also of a table that is there: what is upserted needs an index."""
    for _ in range(2):
        with pytest.raises(UserError, match=rf"that DuckDB can index; found span {type_}\. Choose"):
            follow(place, topic, f"span {type_} NOT NULL, v BIGINT", key="span")
        place.execute("CREATE TABLE IF NOT EXISTS users (span INTERVAL, v BIGINT)")


@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite", "duckdb"], indirect=True)
def test_a_table_without_an_index_over_the_key_is_refused(place, topic) -> None:
    """Else no row could be written, and the sink would wait for nothing."""
    place.execute("CREATE TABLE users (id BIGINT, name VARCHAR(9))")
    topic.send({"id": 2, "name": "x"})
    with pytest.raises(UserError, match=r"found no unique index over it\. Add one: "):
        follow(place, topic)
    place.execute("CREATE UNIQUE INDEX by_id ON users (id)")
    assert follow(place, topic).upserts == 1
