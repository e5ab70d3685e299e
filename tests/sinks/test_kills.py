"""A second database equals the first, whatever is killed on the way."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time

import pytest
from tests.databases import Postgres, psycopg
from tests.effort import rounds
from tests.killing import kill

from penstock.capture import Capture
from penstock.client import Client
from penstock.sinks import Sink, postgres

KILLS = rounds("PENSTOCK_SINK_KILLS", quick=2, full=10)
SCHEMA = "id INT NOT NULL, owner STRING NOT NULL, balance DECIMAL(12, 2), at TIMESTAMP"
TABLE = "id serial PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2), at timestamptz"
CAPTURE = """
import sys
from penstock.capture import Capture
url, topic, log = sys.argv[1:]
Capture(url, {"public.account": topic}, name=topic, log=log, format="flat", values="readable").run()
"""
SINK = f"""
import sys
from penstock.sinks import Sink, body, postgres
body.STEP_OFFSETS = 50
url, topic, log = sys.argv[1:]
Sink(postgres(url, table="account"), topic, {SCHEMA!r}, key="id", log=log).run()
"""
CHANGES = [
    "INSERT INTO account(owner, balance, at) SELECT md5(random()::text), {n} / 7.0, now()",
    "UPDATE account SET balance = balance + {n}, at = now() WHERE id % 11 = {n} % 11",
    "UPDATE account SET id = nextval('account_id_seq') WHERE id = (SELECT min(id) FROM account)",
    "DELETE FROM account WHERE id % 13 = {n} % 13",
]


def write(url: str, seed: int, end: threading.Event) -> None:
    """Transactions, some of them rolled back; goes on while the server is away."""
    random_ = random.Random(seed)
    while not end.is_set():
        with contextlib.suppress(psycopg.Error), psycopg.connect(url) as one:
            while not end.is_set():
                for _ in range(random_.randint(1, 4)):
                    one.execute(random_.choice(CHANGES).format(n=random_.randint(1, 40)))
                if random_.random() < 0.2:
                    one.rollback()
                one.commit()
        end.wait(0.05)


@pytest.mark.timeout(600)
def test_a_second_database_equals_the_first_after_kills(server: Postgres, log: str) -> None:
    """Capture, sink and database are killed while clients write; at the end the tables are equal."""
    seed = random.randrange(2**32)
    print(f"PENSTOCK_SINK_KILLS={KILLS}, seed {seed}")
    name = f"kills{seed}"
    for one in ("first", "second"):
        server.execute(f"CREATE DATABASE {one}{seed}")
    first, second = server.url(f"first{seed}"), server.url(f"second{seed}")
    server.execute(f"CREATE TABLE account ({TABLE})", f"first{seed}")
    with Client(log) as client:
        client.create_topic(name, 2, {"retention.ms": "-1"})

    def start(program: str, url: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program, url, name, log]
        return subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})

    random_, end = random.Random(seed), threading.Event()
    writers = [threading.Thread(target=write, args=(first, seed + i, end)) for i in range(2)]
    for writer in writers:
        writer.start()
    programs = [(CAPTURE, first), (SINK, second)]
    processes = [start(*one) for one in programs]
    try:
        for _ in range(KILLS):
            time.sleep(
                random_.uniform(0.0, 2.5)
            )  # when something is killed is the input, not a wait
            victim = random_.randrange(5)
            if victim == 4:
                server.kill()
                server.start()
                continue
            kill(processes[victim % 2])
            processes[victim % 2] = start(*programs[victim % 2])
    finally:
        end.set()
        for writer in writers:
            writer.join()
        for process in processes:
            process.kill()
            process.wait()
    settle(server, first, second, name, log)
    query = "SELECT id, owner, balance, at FROM account ORDER BY id"
    mine = server.rows(query, f"first{seed}")
    assert server.rows(query, f"second{seed}") == mine
    assert mine


def settle(server: Postgres, first: str, second: str, name: str, log: str) -> None:
    """Captures and writes all that there is."""
    database = first.rpartition("/")[2]
    server.execute("INSERT INTO account(owner) VALUES ('the last one')", database)
    [(position,)] = server.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn", database)
    server.execute("UPDATE account SET balance = 0 WHERE owner = 'the last one'", database)
    capture = Capture(
        first, {"public.account": name}, name=name, log=log, format="flat", values="readable"
    )
    capture.run(until=lambda done: done.position >= position)
    sink = Sink(postgres(second, table="account"), name, SCHEMA, key="id", log=log)
    assert sink.run(until=lambda done: done.lag == 0).dead == 0
