"""Row patterns by backtracking, a row after the other: what operators that match patterns are compared with.

attempt(rows, start) = the first of all ways to match that begin at a row, in the order of preference
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Found", "Label", "Node", "Open", "found"]

Node: TypeAlias = tuple[Any, ...]
"""("name", v), ("seq", nodes), ("or", nodes), ("some", node, least, most, greedy)"""
Label: TypeAlias = tuple[str, int]
Tests: TypeAlias = dict[str, Callable[[Sequence[Any], Sequence[Label], int], bool]]


class Open(Exception):
    """What follows isn't known yet."""


@dataclass
class Found:
    """A match, or a partial one that ran out of time."""

    number: int
    first: int
    labels: list[Label]
    decided: int
    timed_out: bool = False


class _Attempt:
    def __init__(self, rows: Any, times: Any, start: int, within: Any, until: Any) -> None:
        self.rows, self.times, self.start, self.until = rows, times, start, until
        self.end = None if within is None else times[start] + within
        self.decided = times[start]
        self.furthest: list[Label] = []

    def is_there(self, at: int, labels: list[Label]) -> bool:
        """Whether a row is, and belongs to the time of the attempt."""
        if at < len(self.rows):
            if self.end is None or self.times[at] <= self.end:
                self.decided = max(self.decided, self.times[at])
                return True
        elif self.until is None:
            return False
        elif self.end is None or self.end >= self.until:
            raise Open
        self.decided = self.end
        if len(labels) > len(self.furthest):
            self.furthest = labels
        return False

    def ways(self, node: Node, at: int, labels: list[Label], tests: Tests) -> Iterator[Any]:
        """Where a part of the pattern may end, and how rows are called then; the preferred way first."""
        match node:
            case ("name", name):
                if self.is_there(at, labels):
                    named = [*labels, (name, at)]
                    if tests[name](self.rows, named, at):
                        yield at + 1, named
            case ("seq", []):
                yield at, labels
            case ("seq", [head, *rest]):
                for then, named in self.ways(head, at, labels, tests):
                    yield from self.ways(("seq", rest), then, named, tests)
            case ("or", nodes):
                for one in nodes:
                    yield from self.ways(one, at, labels, tests)
            case ("some", part, least, most, greedy):
                if least <= 0 and not greedy:
                    yield at, labels
                if most is None or most > 0:
                    fewer = ("some", part, least - 1, None if most is None else most - 1, greedy)
                    for then, named in self.ways(part, at, labels, tests):
                        if then > at:
                            yield from self.ways(fewer, then, named, tests)
                if least <= 0 and greedy:
                    yield at, labels


def found(
    node: Node,
    tests: Tests,
    rows: Sequence[Any],
    times: Sequence[int],
    *,
    within: int | None = None,
    until: int | None = None,
    skip: str = "past last row",
    resume: int = 0,
    number: int = 0,
) -> tuple[list[Found], int, int]:
    """What is found in a key's rows; where the next attempt begins; how many matches there were.

    Args:
        node: the pattern.
        tests: of its variables: a function of the rows, the labels so far with its own, and the row.
        rows: of one key.
        times: of the rows.
        within: how far the last row of a match may be behind the first.
        until: rows of before this time are all there; None: all are.
        skip: to where after a match.
        resume: where to begin.
        number: of matches before.
    """
    made: list[Found] = []
    certain = None
    at = resume
    while at < len(rows):
        one = _Attempt(rows, times, at, within, until)
        try:
            way = next(one.ways(node, at, [], tests), None)
        except Open:
            return made, at, number
        certain = one.decided if certain is None else max(certain, one.decided)
        step = at + 1
        if way is not None and way[1]:
            number += 1
            made.append(Found(number, at, way[1], certain))
            step = way[0] if skip == "past last row" else at + 1
        elif one.furthest:
            made.append(Found(number + 1, at, one.furthest, certain, timed_out=True))
        at = step
    return made, at, number
