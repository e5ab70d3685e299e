"""SIGKILL of driver, lanes and JVM under a program of views only: nothing shows.

Such a program doesn't wait for the disk with each batch: state and versions are settled beside it
(decision 20). What a killed process has written is the system's, so nothing may be lost.
Repeat a failure with `PENSTOCK_KILL_SEED=… pytest tests/engine/kills/test_views_kills.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
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
from tests.engine.kills.oracle import VIEWS_SQL, expected, rows_of
from tests.patience import wait_until

from penstock.broker.process import BrokerProcess
from penstock.errors import QueryError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3_000)]

PYTHON, SQL = "views_program.py", "sql_program.py"
PROGRAMS = {
    PYTHON: {"per_user", "per_page", "visits", "priced", "leaders"},
    SQL: {"per_user", "priced", "leaders", "frequent"},
}
"""Each with its views."""
VICTIMS = ("driver", "lane", "jvm")


def kill(pipeline: Pipeline, victim: str, chance: random.Random) -> None:
    """Kills one of those who take part; goes on once something is committed again."""
    before = Views(pipeline.state).version
    if victim == "driver":
        pipeline.kill()
        pipeline.start()
    elif victim == "lane":
        pipeline.kill_worker(chance)
    else:
        process = pipeline.process.pid
        pipeline.kill_jvm()
        assert pipeline.process.pid == process, "it starts Spark again by itself"
    pipeline.wait_for()
    assert Views(pipeline.state).version >= before, "what readers have seen stays"


def has_read(pipeline: Pipeline, ends: dict[str, dict[int, int]]) -> None:
    """Waits until all is in the views: nothing is read of closed windows, so no batch closes the last."""

    def is_so() -> bool:
        assert pipeline.process.poll() is None, pipeline.log.read_text()[-3_000:]
        with contextlib.suppress(QueryError):
            offsets = Views(pipeline.state).status()["offsets"]
            return {t: {int(p): o for p, o in offsets[t].items()} for t in ends} == ends
        return False

    wait_until(is_so, "all to be read", patience_s=PATIENCE_S)


@pytest.mark.parametrize(("name", "kills"), [(PYTHON, KILLS), (SQL, max(KILLS // 3, 3))])
def test_kills_leave_no_trace_in_views(name: str, kills: int, tmp_path: Path) -> None:
    """After kills at random moments, all views and dead letters are an undisturbed run's."""
    program = Path(__file__).with_name(name)
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    address, directory = broker.address, tmp_path / "hit.penstock"
    feed = Feed(address, SEED)
    counts: Counter[str] = Counter()
    try:
        with ended(Pipeline("hit", directory, address, program=program)) as hit:
            feed.start()
            hit.wait_for()
            assert (directory / "state/settled.json").exists(), (
                "versions are settled beside batches"
            )
            for victim in chance.sample((VICTIMS * kills)[:kills], kills):
                time.sleep(chance.uniform(0.0, 0.7))
                kill(hit, victim, chance)
                counts[victim] += 1
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            ends = ends_of(address)
            has_read(hit, ends)
            hit.stop()
        with ended(Pipeline("calm", tmp_path / "calm.penstock", address, program=program)) as calm:
            has_read(calm, ends)
            calm.stop()
        disturbed = contents("hit", directory, address, ())
        undisturbed = contents("calm", tmp_path / "calm.penstock", address, ())
        assert set(undisturbed) == PROGRAMS[name] | {"dead letters"}
        assert all(undisturbed.values())
        for what, rows in undisturbed.items():
            # Sorted again: the names are in the rows.
            mine = sorted(str(row).replace("hit", "calm") for row in disturbed[what])
            assert mine == sorted(map(str, rows)), (
                f"{what} differ; seed {SEED}, kills {dict(counts)}"
            )
        if name == SQL:
            views = Views(directory).snapshot()
            for view, wanted in expected(address, VIEWS_SQL).items():
                found = views.table(view).select(wanted.column_names)
                assert rows_of(found) == rows_of(wanted), f"{view} is not what DuckDB gives"
        print(f"seed {SEED}: kills {dict(counts)}, {feed.sent:,} events")
    finally:
        broker.stop()
