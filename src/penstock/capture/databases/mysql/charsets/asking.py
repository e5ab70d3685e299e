"""The character sets of a server, and which characters they have: asked of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from penstock.capture.databases.mysql.charsets.charset import BINARY, Charset

__all__ = ["asked"]

_BETWEEN: Final = b"\n"
"""Between characters whose text is asked for: the same in all sets."""


def asked(ask: Callable[[str], list[dict[str, Any]]]) -> dict[str, Charset]:
    """Character sets by their names.

    Args:
        ask: gives the rows of a query. Of a set with several bytes for a character, it is asked when the
            first text is decoded.
    """
    sets = ask("SELECT CHARACTER_SET_NAME AS c, MAXLEN AS m FROM information_schema.CHARACTER_SETS")
    names = [one["c"] for one in sets if one["m"] == "1" and one["c"] != BINARY]
    all_bytes = bytes(range(256)).hex()
    found = ask(
        " UNION ALL ".join(
            f"SELECT '{one}' AS c, CONVERT(CONVERT(x'{all_bytes}' USING {one}) USING utf8mb4) AS t"
            for one in names
        )
    )
    characters = {one["c"]: one["t"] for one in found}
    return {
        name: Charset.of(
            name, characters.get(name, ""), functools.cache(partial(_several, ask, name))
        )
        for name in (str(one["c"]) for one in sets)
    }


def _several(ask: Callable[[str], list[dict[str, Any]]], charset: str) -> Mapping[bytes, str]:
    """The characters of a set with one to three bytes for each."""
    first, second = range(0x80, 0x100), range(0x40, 0x100)
    some = [bytes([one]) for one in range(0x100) if one != _BETWEEN[0]]
    some += [bytes([one, two]) for one in first for two in second]
    some += [b"\x8f" + bytes([one, two]) for one in first for two in first]
    all_ = _BETWEEN.join(some).hex()
    [found] = ask(f"SELECT CONVERT(CONVERT(x'{all_}' USING {charset}) USING utf8mb4) AS t")
    texts = str(found["t"]).split(_BETWEEN.decode())
    assert len(texts) == len(some), "a text for each character"
    # One that there isn't is a question mark, or several characters are it.
    known = zip(some, texts, strict=True)
    characters = {one: text for one, text in known if len(text) == 1 and text != "?"}
    return {**characters, b"?": "?", _BETWEEN: _BETWEEN.decode()}
