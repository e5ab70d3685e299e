"""Batches are bounded by bytes, wherever the log's chunks end."""

from __future__ import annotations

import functools
import random

import orjson
import pytest
from tests.effort import rounds

import penstock as ps
from penstock.engine.plan import Limits, Work
from penstock.engine.record.plan import Plan
from penstock.testing import Run

SEEDS = rounds("PENSTOCK_LARGE_RECORDS", quick=5, full=30)


def copied() -> Run:
    """A stream that is copied to a topic."""
    app = ps.App("p")
    rows = app.stream("t", "id BIGINT NOT NULL, text STRING", partitions=2)
    rows.to("copy", partitions=1)
    app.view("n", rows.group_by().agg(n=ps.count()))
    return ps.testing.run(app)


def limited(run: Run, bytes_max: int) -> None:
    """Bounds the run's batches."""
    run._driver.limits = Limits(bytes_max=bytes_max)


def test_a_batch_ends_with_the_record_that_reaches_the_limit() -> None:
    """Of large records some are left to the next batch, and are lag until then; none is lost."""
    run = copied()
    for number in range(10):
        run.send("t", id=number, text="x" * 1_000, partition=0)
    limited(run, 3_500)
    found = []
    while (progress := run.step()) is not None:
        found.append((progress.rows, progress.sources["t"].lag))
    assert found == [(4, 6), (4, 2), (2, 0)]
    assert len(run.topic("copy")) == 10


def _same(plan: Plan) -> Plan:
    return plan


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_limit_gives_each_row_once(seed: int) -> None:
    """Records of any size, tombstones among them, with restarts in between and batches run twice."""
    chance = random.Random(seed)
    run = copied()
    sent = []
    for number in range(60):
        partition = chance.randrange(2)
        if chance.random() < 0.1:
            run.send_raw("t", None, key="k" * chance.randrange(300), partition=partition)
        else:
            sent.append(number)
            run.send("t", id=number, text="x" * chance.randrange(300), partition=partition)
        if chance.random() < 0.2:
            limited(run, chance.choice([1, 200, 2_000]))
            if chance.random() < 0.3:
                plan = run._driver._pending() or run._driver._new_plan(0)
                if plan is not None:
                    attempt = functools.partial(_same, plan)
                    traces_of = functools.partial(run._driver._traces_of, plan)
                    write = functools.partial(run.store.write_plan, plan)
                    run._host.execute(Work(attempt, traces_of, write))
            run.step()
        if chance.random() < 0.1:
            run.restart()
    run.settle()
    ids = [orjson.loads(record.value or b"")["id"] for record in run.topic("copy")]
    assert sorted(ids) == sent
    assert run.view("n").rows() == [{"n": len(sent)}]
