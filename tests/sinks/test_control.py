"""Sinks are paused and looked at from outside, and their tables built anew."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import urllib.request
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from tests.patience import wait_until
from tests.ports import free_port
from tests.sinks.conftest import Topic

from penstock.cli.log.sink import sink as command
from penstock.cli.support import progress
from penstock.client import Client
from penstock.errors import LimitError, SetupError, UserError
from penstock.follow import follower, report
from penstock.sinks import (
    Sink,
    body,
    drop,
    go_back,
    kafka,
    pause,
    rebuild,
    resume,
    serve_metrics,
    sqlite,
    status,
    wait_for,
)
from penstock.sinks.targets import files as files_module

SCHEMA = "id BIGINT NOT NULL, name STRING"
WIDER = "id BIGINT NOT NULL, name STRING, age INT"


def made(place, topic, schema=SCHEMA, name=None):
    """A sink."""
    target = place.make(table="users")
    return Sink(target, topic.name, schema, key="id", log=topic.log, name=name)


@contextmanager
def running(sink):
    """Runs it meanwhile; an error is the test's."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            sink.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sink
    finally:
        sink.stop()
        thread.join()
    assert not errors


def test_a_topic_that_does_not_exist_is_waited_for(log, tmp_path, monkeypatch, caplog) -> None:
    """With a warning that names it, and one that is alike; once it is created, the sink follows it."""
    monkeypatch.setattr(body, "PATIENT_S", 0.0)
    other = Topic(log)
    name = f"{other.name}s"
    sink = Sink(sqlite(tmp_path / "t.db", table="users"), name, SCHEMA, key="id", log=log)
    with running(sink):
        wait_until(lambda: sink.done.phase == "waiting")
        assert f"expected the topic {name!r}; found none (did you mean" in sink.done.trouble
        assert [sink.done.trouble in line for line in caplog.messages] == [True]
        with Client(log) as client:
            client.create_topic(name, 1)
        wait_until(lambda: sink.done.phase == "following" and sink.done.lag == 0)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_sink_is_paused_and_goes_on(place, topic) -> None:
    """Wherever it runs; what is written meanwhile waits, and a run that begins meanwhile waits too."""
    name = f"{topic.name}.users"
    with pytest.raises(UserError, match=r"of the sinks|found no sinks"):
        pause(topic.log, name)
    topic.send({"id": 1, "name": "ann"})
    made(place, topic).run(until=lambda done: done.lag == 0)
    pause(topic.log, name)
    topic.send({"id": 2, "name": "bob"})
    with running(made(place, topic)) as sink:
        wait_until(lambda: sink.done.phase == "paused", "it to pause")
        wait_until(
            lambda: [s["lag"] for s in status(topic.log) if s["name"] == name] == [1], "its lag"
        )
        wait_until(  # the report of its phase may be older
            lambda: [s["phase"] for s in status(topic.log) if s["name"] == name] == ["paused"],
            "its phase",
        )
        with pytest.raises(UserError, match=r"that has ended; found that .* is paused"):
            drop(topic.log, name)
        assert place.rows("SELECT id FROM users") == [(1,)]
        assert sink.target._connection is None  # who opens the file alone may have it meanwhile
        resume(topic.log, name)
        wait_until(lambda: len(place.rows("SELECT id FROM users")) == 2, "the row")
    found = CliRunner().invoke(command, ["status", "--broker", topic.log, "--format", "csv"])
    assert f"{name},{topic.name}" in found.output, found.output


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_topic_that_is_created_again_is_doubted(place, topic, caplog) -> None:
    """Also if it has more records by now than the target has offsets; one that stays is not."""
    for number in range(8):
        topic.send({"id": number, "name": "ann"})
    for _ in range(2):
        made(place, topic).run(until=lambda done: done.lag == 0)
    assert caplog.messages == []
    with Client(topic.log) as client:
        client.delete_topic(topic.name)
        client.create_topic(topic.name, topic.partitions)
    for number in range(16):
        topic.send({"id": 100 + number, "name": "bob"})
    made(place, topic).run(until=lambda done: done.lag == 0)
    [found] = [one for one in status(topic.log) if one["topic"] == topic.name]
    assert "If the topic was deleted and created again" in found["last_error"]
    assert [found["last_error"] in line for line in caplog.messages] == [True]


