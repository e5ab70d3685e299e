"""What a query says, before it is known which fields there are: frozen dataclasses.

`at` is where in the query's text a part begins, from 0. It counts for errors alone: two queries that differ
in it are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

__all__ = [
    "SAID_NOWHERE",
    "All",
    "Boolean",
    "Boost",
    "Box",
    "Distance",
    "Exists",
    "Fuzzy",
    "Nested",
    "Phrase",
    "Prefix",
    "Query",
    "Range",
    "Regex",
    "Term",
    "Wildcard",
]

SAID_NOWHERE: Final = -1


@dataclass(frozen=True, slots=True)
class All:
    """`*:*`: each document."""

    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Term:
    """`word`, `field:word`.

    Attributes:
        name: of the field; None: each default field.
        text: without escapes. If it is analyzed into several terms, one of them must match, or every one.
    """

    name: str | None
    text: str
    every: bool = False
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Phrase:
    """`"some words"~slop`: the words in this order, moved by `slop` positions altogether at most."""

    name: str | None
    text: str
    slop: int = 0
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Prefix:
    """`word*`."""

    name: str | None
    text: str
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Wildcard:
    r"""`w?r*d`: `?` is a character, `*` any number of them; `\` before one takes its meaning."""

    name: str | None
    text: str
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """`word~1`: terms with so many insertions, deletions, replacements or swaps of neighbours at most."""

    name: str | None
    text: str
    edits: int = 2
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Regex:
    """`/expression/`: terms that it matches as a whole."""

    name: str | None
    pattern: str
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Range:
    """`[low TO high]`, `{low TO high}`, `>low`; None is no bound."""

    name: str | None
    low: str | None
    high: str | None
    includes_low: bool = True
    includes_high: bool = True
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Exists:
    """`field:*`: documents that have a value there; `*` alone: in one of the default fields."""

    name: str | None
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Distance:
    """`field:distance(latitude, longitude, 10km)`: points at most so far away, on a sphere."""

    name: str
    latitude: float
    longitude: float
    metres: float
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Box:
    """`field:box(top, left, bottom, right)`: points between; `left > right` crosses the date line."""

    name: str
    top: float
    left: float
    bottom: float
    right: float
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Nested:
    """`field:nested(query)`: one and the same element of a list of structs matches the query."""

    name: str
    query: Query
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Boost:
    """`query^factor`: its score, multiplied."""

    query: Query
    factor: float
    at: int = field(default=SAID_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    """All of `must`, none of `must_not`, and at least `minimum` of `should`.

    Attributes:
        minimum: None: one where `must` is empty, otherwise none.
    """

    must: tuple[Query, ...] = ()
    should: tuple[Query, ...] = ()
    must_not: tuple[Query, ...] = ()
    minimum: int | None = None
    at: int = field(default=SAID_NOWHERE, compare=False)

    @property
    def needed(self) -> int:
        """How many of `should` must match."""
        if self.minimum is not None:
            return max(self.minimum, 0 if self.must or not self.should else 1)
        return 0 if self.must or not self.should else 1


Query: TypeAlias = (
    All
    | Term
    | Phrase
    | Prefix
    | Wildcard
    | Fuzzy
    | Regex
    | Range
    | Exists
    | Distance
    | Box
    | Nested
    | Boost
    | Boolean
)
