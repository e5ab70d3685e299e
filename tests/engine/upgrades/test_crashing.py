"""What tests of a user can do: crash a pipeline at each step of a batch or an upgrade, and cut batches."""

from __future__ import annotations

from typing import get_args

import pytest

import penstock as ps
from penstock.errors import FlowError
from penstock.testing import CrashPoint


def counting(*, transactions: bool = False, more: bool = False) -> ps.App:
    app = ps.App("p", transactions=transactions)
    events = app.stream("events", "n BIGINT", partitions=2)
    events.where("n >= 0").to("out")
    app.view("all", events.group_by("n").agg(times=ps.count()))
    if more:
        app.view("sums", events.group_by().agg(total=ps.sum("n")))
    return app


@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("after", get_args(CrashPoint))
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    after: CrashPoint, *, transactions: bool
) -> None:
    """The batch is repeated unless its version is there; topics have each record once."""
    run = ps.testing.run(counting(transactions=transactions))
    for n in range(6):
        run.send("events", partition=n % 2, n=n)
        before = run.store.newest_version()
        assert run.crash(after)
        assert run.store.newest_version() == before + (after == "commit")
    assert run.view("all").rows() == [{"n": n, "times": 1} for n in range(6)]
    assert sorted(int(r.value[5:-1]) for r in run.topic("out") if r.value) == list(range(6))
    assert not run.crash(after), "nothing was left to do"


def test_points_of_a_crash_are_checked() -> None:
    """A point that there isn't is an error, and nothing dies."""
    run = ps.testing.run(counting())
    run.send("events", n=1)
    with pytest.raises(FlowError, match="expected after as one of"):
        run.crash("planned")  # type: ignore[arg-type]
    assert run.view("all").rows() == [{"n": 1, "times": 1}]


def test_batches_are_cut_as_the_test_says() -> None:
    """So many records of each partition at most; then again all."""
    run = ps.testing.run(counting())
    for n in range(10):
        run.send("events", partition=n % 2, n=n)
    progress = run.step(rows=2)
    assert progress is not None
    assert progress.rows == 4
    progress = run.step()
    assert progress is not None
    assert progress.rows == 6
    with pytest.raises(FlowError):
        run.step(rows=0)


@pytest.mark.parametrize("steps", range(4))
def test_an_upgrade_that_dies_leaves_the_program_of_before(steps: int) -> None:
    """It goes on; the next try finds what was made."""
    run = ps.testing.run(counting())
    for n in range(4):
        run.send("events", n=n)
        run.step(rows=1)
    done = run.change(counting(more=True), steps=steps)
    if not done:
        with pytest.raises(FlowError):
            run.view("sums")
        run.send("events", n=10)
        assert len(run.view("all").rows()) == 5
        assert run.change(counting(more=True))
    assert run.view("sums").rows() == [{"total": 6 + (not done) * 10}]
