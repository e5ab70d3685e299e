"""The tree of a row pattern: what may stand behind what, as `penstock.patterns.text` reads it.

The nodes are those of SQL:2016's row pattern syntax, and four that Python's patterns add: `Then` with rows
between its parts, `Absent`, `Until` and `Bounded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Absent",
    "Bounded",
    "Choice",
    "Empty",
    "End",
    "Excluded",
    "Gap",
    "Name",
    "Node",
    "Permute",
    "Repeat",
    "Sequence",
    "Start",
    "Then",
    "Until",
    "can_be_empty",
    "first_names",
    "mapped_names",
    "names_of",
    "parts_of",
]

Gap = Literal["relaxed", "any"]
"""What lies between two parts: rows that don't begin the second one, or any rows."""


@dataclass(frozen=True)
class Name:
    """A row that is the variable."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Parts, each of which begins at the row behind the one before."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of the parts; an earlier one is preferred."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part several times. An iteration beyond the least has a row.

    Attributes:
        part: what is repeated.
        least: how often at least.
        most: how often at most; None is any number.
        greedy: prefers more iterations, otherwise fewer.
    """

    part: Node
    least: int
    most: int | None
    greedy: bool = True


@dataclass(frozen=True)
class Permute:
    """The parts in any order; orders are preferred as the parts are listed."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Excluded:
    """`{- part -}`: its rows are of the match, but not of the output."""

    part: Node


@dataclass(frozen=True)
class Start:
    """`^`: before the first row of a partition."""


@dataclass(frozen=True)
class End:
    """`$`: behind the last row of a partition."""


@dataclass(frozen=True)
class Empty:
    """`()`: no row."""


@dataclass(frozen=True)
class Then:
    """Parts with other rows between them.

    Attributes:
        parts: at least two. An `Absent` may stand between two others, or at the end.
        gaps: before each part but the first.
    """

    parts: tuple[Node, ...]
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Absent:
    """`!name`: the next row isn't this one; in a `Then`, no row of the gap is. It takes no row."""

    name: str


@dataclass(frozen=True)
class Until:
    """A part that ends before a row that fulfils another definition."""

    part: Node
    name: str


@dataclass(frozen=True)
class Bounded:
    """A part whose rows lie at most so long behind the row before it."""

    part: Node
    within_us: int


Node: TypeAlias = (
    Name
    | Sequence
    | Choice
    | Repeat
    | Permute
    | Excluded
    | Start
    | End
    | Empty
    | Then
    | Absent
    | Until
    | Bounded
)


def parts_of(node: Node) -> tuple[Node, ...]:
    """The nodes directly below one."""
    match node:
        case Sequence(parts) | Choice(parts) | Permute(parts) | Then(parts):
            return parts
        case Repeat(part) | Excluded(part) | Until(part) | Bounded(part):
            return (part,)
        case Name() | Start() | End() | Empty() | Absent():
            return ()


def mapped_names(node: Node) -> tuple[str, ...]:
    """The variables that rows may be, each once, in the order of the text."""
    return tuple(dict.fromkeys(one.name for one in _nodes(node) if isinstance(one, Name)))


def names_of(node: Node) -> tuple[str, ...]:
    """All names of the pattern, each once: also those that rows must not be."""
    found = (one.name for one in _nodes(node) if isinstance(one, Name | Absent | Until))
    return tuple(dict.fromkeys(found))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in parts_of(node):
        yield from _nodes(part)


def can_be_empty(node: Node) -> bool:
    """Whether a node can match without a row."""
    match node:
        case Name():
            return False
        case Sequence(parts) | Permute(parts) | Then(parts):
            return all(map(can_be_empty, parts))
        case Choice(parts):
            return any(map(can_be_empty, parts))
        case Repeat(part, least):
            return least == 0 or can_be_empty(part)
        case Excluded(part) | Until(part) | Bounded(part):
            return can_be_empty(part)
        case Start() | End() | Empty() | Absent():
            return True


def first_names(node: Node) -> tuple[str, ...]:
    """The variables that the first row of a node may be, each once."""
    found: dict[str, None] = {}
    match node:
        case Name(name):
            return (name,)
        case Sequence(parts) | Then(parts):
            for part in parts:
                found |= dict.fromkeys(first_names(part))
                if not can_be_empty(part):
                    break
        case _:
            for part in parts_of(node):
                found |= dict.fromkeys(first_names(part))
    return tuple(found)
