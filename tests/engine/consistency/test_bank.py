"""Internal consistency: transfers come, change and are withdrawn; no version shows money made or lost."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.engine.consistency.bank_program import bank
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.core.partitioner import murmur2_partitions
from penstock.errors import QueryError
from penstock.serve import Views
from penstock.serve.views import Snapshot

PROGRAM = Path(__file__).with_name("bank_program.py")
CHANGES = rounds("PENSTOCK_TRANSFERS", quick=5_000, full=10_000)
ACCOUNTS = 100
PARTITIONS = 3
CHUNK = 500
SEED = 7
RUN_S = 600.0


@dataclass
class Ledger:
    """Transfers as records of a changelog: new ones, others in their place, tombstones."""

    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    now: dict[int, dict[str, int]] = field(default_factory=dict)
    ids: int = 0

    def change(self) -> tuple[bytes, bytes | None]:
        """The next record, key and value."""
        kind = self.chance.random()
        if self.now and kind < 0.3:
            # Recent ones rather: a dict has no cheap way to any other.
            number = self.chance.randrange(max(0, self.ids - 5 * CHUNK), self.ids)
            if number in self.now and kind < 0.1:
                del self.now[number]
                return b"%d" % number, None
        else:
            number, self.ids = self.ids, self.ids + 1
        source = self.chance.randrange(ACCOUNTS)
        target = self.chance.randrange(ACCOUNTS)
        amount = self.chance.randrange(1, 10_000)
        row = {"id": number, "source": source, "target": target, "amount": amount}
        self.now[number] = row
        return b"%d" % number, orjson.dumps(row)

    def balances(self) -> dict[int, int]:
        """Of the accounts that have transfers."""
        found: dict[int, int] = {}
        for row in self.now.values():
            found[row["source"]] = found.get(row["source"], 0) - row["amount"]
            found[row["target"]] = found.get(row["target"], 0) + row["amount"]
        return found


def check(snapshot: Snapshot) -> None:
    """One version agrees with itself."""
    balances = snapshot.table("balances")["balance"].to_pylist()
    assert sum(balances) == 0
    for row in snapshot.table("total").to_pylist():
        assert row == {"total": 0, "accounts": len(balances)}


@pytest.mark.slow
def test_every_version_adds_up() -> None:
    """Records of one change reach the total in one version, however batches are cut."""
    run = ps.testing.run(bank(), cores=3)
    ledger = Ledger()
    chance, sent = random.Random(SEED), 0
    while sent < 500:
        for _ in range(chance.choice([1, 2, 10, 100])):
            key, value = ledger.change()
            partition = int(murmur2_partitions(pa.array([key], pa.binary()), PARTITIONS)[0])
            run.send_raw("transfers", value, key=key, partition=partition)
            sent += 1
        assert run.step() is not None
        check(Snapshot(run.store, run.store.version(run.store.newest_version())))
        if chance.random() < 0.1:
            run.restart()
    found = run.view("balances").rows()
    assert {row["account"]: row["balance"] for row in found} == ledger.balances()


class Transfers(threading.Thread):
    """Writes changes to the log, and remembers what must come of them."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(daemon=True)
        self.address, self.directory, self.ledger = address, directory, Ledger()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(self.address, patience_s=PATIENCE_S) as producer:
                for sent in range(0, CHANGES, CHUNK):
                    self._send_one(producer, min(CHUNK, CHANGES - sent))
        except BaseException as error:
            self.failure = error

    def _send_one(self, producer: Producer, count: int) -> None:
        """Sends a batch's worth: versions are as many as there are such."""
        before = _newest(self.directory)
        self._send(producer, count)
        wait_until(lambda: _newest(self.directory) > before, "a batch", patience_s=RUN_S)

    def _send(self, producer: Producer, count: int) -> None:
        changes = [self.ledger.change() for _ in range(count)]
        keys = pa.array([key for key, _ in changes], pa.binary())
        values = pa.array([value for _, value in changes], pa.binary())
        of = murmur2_partitions(keys, PARTITIONS)
        for partition in range(PARTITIONS):
            index = pa.array(np.flatnonzero(of == partition))
            times = np.full(len(index), time.time_ns() // 1_000_000, np.int64)
            producer.send("transfers", partition, keys.take(index), values.take(index), times)


class Polls(threading.Thread):
    """Asks the page's server for the total, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.answers = self.queries = 0
        self.wrong: list[Any] = []
        self.finish = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            while not self.finish.is_set():
                with contextlib.suppress(httpx.TransportError):
                    self._poll(client)

    def _poll(self, client: httpx.Client) -> None:
        answer = client.get("/api/views/total")
        if answer.status_code == httpx.codes.OK:
            rows = answer.json()["rows"]
            self.answers += len(rows)
            self.wrong += [row for row in rows if row[0] != 0]
        if self.answers % 20 == 0:  # a query takes longer
            sql = "SELECT sum(balance)::BIGINT, any_value(total) FROM balances, total"
            answer = client.get("/api/query", params={"sql": sql})
            if answer.status_code == httpx.codes.OK and self.answers:
                self.queries += 1
                self.wrong += [row for row in answer.json()["rows"] if set(row) != {0}]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_readers_never_see_money_made_or_lost(tmp_path: Path) -> None:
    """While transfers stream in and the driver is killed, each version adds up, and each answer over HTTP."""
    directory = tmp_path / "bank.penstock"
    with BrokerProcess(tmp_path / "log") as broker:
        with Client(broker.address) as client:
            client.create_topic("transfers", PARTITIONS, configs={"retention.ms": "-1"})
        port = free_port()
        command = [sys.executable, str(PROGRAM), str(directory), broker.address]
        command += ["--port", str(port)]
        transfers, polls = Transfers(broker.address, directory), Polls(f"http://127.0.0.1:{port}")
        log = tmp_path / "bank.stderr"
        process = _started(command, log)
        try:
            transfers.start()
            polls.start()
            versions: set[int] = set()
            _look(directory, versions, process, log, lambda: len(versions) >= 5)
            process.kill()
            process.wait()
            process = _started(command, log)

            def is_over() -> bool:
                return not transfers.is_alive() and _is_read(directory, broker.address)

            _look(directory, versions, process, log, is_over)
            seen = polls.answers
            wait_until(lambda: polls.answers > seen, "an answer about the end")
            wait_until(lambda: polls.queries > 0, "an answer to a query")
            polls.finish.set()
            polls.join(PATIENCE_S)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, log.read_text()[-3_000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
                process.wait()
    assert transfers.failure is None, transfers.failure
    assert polls.wrong == []
    assert polls.queries > 0
    snapshot = Views(directory).snapshot()
    check(snapshot)
    found = snapshot.table("balances").to_pylist()
    assert {row["account"]: row["balance"] for row in found} == transfers.ledger.balances()
    assert snapshot.table("moved")["transfers"].to_pylist() == [len(transfers.ledger.now)]
    print(
        f"{CHANGES:,} changes, {len(versions):,} versions looked at of {snapshot.version}, "
        f"{polls.answers:,} answers over HTTP and {polls.queries:,} queries"
    )


def _look(
    directory: Path,
    versions: set[int],
    process: subprocess.Popen[bytes],
    log: Path,
    is_over: Callable[[], bool],
) -> None:
    """Checks every version that is committed, until it is over; as fast as this process can."""
    deadline = time.monotonic() + RUN_S
    while not is_over():
        assert process.poll() is None, log.read_text()[-3_000:]
        assert time.monotonic() < deadline, f"no end; {len(versions)} versions so far"
        if not _newest(directory):
            time.sleep(0.1)  # before the first one
            continue
        store = Views(directory).store
        newest = store.newest_version()
        todo = [n for n in store.kept(newest) if n not in versions]
        for number in todo[-10:]:
            with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
                check(Snapshot(store, store.version(number)))
                versions.add(number)
        if not todo:
            time.sleep(0.02)


def _newest(directory: Path) -> int:
    """The last committed version; 0 before the first."""
    with contextlib.suppress(QueryError):
        return Views(directory).version
    return 0


def _is_read(directory: Path, address: str) -> bool:
    with Client(address) as client, contextlib.suppress(QueryError):
        ends = {str(p): end for p, end in client.offsets("transfers", "latest").items()}
        return bool(Views(directory).status()["offsets"]["transfers"] == ends)
    return False


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as stderr:
        return subprocess.Popen(command, stderr=stderr, start_new_session=True)
