"""What becomes of rows with values that can't be written: by key, by choice, in chunks, as changes."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from tests.capture.sources import Source
from tests.capture.unread.test_hostile import insert, kinds, table_of

from penstock.capture import outbox, serve_metrics, snapshot, status
from penstock.cli import main
from penstock.client import Client, Reader, topic_admin
from penstock.client.letters.dead_letters import DeadLetters, Where

LONG = "interval '1000000 years'"


def newest(source: Source, topic: str) -> dict[Any, Any]:
    """The newest row of each key; rows without a key are left out."""
    found: dict[Any, Any] = {}
    for key, value in source.records(topic):
        if key is not None:
            found.pop(key["id"], None)
            if value is not None and value["op"] != "d":
                found[key["id"]] = value["after"]
    return found


def test_a_row_keeps_its_changes_with_null(source) -> None:
    """The value is NULL from the change on; the deletion of the row is one."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v interval, w int)")
    source.execute(f"INSERT INTO t VALUES (1, '1 day', 1), (2, {LONG}, 1)")
    source.run()
    source.execute(f"UPDATE t SET v = {LONG}, w = 2 WHERE id = 1; DELETE FROM t WHERE id = 2")
    done = source.run()
    assert source.table(source.topic("t"), "id") == {(1,): {"id": 1, "v": None, "w": 2}}
    assert (done.unread, done.letters, source.letters()) == (1, 0, [])
    found = status(source.name, source.log, url=source.url)
    assert (found.unread, found.letters) == ({"public.t.v": 2}, 0)


def test_a_row_that_is_a_dead_letter_leaves_its_former_one(source) -> None:
    """By choice: the record goes to the letters, with what is lost; a changed key deletes the former row, and
    replaying the letter writes the row with NULL.
    """
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v interval, w int)")
    source.execute("INSERT INTO t VALUES (1, '1 day', 1), (2, '1 day', 1), (3, '1 day', 1)")
    source.run(on_unreadable="letter")
    source.execute(f"UPDATE t SET v = {LONG}, w = 2 WHERE id = 1")
    source.execute(f"UPDATE t SET id = 5, v = {LONG} WHERE id = 2; DELETE FROM t WHERE id = 3")
    source.run(on_unreadable="letter")
    day = {"v": 86_400_000_000, "w": 1}
    assert newest(source, source.topic("t")) == {1: {"id": 1, **day}}
    first, second = source.letters()
    assert "expected an interval of at most 292,471 years" in first.reason
    assert (first.key, second.key) == (b'{"id":1}', b'{"id":5}')
    with DeadLetters(source.log, f"{source.name}.capture.dead-letters") as dead:
        dead.replay(Where())
    lost = {"v": None, "w": 2}
    assert newest(source, source.topic("t")) == {
        1: {"id": 1, **lost},
        5: {"id": 5, "v": None, "w": 1},
    }


@pytest.mark.slow
def test_a_row_whose_key_cannot_be_written_is_a_dead_letter(source) -> None:
    """With NULL in its key, it would be another row: so are its changes; one that gets a key comes."""
    source.execute("CREATE TABLE t (id interval PRIMARY KEY, w int)")
    source.execute(f"INSERT INTO t VALUES ('1 day', 1), ({LONG}, 2), ({LONG} * 2, 3)")
    source.run()
    source.execute(f"DELETE FROM t WHERE w = 3; UPDATE t SET id = '2 days' WHERE id = {LONG}")
    source.execute(f"UPDATE t SET id = {LONG} * 3 WHERE w = 1")
    source.run()
    assert newest(source, source.topic("t")) == {172_800_000_000: {"id": 172_800_000_000, "w": 2}}
    assert len(source.letters()) == 4


