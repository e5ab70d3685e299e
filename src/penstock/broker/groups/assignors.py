"""Who reads what: the assignors that the coordinator runs itself, `uniform` and `range`. Pure.

Contract of an assignor: it gives each member a set of partitions of topics that the member
subscribes to; every partition with a subscriber is given to exactly one of them; the
result depends on nothing but the arguments.

`uniform` also keeps what members own as far as that leaves loads balanced: where all subscribe to
the same topics, loads differ by one at most, and no partition moves that needn't.

Source: KIP-848, "Server side assignors"; Kafka's UniformAssignor and RangeAssignor.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

__all__ = ["ASSIGNORS", "DEFAULT_ASSIGNOR", "Assignor", "Part", "Wish"]

Part: TypeAlias = tuple[UUID, int]
"""A partition: the topic's id, and its number."""

BALANCE_PASSES_MAX: Final = 4
"""How often the topics are gone through to even loads out where subscriptions differ; what is uneven
after that is left as it is. Two passes suffice where one subscription contains the other."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One member, as an assignor sees it.

    Attributes:
        topics: ids of topics that it subscribes to.
        owned: partitions that it was given last.
        order: what members are sorted by: static ones first, by their instance id, so that one that
            comes back under another member id gets what it had.
    """

    topics: frozenset[UUID]
    owned: Collection[Part]
    order: str


Assignor: TypeAlias = Callable[[Mapping[str, Wish], Mapping[UUID, int]], dict[str, set[Part]]]


def _in_order(wishes: Mapping[str, Wish]) -> list[str]:
    return sorted(wishes, key=lambda member_id: (wishes[member_id].order, member_id))


def _subscribers(wishes: Mapping[str, Wish], counts: Mapping[UUID, int]) -> dict[UUID, list[str]]:
    found: dict[UUID, list[str]] = {}
    for member_id in _in_order(wishes):
        for topic in wishes[member_id].topics:
            if topic in counts:
                found.setdefault(topic, []).append(member_id)
    return dict(sorted(found.items()))


def assign_ranges(wishes: Mapping[str, Wish], counts: Mapping[UUID, int]) -> dict[str, set[Part]]:
    """Per topic, each subscriber gets a contiguous range; the first ones get one more."""
    result: dict[str, set[Part]] = {member_id: set() for member_id in wishes}
    for topic, members in _subscribers(wishes, counts).items():
        size, extras = divmod(counts[topic], len(members))
        start = 0
        for index, member_id in enumerate(members):
            end = start + size + (index < extras)
            result[member_id].update((topic, number) for number in range(start, end))
            start = end
    return result


def assign_uniformly(
    wishes: Mapping[str, Wish], counts: Mapping[UUID, int]
) -> dict[str, set[Part]]:
    """Even loads, and few moves."""
    if not wishes:
        return {}
    if len({wish.topics for wish in wishes.values()}) == 1:
        return _assign_alike(wishes, counts)
    return _assign_unlike(wishes, counts)


def _keep(
    wishes: Mapping[str, Wish], counts: Mapping[UUID, int], member_id: str, taken: set[Part]
) -> list[Part]:
    """What a member owns and may continue owning."""
    wish = wishes[member_id]
    return [
        part
        for part in sorted(wish.owned)
        if part[0] in wish.topics and part[1] < counts.get(part[0], 0) and part not in taken
    ]


def _assign_alike(wishes: Mapping[str, Wish], counts: Mapping[UUID, int]) -> dict[str, set[Part]]:
    """All subscribe to the same: each gets the quota, some one more."""
    members = _in_order(wishes)
    topics = sorted(topic for topic in wishes[members[0]].topics if topic in counts)
    everything = [(topic, number) for topic in topics for number in range(counts[topic])]
    quota, extras = divmod(len(everything), len(members))
    result: dict[str, set[Part]] = {}
    taken: set[Part] = set()
    for member_id in members:
        own = _keep(wishes, counts, member_id, taken)
        more = len(own) > quota and extras > 0
        extras -= more
        result[member_id] = set(own[: quota + more])
        taken |= result[member_id]
    free = iter([part for part in everything if part not in taken])
    for member_id in members:
        have = result[member_id]
        more = len(have) <= quota and extras > 0
        extras -= more
        have.update(part for _, part in zip(range(quota + more - len(have)), free, strict=False))
    return result


def _assign_unlike(wishes: Mapping[str, Wish], counts: Mapping[UUID, int]) -> dict[str, set[Part]]:
    """Subscriptions differ: the free ones go to the least loaded, then loads are evened out."""
    subscribers = _subscribers(wishes, counts)
    taken: set[Part] = set()
    result: dict[str, set[Part]] = {}
    for member_id in _in_order(wishes):
        result[member_id] = set(_keep(wishes, counts, member_id, taken))
        taken |= result[member_id]
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        loads = [(len(result[member_id]), member_id) for member_id in subscribers[topic]]
        heapq.heapify(loads)
        for number in range(counts[topic]):
            if (topic, number) not in taken:
                load, member_id = loads[0]
                result[member_id].add((topic, number))
                heapq.heapreplace(loads, (load + 1, member_id))
    for _ in range(BALANCE_PASSES_MAX):
        if not sum(_even_out(topic, members, result) for topic, members in subscribers.items()):
            break
    return result


def _even_out(topic: UUID, members: list[str], result: dict[str, set[Part]]) -> bool:
    """Moves partitions of a topic from its most to its least loaded subscribers; whether any."""
    parts = {one: sorted(part for part in result[one] if part[0] == topic) for one in members}
    light = [(len(result[one]), one) for one in members]
    heavy = [(-len(result[one]), one) for one in members if parts[one]]
    heapq.heapify(light)
    heapq.heapify(heavy)
    moved = False
    while heavy:
        (low, taker), (high, giver) = light[0], heavy[0]
        if low != len(result[taker]):  # it has changed since it was put there
            heapq.heapreplace(light, (len(result[taker]), taker))
        elif -high != len(result[giver]):
            heapq.heapreplace(heavy, (-len(result[giver]), giver))
        elif -high - low < 2:
            break
        else:
            part = parts[giver].pop()
            result[giver].remove(part)
            result[taker].add(part)
            moved = True
            if not parts[giver]:
                heapq.heappop(heavy)
    return moved


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""By Kafka's names."""
DEFAULT_ASSIGNOR: Final = "uniform"
"""Of a group whose members ask for none: the first one, as in Kafka."""
