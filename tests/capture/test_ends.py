"""A capture ends while something is being stored."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
from tests.patience import PATIENCE_S, wait_until

from penstock.broker.process import BrokerProcess
from penstock.capture import output as output_module
from penstock.capture.output import Captured, Output
from penstock.capture.progress import Log, State, state_topic
from penstock.capture.progress import log as log_module
from penstock.client import TransactionalProducer
from penstock.errors import SetupError


@pytest.fixture(autouse=True)
def _stores_behind(monkeypatch) -> None:
    """Each transaction is stored while the next one is taken, and only transactions are."""
    monkeypatch.setattr(output_module, "LINGER_S", -1.0)
    monkeypatch.setattr(output_module, "IDLE_STORE_S", float("inf"))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_commit_on_its_way_does_not_hide_why_it_stops(source, monkeypatch, is_fenced) -> None:
    """What is being stored when a schema changes counts once it is; where that fails, it stops as well."""
    source.execute("CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL)")
    source.run("t")
    stops, end, abort = threading.Event(), Log._end, Log.abort

    def hold_end(log, parts) -> None:
        if threading.current_thread().name.startswith("penstock-capture"):
            assert stops.wait(PATIENCE_S)
            if is_fenced:
                with TransactionalProducer(source.log, log._writer.transactional_id) as other:
                    other.start()
        end(log, parts)

    def release_and_abort(log) -> None:
        stops.set()
        abort(log)

    monkeypatch.setattr(Log, "_end", hold_end)
    monkeypatch.setattr(Log, "abort", release_and_abort)
    for command in (
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t DROP COLUMN b",
        "INSERT INTO t VALUES (2)",
    ):
        source.execute(command)
    capture = source.capture("t", on_schema_change="stop")
    with pytest.raises(SetupError, match="schema"):
        capture.run()
    assert stops.is_set()
    assert capture.done.records == (0 if is_fenced else 1)
    with contextlib.closing(Log(source.log, source.name)) as log:
        assert log.load().position == capture.done.position


def test_what_was_stored_last_is_confirmed(source) -> None:
    """Where it ends while that is on its way, the database needn't keep it until the next run."""
    source.execute("CREATE TABLE t (a int PRIMARY KEY)")
    source.run("t")
    source.execute("INSERT INTO t VALUES (1)")
    done = source.capture("t").run(until=lambda done: done.transactions > 0)
    assert done.records == 1
    slot = f"FROM pg_replication_slots WHERE slot_name = 'penstock_{source.name}'"
    wait_until(lambda: source.rows(f"SELECT 1 {slot} AND NOT active"))
    assert source.rows(f"SELECT confirmed_flush_lsn - '0/0' {slot}") == [(done.position,)]


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_broker_that_hangs(tmp_path, monkeypatch) -> None:
    """What a thread asks of it is broken off, however long the client would wait."""
    monkeypatch.setattr(log_module, "GRACE_S", 0.01)
    log, ended = None, []

    def interrupted() -> None:
        try:
            with log:
                raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            ended.append(error)

    ending = threading.Thread(target=interrupted)
    with BrokerProcess(tmp_path, die_with_parent=False) as broker:
        log = Log(broker.address, "hangs", patience_s=100 * PATIENCE_S)
        log.start()
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            log.commit(State("", "", ""), in_background=True)
            ending.start()
            ending.join(PATIENCE_S)
            assert ended
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            ending.join()


@pytest.fixture
def output(log, request):
    """A capture's output that has no database."""
    name = request.node.name[:40]
    one = Log(log, name)
    one.start()
    one.create_topic(f"{name}.t", 1, {})
    output = Output(one, State("", "", ""), Captured(), "me", None, None)
    output.put(f"{name}.t", b"k", b"v", 0)
    assert output.committed(5, 5)
    yield output
    # Others look at all captures of the broker, and this one isn't of a database.
    one.client.delete_topic(state_topic(name), missing_ok=True)
    one.close()


def test_what_is_on_its_way_is_not_stored_again(output, monkeypatch) -> None:
    """A position that someone waits for, or that is stored while nothing changes, is stored once."""
    released = threading.Event()
    output._log._thread.submit(released.wait, 10.0)  # the commit is behind it
    try:
        assert output.store(came=True)
        monkeypatch.setattr(output_module, "IDLE_STORE_S", 0.0)
        output.wanted = 5
        assert not output.store(came=False)
    finally:
        released.set()
    output.settle()
    assert output.stored == 5


def test_where_nothing_more_came_a_commit_is_waited_for(output) -> None:
    """So that it is confirmed at once, however long what is stored has waited."""
    assert output.store(came=False)
    assert not output._log.is_ending
    assert output.stored == 5
