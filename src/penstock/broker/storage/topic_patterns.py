"""Topic names that match a regular expression, in time linear in their length.

Kafka uses RE2/J here and not Java's own engine, so that no client can send an expression that takes
forever. Python's engine backtracks as Java's does; Arrow carries RE2 itself. It is loaded with the
first expression, since a broker without such subscriptions can do without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.errors import UserError

__all__ = ["PATTERN_CHARACTERS_MAX", "matching"]

PATTERN_CHARACTERS_MAX: Final = 4_096
"""Longest expression: RE2 needs some hundred bytes per character."""


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole.

    Raises:
        UserError: the expression is too long, or is none.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise UserError(
            f"expected a regular expression of at most {PATTERN_CHARACTERS_MAX} characters; found "
            f"{len(pattern)}"
        )
    import pyarrow as pa
    import pyarrow.compute as pc

    candidates = list(names)
    try:
        # Alone first: "a)(b" is none, but would become one inside the group.
        pc.match_substring_regex(pa.array([""]), pattern)
        found = pc.match_substring_regex(
            pa.array(candidates, pa.string()), rf"\A(?:{pattern})\z"
        ).to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(
            f"expected a regular expression (RE2's syntax); found {pattern!r}: {error}"
        ) from None
    return frozenset(name for name, is_match in zip(candidates, found, strict=True) if is_match)
