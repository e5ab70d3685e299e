"""Hosts agree byte for byte, whatever one of them does to a program's batches."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.effort import QUICK, rounds, some_slow
from tests.engine.hosts.everything import everything, waves
from tests.engine.hosts.looks import content, difference

import penstock as ps
from penstock.errors import FlowError
from penstock.ops.registry import load_operators
from penstock.testing import Run

SEEDS = rounds("PENSTOCK_SHAKEN_SEEDS", quick=1, full=6)
NOW = "2026-01-02T00:00:00Z"


def fed(run: Run, seed: int, *, restarts: bool = False) -> dict[str, Any]:
    """What a run has come to after some batches."""
    for number, wave in enumerate(waves(seed, 4, 50)):
        for topic, partition, key, value, at_ms in wave:
            run.send_raw(topic, value, key=key, partition=partition, timestamp_ms=at_ms)
        run.step()
        run.advance("20 seconds")
        if restarts and number % 2:
            run.restart()
    run.settle()
    return content(run.store, {topic: run.log.records(topic) for topic in run.log.topics})


@functools.cache
def still_run(seed: int) -> dict[str, Any]:
    """What the program comes to where nothing is left to chance."""
    return fed(ps.testing.run(everything(), cores=3, now=NOW, shaken=False), seed)


def test_the_program_has_every_operator() -> None:
    """So what holds for it holds for all of them."""
    kinds = {node.operator.kind for node in everything().graph().stateful()}
    assert kinds == load_operators().keys()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_hosts_agree(seed: int) -> None:
    """Topics, dead letters, views, and every byte of state: shaken or not."""
    still = still_run(seed)
    assert all(still["topics"].values()), "each topic has records"
    assert all(len(rows) for rows in still["views"].values())
    for shaking in (seed,) if QUICK else (seed, seed + 100):
        run = ps.testing.run(everything(), cores=3, now=NOW, seed=shaking)
        assert difference(still, fed(run, seed, restarts=shaking == seed)) is None, shaking


@pytest.mark.slow
@pytest.mark.parametrize("cores", some_slow([1, 2, 7], quick=[2]))
def test_any_number_of_shards_gives_the_same_views(cores: int) -> None:
    """How state is cut, and by whom it is kept, is not seen in what it holds."""
    one = still_run(0)
    other = fed(ps.testing.run(everything(), cores=cores, now=NOW, seed=cores), 0)
    assert difference(one["views"], other["views"]) is None
    assert difference(_bags(one["topics"]), _bags(other["topics"])) is None


def _bags(topics: dict[str, Any]) -> dict[str, list[str]]:
    """Records in no order, without what tells the shard that they are of."""
    return {
        name: sorted(repr(r[:2]) for some in records.values() for r in some)
        for name, records in topics.items()
    }


def test_a_seed_repeats_a_run() -> None:
    """The same rows in the same pieces; another seed cuts them in others."""

    def pieces(seed: int) -> list[int]:
        _sizes.clear()
        app = ps.App("p")
        app.stream("t", "v BIGINT").map_batches(_counted, "v BIGINT").to("out")
        run = ps.testing.run(app, seed=seed)
        for _ in range(5):
            for v in range(30):
                run.send("t", v=v)
            run.step()
        return list(_sizes)

    one = pieces(1)
    assert pieces(1) == one
    assert pieces(2) != one
    assert sum(one) > 150, "some batches are run more than once"


_sizes: list[int] = []


def _counted(rows: pa.Table) -> pa.Table:
    _sizes.append(len(rows))
    return rows


def test_a_function_that_is_not_pure_is_found() -> None:
    """A batch that comes to something else when it is run again is an error that says so."""

    def whole(rows: pa.Table) -> pa.Table:
        total = pa.repeat(pc.sum(rows["v"]).as_py() or 0, len(rows))
        return rows.set_column(rows.column_names.index("v"), "v", total)

    app = ps.App("p")
    app.stream("t", "v BIGINT").map_batches(whole, "v BIGINT").to("out")
    run = ps.testing.run(app, seed=1)

    def batches() -> None:
        for _ in range(50):
            for v in range(10):
                run.send("t", v=v)
            run.step()

    with pytest.raises(
        FlowError, match="expected the batch, run again, to give the same"
    ) as caught:
        batches()
    assert "seed=1" in "\n".join(caught.value.__notes__)


def test_a_function_that_cannot_travel_is_refused() -> None:
    """A cluster sends functions to other processes; what can't be sent is named before it gets there."""
    lock = threading.Lock()

    def locked(rows: pa.Table) -> pa.Table:
        with lock:
            return rows

    app = ps.App("p")
    app.stream("t", "v BIGINT").map_batches(locked, "v BIGINT").to("out")
    with pytest.raises(FlowError, match=r"'.*locked'.*pickle"):
        ps.testing.run(app)
    assert ps.testing.run(app, shaken=False).topic("out") == []


def test_the_seed_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sees a test fail sees how to repeat it."""
    app = ps.App("p")
    app.stream("t", "v BIGINT").to("out")
    monkeypatch.setenv("PENSTOCK_SEED", "77")
    assert ps.testing.run(app).seed == 77
    assert "PENSTOCK_SEED=77" in caplog.text
    monkeypatch.setenv("PENSTOCK_SEED", "some")
    with pytest.raises(FlowError, match="expected a whole number in PENSTOCK_SEED; found 'some'"):
        ps.testing.run(app)


@pytest.mark.slow
def test_transactions_are_shaken_too() -> None:
    """What lost attempts wrote doesn't count; what is read is the same as of a still run."""
    still = still_run(0)
    shaken = fed(ps.testing.run(everything(transactions=True), cores=3, now=NOW, seed=3), 0)
    assert difference(_bags(still["topics"]), _bags(shaken["topics"])) is None
    assert difference(still["views"], shaken["views"]) is None


def test_chance_is_used() -> None:
    """Guards this file: within some batches, lanes are lost and batches are run twice."""
    app = ps.App("p")
    app.stream("t", "v BIGINT").to("out")
    run = ps.testing.run(app, seed=5)
    for v in range(40):
        run.send("t", v=v)
        run.step()
    assert run._host.lost > 2
    assert run._host.repeated > 2
    assert len(run.topic("out")) == 40
