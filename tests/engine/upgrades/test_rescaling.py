"""State that is taken over and cut into other shards, without the log that it was made of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.effort import rounds
from tests.engine.test_upgrades import PARTS, contents, feed, program

import penstock as ps
from penstock.engine.upgrade import upgrade as upgrading
from penstock.errors import FlowError
from penstock.ops import operator_from_spec
from penstock.state import bag
from penstock.testing import Run
from penstock.wire.columns import Records


def forget(run: Run) -> None:
    """Lets retention remove all that has been read: nobody can read it again."""
    ends = run.log.end_offsets(run.log.topics)
    read = run.log.read

    def reading(topic: str, partition: int, start: int, end: int) -> Iterator[Records]:
        assert start >= ends.get(topic, {}).get(partition, 0), "the log's beginning is gone"
        return read(topic, partition, start, end)

    run.log.read = reading  # type: ignore[method-assign]
    run.log.start_offsets = lambda topics: {  # type: ignore[method-assign]
        topic: {p: ends.get(topic, {}).get(p, 0) for p in range(len(run.log.topics[topic]))}
        for topic in topics
    }


def two_levels(*, more: bool = False) -> ps.App:
    """What stands in place on other operators: by the same columns in another order, by one of them."""
    app = ps.App("levels")
    events = app.stream("events", "a STRING, b BIGINT, v BIGINT", partitions=2)
    pairs = events.group_by("a", "b").agg(n=ps.count(), v=ps.sum("v"))
    app.view("pairs", pairs)
    app.view("turned", pairs.group_by("b", "a").agg(total=ps.sum("v")))
    app.view(
        "letters", pairs.group_by("a").agg(total=ps.sum("v"), values=ps.collect("v", limit=100))
    )
    app.view("all", pairs.group_by().agg(n=ps.sum("n")))
    if more:
        app.view("numbers", events.group_by("b").agg(n=ps.count()))
    return app


@pytest.mark.parametrize("seed", range(rounds("PENSTOCK_RESCALINGS", quick=1, full=4)))
def test_a_rescaled_pipeline_is_as_if_it_had_always_been(seed: int) -> None:
    """Any numbers of shards one after the other; the log's beginning isn't needed."""
    chance = random.Random(seed)
    run = ps.testing.run(program(*PARTS), cores=2)
    calm = ps.testing.run(program(*PARTS), cores=2)
    fed = 0
    for shards in (5, 1, chance.randint(2, 4)):
        for _ in range(3):
            feed(run, chance, 60 * fed, 20)
            run.step()
            fed += 1
        before = {v.name: run.view(v.name).rows() for v in run._graph.views}
        read = run.log.read, run.log.start_offsets
        forget(run)
        run.change(program(*PARTS), shards=shards)
        run.log.read, run.log.start_offsets = read  # type: ignore[method-assign]
        assert {v.name: run.view(v.name).rows() for v in run._graph.views} == before
        version = run.store.version(run.store.newest_version())
        assert version.shards == shards
        for entry in version.operators.values():
            operator = operator_from_spec(entry.spec)
            for description in entry.traces.values():
                operator.check(operator.open(run.store.files, description))
    for topic in ("events", "names"):
        for record in run.log.records(topic):
            calm.log.append(topic, record.partition, record.key, record.value, record.timestamp_ms)
    assert contents(run, PARTS) == contents(calm, PARTS)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("shards", [(1, 3), (3, 2), (4, 1), (2, 5)])
def test_what_stands_in_place_follows_what_it_stands_on(shards: tuple[int, int]) -> None:
    """The columns by which the input is placed decide the shard, in their order."""
    chance = random.Random(1)
    run = ps.testing.run(two_levels(), cores=shards[0])
    calm = ps.testing.run(two_levels(), cores=1)

    def send(count: int) -> None:
        for _ in range(count):
            row = {"a": chance.choice("xyz"), "b": chance.randrange(5), "v": chance.randrange(9)}
            for one in (run, calm):
                one.send("events", partition=0, **row)
        run.settle()
        calm.settle()

    def views() -> list[Any]:
        return [
            [one.view(name).rows() for name in ("pairs", "turned", "letters", "all")]
            for one in (run, calm)
        ]

    send(40)
    forget(run)
    run.change(two_levels(), shards=shards[1])
    mine, theirs = views()
    assert mine == theirs
    send(40)
    mine, theirs = views()
    assert mine == theirs


def test_what_is_new_beside_it_is_made_of_the_log() -> None:
    """Rescaling and a new view in one switch; a new reader of a table that is cut anew fits it."""
    run = ps.testing.run(two_levels(), cores=2)
    for i in range(30):
        run.send("events", partition=0, a="xyz"[i % 3], b=i % 5, v=i)
    run.settle()
    app = two_levels(more=True)
    run.change(app, shards=3)
    assert run.view("numbers").rows() == [{"b": b, "n": 6} for b in range(5)]
    run.send("events", partition=0, a="x", b=0, v=1)
    assert run.view("numbers").rows()[0] == {"b": 0, "n": 7}
    assert run.view("all").rows() == [{"n": 31}]


@pytest.mark.slow
def test_a_kill_while_state_is_cut_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old shards are there until the switch; what was written for nothing is cleared away."""
    run = ps.testing.run(two_levels(), cores=2)
    for i in range(30):
        run.send("events", partition=0, a="xyz"[i % 3], b=i % 5, v=i)
    run.settle()
    before = run.view("pairs").rows()
    cut = upgrading.recut
    calls: list[object] = []

    def dying(*arguments: Any) -> Any:
        calls.append(arguments)
        found = cut(*arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return found

    forget(run)
    monkeypatch.setattr(upgrading, "recut", dying)
    with pytest.raises(KeyboardInterrupt):
        run.change(two_levels(), shards=3)
    run.restart()
    assert run.view("pairs").rows() == before
    run.change(two_levels(), shards=3)
    assert run.view("pairs").rows() == before
    for i in range(40):  # long enough for vacuums
        run.send("events", partition=0, a="x", b=i % 5, v=0)
        run.settle()
    version = run.store.version(run.store.newest_version())
    left = {
        path.split("/")[3] for path in run.store.files.list("upgrades") if path.endswith(".arrow")
    }
    assert left <= set(version.operators)
    assert sum(row["v"] for row in run.view("pairs").rows()) == sum(row["v"] for row in before)


@pytest.mark.parametrize("is_gone", [False, True])
def test_state_in_another_form_is_made_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_gone: bool
) -> None:
    """A release may keep the same in other columns: no damage, and refused only where the log is gone."""

    def naming() -> ps.App:
        app = ps.App("p")
        names = app.table("names", "id BIGINT NOT NULL, name STRING", key="id")
        app.view("letters", names.group_by("name").agg(n=ps.count()))
        return app

    with monkeypatch.context() as earlier:
        earlier.setattr(bag, "ROW", "$line")  # the release that writes the state
        run = ps.testing.run(naming())
        for i in range(6):
            run.send("names", id=i, name="ab"[i % 2])
        wanted = run.view("letters").rows()
    if is_gone:
        forget(run)
        with pytest.raises(FlowError, match=r"of another release.*--rebuild"):
            run.change(naming())
        return
    run.change(naming())
    assert "in the form that this release keeps" in caplog.text
    assert run.view("letters").rows() == wanted
    run.send("names", id=7, name="b")
    assert run.view("letters").rows()[1] == {"name": "b", "n": 4}


def test_placing_says_what_decides_the_shard() -> None:
    """By partition, nothing of a row does, unless there is only one."""
    run = ps.testing.run(two_levels(), cores=2)
    placed = {one.name: one for one in run._driver.physical.placed.values()}
    assert placed["pairs"].hashed_by is None
    assert placed["turned"].fused
    assert placed["turned"].hashed_by == ("a", "b")
    assert all(one.is_hashed for one in placed.values())
    by_partition = replace(placed["pairs"], topic="events", fused=True)
    assert not by_partition.is_hashed
    assert replace(by_partition, shards=1).is_hashed
