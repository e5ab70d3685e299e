"""Whether a letter that was late would be late again when it is replayed. Pure.

A replayed record keeps its timestamp, and a watermark never goes back. So a letter is late again unless
its value was repaired, and names a time that the watermark of then had not reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from penstock.core.time import instant_us
from penstock.errors import UserError

__all__ = ["late_again"]

_LATE: Final = re.compile(r"late: its event time is ([^ ,]+), the watermark was already ([^ ,]+),")
_UNITS_US: Final = (1, 1_000, 1_000_000)  # in which producers write instants as numbers


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
