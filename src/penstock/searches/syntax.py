"""Lucene's classic query syntax, from text to a tree.

What it means is what Lucene's own parser makes of it (`org.apache.lucene.queryparser.classic`), in this
respect too: `AND` and `OR` don't nest, but make their neighbours necessary or optional, so that
`a AND b OR c` is `+a +b c`. Parentheses say what else is meant. Besides Lucene's:

- a group that only has negations matches all other documents, as in Elasticsearch, instead of none;
- `(a b c)@2` is a group of which two must match, as in Lucene's standard parser;
- `field:>5`, `>=`, `<` and `<=` are ranges, as in Elasticsearch; `field:-5` is a number;
- `field:distance(…)`, `field:box(…)` and `field:nested(…)`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from penstock.errors import SearchError
from penstock.searches.tree import (
    All,
    Boolean,
    Boost,
    Box,
    Distance,
    Exists,
    Fuzzy,
    Nested,
    Phrase,
    Prefix,
    Query,
    Range,
    Regex,
    Term,
    Wildcard,
)

__all__ = ["CHARS_MAX", "CLAUSES_MAX", "DEPTH_MAX", "parse", "unescaped"]

CHARS_MAX: Final = 32_768
"""Characters of a query: more than people write, and few enough that one can't take a batch's time."""
CLAUSES_MAX: Final = 1024
"""Parts of a query, as in Lucene."""
DEPTH_MAX: Final = 50
"""Parentheses in each other: a reader of trees takes a frame of Python's stack for each."""
EDITS_MAX: Final = 2
"""Of a fuzzy term, as in Lucene: with three edits nearly all short words are alike."""

_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(
    r'(?:\\.|[^\s+\-!():^\[\]"{}~\\/])(?:\\.|[^\s!():^\[\]"{}~\\/])*', re.DOTALL
)
_QUOTED: Final = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_REGEX: Final = re.compile(r"/((?:\\.|[^/\\])*)/", re.DOTALL)
_BOUND: Final = re.compile(r'"((?:\\.|[^"\\])*)"|((?:\\.|[^\s\]}"\\])+)', re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_COMPARED: Final = re.compile(r'(>=?|<=?)\s*(?:"((?:\\.|[^"\\])*)"|((?:\\.|[^\s()"\\])+))')
_NEGATIVE: Final = re.compile(r"-[0-9]+(?:\.[0-9]+)?(?=[\s)^]|$)")
_FUNCTION: Final = re.compile(r"(distance|box|nested)\(")
_NUMBERS: Final = re.compile(r"[^()]*\)")
_LENGTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(mm|cm|m|km|mi|nmi|yd|ft|in)?")
_METRES: Final = {
    "mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0, "yd": 0.9144,
    "ft": 0.3048, "in": 0.0254,
}  # fmt: skip
_WORDS: Final = {"AND": "AND", "&&": "AND", "OR": "OR", "||": "OR", "NOT": "NOT"}
_SPECIAL: Final = frozenset("*?")


def parse(text: str, *, operator: str = "OR") -> Query:
    """Reads a query.

    Args:
        text: in Lucene's syntax.
        operator: `OR` or `AND`: what stands between words that have nothing between them.

    Raises:
        SearchError: it can't be read; `at` says where.

    >>> parse("title:storm^2 +sea")
    Boolean(must=(Term(name=None, text='sea', every=False, at=15),), \
should=(Boost(query=Term(name='title', text='storm', every=False, at=0), factor=2.0, at=0),), \
must_not=(), minimum=None, at=0)
    """
    if len(text) > CHARS_MAX:
        raise SearchError(
            f"expected a query of at most {CHARS_MAX:,} characters; found {len(text):,}. Split it",
            CHARS_MAX,
        )
    reader = _Reader(text, is_and=operator.upper() == "AND")
    found = reader.query(None, 0)
    if reader.at < len(text):
        raise reader.error("expected the end of the query, or '(' before this ')'", reader.at)
    return found


def unescaped(text: str) -> str:
    r"""A text in which `\` gives the next character no meaning, and `\u0041` is a character's number.

    >>> unescaped(r"1\+1\u003d2")
    '1+1=2'
    """
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)


