"""Names that people get wrong: what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["hint", "known_names"]

SHOWN_MAX: Final = 12  # names in a message: more hide the others
ALIKE_MIN: Final = 0.6  # of difflib's ratio: a slip of the finger or two


def hint(name: object, known: Iterable[str]) -> str:
    """What was probably meant, to stand behind the name that was found; empty where nothing is like it.

    >>> hint("usr", ["user", "url"])
    " (did you mean 'user'?)"
    """
    names = list(known)
    if not isinstance(name, str):
        return ""
    by_lower = {one.lower(): one for one in names}
    alike = difflib.get_close_matches(name.lower(), by_lower, 1, ALIKE_MIN)
    return f" (did you mean {by_lower[alike[0]]!r}?)" if alike else ""


def known_names(known: Iterable[str]) -> str:
    """The names that there are, for messages: all, or some and how many more.

    >>> known_names(["user", "url"])
    'user, url'
    """
    names = list(known)
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "") or "none"
