"""Errors of SQL's syntax in own words, with their place: the parser's are about its own classes."""

from __future__ import annotations

import re
from typing import Final

from sqlglot.errors import ParseError, SqlglotError

from penstock.core.names import hint
from penstock.core.text.carets import caret
from penstock.sql.text.foreign import unread

__all__ = ["marked", "syntax_refusal", "unfinished"]

_BEGINNINGS: Final = ("SELECT", "WITH", "FROM", "VALUES", "PIVOT", "UNPIVOT", "SUMMARIZE", "TABLE")
_CLAUSES: Final = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER", "LIMIT", "UNION", "JOIN",
    "LEFT", "RIGHT", "INNER", "USING", "BETWEEN", "WHEN", "THEN", "ELSE", "WINDOW", "INTERVAL",
)  # fmt: skip
_OPENINGS: Final = {
    "'": ("'(?:[^']|'')*'", "' at the end of the text that begins here"),
    '"': ('"(?:[^"]|"")*"', '" at the end of the name that begins here'),
    "/*": (r"/\*.*?\*/", "*/ at the end of the comment that begins here"),
}
_PART: Final = re.compile(r"--[^\n]*|\w+|'|\"|/\*|\s+|.", re.DOTALL)
_WORD: Final = re.compile(r"\w+|'(?:[^']|'')*'|\"[^\"]*\"|\S")
_MISSING: Final = re.compile(r"Required keyword: '(\w+)' missing")
_EXPECTED: Final = re.compile(r"(?:Expecting|Expected) (?P<what>[^<]*?)(?: but got .*)?\.?")


def marked(text: str, place: tuple[int, int]) -> str:
    """The line of a text with carets below the word at a place, for the end of a message."""
    start = 0
    for _ in range(place[0] - 1):
        start = text.find("\n", start) + 1
    at = start + place[1] - 1
    word = _WORD.match(text, at)
    return caret(text, at, 1 if word is None else len(word[0]))


def unfinished(text: str) -> tuple[str, int] | None:
    """What is missing in a text that can't be cut into words, and where that begins."""
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        assert part is not None
        if part[0] in _OPENINGS:
            pattern, expected = _OPENINGS[part[0]]
            closed = re.compile(pattern, re.DOTALL).match(text, at)
            if closed is None:
                return f"expected {expected}; found the end of the program", at
            at = closed.end()
        else:
            at = part.end()
    return None


def syntax_refusal(error: SqlglotError, text: str) -> tuple[str, int | None]:
    """What is wrong with a query that can't be read, and where.

    Args:
        error: the parser's.
        text: the query.
    """
    if (open_part := unfinished(text)) is not None:
        return open_part
    if (form := unread(text)) is not None:
        return form.message, form.start
    first = _WORD.search(text)
    if first is not None and first[0][0] != "(" and first[0].upper() not in _BEGINNINGS:
        return (
            f"expected SELECT; found {first[0]!r}{hint(first[0].upper(), _BEGINNINGS)}",
            first.start(),
        )
    if not isinstance(error, ParseError) or not error.errors:
        return f"expected SQL; found what can't be read as such: {str(error).splitlines()[0]}", None
    told = error.errors[0]
    line, end, shown = told.get("line"), told.get("col"), str(told.get("highlight") or "")
    if not line or not end:
        return "expected SQL; found what can't be read as such", None
    start = 0
    for _ in range(int(line) - 1):
        start = text.find("\n", start) + 1
    at = max(start, start + int(end) - len(shown))
    return _said(str(told["description"]), text, at, shown), at


def _said(description: str, text: str, at: int, shown: str) -> str:
    """The parser's description in own words."""
    rest = text[at + len(shown) :].strip()
    found = f"found {shown!r}" if rest or shown else "found the end"
    if _MISSING.match(description):
        what = f"expected something after {shown!r}; found " + (
            repr(rest.split(maxsplit=1)[0]) if rest else "the end of the query"
        )
    elif (told := _EXPECTED.fullmatch(description)) is not None:
        named = told["what"].strip()
        what = f"expected {named!r}; {found}" if len(named) <= 2 else f"expected {named}; {found}"
    else:
        what = f"expected ',', an operator, a clause or the end of the query; {found}"
    before = _WORD.findall(text[:at])[-2:]
    for word in [*reversed(before), shown]:  # FORM for FROM is read as a name
        upper = word.upper()
        if upper.isalpha() and upper not in _CLAUSES and (like := hint(upper, _CLAUSES)):
            return f"{what}. {word!r}: {like.strip(' ()')}"
    return what
