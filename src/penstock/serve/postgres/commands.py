"""Statements that are the session's own: settings, transactions, cursors; what isn't SELECT."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from penstock.serve.texts.words import COMMENT, DOLLARS, ESCAPED, QUOTED

__all__ = ["Refused", "is_empty", "split", "words_of"]

_PART: Final = re.compile(f"{ESCAPED}|{QUOTED}|{DOLLARS}|{COMMENT}|;", re.DOTALL)
_NOTHING: Final = re.compile(rf"(?:[\s;]|{COMMENT})*+\Z", re.DOTALL)
_WORD: Final = re.compile(rf"{COMMENT}|({QUOTED}|[\w.]+|[^\s\w])", re.DOTALL)
_EXPLAIN: Final = re.compile(
    rf"(?:\s|{COMMENT})*+EXPLAIN\b\s*(?:\((?!\s*(?:SELECT|WITH|VALUES|TABLE|FROM)\b)(?P<options>[^()]*)\)"
    r"|(?P<analyze>ANALY[ZS]E\b)?\s*(?:VERBOSE\b)?)\s*",
    re.IGNORECASE | re.DOTALL,
)
WRITES: Final = frozenset(
    {
        "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER", "DROP", "TRUNCATE", "GRANT",
        "REVOKE", "COMMENT", "REINDEX", "VACUUM", "ANALYZE", "REFRESH", "LOCK", "CLUSTER",
    }
)  # fmt: skip


class Refused(Exception):  # noqa: N818 - it is what is answered, not a failure of ours
    """A statement that isn't answered, with PostgreSQL's code for why."""

    def __init__(self, code: str, message: str, routine: str = "") -> None:
        super().__init__(message)
        self.code, self.routine = code, routine


class Setting(NamedTuple):
    """What a session says or is asked about a setting."""

    name: str
    value: str | None


def split(text: str) -> list[str]:
    """The statements in a text, without empty ones.

    >>> split("SELECT ';'; /* done; */ COMMIT;")
    ["SELECT ';'", ' /* done; */ COMMIT']
    """
    found, begin = [], 0
    for match in _PART.finditer(text):
        if match[0] == ";":
            found.append(text[begin : match.start()])
            begin = match.end()
    found.append(text[begin:])
    return [one for one in found if not is_empty(one)]


def is_empty(statement: str) -> bool:
    """Whether there is nothing in it but space and comments."""
    return _NOTHING.match(statement) is not None


def words_of(statement: str) -> list[str]:
    """A statement's words; quoted ones keep their quotes."""
    return [word for word in _WORD.findall(statement) if word]


def explaining(query: str) -> tuple[Literal["", "plan", "analyze"], str]:
    """What of a query's plan is asked for, and the query.

    Raises:
        Refused: with options that aren't served.

    >>> explaining("EXPLAIN (ANALYZE, COSTS off) SELECT 1")
    ('analyze', 'SELECT 1')
    >>> explaining("EXPLAIN (SELECT 1)")
    ('plan', '(SELECT 1)')
    """
    match = _EXPLAIN.match(query)
    if match is None:
        return "", query
    words = [one.strip().upper().split() for one in (match["options"] or "").split(",")]
    options = {one[0]: " ".join(one[1:]) or "TRUE" for one in words if one}
    if options.get("FORMAT", "TEXT") != "TEXT":
        raise Refused("0A000", f"expected EXPLAIN (FORMAT TEXT); found {options['FORMAT']}")
    runs = options.get("ANALYZE", "FALSE") in ("TRUE", "ON", "1") or match["analyze"]
    return "analyze" if runs else "plan", query[match.end() :]


def name_of(word: str) -> str:
    """A name without its quotes; without quotes it is in small letters."""
    return unquoted(word) if word.startswith('"') else word.lower()


def unquoted(word: str) -> str:
    """A text without its quotes."""
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1].replace(word[0] * 2, word[0])
    return word


def setting_of(words: list[str]) -> Setting:
    """What `SET name = value` says; the value is None for DEFAULT.

    Raises:
        Refused: it is none.
    """
    rest = [one for one in words[1:] if one.upper() not in ("LOCAL", "SESSION")] or [""]
    if [one.upper() for one in rest[:2]] == ["TIME", "ZONE"]:
        return Setting("timezone", unquoted(" ".join(rest[2:])))
    if len(rest) < 3 or rest[1].upper() not in ("=", "TO"):
        raise Refused("42601", "expected SET name = value; found something else")
    value = "".join(rest[2:]) if len(rest) == 3 else " ".join(map(unquoted, rest[2:]))
    return Setting(rest[0].lower(), None if value.upper() == "DEFAULT" else unquoted(value))
