from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from penstock.broker.groups.assignors import ASSIGNORS, Part, Wish, assign_ranges, assign_uniformly

TOPICS = [uuid.UUID(int=number) for number in range(1, 6)]


def wish(name: str, topics: list[int], owned: set[Part] | None = None) -> Wish:
    """What one member wants."""
    return Wish(frozenset(TOPICS[one] for one in topics), owned or set(), name)


def check(
    wishes: Mapping[str, Wish], counts: Mapping[uuid.UUID, int], found: dict[str, set[Part]]
) -> None:
    """The contract: everything wanted is given, once, to one who wants it."""
    assert found.keys() == wishes.keys()
    given = [part for parts in found.values() for part in parts]
    wanted = {topic for one in wishes.values() for topic in one.topics if topic in counts}
    assert sorted(given) == sorted((topic, n) for topic in wanted for n in range(counts[topic]))
    for member, parts in found.items():
        assert {topic for topic, _ in parts} <= wishes[member].topics


@pytest.mark.parametrize("name", ASSIGNORS)
def test_contract(name: str) -> None:
    """Members come, go and change their minds: every partition always has exactly one reader."""
    rng = random.Random(7)
    for _ in range(300):
        wishes: dict[str, Wish] = {}
        counts = {topic: rng.randrange(12) for topic in rng.sample(TOPICS, rng.randrange(6))}
        for _ in range(5):
            names = rng.sample("abcdefg", rng.randrange(1, 7))
            same = rng.random() < 0.5
            topics = rng.sample(range(5), rng.randrange(1, 4))
            before = {one: wishes[one].owned for one in wishes}
            wishes = {
                one: wish(
                    one,
                    topics if same else rng.sample(range(5), rng.randrange(4)),
                    set(before.get(one, ())),
                )
                for one in names
            }
            found = ASSIGNORS[name](wishes, counts)
            check(wishes, counts, found)
            if same and name == "uniform":
                sizes = [len(parts) for parts in found.values()]
                assert max(sizes) - min(sizes) <= 1
            wishes = {one: wish(one, [], found[one]) for one in names}


def test_ranges() -> None:
    """As in Kafka's documentation: three partitions, two members, the first has one more."""
    found = assign_ranges(
        {"b": wish("b", [0, 1]), "a": wish("a", [0, 1])}, {TOPICS[0]: 3, TOPICS[1]: 3}
    )
    assert found["a"] == {(topic, n) for topic in TOPICS[:2] for n in (0, 1)}
    assert found["b"] == {(topic, 2) for topic in TOPICS[:2]}


def test_uniform_moves_no_more_than_it_must() -> None:
    """A third member gets a third; of the rest nothing moves. When it leaves, only its part does."""
    counts = {TOPICS[0]: 9}
    two = assign_uniformly({one: wish(one, [0]) for one in "ab"}, counts)
    three = assign_uniformly({one: wish(one, [0], two.get(one)) for one in "abc"}, counts)
    assert [len(three[one]) for one in "abc"] == [3, 3, 3]
    assert three["a"] <= two["a"]
    assert three["b"] <= two["b"]
    again = assign_uniformly({one: wish(one, [0], three[one]) for one in "ab"}, counts)
    assert three["a"] <= again["a"]
    assert three["b"] <= again["b"]


def test_uniform_evens_out_what_subscriptions_allow() -> None:
    """Who can read only one topic gets it from those who can read others."""
    wishes = {"a": wish("a", [0, 1], {(TOPICS[0], n) for n in range(6)}), "b": wish("b", [0])}
    found = assign_uniformly(wishes, {TOPICS[0]: 6, TOPICS[1]: 2})
    assert len(found["b"]) == 4
    assert len(found["a"]) == 4


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python some work runs: unlike its time, the same on each machine."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("topics", [5, 2])
def test_large_groups_are_assigned_fast(topics: int) -> None:
    """Four times the members and partitions are some four times the work: the broker isn't held up by
    a thousand members with ten thousand partitions.
    """
    work = []
    for members in (100, 400):
        counts = dict.fromkeys(TOPICS, 2 * members)
        wishes = {
            str(n): wish(str(n), [(n + i) % 5 for i in range(topics)]) for n in range(members)
        }
        work.append(lines_run(lambda: assign_uniformly(wishes, counts)))  # noqa: B023 - run at once
        check(wishes, counts, assign_uniformly(wishes, counts))
    assert work[1] < 6 * work[0]