def test_a_sink_whose_target_is_away_is_paused(topic, tmp_path, monkeypatch) -> None:
    """It needn't reach the target for that, and shows its lag meanwhile."""
    monkeypatch.setattr(follower, "BACKOFF_S", (0.05, 0.2))
    topic.send({"id": 1, "name": "ann"})
    path, name = tmp_path / "away" / "users.db", f"{topic.name}.users"
    sink = Sink(sqlite(path, table="users"), topic.name, SCHEMA, key="id", log=topic.log)

    def shown() -> list[tuple[str, int]]:
        return [(s["phase"], s["lag"]) for s in status(topic.log) if s["name"] == name]

    with running(sink):
        wait_until(lambda: shown() == [("waiting", 1)], "it to wait")
        pause(topic.log, name)
        wait_until(lambda: shown() == [("paused", 1)], "it to pause")
        path.parent.mkdir()
        resume(topic.log, name)
        wait_until(lambda: shown() == [("following", 0)], "the row")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_who_has_written_waits_until_the_target_has_it(place, topic) -> None:
    """Not while the sink is behind; a token of another topic, or a sink that never ran, is an error."""
    name = f"{topic.name}.users"
    topic.send({"id": 1, "name": "ann"})
    at = sum(b"1") % topic.partitions
    with pytest.raises(UserError, match=r"of the sinks|found no sinks"):
        wait_for(topic.log, "nobody", f"{topic.name}-{at}:0")
    made(place, topic).run(until=lambda done: done.lag == 0)
    wait_for(topic.log, name, f"{topic.name}-{at}:0")
    topic.send({"id": 1, "name": "Ann"})
    with pytest.raises(LimitError, match="penstock sink status"):
        wait_for(topic.log, name, f"{topic.name}-{at}:1", timeout=0)
    with running(made(place, topic)):
        arguments = ["wait", name, f"{topic.name}-{at}:1", "--wait", "60", "--broker", topic.log]
        assert CliRunner().invoke(command, arguments).exit_code == 0
        assert place.rows("SELECT name FROM users") == [("Ann",)]
    with pytest.raises(UserError, match="expected a position in one of the topics"):
        wait_for(topic.log, name, "other-0:1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sink_that_is_ended_says_so(topic, tmp_path, number) -> None:
    """By Ctrl-C as by SIGTERM: it is stopped, and not silent."""
    topic.send({"id": 1, "name": "ann"})
    arguments = [topic.name, str(tmp_path / "users.sqlite"), "--table", "users", "--schema", SCHEMA]

    def end() -> None:
        name = f"{topic.name}.users"
        wait_until(
            lambda: (name, "following") in [(s["name"], s["phase"]) for s in status(topic.log)],
            name,
        )
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=end)
    thread.start()
    done = CliRunner().invoke(command, [*arguments, "--broker", topic.log])
    thread.join()
    assert done.exit_code == 0, done.output
    found = {s["phase"] for s in status(topic.log) if s["name"] == f"{topic.name}.users"}
    assert found == {"stopped"}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_what_a_sink_does_is_served_for_prometheus(place, topic) -> None:
    """Counts, how far it is behind, and its phase."""
    topic.send({"id": 1, "name": "ann"}, {"id": "x"})
    sink = made(place, topic)
    sink.done.retries, sink.done.lag, sink.done.behind_s = 3, 7, 1.5
    with serve_metrics("127.0.0.1", 0, [sink]) as port:

        def asked() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return answer.read().decode()

        before = asked()
        sink.run(until=lambda done: done.lag == 0)
        after = asked()
    own = f'{{sink="{sink.name}"'
    assert f"penstock_sink_lag_records{own}}} 7.0" in before
    assert f"penstock_sink_behind_seconds{own}}} 1.5" in before
    assert f"penstock_sink_retries_total{own}}} 3.0" in before
    assert f"penstock_sink_upserts_total{own}}} 1.0" in after
    assert f"penstock_sink_dead_letters_total{own}}} 1.0" in after
    assert f"penstock_sink_behind_seconds{own}}} 0.0" in after
    assert f'penstock_sink_state{own},state="stopped"}} 1.0' in after
    [found] = [s for s in status(topic.log) if s["name"] == sink.name]
    assert (found["lag"], found["behind_s"], found["retries"]) == (0, 0.0, 3)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_sink_that_was_killed_is_silent(place, topic, monkeypatch) -> None:
    """It reported that it follows, and nothing since."""
    sink = made(place, topic)
    sink.run(until=lambda done: done.lag == 0)
    sink.done.phase = "following"
    sink._follower.report()
    monkeypatch.setattr(report, "SILENT_MS", -1)
    assert {s["phase"] for s in status(topic.log) if s["name"] == sink.name} == {"silent"}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_sink_that_an_error_ends_has_failed(place, topic, monkeypatch) -> None:
    """Whatever it is: somebody looks for the reason."""
    sink = made(place, topic)
    monkeypatch.setattr(sink.target, "open", lambda *_: {}["odd"])
    with pytest.raises(KeyError):
        sink.run()
    [found] = [s for s in status(topic.log) if s["name"] == sink.name]
    assert (found["phase"], found["trouble"]) == ("failed", "'odd'")


