"""Values that can't be read, or can't be written as their records have them. Pure.

    a converter refuses a value  ->  NULL takes its place, and the row has a `Lost`
    a row with some              ->  they are counted; the row is written, or it is a dead letter

    invariant: no value of a row raises out of what reads the row

A row whose key can't be written is always a dead letter: with NULL there, it would be another row.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from penstock.client.letters.dead_letters import CUT_HEADER
from penstock.errors import CorruptError

__all__ = [
    "UNREADABLE",
    "Losses",
    "Lost",
    "OnUnreadable",
    "PartlyError",
    "as_json",
    "keys_of",
    "letter_headers",
]

OnUnreadable: TypeAlias = Literal["null", "letter"]
"""What becomes of a row with such a value: it is written with NULL there, or it is a dead letter."""
UNREADABLE: Final = (
    *(ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError),
    *(struct.error, zlib.error, CorruptError),
)
"""Errors that say something of a value: of its form, its range, its length, its type."""
SHOWN_CHARS_MAX: Final = 80
"""Of a value, in a reason."""
REASON_CHARS_MAX: Final = 2000
"""Of a dead letter's reason."""
_MIN, _MAX = -(2**63), 2**63 - 1


class PartlyError(ValueError):
    """A part of a value can't be written.

    Args:
        why: as a reason.
        made: the rest of the value.
    """

    def __init__(self, why: str, made: Any) -> None:
        super().__init__(why)
        self.made = made


class Lost(NamedTuple):
    """A value that isn't written.

    Attributes:
        column: whose: `public.users.born`.
        reason: what was expected, and what was found.
        is_key: whether the row's key has it.
    """

    column: str
    reason: str
    is_key: bool = False


class Losses:
    """The values of a row that were lost, until they are taken.

    Args:
        table: whose row it is.
        key: the columns of the row's key.
    """

    def __init__(self, table: str = "", key: Collection[str] = ()) -> None:
        self._table, self._key = table, frozenset(key)
        self.found: list[Lost] = []

    def note(self, column: str, value: Any, error: BaseException) -> Any:
        """A value was lost.

        Args:
            column: whose.
            value: as the database has it.
            error: why.

        Returns: what is written instead.
        """
        shown = repr(value[:SHOWN_CHARS_MAX] if isinstance(value, bytes | str) else value)
        reason = f"{column}: {str(error).strip() or type(error).__name__}"
        if shown not in reason:
            reason += f" ({shown})"
        name = f"{self._table}.{column}" if self._table else column
        self.found.append(Lost(name, reason[:REASON_CHARS_MAX], column in self._key))
        return error.made if isinstance(error, PartlyError) else None

    def take(self) -> tuple[Lost, ...]:
        """Those of the row that was read, which are forgotten."""
        if not self.found:
            return ()
        found = tuple(self.found)
        self.found.clear()
        return found


def as_json(value: Any) -> bytes:
    """A value as JSON, whose whole numbers have 64 bits.

    Raises:
        OverflowError: it is a number that has more.
        TypeError: it is nothing that JSON has.
    """
    if type(value) is int and not _MIN <= value <= _MAX:
        raise OverflowError(f"expected a number of 64 bits; found {value}")
    return orjson.dumps(value)


def keys_of(lost: Sequence[Lost]) -> tuple[Lost, ...]:
    """Those of a row's key: of a row that is gone, the others don't count."""
    return tuple(one for one in lost if one.is_key)


def letter_headers(
    topic: str, lost: Sequence[Lost], cut_bytes: int = 0
) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a row that is a dead letter.

    Args:
        topic: that it was to be written to.
        lost: its values that aren't written.
        cut_bytes: how long it was, where only its beginning is written; else 0.
    """
    reason = "; ".join(one.reason for one in lost)[:REASON_CHARS_MAX]
    cut = ((CUT_HEADER, b"%d" % cut_bytes),) if cut_bytes else ()
    return (
        ("penstock.reason", reason.encode()),
        ("penstock.topic", topic.encode()),
        *cut,
    )
