"""Compatibility of a new schema with those before it, by Confluent's levels."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.schemas.breaks import Break
from penstock.schemas.parsing import Parsed

__all__ = ["Incompatible", "Level", "breaks_between"]


class Level(StrEnum):
    """What must continue to work when a schema changes.

    BACKWARD: the new schema reads data of the one before: consumers change first. FORWARD: the one before
    reads data of the new: producers change first. FULL: both. The transitive ones ask that of all before.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all versions count, not only the one before."""
        return self.endswith("_TRANSITIVE")

    @property
    def reads_old(self) -> bool:
        """Whether the new schema must read old data."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def reads_new(self) -> bool:
        """Whether old schemas must read new data."""
        return self.startswith(("FORWARD", "FULL"))


class Incompatible(NamedTuple):
    """What breaks between a new schema and one before it.

    Attributes:
        version: of the one before.
        what: the break.
        is_backward: the new schema can't read the old one's data; else the other way round.
    """

    version: int
    what: Break
    is_backward: bool

    def __str__(self) -> str:
        if self.is_backward:
            return f"the new schema doesn't read data of version {self.version}: {self.what}"
        return f"version {self.version} doesn't read data of the new schema: {self.what}"


def breaks_between(
    new: Parsed, before: Sequence[tuple[int, Parsed]], level: Level
) -> list[Incompatible]:
    """What a level forbids of a new schema.

    Args:
        new: the schema.
        before: versions and schemas that are there, in ascending order.
        level: what is asked.

    >>> from penstock.schemas import Kind, parse
    >>> was, now = parse(Kind.AVRO, '"int"'), parse(Kind.AVRO, '"long"')
    >>> breaks_between(now, [(1, was)], Level.BACKWARD)
    []
    >>> [one.what.rule for one in breaks_between(now, [(1, was)], Level.FULL)]
    ['TYPE_MISMATCH']
    """
    found: list[Incompatible] = []
    for version, old in before if level.is_transitive else before[-1:]:
        if level.reads_old:
            found += [Incompatible(version, one, is_backward=True) for one in new.breaks(old)]
        if level.reads_new:
            found += [Incompatible(version, one, is_backward=False) for one in old.breaks(new)]
    return found
