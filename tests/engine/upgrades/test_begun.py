"""A batch that was begun, and whose input has changed when another program runs it again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.errors import BrokerError, FlowError
from penstock.testing import CrashPoint, Run


def program(*views: str, transactions: bool = False) -> ps.App:
    """Rows of two topics, each copied, and counted in some views."""
    app = ps.App("p", transactions=transactions)
    rows = app.stream("t", "id BIGINT NOT NULL")
    rows.to("copies")
    others = app.stream("others", "id BIGINT NOT NULL")
    others.to("other-copies")
    app.view("other_rows", others.group_by("id").agg(n=ps.count()))
    for name in views:
        app.view(name, rows.group_by("id").agg(n=ps.count(), less=ps.sum(f"-{len(views)}")))
    return app


def send(run: Run, topic: str, *ids: int) -> None:
    for id_ in ids:
        run.send_raw(topic, b'{"id":%d}' % id_)


def crash(run: Run, after: CrashPoint) -> None:
    """Lets the process die in a batch; nobody starts it again."""
    restart = run.restart
    run.restart = lambda: None  # type: ignore[method-assign]
    assert run.crash(after)
    run.restart = restart  # type: ignore[method-assign]


def copied(run: Run, topic: str = "copies") -> list[int]:
    """What is in a topic now."""
    return sorted(orjson.loads(one.value or b"")["id"] for one in run.log.records(topic))


def retain_from(run: Run, first: int) -> None:
    """Has retention remove the records of the topic `t` before an offset."""
    read, starts = run.log.read, run.log.start_offsets

    def read_from(topic: str, partition: int, start: int, end: int) -> Any:
        if topic == "t" and start < first:
            raise BrokerError("out of range", code=1)
        yield from read(topic, partition, start, end)

    run.log.read = read_from  # type: ignore[method-assign]
    run.log.start_offsets = lambda topics: {  # type: ignore[method-assign]
        t: {0: first} if t == "t" else one for t, one in starts(topics).items()
    }


def test_retention_before_a_changed_program_runs_a_batch_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is left is written under other numbers: some rows are there twice, and none is lost."""
    run = ps.testing.run(program("one"), shaken=False)
    send(run, "t", *range(5))
    crash(run, "output")
    retain_from(run, 2)
    run.change(program("one", "two"))
    send(run, "t", *range(5, 8))
    run.settle()
    assert [row["id"] for row in run.view("two").rows()] == list(range(2, 8))
    assert set(copied(run)) == set(range(8))
    assert "retention has removed records of t/0" in caplog.text


def make_anew(run: Run, *ids: int) -> None:
    """Deletes the topic `t`, and creates it again, with these rows."""
    run.log._topics["t"] = [[]]
    run.log._ids["t"] = "another"
    send(run, "t", *ids)


@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("after", ["plan", "output"])
def test_a_topic_that_is_made_anew_under_a_batch_that_was_begun(
    after: CrashPoint, count: int, *, transactions: bool
) -> None:
    """The batch isn't run over what was never its input; a rebuild has, and writes, all of the new topic."""
    run = ps.testing.run(program("one", transactions=transactions), shaken=False)
    send(run, "t", *range(4))
    send(run, "others", *range(4))
    run.step()
    send(run, "t", *range(4, 7))
    send(run, "others", *range(4, 7))
    crash(run, after)
    before = Counter(copied(run))
    make_anew(run, *range(100, 100 + count))
    for _ in range(2):  # however often it is tried
        run.restart()
        with pytest.raises(FlowError, match=r"deleted and created again: run .* --rebuild"):
            run.step()
    assert Counter(copied(run)) == before
    run.change(program("one", transactions=transactions), rebuild=True)
    run.settle()
    new = list(range(100, 100 + count))
    assert [row["id"] for row in run.view("one").rows()] == new
    assert Counter(copied(run)) == before + Counter(new)
    # Of the other topic, rows of that batch alone may be there twice.
    assert [row["id"] for row in run.view("other_rows").rows()] == list(range(7))
    others = Counter(copied(run, "other-copies"))
    assert others - Counter(range(7)) <= Counter(range(4, 7) if after == "output" else [])
    assert others >= Counter(range(7))


def test_what_a_changed_program_was_to_run_again_is_forgotten_with_its_topic() -> None:
    """It has taken over, and the topic is made anew before it has run the batch."""
    run = ps.testing.run(program("one"), shaken=False)
    send(run, "t", *range(7))
    crash(run, "output")
    run.change(program("one", "two"))
    make_anew(run, 100, 101)
    with pytest.raises(FlowError, match=r"deleted and created again: run .* --rebuild"):
        run.step()
    run.change(program("one", "two"), rebuild=True)
    run.settle()
    assert [row["id"] for row in run.view("two").rows()] == [100, 101]
    assert copied(run) == [*range(7), 100, 101]


@pytest.mark.parametrize("rebuild", [False, True])
def test_an_upgrade_whose_topic_is_made_anew_begins_anew(*, rebuild: bool) -> None:
    """What it had made of the former topic is of no use."""
    run = ps.testing.run(program("one"), shaken=False)
    send(run, "t", *range(7))
    run.settle()
    after = ("one",) if rebuild else ("one", "two")
    assert not run.change(program(*after), rebuild=rebuild, steps=1)
    make_anew(run, *range(100, 109))
    assert run.change(program(*after), rebuild=True)
    run.settle()
    for view in after:
        assert [row["id"] for row in run.view(view).rows()] == list(range(100, 109))
    assert copied(run) == [*range(7), *range(100, 109)]
