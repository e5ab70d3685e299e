"""What kind of reason a dead letter has: its text without what is of the one record.

    late: its event time is 2026-11-21T09:00:03Z, the watermark was already 2026-11-21T09:05:00Z, and …
    late: its event time is …, the watermark was already …, and …

Taken from the text, so that letters of earlier releases, and other programs' letters, have kinds as well. A
kind may join reasons that differ only in what looks like a value; it comes with an example.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LEFT_OUT", "kind_of"]

LEFT_OUT: Final = "…"
_FOUND: Final = re.compile(r"\bfound:? ", re.IGNORECASE)  # our own errors: then comes the value
_INSTANT: Final = re.compile(
    r"[+-]?\d{4,6}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?( ?Z|[+-]\d\d(:?\d\d)?)?"
)
_VALUE: Final = re.compile(
    r"""
    (?<!\w)'(?:[^'\\]|\\.|'')*'(?!\w)             # text, and no apostrophe
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b  # a UUID
    | \b0x[0-9a-fA-F]+\b
    | (?<![\w.])[-+]?\d[\d_,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])
    """,
    re.VERBOSE,
)


def kind_of(reason: str) -> str:
    """The reason without instants, and without values: those found, or else all that look like one.

    >>> kind_of("field 'v': expected an integer of 64 bits; found '12x'")
    "field 'v': expected an integer of 64 bits; found …"
    >>> kind_of("Conversion Error: Could not convert string 'three' to INT64")
    'Conversion Error: Could not convert string … to INT64'
    """
    text = _INSTANT.sub(LEFT_OUT, reason)
    if match := _FOUND.search(text):
        return text[: match.end()] + LEFT_OUT
    return _VALUE.sub(LEFT_OUT, text)
