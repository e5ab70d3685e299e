"""Whatever is killed, no change is lost or doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.databases import psycopg
from tests.effort import rounds
from tests.killing import kill
from tests.patience import wait_until

from penstock.capture import Capture, Captured
from penstock.client import TransactionalProducer
from penstock.errors import FencedError
from penstock.follow import follower

KILLS = rounds("PENSTOCK_CAPTURE_KILLS", quick=2, full=10)
PROGRAM = """
import sys
from penstock.capture import Capture, output
output.STEP_BYTES = 4096
url, to, log, registry = sys.argv[1:]
avro = {"format": "avro", "registry": registry} if registry else {}
Capture(url, ["public.*"], to=to, log=log, partitions=3, **avro).run()
"""
CHANGES = [
    "INSERT INTO account(balance, note) VALUES ({n}, md5(random()::text))",
    "UPDATE account SET balance = balance + 1 WHERE id % 7 = {n} % 7",
    "UPDATE account SET id = nextval('account_id_seq') WHERE id = (SELECT min(id) FROM account)",
    "DELETE FROM account WHERE id = (SELECT max(id) FROM account)",
    "INSERT INTO entry(account, at) SELECT id, now() FROM account",
    "DELETE FROM entry WHERE id % 5 = {n} % 5",
    "INSERT INTO cart SELECT i, {n} FROM generate_series({n}, {n} + 20) i ON CONFLICT DO NOTHING",
    "TRUNCATE cart",
]


def write(source, seed: int, end: threading.Event) -> None:
    """Transactions of one to five changes, some of them rolled back; goes on while the server is away."""
    random_ = random.Random(seed)
    while not end.is_set():
        with contextlib.suppress(psycopg.Error), psycopg.connect(source.url) as one:
            while not end.is_set():
                for _ in range(random_.randint(1, 5)):
                    one.execute(random_.choice(CHANGES).format(n=random_.randint(0, 100)))
                if random_.random() < 0.2:
                    one.rollback()
                one.commit()
        end.wait(0.05)


def start(source) -> subprocess.Popen[bytes]:
    """A capture in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, source.url, source.name, source.log, source.registry]
    return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})


def partitioned(source, topic: str) -> dict[int, dict[str, object]]:
    """What a topic's records make of a table; each change is checked against what was there."""
    return {key[0]: row for key, row in source.table(topic, "id").items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["debezium", pytest.param("avro", marks=pytest.mark.slow)])
def test_no_kill_of_the_capture_or_the_database_loses_or_doubles_a_change(
    source, registry, form
) -> None:
    """The records make exactly the tables that are in the database at the end."""
    avro = {} if form == "debezium" else {"format": "avro", "registry": registry}
    source.registry = avro.get("registry", "")
    seed = random.randrange(2**32)
    print(f"PENSTOCK_CAPTURE_KILLS={KILLS}, seed {seed}")
    source.execute(
        "CREATE TABLE account (id serial PRIMARY KEY, balance int, note text);"
        "INSERT INTO account(balance, note) SELECT 0, repeat('x', 100) FROM generate_series(1, 300) i;"
        "CREATE TABLE entry (id serial PRIMARY KEY, account int, at timestamptz);"
        "CREATE TABLE cart (id int PRIMARY KEY, v int);"
    )
    random_, end = random.Random(seed), threading.Event()
    writers = [threading.Thread(target=write, args=(source, seed + i, end)) for i in range(2)]
    for one in writers:
        one.start()
    process = start(source)
    try:
        for _ in range(KILLS):
            time.sleep(random_.uniform(0.0, 2.5))  # when it is killed is the input, not a wait
            if random_.random() < 0.3:
                source.server.kill()
                source.server.start()
            else:
                kill(process)
                process = start(source)
    finally:
        end.set()
        for one in writers:
            one.join()
        process.send_signal(signal.SIGKILL)
        process.wait()
    source.run(partitions=3, **avro)
    for table in ("account", "entry"):
        found = partitioned(source, f"{source.name}.public.{table}")
        assert sorted(found) == [
            id_ for (id_,) in source.rows(f"SELECT id FROM {table} ORDER BY 1")
        ]
    balances = {
        id_: one["balance"]
        for id_, one in partitioned(source, f"{source.name}.public.account").items()
    }
    assert balances == dict(source.rows("SELECT id, balance FROM account"))
    newest = {
        key["id"]: value and value["after"]["v"]
        for key, value in source.records(f"{source.name}.public.cart")
        if key is not None and (value is None or value["after"] is not None)
    }
    cart = {id_: v for id_, v in newest.items() if v is not None}
    assert cart == dict(source.rows("SELECT id, v FROM cart"))


@pytest.mark.slow
def test_a_second_capture_fences_the_first(source) -> None:
    """Who begins under a name takes over; the one before ends, and doesn't take it back."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = source.capture()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            first.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: first.done.phase == "streaming")
    with source.running() as second:
        source.follows(second, lambda: second.done.phase == "streaming")
        source.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: errors)
        source.follows(second, lambda: len(source.records(f"{source.name}.public.t")) == 1)
    thread.join()
    assert isinstance(errors[0], FencedError)


@pytest.mark.slow
def test_a_capture_that_the_log_has_fenced_continues_if_nobody_took_over(
    source, monkeypatch
) -> None:
    """The log fences a process also for a transaction that was open for too long."""
    monkeypatch.setattr(follower, "FENCED_S", 0.1)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        with TransactionalProducer(source.log, f"penstock.capture.{source.name}") as other:
            other.start()
        source.execute("INSERT INTO t VALUES (1), (2)")
        source.follows(
            capture, lambda: source.table(f"{source.name}.public.t", "id").keys() == {(1,), (2,)}
        )


@pytest.mark.slow
def test_a_database_that_is_away_is_waited_for(source) -> None:
    """A capture says why it waits, and goes on when the server is back."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    done: Captured
    with source.running() as capture:
        done = capture.done
        source.follows(capture, lambda: done.phase == "streaming")
        source.server.kill()
        source.follows(capture, lambda: done.phase == "waiting" and done.trouble)
        source.server.start()
        source.execute("INSERT INTO t VALUES (1)")
        source.follows(capture, lambda: len(source.records(f"{source.name}.public.t")) == 1)
    assert isinstance(capture, Capture)