@pytest.mark.parametrize("kind", ["source", "mysql_source"])
def test_rows_of_chunks_are_those_of_the_snapshot(request, kind) -> None:
    """Hostile values that are read again in chunks are the same, and are dead letters by the same choice."""
    source: Source = request.getfixturevalue(kind)
    types, statement = kinds(source)
    columns, values = table_of(types, 10)
    source.execute(statement.format(", ".join(columns)))
    insert(source, 0, values)
    source.run()
    before = newest(source, source.topic("t"))
    assert len(before) == len(values)
    for choice, letters in (("null", False), ("letter", True)):
        snapshot(source.name, log=source.log)
        with source.running(on_unreadable=choice) as capture:
            source.follows(capture, lambda: capture.done.snapshot_rows >= len(values))
            source.follows(capture, lambda: not status(source.name, source.log).snapshot)
        assert newest(source, source.topic("t")) == before
        assert bool(source.letters()) == letters


def test_rows_of_sqlite_without_a_key_are_apart(sqlite_source) -> None:
    """Columns of a primary key can be NULL there: such rows have no key in the log, as they have none in the
    table, and the deletion of one deletes no other.
    """
    source = sqlite_source
    source.execute("CREATE TABLE t (id text, n int, v int, PRIMARY KEY (id, n))")
    source.execute("INSERT INTO t VALUES (NULL, 1, 1), (NULL, 1, 2), ('a', 1, 3)")
    source.run()
    source.execute("INSERT INTO t VALUES ('b', NULL, 4); DELETE FROM t WHERE v = 1")
    source.execute("UPDATE t SET id = 'c' WHERE v = 2; UPDATE t SET id = NULL WHERE v = 3")
    source.run()
    records = source.records(source.topic("t"))
    assert {key["id"] for key, _ in records if key is not None} == {"a", "c"}
    assert [(v["op"], (v["after"] or v["before"])["v"]) for k, v in records if k is None and v] == [
        *(("r", 1), ("r", 2), ("c", 4), ("d", 1), ("d", 2), ("c", 3)),
    ]
    assert newest(source, source.topic("t")) == {"c": {"id": "c", "n": 1, "v": 2}}


def test_rows_of_sqlite_without_a_key_are_dead_letters_of_a_compacted_topic(sqlite_source) -> None:
    """Its records must have keys: the capture doesn't end, also when such a row is changed or deleted."""
    source = sqlite_source
    source.execute("CREATE TABLE t (id text PRIMARY KEY, v int)")
    source.execute("INSERT INTO t VALUES (NULL, 1), (NULL, 2), ('a', 3)")
    source.run(compact=True)
    source.execute("DELETE FROM t WHERE v = 1; UPDATE t SET id = 'c' WHERE v = 2")
    source.execute("UPDATE t SET id = NULL WHERE v = 3")
    source.run(compact=True)
    assert newest(source, source.topic("t")) == {"c": {"id": "c", "v": 2}}
    assert len(source.letters()) == 4


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["source", "sqlite_source"])
def test_long_rows_are_captured(request, kind) -> None:
    """Topics that a capture makes take rows of 5 MB; so does one that was made with the broker's default."""
    source: Source = request.getfixturevalue(kind)
    topic = source.topic("t")
    with Client(source.log) as client:
        client.create_topic(topic, 1)
    long = "repeat('x', 5000000)" if kind == "source" else "printf('%.*c', 5000000, 'x')"
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE n (id int PRIMARY KEY, v text)"
    )
    source.execute(f"INSERT INTO t VALUES (1, {long}); INSERT INTO n VALUES (1, {long})")
    source.run()
    source.execute(f"INSERT INTO t VALUES (2, {long}); INSERT INTO n VALUES (2, {long})")
    source.run()
    for one in (topic, source.topic("n")):
        assert [len(row["v"]) for row in newest(source, one).values()] == [5_000_000] * 2
    assert source.letters() == []


@pytest.mark.slow
def test_rows_that_are_too_long_are_dead_letters(source) -> None:
    """A topic with a limit of its own keeps it; the beginning of the row's record is in the letter."""
    topic = source.topic("t")
    with topic_admin.TopicAdmin(source.log) as admin:
        admin.create_topic(topic, 1, {"max.message.bytes": "10000"})
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT i, repeat('x', 20 * i) FROM generate_series(1, 600) i")
    source.run()
    source.execute("UPDATE t SET v = v || 'y' WHERE id > 100")
    source.run()
    rows, letters = newest(source, topic), source.letters()
    assert {len(row["v"]) % 20 for row in rows.values()} == {0, 1}
    assert max(len(row["v"]) for row in rows.values()) > 8_000
    # Places and times take more digits or fewer: one row may have fitted the first time alone.
    assert 0 <= len(letters) - 2 * (600 - len(rows)) <= 1
    assert (
        f"expected a record of at most 10,000 bytes, max.message.bytes of {topic}"
        in letters[0].reason
    )
    found = status(source.name, source.log, url=source.url)
    assert (found.unread, found.letters) == ({topic: len(letters)}, len(letters))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["avro", "json-schema", "protobuf"])
