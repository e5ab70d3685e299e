"""SIGKILL of whatever takes part, while a program is also upgraded and its state cut anew: nothing shows.

Output is in transactions, so a reader of committed data sees a batch of all topics or nothing of it.
The seed is in the message of a failure; repeat it with
`PENSTOCK_KILL_SEED=… pytest tests/engine/kills/test_everything.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.kills.harness import (
    KILLS,
    PATIENCE_S,
    SEED,
    Committed,
    Feed,
    Pipeline,
    contents,
    ended,
    ends_of,
)
from tests.engine.kills.oracle import expected, rows_of
from tests.patience import wait_until

from penstock.broker.process import BrokerProcess
from penstock.errors import QueryError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(6_000)]

VICTIMS = ("driver", "jvm", "lane", "lane", "lane", "broker", "broker")
DRIVER_IS_DEAD_S = 30.0
"""What it was just about to commit may still become visible so long; half of it never stays."""


class Fire:
    """Kills one after the other, and looks at what readers see while the driver is dead."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.chance = random.Random(SEED)
        self.counts: Counter[str] = Counter()
        self.committed = Committed(broker.address, f"{name}-tens", f"{name}-again")

    def at(self, pipeline: Pipeline, kills: int, is_over: Callable[[], bool] | None = None) -> None:
        """Kills as often as that, at random moments.

        Args:
            pipeline: of which something is killed.
            kills: how often.
            is_over: whether the program has taken over from another, which runs until then; waits for that.
        """
        for _ in range(kills):
            # A program that takes over starts Spark first.
            time.sleep(self.chance.uniform(0.0, 0.7 if is_over is None else 5.0))
            self.kill(pipeline, self.chance.choice(VICTIMS), alone=is_over is None)
        if is_over is not None:
            wait_until(is_over, "the program to take over", patience_s=PATIENCE_S)

    def kill(self, pipeline: Pipeline, victim: str, *, alone: bool) -> None:
        """Kills one of those who take part; goes on once something is committed again."""
        self.counts[victim] += 1
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        elif victim == "lane":
            pipeline.kill_worker(self.chance)
        elif victim == "jvm":
            pipeline.kill_jvm()
            pipeline.wait_for()
        else:
            pipeline.kill()
            if alone:
                self.look()
            pipeline.start()
            pipeline.wait_for()

    def look(self) -> None:
        """Two topics that get the same rows have the same rows, whatever was interrupted."""
        wait_until(
            self.committed.agree,
            lambda: f"whole batches; seed {SEED}, kills {dict(self.counts)}",
            patience_s=DRIVER_IS_DEAD_S,
        )


def test_nothing_shows(tmp_path: Path) -> None:
    """After kills before, during and after an upgrade and a rescaling, all is an undisturbed run's."""
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address, directory = broker.address, tmp_path / "hit.penstock"
    feed = Feed(address, SEED)
    fire = Fire(broker, "hit")
    part = KILLS // 5
    try:
        with ended(Pipeline("hit", directory, address, "before,transactions")) as before:
            feed.start()
            before.wait_for()
            fire.at(before, part)
            with ended(Pipeline("hit", directory, address, "whole,transactions")) as after:
                fire.at(after, part, lambda: "leaders" in _names(directory))
                assert before.process.wait(PATIENCE_S) == 1
                assert "gone" not in _names(directory)
                after.wait_for()
                fire.at(after, part)
                more = ("whole,transactions", "--shards", "3")
                with ended(Pipeline("hit", directory, address, *more)) as cut:
                    fire.at(cut, part, lambda: _shards(directory) == 3)
                    assert after.process.wait(PATIENCE_S) == 1
                    cut.wait_for()
                    fire.at(cut, KILLS - 4 * part)
                    feed.finish.set()
                    feed.join(PATIENCE_S)
                    assert feed.failure is None, feed.failure
                    ends = ends_of(address)
                    cut.wait_for(ends)
                    cut.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address)) as calm:
            calm.wait_for(ends)
            calm.stop()
        summary = f"seed {SEED}, kills {dict(fire.counts)}, {feed.sent:,} events"
        fire.look()
        assert fire.committed.rows > 100
        disturbed = contents("hit", directory, address)
        undisturbed = contents("calm", tmp_path / "calm.penstock", address)
        for what, rows in undisturbed.items():
            mine = Counter(str(row).replace("hit", "calm") for row in disturbed[what])
            theirs = Counter(map(str, rows))
            if (
                what == "dead letters"
            ):  # a reason names the operators, which the programs share in part
                assert set(map(_place, mine)) == set(map(_place, theirs)), f"{what}; {summary}"
            else:
                assert mine == theirs, f"{what}: {mine - theirs} for {theirs - mine}; {summary}"
        snapshot = Views(directory).snapshot()
        for view, wanted in expected(address).items():
            assert len(wanted), view
            found = snapshot.table(view).select(wanted.column_names)
            assert rows_of(found) == rows_of(wanted), f"{view} is not what DuckDB gives; {summary}"
        print(summary)
    finally:
        broker.stop()


def _place(letter: str) -> str:
    """Where a dead letter comes from."""
    return letter[letter.index("'penstock.topic'") :]


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(QueryError):
        return Views(directory).names()
    return []


def _shards(directory: Path) -> int:
    store = Views(directory).store
    return store.version(store.newest_version()).shards
