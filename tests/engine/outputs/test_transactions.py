"""Output in transactions: whole batches or nothing, in this process, whatever dies when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.errors import BrokerError, FencedError, FlowError
from penstock.testing import CrashPoint, Record, Run


class Crash(BaseException):
    """A process that dies at a chosen step."""


def app(*, partitions: int = 2) -> ps.App:
    """A stream as it is in two topics, and counts as upserts in a third."""
    flow = ps.App("p", transactions=True)
    rows = flow.stream("t", "id BIGINT NOT NULL, user STRING NOT NULL", partitions=partitions)
    rows.to("one", partitions=3)
    rows.select("user", "id").to("two")
    rows.group_by("user").agg(n=ps.count()).to("counts", partitions=2)
    return flow


def ids(records: list[Record]) -> list[int]:
    """The rows' ids, in order."""
    return sorted(orjson.loads(record.value or b"")["id"] for record in records)


def check(run: Run) -> list[int]:
    """What committed readers see is whole: all topics are of the same batches, each row once."""
    one, two = (ids(run.log.records(topic)) for topic in ("one", "two"))
    assert one == two
    assert len(set(one)) == len(one)
    counts: dict[Any, int] = {}
    for record in run.log.records("counts"):
        counts[record.key] = orjson.loads(record.value or b"")["n"]
    assert sum(counts.values()) == len(one)
    return one


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(0, 30),
    partitions=st.integers(1, 3),
    cores=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_readers_see_whole_batches(rows: int, partitions: int, cores: int, seed: int) -> None:
    """Before and after every call to the log and the state, of drivers that die all the time."""
    run = ps.testing.run(app(partitions=partitions), cores=cores)
    chance = random.Random(seed)
    armed = True

    def fragile(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            check(run)
            if armed and chance.random() < 0.06:
                raise Crash
            result = function(*args, **kwargs)
            check(run)
            if armed and chance.random() < 0.06:
                raise Crash
            return result

        return call

    files = run.store.files
    for owner, names in (
        (run.log, ("send", "begin", "join", "end")),
        (files, ("create", "write")),
    ):
        for name in names:
            setattr(owner, name, fragile(getattr(owner, name)))

    def step() -> None:
        try:
            run.step()
        except Crash:
            while True:
                try:
                    return run.restart()
                except Crash:
                    continue

    for number in range(rows):
        user = chance.choice("abc")
        run.send("t", id=number, user=user, partition=chance.randrange(partitions))
        if chance.random() < 0.4:
            step()
    armed = False
    run.settle()
    assert check(run) == list(range(rows))


def test_a_driver_that_was_replaced_writes_nothing() -> None:
    """Its transaction is ended by the new one, and its records never count."""
    run = ps.testing.run(app())
    run.send("t", id=1, user="a")
    older, host = run._driver, run._host
    end = run.log.end

    def replaced(*args: Any) -> None:
        run.log.end = end  # type: ignore[method-assign]
        run.restart()
        run.settle()
        end(*args)

    run.log.end = replaced  # type: ignore[method-assign]
    with pytest.raises(FencedError, match="Another process"):
        older.step(host.execute)
    assert check(run) == [1]


def test_a_transaction_that_the_broker_ended_is_tried_again() -> None:
    """Where no other driver is there, the batch may be repeated, and nothing shows of the first time."""
    run = ps.testing.run(app())
    run.send("t", id=1, user="a")
    end = run.log.end

    def timed_out(*args: Any) -> None:
        run.log.begin("penstock.p")
        end(*args)

    run.log.end = timed_out  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="took too long") as failure:
        run.step()
    assert failure.value.retriable
    run.log.end = end  # type: ignore[method-assign]
    assert check(run) == []
    run.step()
    assert check(run) == [1]


def test_a_pipeline_without_its_state_writes_again() -> None:
    """Its batches have numbers of which the output counts already; they write all the same."""
    run = ps.testing.run(app())
    run.send("t", id=1, user="a")
    run.settle()
    for folder in ("plans", "versions", "runs"):
        for path in run.store.files.list(folder):
            run.store.files.delete(path)
    run.restart()
    assert ids(run.topic("one")) == [1, 1]


@pytest.mark.parametrize("ended", [False, True])
def test_a_changed_program_takes_a_batch_over(ended: bool) -> None:
    """What the program of before began is written once by the new one, whether it counts or not."""

    def changed() -> ps.App:
        flow = app()
        rows = flow.stream("t", "id BIGINT NOT NULL, user STRING NOT NULL", partitions=2)
        flow.view("all", rows.group_by().agg(n=ps.count()))
        rows.select("id", again="id").to("three")
        return flow

    run = ps.testing.run(app())
    run.send("t", id=1, user="a")
    run.settle()
    run.send("t", id=2, user="b")
    end = run.log.end

    def dies(*args: Any) -> None:
        if ended:
            end(*args)
        raise Crash

    run.log.end = dies  # type: ignore[method-assign]
    with pytest.raises(Crash):
        run.step()
    run.log.end = end  # type: ignore[method-assign]
    run.change(changed())
    run.send("t", id=3, user="a")
    run.settle()
    assert check(run) == [1, 2, 3]
    assert ids(run.log.records("three")) == [1, 2, 3]


