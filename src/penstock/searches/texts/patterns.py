"""Prefixes, wildcards, regular expressions, fuzzy terms and ranges of texts: which terms they match.

A pattern says what each of its terms begins with, or has inside, where it says that. So most terms are not
compared: the others are found by joins (`likeness`).

Fuzzy terms: the distance of Damerau and Levenshtein, restricted to one swap of neighbours (optimal
string alignment), as Lucene's automata have it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.searches.texts.likeness import GRAM, alike, having

__all__ = ["Pattern", "Patterns", "of_fuzzy", "of_prefix", "of_range", "of_regex", "of_wildcard"]

_BEHIND_ALL: Final = "\U0010ffff"
_QUANTIFIERS: Final = frozenset("*+?{")
_CLASSES: Final = frozenset("dDwWsS")
_NOT_HERE: Final = {"~": "complement", "&": "intersection", "<": "interval"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A set of terms.

    Attributes:
        prefix: each of them begins with it.
        regex: each matches it, as RE2 has it; empty: all that the rest allows.
        inside: each has it somewhere.
        fuzzy: each is like it, by `edits` at most; empty: no such condition.
        edits: from 0 to 2.
        low: the least of them, or what comes before it; None: no bound.
        high: the greatest, or what comes behind it.
        includes_low: whether the bound itself is one.
        includes_high: the same.
    """

    prefix: str = ""
    regex: str = ""
    inside: str = ""
    fuzzy: str = ""
    edits: int = 0
    low: str | None = None
    high: str | None = None
    includes_low: bool = True
    includes_high: bool = True

    @property
    def is_range(self) -> bool:
        """Whether terms are only compared with bounds."""
        return self.low is not None or self.high is not None

    @property
    def literal_chars(self) -> int:
        """How many characters in a row are known of each term."""
        return max(len(self.prefix), len(self.inside), len(self.fuzzy) // (2 * self.edits + 1))


def of_prefix(text: str) -> Pattern:
    """Terms that begin so."""
    return Pattern(prefix=text)


def of_range(low: str | None, high: str | None, *, includes: tuple[bool, bool]) -> Pattern:
    """Terms between two."""
    return Pattern(low=low, high=high, includes_low=includes[0], includes_high=includes[1])


def of_fuzzy(text: str, edits: int) -> Pattern:
    """Terms like one."""
    return Pattern(fuzzy=text, edits=edits)


def of_wildcard(text: str, normalized: Callable[[str], str]) -> Pattern:
    r"""Terms that a text with `?` and `*` matches; `\` takes a character's meaning.

    >>> found = of_wildcard("W?nd*", str.lower)
    >>> found.prefix, found.regex, found.inside
    ('w', '(?s)w.nd.*', 'nd')
    """
    parts: list[str | None] = []  # None between texts: a wildcard
    made: list[str] = []
    literal = ""
    for found in re.finditer(r"\\(.)|([*?])|([^\\*?]+)", text, re.DOTALL):
        if found[2] is None:
            literal += found[1] or found[3]
            continue
        parts += [literal, None]
        made += [re.escape(normalized(literal)), ".*" if found[2] == "*" else "."]
        literal = ""
    parts.append(literal)
    made.append(re.escape(normalized(literal)))
    texts = [normalized(one) for one in parts if one is not None]
    inside = max(texts[1:], key=len)
    if inside and made == ["", ".*", re.escape(inside), ".*", ""]:
        return Pattern(inside=inside)
    return Pattern(prefix=texts[0], regex="(?s)" + "".join(made), inside=inside)


def of_regex(text: str, normalized: Callable[[str], str]) -> Pattern:
    """Terms that a regular expression of Lucene's matches as a whole.

    Raises:
        ValueError: it can't be read; what is wrong.
    """
    made: list[str] = []
    prefix = ""
    is_plain = "|" not in text
    at = 0
    while at < len(text):
        piece, literal, at = _piece(text, at, normalized)
        if is_plain and literal is not None and text[at : at + 1] not in _QUANTIFIERS:
            prefix += literal
        else:
            is_plain = False
        made.append(piece)
    regex = f"(?s){''.join(made)}" if "|" not in text else f"(?s)(?:{''.join(made)})"
    try:
        pc.match_substring_regex(pa.array([""]), pattern=_whole(regex))
    except pa.ArrowInvalid as error:
        reason = str(error).partition("RE2: ")[2] or str(error)
        raise ValueError(reason.strip()) from None
    return Pattern(prefix=prefix, regex=regex)


def _piece(text: str, at: int, normalized: Callable[[str], str]) -> tuple[str, str | None, int]:
    """The next piece of an expression in RE2's syntax, the text that it stands for, and what is behind."""
    one = text[at]
    if one == "\\":
        following = text[at + 1 : at + 2]
        if not following:
            raise ValueError("a character is missing behind the last '\\'")
        if following in _CLASSES:
            return "\\" + following, None, at + 2
        return re.escape(normalized(following)), normalized(following), at + 2
    if one == '"':
        end = text.find('"', at + 1)
        if end < 0:
            raise ValueError("a '\"' is missing")
        literal = normalized(text[at + 1 : end])
        return f"(?:{re.escape(literal)})", literal, end + 1
    if one in _NOT_HERE:
        raise ValueError(
            f"'{one}' ({_NOT_HERE[one]}) isn't supported. For the character, write '\\{one}'"
        )
    if one == "@":
        return ".*", None, at + 1
    if one == "#":
        return r"[^\x{0}-\x{10FFFF}]", None, at + 1
    if one == "[":
        end = text.find("]", at + 2)
        if end < 0:
            raise ValueError("a ']' is missing")
        return "[" + normalized(text[at + 1 : end]).replace("[", "\\["), None, end
    if one in "^$":
        return "\\" + one, one, at + 1
    if one in "]().*+?{}|,-" or one.isdigit():
        return one, None, at + 1
    return re.escape(normalized(one)), normalized(one), at + 1


def _whole(regex: str) -> str:
    return f"^(?:{regex})$" if regex else ""


class Patterns:
    """Patterns with a number each, and the terms that they match."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[int]] = {}
        self._lengths: set[int] = set()
        self._inside: list[int] = []
        self._ranges: list[int] = []
        self._fuzzy: dict[int, list[int]] = {}
        self._all: list[int] = []
        self._patterns: dict[int, Pattern] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, number: int, pattern: Pattern) -> None:
        """One more."""
        self._patterns[number] = pattern
        if pattern.is_range:
            self._ranges.append(number)
        elif pattern.fuzzy:
            self._fuzzy.setdefault(pattern.edits, []).append(number)
        elif pattern.prefix:
            self._by_prefix.setdefault(pattern.prefix, []).append(number)
            self._lengths.add(len(pattern.prefix))
        elif len(pattern.inside) >= GRAM:
            self._inside.append(number)
        else:
            self._all.append(number)

    def hits(self, terms: Sequence[str]) -> tuple[list[int], list[int]]:
        """Each pair of a term and a pattern that matches it.

        Returns:
            The terms' places in `terms`, and the patterns' numbers.
        """
        places: list[int] = []
        numbers: list[int] = []
        if not terms or not self._patterns:
            return places, numbers
        for number, found in self._found(terms):
            places.extend(found)
            numbers.extend([number] * len(found))
        return places, numbers

    def _found(self, terms: Sequence[str]) -> Iterator[tuple[int, Sequence[int]]]:
        guarded = self._with_prefix(terms)
        if self._inside or self._all:
            guarded = [*guarded, *self._with_inside(terms)]
        for number, among in guarded:
            regex = self._patterns[number].regex
            if not regex:
                yield number, among
                continue
            texts = pa.array([terms[i] for i in among], pa.string())
            fits: Any = pc.match_substring_regex(texts, pattern=_whole(regex))
            yield number, [i for i, fit in zip(among, fits.to_pylist(), strict=True) if fit]
        if self._ranges:
            order = sorted(range(len(terms)), key=terms.__getitem__)
            in_order = [terms[i] for i in order]
            for number in self._ranges:
                yield number, order[_between(self._patterns[number], in_order)]
        if self._fuzzy:
            yield from self._alike(terms)

    def _with_prefix(self, terms: Sequence[str]) -> list[tuple[int, list[int]]]:
        """Of each pattern with a beginning, the terms that have it."""
        if not self._by_prefix:
            return []
        if len(self._by_prefix) < len(terms):
            order = sorted(range(len(terms)), key=terms.__getitem__)
            sorted_terms = [terms[i] for i in order]
            found = [
                (
                    prefix,
                    order[
                        bisect_left(sorted_terms, prefix) : bisect_left(
                            sorted_terms, prefix + _BEHIND_ALL
                        )
                    ],
                )
                for prefix in self._by_prefix
            ]
        else:
            of_prefix: dict[str, list[int]] = {}
            for i, term in enumerate(terms):
                for length in self._lengths:
                    if length <= len(term) and term[:length] in self._by_prefix:
                        of_prefix.setdefault(term[:length], []).append(i)
            found = list(of_prefix.items())
        return [
            (number, among)
            for prefix, among in found
            if among
            for number in self._by_prefix[prefix]
        ]

    def _with_inside(self, terms: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """Of each other pattern, the terms that have the text inside it."""
        texts = [self._patterns[number].inside for number in self._inside]
        if texts:
            for which, among in _grouped(*having(terms, texts)):
                yield self._inside[which], [i for i in among if texts[which] in terms[i]]
        for number in self._all:
            inside = self._patterns[number].inside
            yield number, [i for i, term in enumerate(terms) if inside in term]

    def _alike(self, terms: Sequence[str]) -> Iterator[tuple[int, Sequence[int]]]:
        """Of each fuzzy pattern, the terms that are like it."""
        for edits, numbers in self._fuzzy.items():
            texts = [self._patterns[number].fuzzy for number in numbers]
            for which, among in _grouped(*alike(terms, texts, edits)):
                yield numbers[which], among


def _grouped(numbers: Any, places: Any) -> Iterator[tuple[int, list[int]]]:
    """Pairs in the order of their first, by that."""
    if len(numbers):
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            yield int(numbers[begin]), places[begin:end].tolist()


def _between(pattern: Pattern, terms: Sequence[str]) -> slice:
    """The stretch of sorted terms that a range has."""
    low, high = 0, len(terms)
    if pattern.low is not None:
        find = bisect_left if pattern.includes_low else bisect_right
        low = find(terms, pattern.low)
    if pattern.high is not None:
        find = bisect_right if pattern.includes_high else bisect_left
        high = find(terms, pattern.high)
    return slice(low, max(low, high))
