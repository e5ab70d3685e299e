"""SIGKILL under load.

PENSTOCK_KILLS=200 PENSTOCK_SEED=7 python -m pytest -s tests/broker/storage/test_crash.py
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_load import (
    ADD_PARTITIONS,
    Committer,
    Connect,
    Follower,
    Idempotent,
    Keyed,
    Plain,
    Tiered,
    Transactional,
    Worker,
    create,
)

from penstock.broker import BrokerProcess
from penstock.broker.handlers import API_TABLE
from penstock.errors import SetupError

KILLS = int(os.environ.get("PENSTOCK_KILLS", "8"))  # with fewer, too little is written to be tiered
SEED = int(os.environ.get("PENSTOCK_SEED", "20261121"))
WORK_S = 0.05, 0.5
"""How long clients may work between two kills."""
LONG_LIFE_SHARE = 0.1
LONG_S = 3.0, 8.0
"""A life in which the cleaner, too, gets to work: it loads its kernels first."""
KILL_WHILE_STARTING_SHARE = 0.2
START_S_TYPICAL = 0.4


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that says on `broker.log` what it finds."""
    with (tmp_path / "broker.log").open("ab") as log:
        options = ["--cleaner-interval-ms", "50", "--tier-interval-ms", "20"]
        options += ["--tier", (tmp_path / "store").as_uri()]
        broker = BrokerProcess(tmp_path / "data", stderr=log.fileno(), arguments=options)
        yield broker
        broker.kill()


def load(connect: Connect, address: str) -> list[Worker]:
    """Everything that this broker can be asked for, at once."""
    with connect(address) as raw:
        for topic in ("idempotent", "plain.-1", "plain.1"):
            assert create(raw, topic, segment_bytes=str(1 << 20)) == 0
        assert create(raw, "transactional", 2, segment_bytes=str(1 << 20)) == 0
        tiered = {"remote_storage_enable": "true", "local_retention_bytes": "0"}
        assert create(raw, "tiered", segment_bytes=str(4 << 10), retention_ms="-1", **tiered) == 0
        compacts = create(
            raw,
            "compacted",
            cleanup_policy="compact",
            segment_bytes=str(4 << 10),
            min_cleanable_dirty_ratio="0.01",
        )
    workers: list[Worker] = [
        Idempotent(connect, address, 1),
        Idempotent(connect, address, 2),
        Plain(connect, address, 3, acks=-1),
        Plain(connect, address, 4, acks=1),
        Follower(connect, address, 5),
        Tiered(connect, address, 10),
        Committer(connect, address, 6),
    ]
    if ADD_PARTITIONS in API_TABLE:
        workers += [Transactional(connect, address, 7), Transactional(connect, address, 8)]
    if compacts == 0:
        workers.append(Keyed(connect, address, 9))
    return workers


def crash(broker: BrokerProcess, chance: random.Random) -> int:
    """Kills the broker until it is up again; how many kills that took."""
    kills = 0
    while True:
        broker.kill()
        kills += 1
        if chance.random() >= KILL_WHILE_STARTING_SHARE:
            broker.start()
            return kills
        timer = threading.Timer(chance.uniform(0, START_S_TYPICAL), kill_quietly, [broker])
        timer.start()
        with contextlib.suppress(SetupError):
            broker.start()
        timer.join()


def kill_quietly(broker: BrokerProcess) -> None:
    """Kills what may not have started, or be gone."""
    with contextlib.suppress(AssertionError, ProcessLookupError):
        os.kill(broker.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900 + 6 * KILLS)
def test_kills_under_load(crashing: BrokerProcess, connect: Connect) -> None:
    """However often the broker is killed, all that it has acknowledged stands, once, whole."""
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}")
    chance = random.Random(SEED)
    crashing.start()
    workers = load(connect, crashing.address)
    for worker in workers:
        worker.start()
    kills = 0
    while kills < KILLS:
        lives_long = chance.random() < LONG_LIFE_SHARE
        time.sleep(chance.uniform(*LONG_S) if lives_long else chance.uniform(*WORK_S))
        assert [one.failure for one in workers if one.failure] == []
        kills += crash(crashing, chance)
    time.sleep(WORK_S[1])
    for worker in workers:
        worker.finish()
    for worker in workers:
        print(worker.verify())