def gone(*_: object) -> None:
    """As a server that is away."""
    raise ConnectionError("it is away")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_sink_that_waits_reports_meanwhile(place, topic, monkeypatch) -> None:
    """Between two tries, and between the writes of a target with a pace."""
    monkeypatch.setattr(follower, "REPORT_S", 0.1)
    monkeypatch.setattr(follower, "BACKOFF_S", (300.0, 300.0))
    paced, away = made(place, topic), made(place, topic, name=f"{topic.name}.away")
    paced.target.pace_s = 300.0
    monkeypatch.setattr(away.target, "open", gone)
    topic.send({"id": 1, "name": "ann"})

    def reports() -> dict[str, tuple[str, int]]:
        return {s["name"]: (s["phase"], s["reported_ms"]) for s in status(topic.log)}

    with running(paced), running(away):
        for one, phase in ((paced, "following"), (away, "waiting")):
            wait_until(lambda: reports().get(one.name, ("",))[0] == phase, phase)  # noqa: B023
            first = reports()[one.name]
            wait_until(lambda: reports()[one.name] > first, "another report")  # noqa: B023
        found = {s["name"]: s for s in status(topic.log)}
    assert (found[paced.name]["breaker"], found[away.name]["breaker"]) == ("closed", "open")
    assert (found[paced.name]["progress"], found[away.name]["last_error"]) == (1.0, "it is away")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_batches_are_as_large_and_as_rare_as_it_is_told(place, log) -> None:
    """Records of a transaction are counted; between two writes, the rest waits, but not at the end."""
    topic, settings = Topic(log, 1), {"key": "id", "log": log}

    def sink(**more) -> Sink:
        one = Sink(place.make(table="users"), topic.name, SCHEMA, **settings, **more)
        write = one.target.write
        one.target.write = lambda batch, offsets: (sizes.append(len(batch)), write(batch, offsets))
        return one

    sizes: list[int] = []
    topic.send(*({"id": 2 * i} for i in range(10)))
    sink(batch_records=4).run(until=lambda done: done.lag == 0)
    assert [size for size in sizes if size] == [4, 4, 2]
    sizes.clear()
    one = sink(pace_s=300.0)
    thread = threading.Thread(target=one.run)
    thread.start()
    wait_until(lambda: one.done.phase == "following" and one.done.lag == 0)
    topic.send({"id": 100})
    topic.send({"id": 102})
    one.finish()
    thread.join()
    assert [size for size in sizes if size] == [2]
    for wrong in ({"pace_s": -1.0}, {"batch_records": 0}, {"batch_records": 50_001}):
        with pytest.raises(UserError, match=r"expected (pace_s|batch_records) to be"):
            sink(**wrong)


