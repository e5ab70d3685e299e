"""Row patterns in a WINDOW clause (SQL:2016, feature R020), as they are written; and the query without them.

SELECT x OVER w … WINDOW w AS (PARTITION BY k ORDER BY at MEASURES … ROWS … PATTERN (a b+) DEFINE …)
->  SELECT measure_of_pattern(x) OVER w … WINDOW w AS ("match_recognize 0" PARTITION BY k ORDER BY at)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from penstock.expr.walks import find_all
from penstock.sql.text.matches import (
    CLAUSE,
    Clause,
    Reader,
    Word,
    blanked,
    refuse,
    without_clauses,
    words_of,
)

__all__ = [
    "MEASURE",
    "PatternWindow",
    "around_windows",
    "with_pattern_windows",
    "without_insides",
    "without_windows",
]

MEASURE: Final = "measure_of_pattern"
"""The function that a measure of a window becomes."""
_FRAME: Final = "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"
_CLAUSES: Final = (
    "PARTITION BY", "ORDER BY", "MEASURES", _FRAME, "AFTER MATCH SKIP", "INITIAL", "SEEK", "PATTERN",
    "WITHIN", "KEEP", "CORRECT", "SUBSET", "DEFINE",
)  # fmt: skip
_FIRST: Final = ("PARTITION", "ORDER", "MEASURES", "ROWS", "AFTER", "INITIAL", "SEEK", "PATTERN")


@dataclass(frozen=True)
class PatternWindow:
    """A window with a pattern.

    Attributes:
        name: of it.
        opening: its opening parenthesis in the query, from 0.
        clause: what it says.
    """

    name: str
    opening: int
    clause: Clause


class _Reader(Reader):
    """Reads what is in a window's parentheses.

    Attributes:
        frame: whether the frame was there.
        end_of_order: in the query, behind ORDER BY.
    """

    clauses: ClassVar[tuple[str, ...]] = _CLAUSES

    def __init__(self, text: str, words: Sequence[Word], opening: int) -> None:
        super().__init__(text, words, opening - 1)
        self.has_frame, self.end_of_order = False, words[opening].end

    def taken(self, made: Clause, head: str) -> Clause:
        """See `Reader`."""
        word = self.words[self.at - 1]
        if head == _FRAME:
            self.has_frame = True
            return made
        if head == "SEEK":
            refuse(
                "expected INITIAL, or nothing, before PATTERN in a window; found SEEK. A match then begins "
                "at the row itself",
                word.start,
            )
        if head == "INITIAL":
            return made
        made = super().taken(made, head)
        if head in ("PARTITION BY", "ORDER BY"):
            self.end_of_order = self.words[self.at - 1].end
        if head == "AFTER MATCH SKIP" and made.after.text != "past last row":
            refuse(
                "expected AFTER MATCH SKIP PAST LAST ROW in a window, or nothing; found "
                f"{made.after.text.upper()}. FROM t MATCH_RECOGNIZE (…) has the other forms",
                made.after.start,
            )
        return made


def without_windows(text: str, dialect: str) -> tuple[str, list[PatternWindow]]:
    """A query with spaces in place of what is about patterns in its WINDOW clauses, and these windows.

    Raises:
        SchemaError: one can't be read; `at` is where.
    """
    if not re.search(r"\bwindow\b.*\bpattern\b", text, re.IGNORECASE | re.DOTALL):
        return text, []
    words = list(words_of(text, dialect))
    windows = []
    for at, word in enumerate(words):
        if word.text == "(" and _is_window(words, at):
            reader = _Reader(text, words, at)
            clause = reader.clause()
            if not reader.has_frame:
                refuse(f"expected {_FRAME} in a window with a pattern; found none", word.start)
            windows.append(PatternWindow(words[at - 2].name, word.start, clause))
            text = blanked(text, reader.end_of_order, clause.end - 1)
    return text, windows


def without_insides(text: str) -> str:
    """A program with spaces in place of what only patterns have: it can be cut into words."""
    rest, clauses = without_clauses(text, "duckdb")
    rest, _ = without_windows(rest, "duckdb")
    for one in clauses:  # the end of a query may be that of a clause
        rest = f"{rest[: one.end - 1]}){rest[one.end :]}"
        rest = f"{rest[: one.start]}({rest[one.start + 1 :]}"
    return rest


def _is_window(words: Sequence[Word], at: int) -> bool:
    """Whether a parenthesis opens the definition of a window with a pattern."""
    before = [one.upper for one in words[max(0, at - 3) : at]]
    if len(before) < 3 or before[0] not in ("WINDOW", ",") or before[2] != "AS":
        return False
    if at + 1 >= len(words) or words[at + 1].upper not in _FIRST:
        return False
    depth = 0
    for i in range(at, len(words) - 1):
        depth += (words[i].text == "(") - (words[i].text == ")")
        if not depth:
            return False
        if depth == 1 and words[i].upper == "PATTERN" and words[i + 1].text == "(":
            return True
    return False


def around_windows(tokens: list[Token], windows: Sequence[PatternWindow]) -> list[Token]:
    """A query's words with a mark in each window that had a pattern, and calls around their measures."""
    numbers = {one.opening: number for number, one in enumerate(windows)}
    names = {one.name.lower() for one in windows}
    made: list[Token] = []
    for at, token in enumerate(tokens):
        after = tokens[at + 1 : at + 3]
        is_measure = (
            token.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
            and [one.text.lower() for one in after][:1] == ["over"]
            and after[-1].text.lower() in names
        )
        if is_measure:
            made += [
                _like(token, TokenType.VAR, MEASURE),
                _like(token, TokenType.L_PAREN, "("),
                token,
                _like(token, TokenType.R_PAREN, ")"),
            ]
            continue
        made.append(token)
        if token.start in numbers and token.token_type == TokenType.L_PAREN:
            mark = f"{CLAUSE} {numbers[token.start]}"
            made.append(_like(token, TokenType.IDENTIFIER, mark))
    return made


def _like(token: Token, kind: TokenType, text: str) -> Token:
    """A word at the place of another."""
    return Token(kind, text, token.line, token.col, token.start, token.end)


def with_pattern_windows(tree: exp.Expr, windows: Sequence[PatternWindow]) -> exp.Expr:
    """A query whose windows have their patterns, in place of marks."""
    marks = {f"{CLAUSE} {number}": one for number, one in enumerate(windows)}
    for select in find_all(tree, exp.Select):
        for window in select.args.get("windows") or []:
            found = marks.get(window.alias)
            if found is not None:
                window.set("alias", None)
                window.set(CLAUSE, found.clause)
    return tree
