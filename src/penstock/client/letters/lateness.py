"""Whether a letter would be late, or late again, when it is replayed. Pure.

A replayed record keeps its timestamp, and a watermark never goes back. So a letter is late again unless
its value was repaired, and names a time that the watermark of then had not reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from penstock.core.time import instant_us
from penstock.errors import UserError

__all__ = ["Mark", "late_again"]

_LATE: Final = re.compile(r"late: its event time is ([^ ,]+), the watermark was already ([^ ,]+),")
_UNITS_US: Final = (1, 1_000, 1_000_000)  # in which producers write instants as numbers


class Mark(NamedTuple):
    """A topic's watermark in a pipeline, and where its records have their event time.

    Attributes:
        watermark_us: no row of a time before it is expected any more.
        field: of the record's JSON object; None: the record's timestamp is the event time.
    """

    watermark_us: int
    field: str | None

    def is_after(self, value: bytes | None, timestamp_ms: int) -> bool:
        """Whether a record's event time lies behind the watermark; a record without one isn't late.

        >>> mark = Mark(1_767_261_600_000_000, "at")
        >>> mark.is_after(b'{"at": "2026-01-01T09:00Z"}', 0), mark.is_after(b'{"at": 1767261600000}', 0)
        (True, False)
        """
        at_us: int | None = timestamp_ms * 1_000
        if self.field is not None:
            at_us = _field_us(value, self.field)
        return at_us is not None and at_us < self.watermark_us


def _field_us(value: bytes | None, name: str) -> int | None:
    """An instant in a field of a JSON object, as a TIMESTAMP column reads it."""
    try:
        content = orjson.loads(value or b"null")
        found = content.get(name) if isinstance(content, dict) else None
        if isinstance(found, str):
            return instant_us(found)
    except (orjson.JSONDecodeError, UserError):
        return None
    return found * 1_000 if isinstance(found, int) and not isinstance(found, bool) else None


def late_again(reason: str, value: bytes | None) -> bool:
    """Whether a letter with this reason and this (repaired) value is late when it is replayed.

    >>> why = "late: its event time is 2026-01-01T09:00Z, the watermark was already 2026-01-01T10:00Z, …"
    >>> late_again(why, b'{"at": "2026-01-01T09:00Z"}')
    True
    >>> late_again(why, b'{"at": "2026-01-01T11:00Z"}')
    False
    """
    if (found := _LATE.match(reason)) is None:
        return False
    event_us, watermark_us = instant_us(found[1]), instant_us(found[2])
    try:
        content = orjson.loads(value or b"null")
    except orjson.JSONDecodeError:
        return True
    named = set(_instants(content))
    return event_us in named or not any(one >= watermark_us for one in named)


def _instants(content: Any) -> Iterator[int]:
    """All that may be an instant in a JSON value, in µs."""
    match content:
        case dict():
            for one in content.values():
                yield from _instants(one)
        case list():
            for one in content:
                yield from _instants(one)
        case str():
            try:
                yield instant_us(content)
            except UserError:
                return
        case int() if not isinstance(content, bool):
            yield from (content * unit for unit in _UNITS_US)
