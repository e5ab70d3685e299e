"""Letters of rows that were no records: which there are doesn't depend on how batches are cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.testing import Record, Run

BAD = "CAST(IF({0} % 3 = 0, 'bad', '1') AS BIGINT)"
"""Fails for a third of the values that a row takes on."""


def program(*, lasts: bool = False, more: bool = False) -> ps.App:
    """Steps that fail behind aggregates and joins, with keys and without, and groups whose query fails.

    Args:
        lasts: whether a row that fails does so until it goes.
        more: whether there is another view.
    """
    app = ps.App("p")
    events = app.stream(
        "events", "g STRING, v BIGINT, at TIMESTAMP", time=ps.event_time("at", lateness="1 hour")
    )
    users = app.table("users", "id STRING, level STRING", key="id")
    sums = events.group_by("g").agg(v=ps.sum("v"), n=ps.count())
    named = sums.select("v", n="CAST(g AS BIGINT)")
    joined = sums.join(users.select("level", g="id"), on="g")
    leveled = joined.select("g", l="CAST(level AS BIGINT)")
    app.view("leveled", leveled.group_by("l").agg(n=ps.count()))
    if not lasts:
        named = named.where(f"{BAD.format('v')} > 0")
        computed = joined.select("g", v=BAD.format("v + n"))
        app.view("levels", computed.group_by("v").agg(n=ps.count()))
    app.view("named", named.group_by("n").agg(v=ps.sum("v")))
    others = events.select("g", then="at", w="v")
    paired = events.join(others, on="g", within=("0 seconds", "20 seconds"))
    paired.select("g", w=BAD.format("v + w")).to("pairs")
    app.view("bits", sql="SELECT g, bitstring_agg(v, 1, 9) AS b FROM events GROUP BY g")
    app.view("filled", sql="SELECT count(b) AS n FROM bits")
    if more:
        app.view("counts", sums.select("g", "n", "v").group_by("n").agg(c=ps.count("g")))
    return app


change = st.one_of(
    st.tuples(st.just("events"), st.sampled_from("123xy"), st.integers(0, 9), st.integers(0, 50)),
    st.tuples(st.just("users"), st.sampled_from("123xy"), st.sampled_from(["1", "2", "top", None])),
)


def send(run: Run, one: Any) -> None:
    match one:
        case ("events", g, v, second):
            run.send("events", g=g, v=v, at=f"12:00:{second:02d}")
        case (_, name, None):
            run.send_raw("users", None, key=name.encode())
        case (_, name, level):
            run.send("users", id=name, level=level)


def identity(letter: Record) -> str:
    return letter.headers["penstock.identity"]


def letters(run: Run) -> list[tuple[str, str]]:
    """Identity and kind of reason of each letter."""
    found = run.dead_letters()
    return [(identity(one), one.headers["penstock.reason"].partition(":")[0]) for one in found]


def identities(
    changes: list[Any], ends: set[int], chance: random.Random, *, lasts: bool = False
) -> set[str]:
    """Those of a run's letters, which dies at times; asserts that a version has each identity once."""
    run = ps.testing.run(program(lasts=lasts), seed=chance.randrange(2**32))
    seen = 0
    for number, one in enumerate(changes, 1):
        send(run, one)
        if number in ends or number == len(changes):
            if chance.random() < 0.3:
                run.crash(chance.choice(["plan", "output", "commit"]))
            run.settle()
            fresh = Counter(map(identity, run.log.records("p.dead-letters")[seen:]))
            assert all(count == 1 for count in fresh.values()), fresh
            seen += fresh.total()
    return set(map(identity, run.dead_letters()))


def cut(changes: list[Any], chance: random.Random) -> set[int]:
    return {i for i in range(len(changes)) if chance.random() < 0.4}


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(st.lists(change, max_size=12), st.integers(0, 2**32))
def test_letters_lie_between_those_of_one_batch_and_of_many(changes: list[Any], seed: int) -> None:
    """What fails in the end has a letter however batches are cut, and no row that never was one has any."""
    chance = random.Random(seed)
    last = identities(changes, set(), chance)
    some = identities(changes, cut(changes, chance), chance)
    each = identities(changes, set(range(len(changes))), chance)
    assert last <= some <= each


@pytest.mark.slow
@settings(max_examples=examples(6), deadline=None)
@given(st.lists(change, max_size=12), st.integers(0, 2**32))
def test_letters_of_what_stays_do_not_depend_on_the_cut(changes: list[Any], seed: int) -> None:
    """Where a row that fails is there in the end, all cuts give the same identities."""
    users: dict[str, Any] = {}
    for kind, name, *rest in changes:  # a user comes once, and stays
        if kind == "users" and rest[0] is not None:
            users.setdefault(name, (kind, name, *rest))
    stays = [*users.values(), *(one for one in changes if one[0] == "events")]
    chance = random.Random(seed)
    chance.shuffle(stays)
    one = identities(stays, set(), chance, lasts=True)
    assert identities(stays, cut(stays, chance), chance, lasts=True) == one


def test_a_row_that_fails_has_a_letter_until_it_works() -> None:
    """Another content of its key is the same row; what takes its place within a batch is, too."""
    run = ps.testing.run(program())

    def count(*values: int) -> int:
        """How often it has had a letter when the sum has grown by these, in one batch."""
        for v in values:
            run.send("events", g="1", v=v, at="12:00:00")
        found = [one for one, reason in letters(run) if reason.endswith("> 0")]
        assert len(set(found)) <= 1
        return len(found)

    assert count(1) == 0
    assert count(2) == count(3) == count(30) == 1
    assert count(1) == 1, "it works"
    assert count(2) == 2, "it fails again"
    assert count(1, 2) == 2, "that it worked for a while wasn't seen"


def test_an_identity_outlives_changes_of_the_program() -> None:
    """A restart, another view, and state that is computed again write no letter anew; a new run the same."""
    run = ps.testing.run(program())
    send(run, ("events", "x", 1, 0))
    before = letters(run)
    assert before
    run.restart()
    send(run, ("events", "x", 1, 0))
    assert letters(run) == before
    for rebuild in (False, True):
        run.change(program(more=not rebuild), rebuild=rebuild)
        send(run, ("events", "x", 1, 50))
        assert letters(run) == before
    fresh = ps.testing.run(program(more=True))
    send(fresh, ("events", "x", 1, 0))
    assert letters(fresh) == before


def test_letters_of_a_version_are_in_the_order_of_identity() -> None:
    """Of an operator on a shard; they say what refused the row, and its key, and are counted once."""
    app = ps.App("p")
    rows = app.stream("t", "g STRING")
    numbers = rows.group_by("g").agg(n=ps.count()).select("n", number="CAST(g AS BIGINT)")
    app.view("numbers", numbers.group_by("number").agg(n=ps.sum("n")))
    run = ps.testing.run(app, cores=1)
    for number in range(40):
        run.send("t", g=f"g{number % 20}")
    progress = run.step()
    assert progress is not None
    assert progress.dead_rows == 20
    found = run.dead_letters()
    assert [identity(one) for one in found] == sorted({identity(one) for one in found})
    assert {one.key for one in found} == {orjson.dumps({"g": f"g{n}"}) for n in range(20)}
    assert all(one.headers["penstock.node"].startswith("Select (") for one in found)
    assert run.store.version(run.store.newest_version()).counts.dead == {
        one.headers["penstock.topic"]: 20 for one in found
    }
