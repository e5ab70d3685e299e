"""Prefixes, wildcards, regular expressions, fuzzy terms and ranges of texts: which terms they match.

A pattern says what each of its terms begins with, or has inside, where it says that. So most terms are not
compared: those with the beginning are found by it, and those with a text inside by one search through all
terms, one behind another.

Source of fuzzy terms: the distance of Damerau and Levenshtein, restricted to one swap of neighbours (optimal
string alignment), as Lucene's automata have it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.kernels import njit, types

__all__ = ["Pattern", "Patterns", "of_fuzzy", "of_prefix", "of_range", "of_regex", "of_wildcard"]

_BEHIND_ALL: Final = "\U0010ffff"
_QUANTIFIERS: Final = frozenset("*+?{")
_CLASSES: Final = frozenset("dDwWsS")
_NOT_HERE: Final = {"~": "complement", "&": "intersection", "<": "interval"}
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)


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

    >>> of_wildcard("W?nd*", str.lower)
    Pattern(prefix='w', regex='(?s)w.nd.*', inside='nd', fuzzy='', edits=0, low=None, high=None, \
includes_low=True, includes_high=True)
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
    return Pattern(
        prefix=texts[0], regex="(?s)" + "".join(made), inside=max(texts[1:] or [""], key=len)
    )


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
        self._fuzzy: list[int] = []
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
            self._fuzzy.append(number)
        elif pattern.prefix:
            self._by_prefix.setdefault(pattern.prefix, []).append(number)
            self._lengths.add(len(pattern.prefix))
        elif pattern.inside:
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
        for number in self._ranges:
            pattern = self._patterns[number]
            yield number, [i for i, one in enumerate(terms) if _is_between(pattern, one)]
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
        """Of each other pattern with a text inside, the terms that have it."""
        joined = "\n".join(terms)
        ends = np.cumsum([len(one) + 1 for one in terms])
        for number in self._inside:
            inside = self._patterns[number].inside
            found = []
            at = joined.find(inside)
            while at >= 0:
                place = int(np.searchsorted(ends, at, "right"))
                found.append(place)
                at = joined.find(inside, int(ends[place]))
            if found:
                yield number, found
        for number in self._all:
            yield number, list(range(len(terms)))

    def _alike(self, terms: Sequence[str]) -> Iterator[tuple[int, Sequence[int]]]:
        texts, ends = _points(terms)
        wanted, wanted_ends = _points([self._patterns[one].fuzzy for one in self._fuzzy])
        edits = np.array([self._patterns[one].edits for one in self._fuzzy], np.int32)
        room = 1024
        while True:
            out = np.empty((2, room), np.int32)
            count = _pairs_alike(texts, ends, wanted, wanted_ends, edits, out[0], out[1])
            if count <= room:
                break
            room = count
        for number, places in _grouped(out[0, :count], out[1, :count]):
            yield self._fuzzy[number], places


def _grouped(numbers: Any, places: Any) -> Iterator[tuple[int, list[int]]]:
    """Pairs in the order of their first, by that."""
    if len(numbers):
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            yield int(numbers[begin]), places[begin:end].tolist()


def _is_between(pattern: Pattern, term: str) -> bool:
    low, high = pattern.low, pattern.high
    if low is not None and (term < low or (term == low and not pattern.includes_low)):
        return False
    return high is None or term < high or (term == high and pattern.includes_high)


def _points(texts: Sequence[str]) -> tuple[Any, Any]:
    """Code points of texts, and where each ends."""
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(one) for one in texts], out=ends[1:])
    joined = "".join(texts)
    return np.frombuffer(joined.encode("utf-32-le"), np.int32), ends


@njit(types.uint64(_I32, types.int64, types.int64), cache=True, nogil=True)
def _letters(text: Any, begin: Any, end: Any) -> Any:
    """A bit for each letter that a text has."""
    mask = np.uint64(0)
    for i in range(begin, end):
        mask |= np.uint64(1) << np.uint64(text[i] & 63)
    return mask


@njit(types.int64(types.uint64), cache=True, nogil=True)
def _bits(mask: Any) -> Any:
    count = np.int64(0)
    while mask != np.uint64(0):
        mask &= mask - np.uint64(1)
        count += 1
    return count


@njit(types.int64(_I32, types.int64, types.int64, _I32, types.int64, types.int64, types.int64,
      types.int64[:, ::1]), cache=True, nogil=True)  # fmt: skip
def _distance(a: Any, a0: Any, n: Any, b: Any, b0: Any, m: Any, most: Any, rows: Any) -> Any:
    """How many edits make one text the other; `most + 1` if more than `most`."""
    for j in range(m + 1):
        rows[0, j] = j
    for i in range(1, n + 1):
        this, above, two_above = i % 3, (i - 1) % 3, (i - 2) % 3
        rows[this, 0] = i
        least = np.int64(i)
        for j in range(1, m + 1):
            cost = np.int64(0) if a[a0 + i - 1] == b[b0 + j - 1] else np.int64(1)
            best = min(rows[above, j] + 1, rows[this, j - 1] + 1, rows[above, j - 1] + cost)
            if (
                i > 1
                and j > 1
                and a[a0 + i - 1] == b[b0 + j - 2]
                and a[a0 + i - 2] == b[b0 + j - 1]
            ):
                best = min(best, rows[two_above, j - 2] + 1)
            rows[this, j] = best
            least = min(least, best)
        if least > most + 1:
            return most + 1
    return rows[n % 3, m]


@njit(types.int64(_I32, _I64, _I32, _I64, _I32, types.int32[::1], types.int32[::1]), cache=True,
      nogil=True)  # fmt: skip
def _pairs_alike(
    texts: Any, ends: Any, wanted: Any, wanted_ends: Any, edits: Any, out_wanted: Any, out_text: Any
) -> Any:
    """All pairs of a wanted text and one like it; gives their number, which may exceed the room."""
    longest = 0
    masks = np.empty(len(ends) - 1, np.uint64)
    for t in range(len(ends) - 1):
        longest = max(longest, ends[t + 1] - ends[t])
        masks[t] = _letters(texts, ends[t], ends[t + 1])
    rows = np.empty((3, longest + 1), np.int64)
    count = np.int64(0)
    for w in range(len(wanted_ends) - 1):
        begin = wanted_ends[w]
        n = wanted_ends[w + 1] - begin
        most = np.int64(edits[w])
        mask = _letters(wanted, begin, begin + n)
        for t in range(len(ends) - 1):
            m = ends[t + 1] - ends[t]
            if abs(m - n) > most or _bits(mask ^ masks[t]) > 2 * most:
                continue
            found = _distance(wanted, begin, n, texts, ends[t], m, most, rows)
            if found <= most:
                if count < len(out_wanted):
                    out_wanted[count], out_text[count] = w, t
                count += 1
    return count