def test_commands_write_build_anew_and_put_back(topic, tmp_path) -> None:
    """A topic and a target are a run; the other commands take the same."""
    topic.send({"id": 1, "name": "ann"})
    path = str(tmp_path / "users.sqlite")
    common = [topic.name, path, "--table", "users", "--schema", SCHEMA, "--key", "id"]
    common += ["--broker", topic.log]

    def invoke(*arguments: str) -> str:
        done = CliRunner().invoke(command, [*arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert "wrote 1 rows to users" in invoke(
        *common, "--once", "--pace", "9", "--batch-records", "5"
    )
    assert "rebuilt with 1 rows" in invoke("rebuild", *common)
    names = [one["name"] for one in status(topic.log) if one["topic"] == topic.name]
    assert names == [f"{topic.name}.users"]  # the one of the rebuild is gone
    assert "before the last rebuild" in invoke("rebuild", *common, "--back")
    index = [topic.name, str(tmp_path / "users.tantivy"), *common[4:]]  # it has no table
    assert "wrote 1 rows to tantivy" in invoke(*index, "--once")
    assert "pauses" in invoke("pause", f"{topic.name}.users", "--broker", topic.log)
    topic.send({"id": 2, "name": "bob"})
    done = CliRunner().invoke(command, [*common, "--once"])  # it doesn't wait for that
    assert (done.exit_code, "penstock sink resume" in done.output) == (1, True), done.output
    assert "continues" in invoke("resume", f"{topic.name}.users", "--broker", topic.log)
    assert "no longer listed" in invoke("drop", f"{topic.name}.users", "--broker", topic.log)
    done = CliRunner().invoke(command, ["drop", f"{topic.name}.users", "--broker", topic.log])
    assert done.exit_code == 1, done.output
    assert f"'{topic.name}.users'" in done.output  # it isn't known any more
    assert "wrote 1 rows to users" in invoke(*common, "--once")  # it continues


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite", "duckdb"], indirect=True)
def test_a_table_is_built_anew_and_put_back(place, topic) -> None:
    """With further columns, or as it was; each has its own offsets."""
    topic.send({"id": 1, "name": "ann", "age": 7}, {"id": 2, "name": "bob", "age": 8})
    made(place, topic).run(until=lambda done: done.lag == 0)
    assert rebuild(made(place, topic, WIDER)).upserts == 2
    query = "SELECT id, name, age FROM users ORDER BY id"
    assert place.rows(query) == [(1, "ann", 7), (2, "bob", 8)]
    topic.send({"id": 3, "name": "eve", "age": 9})
    assert made(place, topic, WIDER).run(until=lambda done: done.lag == 0).upserts == 1
    assert len(place.rows(query)) == 3
    go_back(made(place, topic))
    assert place.rows("SELECT * FROM users ORDER BY id") == [(1, "ann"), (2, "bob")]
    assert made(place, topic).run(until=lambda done: done.lag == 0).upserts == 1
    assert place.rows("SELECT * FROM users ORDER BY id") == [(1, "ann"), (2, "bob"), (3, "eve")]
    rebuild(made(place, topic, WIDER))
    assert place.rows("SELECT age FROM users ORDER BY id") == [(7,), (8,), (9,)]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_rebuild_whose_table_was_removed_begins_again(place, topic) -> None:
    """Its offsets are removed with it; the new table has the rows before them, too."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    made(place, topic).run(until=lambda done: done.lag == 0)
    killed = made(place, topic).beside(
        place.make(table="users__new"), f"{topic.name}.users.rebuild"
    )
    killed.run(until=lambda done: done.lag == 0)
    place.execute("DROP TABLE users__new")
    assert rebuild(made(place, topic)).upserts == 2
    assert place.rows("SELECT id FROM users ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("place", ["postgres", "mysql", "sqlite"], indirect=True)
def test_a_sink_that_runs_goes_on_with_the_new_table(place, topic) -> None:
    """It isn't fenced, and loses nothing, however far it was."""
    topic.send({"id": 1, "name": "ann"})
    with running(made(place, topic)) as live:
        wait_until(lambda: live.done.lag == 0, "it to follow")
        place.execute("UPDATE users SET name = 'damaged'")
        topic.send({"id": 2, "name": "bob"})
        rebuild(made(place, topic))
        topic.send({"id": 3, "name": "eve"})
        wait_until(lambda: len(place.rows("SELECT id FROM users")) == 3, "the row")
        assert place.rows("SELECT name FROM users WHERE id = 1") == [("ann",)]
        assert place.rows("SELECT count(*) FROM users__old WHERE id = 3") == [(0,)]
        assert place.rows("SELECT name FROM users__old WHERE id = 1") == [("damaged",)]


def test_a_database_that_is_locked_is_an_error(topic, tmp_path, monkeypatch) -> None:
    """Of the commands that somebody waits for; a sink itself tries again."""
    monkeypatch.setattr(files_module, "BUSY_S", 0.05)
    path = tmp_path / "users.sqlite"
    topic.send({"id": 1, "name": "ann"})
    sink = Sink(sqlite(path, table="users"), topic.name, SCHEMA, key="id", log=topic.log)
    rebuild(sink)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for one in (rebuild, go_back):
            with pytest.raises(SetupError, match="found: database is locked"):
                one(sink)


def test_what_cannot_be_switched_is_an_error(topic) -> None:
    """A topic's name is known to its readers, and can't be given to another one."""
    one = Sink(kafka("x:1", table="t"), topic.name, SCHEMA, key="id", log=topic.log)
    with pytest.raises(UserError, match="another name"):
        rebuild(one)
    with pytest.raises(UserError, match="another name"):
        go_back(one)


def test_a_run_with_once_ends_where_the_target_or_the_topic_stays_away(
    topic, tmp_path, monkeypatch
) -> None:
    """With what it waited for, so that a job that runs it fails; what waits is written by the next one."""
    monkeypatch.setattr(progress, "ONCE_S_MAX", 0.0)
    topic.send({"id": 1, "name": "a"})
    away = f"postgresql://postgres@127.0.0.1:{free_port()}/none"
    for name, target in ((topic.name, away), (f"{topic.name}-none", str(tmp_path / "t.sqlite"))):
        words = [name, target, "--table", "users", "--schema", SCHEMA, "--key", "id", "--once"]
        done = CliRunner().invoke(command, [*words, "--broker", topic.log])
        assert done.exit_code == 1
        assert "expected to write all there is; found for 0 s: " in done.output
    words = [topic.name, str(tmp_path / "t.sqlite"), "--table", "users", "--schema", SCHEMA]
    done = CliRunner().invoke(command, [*words, "--key", "id", "--once", "--broker", topic.log])
    assert (done.exit_code, done.exception) == (0, None)
    assert "wrote 1 rows" in done.output