class _Reader:
    """A text, and how far it was read.

    Args:
        text: the query's.
        is_and: words that have nothing between them are all necessary.
    """

    def __init__(self, text: str, *, is_and: bool) -> None:
        self.text = text
        self.at = 0
        self.is_and = is_and
        self.clauses = 0

    def error(self, expected: str, at: int) -> SearchError:
        """A mistake at a character."""
        found = "the end of the query" if at >= len(self.text) else repr(self.text[at : at + 20])
        return SearchError(f"{expected}; found {found} at character {at + 1}", at)

    def blanks(self) -> None:
        """Reads what separates words."""
        found = _BLANKS.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def takes(self, text: str) -> bool:
        """Reads a text, if it is next."""
        is_next = self.text.startswith(text, self.at)
        self.at += len(text) if is_next else 0
        return is_next

    def query(self, name: str | None, depth: int) -> Query:
        """Clauses, to a closing parenthesis or to the end.

        As `QueryParserBase.addClause` does, a conjunction decides what the clause before it is, too.
        """
        begin = self.at
        if depth > DEPTH_MAX:
            raise self.error(f"expected at most {DEPTH_MAX} parentheses in each other", begin)
        clauses: list[tuple[str, Query]] = []
        while True:
            self.blanks()
            if self.at == len(self.text) or self.text[self.at] == ")":
                break
            conjunction = self.conjunction() if clauses else ""
            occurs = self.modifier()
            clause = self.clause(name, depth)
            if conjunction == "AND" and clauses[-1][0] != "-":
                clauses[-1] = "+", clauses[-1][1]
            elif conjunction == "OR" and self.is_and and clauses[-1][0] != "-":
                clauses[-1] = "", clauses[-1][1]
            if conjunction == "AND" or (self.is_and and conjunction != "OR"):
                occurs = occurs or "+"
            clauses.append((occurs, clause))
        if not clauses:
            raise self.error("expected a query", self.at)
        if len(clauses) == 1 and clauses[0][0] != "-":
            return clauses[0][1]
        must, should, not_ = (
            tuple(one for occurs, one in clauses if occurs == kind) for kind in ("+", "", "-")
        )
        return Boolean(must, should, not_, at=begin)

    def conjunction(self) -> str:
        """`AND`, `OR` or nothing, before a clause that isn't the first."""
        found = _WORD.match(self.text, self.at)
        word = _WORDS.get(found[0], "") if found else ""
        if word in ("AND", "OR") and found:
            self.at = found.end()
            self.blanks()
            return word
        return ""

    def modifier(self) -> str:
        """`+` of a clause that must match, `-` of one that must not."""
        found = _WORD.match(self.text, self.at)
        if found and found[0] == "NOT":
            self.at = found.end()
        elif self.takes("+"):
            self.blanks()
            return "+"
        elif not self.takes("-") and not self.takes("!"):
            return ""
        self.blanks()
        return "-"

    def clause(self, name: str | None, depth: int) -> Query:
        """A word, a phrase, a range or a group, with a field before and a boost behind."""
        self.clauses += 1
        begin = self.at
        if self.clauses > CLAUSES_MAX:
            raise self.error(f"expected at most {CLAUSES_MAX} parts of a query", begin)
        if self.takes("*:*"):
            return self.boosted(All(begin), begin)
        found = _WORD.match(self.text, self.at)
        if found and self.text[found.end() : found.end() + 1] == ":":
            name = unescaped(found[0])
            self.at = found.end() + 1
            self.blanks()
            special = self.of_field(name, begin, depth)
            if special is not None:
                return self.boosted(special, begin)
        if self.takes("("):
            made = self.query(name, depth + 1)
            if not self.takes(")"):
                raise self.error("expected ')' of the '(' at character " + str(begin + 1), self.at)
            return self.boosted(self.least(made), begin)
        return self.boosted(self.leaf(name, begin), begin)

    def of_field(self, name: str, begin: int, depth: int) -> Query | None:
        """What only a field can have: a comparison, a negative number or a function."""
        compared = _COMPARED.match(self.text, self.at)
        if compared:
            self.at = compared.end()
            sign = compared[1]
            bound = unescaped(compared[2] if compared[2] is not None else compared[3])
            inclusive = sign.endswith("=")
            if sign[0] == ">":
                return Range(name, bound, None, includes_low=inclusive, at=begin)
            return Range(name, None, bound, includes_high=inclusive, at=begin)
        negative = _NEGATIVE.match(self.text, self.at)
        if negative:
            self.at = negative.end()
            return Term(name, negative[0], self.is_and, begin)
        function = _FUNCTION.match(self.text, self.at)
        if function is None:
            return None
        self.at = function.end()
        if function[1] == "nested":
            inner = self.query(None, depth + 1)
            if not self.takes(")"):
                raise self.error("expected ')' of 'nested('", self.at)
            return Nested(name, inner, begin)
        return self.geo(name, function[1], begin)

    def geo(self, name: str, function: str, begin: int) -> Query:
        """The arguments of `distance` and `box`."""
        at = self.at
        found = _NUMBERS.match(self.text, at)
        parts = [one.strip() for one in found[0][:-1].split(",")] if found else []
        wanted = "distance(latitude, longitude, 10km)"
        if function == "box":
            wanted = "box(top, left, bottom, right)"
        try:
            *numbers, last = parts
            values = [float(one) for one in numbers]
            if function == "box":
                values.append(float(last))
                top, left, bottom, right = values
                fits = -90 <= bottom <= top <= 90 and -180 <= left <= 180 and -180 <= right <= 180
                made: Query = Box(name, top, left, bottom, right, begin)
            else:
                length = _LENGTH.fullmatch(last)
                latitude, longitude = values
                fits = length is not None and -90 <= latitude <= 90 and -180 <= longitude <= 180
                metres = float(length[1]) * _METRES[length[2] or "m"] if length else 0.0
                made = Distance(name, latitude, longitude, metres, begin)
        except ValueError:
            raise self.error(f"expected {wanted}", at) from None
        if not fits:
            raise self.error(f"expected {wanted}, in degrees", at)
        self.at = found.end() if found else at
        return made

    def least(self, made: Query) -> Query:
        """How many parts of a group must match: `@2` behind it."""
        at = self.at
        if not self.takes("@"):
            return made
        found = _NUMBER.match(self.text, self.at)
        if found is None or "." in found[0]:
            raise self.error("expected how many must match, such as (a b c)@2", at)
        self.at = found.end()
        if not isinstance(made, Boolean):
            made = Boolean(should=(made,), at=at)
        return replace(made, minimum=int(found[0]))

    def leaf(self, name: str | None, begin: int) -> Query:
        """What has no parts."""
        at = self.at
        if self.text.startswith(("[", "{"), at):
            return self.range(name, begin)
        if self.text.startswith('"', at):
            quoted = _QUOTED.match(self.text, at)
            if quoted is None:
                raise self.error("expected '\"' at the end of the phrase", at)
            self.at = quoted.end()
            return Phrase(name, unescaped(quoted[1]), self.slop(), begin)
        if self.text.startswith("/", at):
            regex = _REGEX.match(self.text, at)
            if regex is None:
                raise self.error("expected '/' at the end of the expression, or '\\/'", at)
            self.at = regex.end()
            return Regex(name, regex[1], begin)
        word = _WORD.match(self.text, at)
        if word is None or word[0] in _WORDS:
            raise self.error("expected a word, a phrase or '('", at)
        self.at = word.end()
        return self.word(name, word[0], begin)

    def word(self, name: str | None, raw: str, begin: int) -> Query:
        """A term, or a pattern of terms."""
        plain = _ESCAPE.sub("", raw)
        if _SPECIAL.isdisjoint(plain):
            edits = self.edits(unescaped(raw))
            if edits is not None:
                return Fuzzy(name, unescaped(raw), edits, begin)
            return Term(name, unescaped(raw), self.is_and, begin)
        if self.text.startswith("~", self.at):
            raise self.error("expected no '~' behind a word with '*' or '?'", self.at)
        if raw == "*":
            return Exists(name, begin)
        if raw.endswith("*") and _SPECIAL.isdisjoint(plain[:-1]):
            return Prefix(name, unescaped(raw[:-1]), begin)
        return Wildcard(name, raw, begin)

    def edits(self, word: str) -> int | None:
        """`~`, `~1`; `~0.7` is a likeness, from which the number of edits follows as in Lucene."""
        at = self.at
        if not self.takes("~"):
            return None
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            return EDITS_MAX
        self.at = found.end()
        value = float(found[0])
        if 0 < value < 1:
            return min(
                int((1 - float(np.float32(value))) * len(word)), EDITS_MAX
            )  # as Lucene rounds
        if value > EDITS_MAX or value != int(value):
            raise self.error(f"expected 0, 1 or {EDITS_MAX} edits behind '~'", at)
        return int(value)

    def slop(self) -> int:
        """`~2` behind a phrase."""
        at = self.at
        if not self.takes("~"):
            return 0
        found = _NUMBER.match(self.text, self.at)
        if found is None or float(found[0]) > CHARS_MAX:
            raise self.error("expected a number of positions behind '~', such as \"a b\"~2", at)
        self.at = found.end()
        return int(float(found[0]))

    def range(self, name: str | None, begin: int) -> Query:
        """`[low TO high]`, and `{low TO high}` without the bounds themselves."""
        wanted = "expected a range such as [a TO b], {a TO b} or [a TO *]"
        includes_low = self.text[self.at] == "["
        at = self.at
        self.at += 1
        bounds: list[str | None] = []
        for last in (False, True):
            self.blanks()
            found = _BOUND.match(self.text, self.at)
            if found is None:
                raise self.error(wanted, at)
            self.at = found.end()
            bounds.append(
                unescaped(found[1])
                if found[1] is not None
                else (None if found[2] == "*" else unescaped(found[2]))
            )
            self.blanks()
            if not last and not self.takes("TO"):
                raise self.error(wanted, at)
        closing = self.text[self.at : self.at + 1]
        if closing not in ("]", "}") or not closing:
            raise self.error(wanted, at)
        self.at += 1
        return Range(name, bounds[0], bounds[1], includes_low, closing == "]", begin)

    def boosted(self, made: Query, begin: int) -> Query:
        """`^2` behind a clause."""
        at = self.at
        if not self.takes("^"):
            return made
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.error("expected a number behind '^'", at)
        self.at = found.end()
        return Boost(made, float(found[0]), begin)
