"""When a plan is written down: while the lanes compute, and before anything leaves the pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.engine.plan import Work
from penstock.engine.record.plan import Switch
from penstock.engine.record.version import TimeEntry
from penstock.errors import FencedError
from penstock.testing import Run


def copying() -> Run:
    """A program that writes each row to a topic, and counts them."""
    flow = ps.App("copying")
    rows = flow.stream("t", "id BIGINT NOT NULL", partitions=2)
    rows.to("copies")
    flow.view("n", rows.group_by().agg(n=ps.count()))
    return ps.testing.run(flow)


def copied(run: Run) -> list[int]:
    """What is in the output topic."""
    return sorted(orjson.loads(record.value or b"")["id"] for record in run.log.records("copies"))


@pytest.mark.parametrize("malformed", [False, True])
def test_nothing_is_written_to_a_topic_before_the_plan(
    malformed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an output nor a dead letter: both are of the plan that counts."""
    run = copying()
    sends: list[bool] = []
    send = run.log.send

    def noted(*args: Any) -> None:
        sends.append(run.store.plan(run.store.newest_version() + 1) is not None)
        send(*args)

    monkeypatch.setattr(run.log, "send", noted)
    for number in range(20):
        if malformed:
            run.send_raw("t", b"no JSON")
        else:
            run.send("t", id=number)
    run.settle()
    assert sends
    assert all(sends)


def test_a_version_says_where_records_have_their_event_time() -> None:
    """For those who have the letters and not the program; not where the value alone doesn't say it."""
    flow = ps.App("timed")
    times = {
        "field": ps.event_time("at"),
        "record": None,
        "expression": ps.event_time("at - INTERVAL 1 HOUR"),
        "sent": ps.event_time("at", sent="other"),
    }
    for topic, time in times.items():
        flow.stream(topic, "at TIMESTAMP, other TIMESTAMP", time=time).to(f"{topic}.copy")
    run = ps.testing.run(flow)
    run.send("field", at="2026-01-01T00:00:00Z", other=None)
    run.settle()
    assert run.store.version(run.store.newest_version()).times == {
        "field": TimeEntry("field", "at"),
        "record": TimeEntry("timestamp"),
        "expression": None,
        "sent": None,
    }


@pytest.mark.parametrize(
    ("rest", "waits_s"),
    [("1 hour", [8.0]), ("4 seconds", [2.0]), ("1 second", [0.5])],
)
def test_the_log_is_waited_for_until_the_clock_gives_something_to_do(
    rest: str, waits_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or not much longer: a minute closes when the other partition has been idle for long enough."""
    flow = ps.App("closing")
    clicks = flow.stream(
        "clicks", "at TIMESTAMP", time=ps.event_time("at", idle=rest), partitions=2
    )
    minutes = clicks.window(ps.tumbling("1 minute")).group_by().agg(n=ps.count())
    minutes.closed().to("minutes")
    run = ps.testing.run(flow)
    run.send("clicks", at="12:00:00", partition=0)
    run.send("clicks", at="12:02:00", partition=0)
    run.settle()
    found: list[float] = []
    look = run.log.look

    def noted(offsets: Any, timeout_s: float, aside: Any = None) -> Any:
        found.append(timeout_s)
        return look(offsets, timeout_s, aside)

    monkeypatch.setattr(run.log, "look", noted)
    assert run._driver.step(run._host.execute, timeout_s=8.0) is None
    assert [one for one in found if one] == waits_s


def test_the_plan_that_was_written_first_counts() -> None:
    """Another driver has planned less; its plan is run, and the rest is of the next batch."""
    run = copying()
    for number in range(10):
        run.send("t", id=number, partition=number % 2)
    host, others = run._host, 0

    def execute(work: Work) -> Any:
        nonlocal others
        plan = work.attempt()
        if not others:
            splits = tuple(replace(split, end=split.start + 2) for split in plan.splits)
            run.store.write_plan(replace(plan, splits=splits))
            others += 1
        return host.execute(work)

    progress = run._driver.step(execute)
    assert progress is not None
    assert progress.rows == 4
    run.settle()
    assert copied(run) == list(range(10))


def test_a_batch_whose_number_a_changed_program_takes_is_not_run() -> None:
    """The switch was written while the lanes computed; nothing of the batch has left."""
    run = copying()
    run.send("t", id=1)
    run.settle()
    run.send("t", id=2)
    host = run._host

    def execute(work: Work) -> Any:
        number = work.attempt().version
        run.store.write_plan(Switch(number, "another", "upgrade"))
        return host.execute(work)

    with pytest.raises(FencedError, match="a changed program takes the pipeline over"):
        run._driver.step(execute)
    assert copied(run) == [1]