@pytest.mark.parametrize("choice", ["null", "letter"])
def test_values_that_a_schema_cannot_hold_are_counted(source, registry, form, choice) -> None:
    """Also those that JSON could hold: a former row and a deletion are written, whatever was in them."""
    settings = {"format": form, "registry": registry, "on_unreadable": choice}
    source.execute("CREATE TABLE t (id int PRIMARY KEY, d date, n numeric(8, 2), v interval)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute(
        f"INSERT INTO t VALUES (1, '2024-02-29', 1, '1 day'), (2, 'infinity', 'NaN', {LONG})"
    )
    source.run(**settings)
    source.execute("INSERT INTO t VALUES (3, 'infinity', 'NaN', NULL)")
    source.execute(
        "UPDATE t SET d = '2024-02-29', n = 1, v = NULL WHERE id = 3; DELETE FROM t WHERE id = 2"
    )
    source.run(**settings)
    found = status(source.name, source.log, url=source.url)
    # Only the standard types of Protobuf don't have a day that far ahead.
    days = {f"{source.topic('t')}.d": 2} if form == "protobuf" else {}
    assert found.unread == {"public.t.n": 2, "public.t.v": 1, **days}
    with Client(source.log) as client, Reader(source.log) as reader:
        end = client.offsets(source.topic("t"))[0]
        records = [
            one for some in reader.read(source.topic("t"), 0, 0, end) for one in some.values()
        ]
    letters = 2 if choice == "letter" else 0
    assert (len(records), len(source.letters()), found.letters) == (6 - letters, letters, letters)


@pytest.mark.slow
def test_status_and_metrics_have_the_counts(source) -> None:
    """By column in `penstock capture status`, altogether for Prometheus."""
    source.execute("CREATE TABLE t (id interval PRIMARY KEY, v interval)")
    source.execute(f"INSERT INTO t VALUES ('1 day', {LONG}), ({LONG}, NULL)")
    capture = source.capture()
    end = source.end()
    with serve_metrics("127.0.0.1", 0, capture) as port:
        capture.run(until=lambda done: done.position >= end)
        text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    for name, count in (("unread_values", 2), ("dead_letters", 1), ("snapshot_rows", 2)):
        assert f'penstock_capture_{name}_total{{capture="{source.name}"}} {count}.0' in text
    arguments = ["capture", "status", source.name, "--format", "csv", "--broker", source.log]
    printed = CliRunner().invoke(main, [*arguments, "--url", source.url])
    assert ",2,1,public.t," in printed.stdout, printed.output
    assert "1 of public.t.v couldn't be read or written" in printed.stderr
    assert f"penstock dlq show {source.name}.capture.dead-letters" in printed.stderr


@pytest.mark.slow
def test_an_event_without_a_topic_is_a_dead_letter(source) -> None:
    """A name that is too long would be refused at each start; the events around it come."""
    outbox(source.url)
    values = "(aggregatetype, aggregateid, type, payload) VALUES"
    event = "INSERT INTO outboxevent " + values + " ({}, '1', 't', '1')"
    source.execute(event.format("repeat('x', 240)") + ";" + event.format("'a'"))
    source.run(outbox="public.outboxevent")
    source.execute(event.format("repeat('x', 240)") + ";" + event.format("'a'"))
    source.run(outbox="public.outboxevent")
    assert len(source.records("outbox.event.a")) == 2
    letters = source.letters()
    assert [one.value for one in letters] == [b"1", b"1"]
    assert "expected a topic's name of at most 249 characters" in letters[0].reason
