"""Where in a text a mistake is: the line, and a caret below it, as DuckDB and PostgreSQL show it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["caret", "line_and_column"]

_PASSWORD: Final = re.compile(r"(://[^\s/'@:]*:)([^\s'@]+)(?=@)")
"""Of an address in a text. It is hidden by as many characters: the caret stays where it is."""
LINE_CHARS_MAX: Final = 120  # of a long line only what surrounds the mistake is shown


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """The line and the column of a character, both from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def caret(query: str, begin: int, length: int = 1) -> str:
    r"""The line of a query that has a character, and carets below, behind an empty line.

    Args:
        query: as it was written.
        begin: the first character, from 0.
        length: how many are marked.

    >>> print(caret("SELECT 1\nFORM v", 9, 4).strip())
    LINE 2: FORM v
            ^^^^
    >>> print(caret("INTO 'redis://a:pw@b'", 0, 4).strip())
    LINE 1: INTO 'redis://a:**@b'
            ^^^^
    """
    begin = max(0, min(begin, len(query)))
    number = query.count("\n", 0, begin) + 1
    start = query.rfind("\n", 0, begin) + 1
    line = query[start:].split("\n", 1)[0]
    line = _PASSWORD.sub(lambda found: found[1] + "*" * len(found[2]), line)
    at = begin - start
    cut = max(0, at - LINE_CHARS_MAX // 2)
    shown = line[cut : cut + LINE_CHARS_MAX]
    head = f"LINE {number}: " + ("…" if cut else "")
    # A tabulator stays one: the caret is below its character then.
    before = "".join("\t" if one == "\t" else " " for one in shown[: at - cut])
    marks = "^" * max(1, min(length, len(shown) - (at - cut)))
    return f"\n\n{head}{shown}\n{' ' * len(head)}{before}{marks}"
