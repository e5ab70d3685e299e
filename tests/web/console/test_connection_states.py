"""What the page says of sinks, captures and queues while their real processes are stopped and killed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.redis_server import redis_server

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.web.console.connections import all_connections

SCHEMA = "id BIGINT NOT NULL, user STRING"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("log")) as process:
        with Client(process.address) as client:
            client.create_topic("clicks", 1)
        yield process


def send(address: str, *rows: dict[str, Any]) -> None:
    """Appends rows to the topic."""
    values = pa.array([json.dumps(row).encode() for row in rows], pa.binary())
    keys = pa.array([str(row["id"]).encode() for row in rows], pa.binary())
    with Producer(address) as producer:
        producer.send("clicks", 0, keys, values, np.zeros(len(rows), np.int64))


@contextmanager
def command(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of its own process, killed at the end."""
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *words], cwd=folder, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state(address: str, kind: str, name: str, expected: str) -> dict[str, Any]:
    """How it is, once that is what is expected."""
    found: dict[str, Any] = {}

    def asked() -> bool:
        listed = all_connections(address)[kind]
        found.update(next((one["state"] for one in listed if one["name"] == name), {}))
        return bool(found.get("name") == expected)

    wait_until(asked, lambda: f"{expected!r}, found {found}", patience_s=2 * PATIENCE_S)
    return found


def test_a_sink_whose_target_or_process_is_gone_says_so(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The target killed: it waits, since when and why; paused; the process killed: it is silent."""
    name = "clicks.users"
    send(broker.address, {"id": 1, "user": "ann"})
    with redis_server() as target:
        words = [
            "sink",
            "clicks",
            target.url,
            "--table",
            "users:{id}",
            "--name",
            name,
            "--schema",
            SCHEMA,
            "--key",
            "id",
        ]
        words += ["--broker", broker.address]
        with command(tmp_path, *words) as process:
            state(broker.address, "sinks", name, "following")
            target.kill()
            send(broker.address, {"id": 2, "user": "bob"})
            waiting = state(broker.address, "sinks", name, "waiting")
            assert waiting["level"] == "warn"
            assert waiting["since"] is not None
            assert waiting["reason"]
            assert "retries by itself" in waiting["advice"]
            target.start()
            state(broker.address, "sinks", name, "following")
            subprocess.run(
                [sys.executable, "-m", "penstock.cli", "sink", "pause", name,
                 "--broker", broker.address], check=True, cwd=tmp_path,
            )  # fmt: skip
            paused = state(broker.address, "sinks", name, "paused")
            assert "penstock sink resume" in paused["advice"]
            process.kill()
            silent = state(broker.address, "sinks", name, "silent")
        assert (silent["level"], silent["since"] is not None) == ("bad", True)
        assert "penstock sink" in silent["advice"]


def test_a_sink_that_cannot_write_has_failed(broker: BrokerProcess, tmp_path: Path) -> None:
    """Its process ends with an error, which the page shows."""
    name = "failing"
    path = tmp_path / "odd.sqlite"
    path.write_text("this is no database, however long it is\n" * 100)
    words = ["sink", "clicks", str(path), "--table", "clicks", "--name", name, "--schema", SCHEMA]
    with command(tmp_path, *words, "--key", "id", "--broker", broker.address) as process:
        assert process.wait(PATIENCE_S) != 0
    assert "odd.sqlite" in (tmp_path / "output").read_text(), "it came as far as its target"
    failed = state(broker.address, "sinks", name, "failed")
    assert (failed["level"], failed["since"] is not None) == ("bad", True)
    assert "not a database" in failed["reason"]
    assert "Correct the cause" in failed["advice"]


def test_a_capture_that_is_paused_or_killed_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    """Running, paused, and a minute after it was killed: no changes, and what asks its database."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
        database.execute("INSERT INTO users VALUES (1, 'ann')")
        database.commit()
    at = ("--broker", broker.address)
    words = ("capture", "sqlite:///shop.db", "--tables", "*", "--to", "shop")
    with command(tmp_path, *words, *at):
        running = state(broker.address, "captures", "shop", "running")
        assert running["level"] == "good"
        for word, name, advice in (
            ("pause", "paused", "penstock capture resume"),
            ("resume", "running", ""),
        ):
            subprocess.run(
                [sys.executable, "-m", "penstock.cli", "capture", word, "shop", *at],
                check=True,
                cwd=tmp_path,
            )
            assert advice in state(broker.address, "captures", "shop", name)["advice"]
    killed = state(broker.address, "captures", "shop", "no changes")
    assert (killed["level"], killed["since"] is not None) == ("wait", True)
    assert "the capture is stopped" in killed["reason"]
    assert "penstock capture status shop" in killed["advice"]


def test_a_queue_whose_worker_was_killed_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    """Its jobs wait for nobody, until a worker comes."""
    with ps.Queue("mails", broker.address) as jobs:
        jobs.put("one")
    words = ("queue", "work", "mails", "--broker", broker.address, "--", "sleep", "3600")
    with command(tmp_path, *words):
        state(broker.address, "queues", "mails", "stable")
    alone = state(broker.address, "queues", "mails", "no workers")
    assert alone["level"] == "bad"
    assert "1 jobs wait" in alone["reason"]
    assert "penstock queue work mails" in alone["advice"]