def writing(*topics: str) -> ps.App:
    """A program that writes a stream to some topics."""
    flow = ps.App("p", transactions=True)
    rows = flow.stream("t", "id BIGINT")
    for topic in topics:
        rows.to(topic)
    flow.view("n", rows.group_by().agg(n=ps.count()))
    flow.view(topics[-1], rows.group_by("id").agg(n=ps.count()))
    return flow


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("then", [None, "plan", "output", "transaction"])
@pytest.mark.parametrize("last", [("out", "x"), ("out", "y"), ("out", "x", "y")])
def test_several_programs_take_a_batch_over(
    is_first: bool, then: CrashPoint | None, last: tuple[str, ...]
) -> None:
    """Also the very first one, whose version isn't there; each topic that two of them write has it once."""
    run = ps.testing.run(writing("out", "x"), shaken=False)
    run.send("t", id=0)
    if not is_first:
        run.settle()
        run.send("t", id=1)
    assert run.crash("transaction")
    run.change(writing("out", "y"))
    if then is not None:
        assert run.crash(then)
        run.change(writing(*last))
    run.send("t", id=2)
    run.settle()
    expected = [0, 2] if is_first else [0, 1, 2]
    topics = ("out", "y") if then is None else last
    assert {topic: ids(run.topic(topic)) for topic in topics} == dict.fromkeys(topics, expected)
    assert run.view("n").rows() == [{"n": len(expected)}]


def retain_from(run: Run, first: int) -> None:
    """Has retention remove the records of the topic `t` before an offset."""
    read = run.log.read

    def read_from(topic: str, partition: int, start: int, end: int) -> Any:
        if topic == "t" and start < first:
            raise BrokerError("out of range", code=1)
        yield from read(topic, partition, start, end)

    run.log.read = read_from  # type: ignore[method-assign]
    run.log.start_offsets = lambda topics: {t: {0: first} for t in topics}  # type: ignore[method-assign]


def test_retention_between_two_attempts() -> None:
    """What a batch wrote that died doesn't count; its repetition reads what is left, and topics follow it."""
    run = ps.testing.run(app(partitions=1), shaken=False)
    for number in range(5):
        run.send("t", id=number, user="a")
    assert run.crash(after="output")
    retain_from(run, 2)
    progress = run.step()
    assert progress is not None
    assert progress.lost_rows == 2
    for number in range(5, 8):
        run.send("t", id=number, user="a")
    run.settle()
    assert check(run) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("crashes", [1, 2])
def test_retention_between_two_attempts_without_transactions(
    crashes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left is written under other numbers: some rows are there twice, and none is lost."""
    flow = ps.App("p")
    rows = flow.stream("t", "id BIGINT NOT NULL, user STRING NOT NULL", partitions=1)
    rows.to("one", partitions=3)
    flow.view("all", rows.group_by("user").agg(n=ps.count()))
    run = ps.testing.run(flow, shaken=False)
    for number in range(5):
        run.send("t", id=number, user="a")
    assert run.crash(after="output")
    retain_from(run, 2)
    for _ in range(crashes - 1):
        assert run.crash(after="output")
    progress = run.step()
    assert progress is not None
    assert progress.lost_rows == 2
    assert "retention has removed records of t/0" in caplog.text
    for number in range(5, 8):
        run.send("t", id=number, user="a")
    run.settle()
    assert run.view("all").rows()[0]["n"] == 6
    assert ids(run.log.records("one")) == sorted([*range(8), *[2, 3, 4] * crashes])


@pytest.mark.parametrize("strikes", [1, 2])
def test_retention_between_the_question_and_the_read(strikes: int) -> None:
    """An attempt that finds less than when it was planned ends, and is made again under other numbers."""
    flow = ps.App("p")
    rows = flow.stream("t", "id BIGINT NOT NULL, user STRING NOT NULL", partitions=1)
    rows.to("one", partitions=3)
    flow.view("all", rows.group_by("user").agg(n=ps.count()))
    run = ps.testing.run(flow, shaken=False)
    for number in range(5):
        run.send("t", id=number, user="a")
    assert run.crash(after="output")
    first, coming = 0, [1, 3][:strikes]

    def asks(topics: Any) -> Any:
        """Answers, and then lets retention strike."""
        nonlocal first
        found = {topic: {0: first} for topic in topics}
        if coming:
            first = coming.pop(0)
            retain_from(run, first)
            run.log.start_offsets = asks  # type: ignore[method-assign]
        return found

    run.log.start_offsets = asks  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="retention has just removed records of t/0") as caught:
        run.step()
    assert caught.value.retriable
    for number in range(5, 8):
        run.send("t", id=number, user="a")
    run.settle()
    left = list(range(2 * strikes - 1, 8))
    assert run.view("all").rows()[0]["n"] == len(left)
    assert ids(run.log.records("one")) == sorted([*range(5), *left])


def test_batches_without_output_take_no_transaction() -> None:
    """Nothing is asked of the log where nothing is written."""
    run = ps.testing.run(app())
    run.log.end = None  # type: ignore[assignment]
    run.send_raw("t", b"{")
    run.settle()
    assert len(run.dead_letters()) == 1


def test_transactions_are_a_choice() -> None:
    """Anything but a yes or no is refused."""
    with pytest.raises(FlowError, match="transactions="):
        ps.App("p", transactions="yes")  # type: ignore[arg-type]
