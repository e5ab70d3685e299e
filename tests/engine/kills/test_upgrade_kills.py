"""SIGKILL while a program is upgraded, and its state cut anew, with input streaming in: nothing shows.

The seed is in the message of a failure; repeat it with
`PENSTOCK_KILL_SEED=… pytest tests/engine/kills/test_upgrade_kills.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.effort import rounds
from tests.engine.kills.harness import PATIENCE_S, SEED, Feed, Pipeline, contents, ended, ends_of

from penstock.broker.process import BrokerProcess
from penstock.errors import QueryError
from penstock.serve import Views

KILLS = rounds("PENSTOCK_UPGRADE_KILLS", quick=2, full=3)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3_000)]


def _harass(
    pipeline: Pipeline,
    broker: BrokerProcess,
    chance: random.Random,
    is_over: Callable[[], bool],
    kills: int,
) -> int:
    """Kills a starting process, its workers and the broker until all kills are done, and it is over."""
    done = 0
    deadline = time.monotonic() + PATIENCE_S
    while not is_over() or done < kills:
        assert time.monotonic() < deadline, pipeline.log.read_text()[-3_000:]
        assert pipeline.process.poll() is None, pipeline.log.read_text()[-3_000:]
        time.sleep(chance.uniform(0.0, 0.5))
        victim = chance.random()
        if done >= kills or victim < 0.85:
            continue  # most of the time goes to Spark's start
        done += 1
        if victim < 0.92:
            pipeline.kill()
            pipeline.start()
            deadline = time.monotonic() + PATIENCE_S
        elif victim < 0.96:
            broker.kill()
            broker.start()
        else:
            for one in pipeline.workers()[:1]:
                one.kill()
    return done


@pytest.mark.slow
def test_an_upgrade_that_is_killed_leaves_no_trace(tmp_path: Path) -> None:
    """A program takes over from another and is cut anew under fire; what is made is an undisturbed run's."""
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address, directory = broker.address, tmp_path / "hit.penstock"
    feed = Feed(address, SEED)

    def names() -> list[str]:
        with contextlib.suppress(QueryError):
            return Views(directory).names()
        return []

    def shards() -> int:
        store = Views(directory).store
        return store.version(store.newest_version()).shards

    try:
        with ended(Pipeline("hit", directory, address, "before")) as before:
            feed.start()
            before.wait_for()
            assert "gone" in names()
            assert "leaders" not in names()
            with ended(Pipeline("hit", directory, address)) as after:
                done = _harass(after, broker, chance, lambda: "leaders" in names(), KILLS)
                assert before.process.wait(PATIENCE_S) == 1
                said = before.log.read_text()
                assert "runs a changed program" in said or "takes the pipeline over" in said, said
                assert "gone" not in names()
                after.wait_for()
                after.stop()  # killed, it might leave a batch that it has to finish itself
        cut = Pipeline("hit", directory, address, "whole", "--shards", "3")
        with ended(cut):
            done += _harass(cut, broker, chance, lambda: shards() == 3, KILLS // 2)
            cut.wait_for()
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            ends = ends_of(address)
            cut.wait_for(ends)
            cut.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address)) as calm:
            calm.wait_for(ends)
            calm.stop()
        disturbed = contents("hit", directory, address)
        undisturbed = contents("calm", tmp_path / "calm.penstock", address)
        for what, rows in undisturbed.items():
            mine = sorted(str(row).replace("hit", "calm") for row in disturbed[what])
            theirs = sorted(map(str, rows))
            if what == "dead letters":  # which operators a row was late for depends on the program
                assert len(mine) >= len(theirs), f"seed {SEED}"
            else:
                assert mine == theirs, f"{what} differ; seed {SEED}, {done} kills"
        print(f"seed {SEED}: {done} kills, {feed.sent:,} events")
    finally:
        broker.stop()
