"""Parts of JSON texts as they are spelled, in Python: for the rows that kernels leave to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined] # not in the stubs
from typing import Any, Final

__all__ = ["compact", "items", "members", "without_odd"]

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_SPACE: Final = re.compile(rf"({_STRING})|[ \t\n\r]+", re.DOTALL)
_ODD: Final = re.compile(
    rf"({_STRING})|[ \t\n\r]+|(,)(?=[ \t\n\r]*[\]}}])|(-?)\b(nan|inf(?:inity)?)\b",
    re.DOTALL | re.IGNORECASE,
)
_GAP: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA: Final = re.compile(r"[ \t\n\r]*,?[ \t\n\r]*")
_READER: Final[Any] = json.JSONDecoder(parse_int=str, parse_float=str)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _READER.scan_once


def compact(text: str) -> str:
    """A valid text without the space between its tokens.

    >>> compact('{"a b": [1.00, 2] }')
    '{"a b":[1.00,2]}'
    """
    return _SPACE.sub(lambda found: found[1] or "", text)


def without_odd(text: str) -> str:
    """What DuckDB takes for JSON, as JSON.

    >>> without_odd('[1, -Infinity, ]')
    '[1,"-Infinity"]'
    """

    def other(found: re.Match[str]) -> str:
        if found[4] is None:
            return found[1] or ""
        return '"NaN"' if found[4].lower() == "nan" else f'"{found[3]}Infinity"'

    return _ODD.sub(other, text)


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Past what a pattern matches of a valid text."""
    found = pattern.match(text, at)
    assert found is not None, "the text is valid"
    return found.end()


def members(text: str) -> Iterator[tuple[str, str]]:
    """The names of an object's members, and the texts of their values.

    >>> list(members('{"a": [1, 2], "b":null}'))
    [('a', '[1, 2]'), ('b', 'null')]
    """
    at = _past(_GAP, text, text.index("{") + 1)
    while text[at] == '"':
        name, at = scanstring(text, at + 1)
        at = _past(_COLON, text, at)
        end = _scan(text, at)[1]
        yield name, text[at:end]
        at = _past(_COMMA, text, end)


def items(text: str) -> Iterator[str]:
    """The texts of an array's items.

    >>> list(items('[1, {"a": 2}]'))
    ['1', '{"a": 2}']
    """
    at = _past(_GAP, text, text.index("[") + 1)
    while text[at] != "]":
        end = _scan(text, at)[1]
        yield text[at:end]
        at = _past(_COMMA, text, end)
