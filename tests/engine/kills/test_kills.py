"""SIGKILL of the driver, of Python workers and of the broker while input streams in: nothing shows.

The seed is in the message of a failure; repeat it with
`PENSTOCK_KILL_SEED=… pytest tests/engine/kills/test_kills.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
from tests.engine.kills.harness import (
    KILLS,
    PATIENCE_S,
    SEED,
    Feed,
    Pipeline,
    contents,
    ended,
    ends_of,
)

from penstock.broker.process import BrokerProcess
from penstock.errors import BrokerError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3_000)]


@pytest.mark.slow
def test_kills_leave_no_trace(tmp_path: Path) -> None:
    """After many kills at random moments, all that was made equals an undisturbed run's."""
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address = broker.address
    feed = Feed(address, SEED)
    counts = {"driver": 0, "worker": 0, "broker": 0}
    try:
        with ended(Pipeline("hit", tmp_path / "hit.penstock", address)) as hit:
            feed.start()
            hit.wait_for()
            victims = ["driver", "worker", "broker", "worker", "broker", "worker", "broker"]
            for victim in chance.sample((victims * KILLS)[:KILLS], KILLS):
                time.sleep(chance.uniform(0.0, 0.7))
                if victim == "driver":
                    hit.kill()
                    hit.start()
                    hit.wait_for()
                elif victim == "broker":
                    broker.kill()
                    broker.start()
                else:
                    hit.kill_worker(chance)
                counts[victim] += 1
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            ends = ends_of(address)
            assert sum(ends["events"].values()) == feed.sent, "the input itself is there, once"
            hit.wait_for(ends)
            hit.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address)) as calm:
            calm.wait_for(ends)
            calm.stop()
        disturbed = contents("hit", tmp_path / "hit.penstock", address)
        undisturbed = contents("calm", tmp_path / "calm.penstock", address)
        assert undisturbed["closed"], "windows were closed"
        assert len(undisturbed["dead letters"]) > 10, "some rows were late or bad"
        for what, rows in undisturbed.items():
            # Sorted again: the names are in the rows.
            mine = sorted(str(row).replace("hit", "calm") for row in disturbed[what])
            assert mine == sorted(map(str, rows)), f"{what} differ; seed {SEED}, kills {counts}"
        print(f"seed {SEED}: kills {counts}, {feed.sent:,} events")
    finally:
        broker.stop()


@pytest.mark.slow
def test_the_older_owner_stops(tmp_path: Path) -> None:
    """Of two programs with one directory the older one ends with an error that says why."""
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    directory = tmp_path / "two.penstock"
    feed = Feed(broker.address, SEED)
    try:
        with ended(Pipeline("two", directory, broker.address)) as older:
            feed.start()
            older.wait_for()
            with ended(Pipeline("two", directory, broker.address)) as newer:
                assert older.process.wait(PATIENCE_S) == 1
                said = older.log.read_text()
                assert "Another process runs the same pipeline" in said, said[-2_000:]
                newer.wait_for()
                feed.finish.set()
                feed.join(PATIENCE_S)
                with contextlib.suppress(BrokerError):
                    newer.wait_for(ends_of(broker.address))
                newer.stop()
    finally:
        broker.stop()
