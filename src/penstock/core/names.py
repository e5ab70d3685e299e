"""What messages say about a user's program: names that were meant, and where something was built."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Final

__all__ = ["also_at", "built", "failed_at", "hint", "known_names", "natural", "place", "unknown"]

SHOWN_MAX: Final = 12  # names in a message: more hide the others
ALIKE_MIN: Final = 0.6  # of difflib's ratio: a slip of the finger or two
_PENSTOCK: Final = __file__.removesuffix("core/names.py")
_NOT_THEIRS: Final = ("<frozen ", "<string>", "/site-packages/", "importlib/")


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


def natural(name: str) -> tuple[list[str | int], str]:
    """A key that sorts names as people do: the numbers in them by their values.

    >>> sorted(["2026-01-01-10.json", "2026-01-01-2.json", "2026-01-01-0.json"], key=natural)
    ['2026-01-01-0.json', '2026-01-01-2.json', '2026-01-01-10.json']
    """
    parts = re.split(r"([0-9]+)", name)  # texts and numbers by turns
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], name


def unknown(kind: str, name: str, known: Iterable[str], advice: str) -> str:
    """The message about a name that nothing has.

    Args:
        kind: of what was asked for, such as "savepoint".
        name: that was asked for.
        known: the names that there are.
        advice: what to do if there are none.

    >>> unknown("savepoint", "nigthly", ["nightly"], "Create one")
    "expected one of the savepoints nightly; found 'nigthly' (did you mean 'nightly'?)"
    >>> unknown("savepoint", "nightly", [], "Create one")
    "expected the savepoint 'nightly'; found no savepoints. Create one"
    """
    names = list(known)
    if not names:
        return f"expected the {kind} {name!r}; found no {kind}s. {advice}"
    return f"expected one of the {kind}s {known_names(names)}; found {name!r}{hint(name, names)}"


def place() -> str:
    """The file and line of the user's code that calls us now; empty where there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way that is as cheap
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PENSTOCK) and not any(part in file for part in _NOT_THEIRS):
            return f"{file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def built(known: str) -> str:
    """Where something of the program was built, to stand behind its name; empty where that isn't known.

    >>> built("shop.py, line 7")
    ' (shop.py, line 7)'
    """
    return f" ({known})" if known else ""


def failed_at(error: BaseException, function: object) -> str:
    """Where a function of the user's failed: the last line of its own file, else the innermost one."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    last = (own or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def also_at(known: str) -> str:
    """A sentence that says where the other one is; empty where that isn't known.

    >>> also_at("shop.py, line 7")
    ' The other one is in shop.py, line 7.'
    """
    return f" The other one is in {known}." if known else ""
