"""From a tree to a program: integers that a kernel evaluates, in postfix notation.

A program comes with what the index needs: sets of leaves, of each of which a matching document must have
one leaf. A conjunction has the sets of all its parts; a disjunction has one, which joins one of each part.
A query without any set can't be found by leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from math import asin, cos, degrees, radians, sin
from typing import Final, Literal, TypeAlias

from penstock.core.names import hint
from penstock.errors import SearchError
from penstock.searches import tree
from penstock.searches.analysis import Vocabulary
from penstock.searches.bounds import HIGHEST, LOWEST, span
from penstock.searches.fields import Field, Fields, Kind
from penstock.searches.leaves import (
    AnyValue,
    Inner,
    Leaf,
    PatternLeaf,
    TermLeaf,
    cells_between,
    share,
    tiles_around,
)
from penstock.searches.texts.likeness import TEXT_CHARS_MAX
from penstock.searches.texts.patterns import of_fuzzy, of_prefix, of_range, of_regex, of_wildcard

__all__ = ["EARTH_RADIUS_METRES", "Compiler", "Op", "Program"]

SETS_MAX: Final = 8
"""Sets of leaves that a query keeps to choose from: the rarest, as far as that is known at first."""
PHRASE_TERMS_MAX: Final = 1024
"""Words of a phrase, as many as a query has parts: each is looked for wherever the phrase may begin."""
CHOICES_MAX: Final = 4
"""Sets that a group of which some must match gives."""
EARTH_RADIUS_METRES: Final = 6_371_008.7714
"""The mean radius of WGS 84, which Lucene takes, too."""


class Op(IntEnum):
    """What a program does next; its arguments follow it."""

    TERM = 0  # leaf: whether it is present; its score is that of its count
    LEAF = 1  # leaf: whether it is present
    PHRASE = 2  # number of terms, slop, REPEATS and POSITIVE; leaf and offset of each
    RANGE = 3  # column, place of both bounds
    DISTANCE = 4  # column, place of latitude, longitude, metres
    BOX = 5  # column, place of top, left, bottom, right
    ALL = 6
    NONE = 7
    BOOLEAN = 8  # how many must, should, must not; how many of should must
    BOOST = 9  # place of the factor


REPEATS: Final = 1
"""Of a phrase: a term occurs in it twice."""
POSITIVE: Final = 2
"""Of a phrase: its words are marks of a match."""
SIZES: Final = {Op.ALL: 1, Op.NONE: 1, Op.TERM: 2, Op.LEAF: 2, Op.BOOST: 2, Op.RANGE: 3, Op.BOX: 3,
                Op.DISTANCE: 3, Op.BOOLEAN: 5}  # fmt: skip
"""Of instructions with their arguments; a phrase has as many as it has terms."""


@dataclass
class Program:
    """A query as it is stored.

    Attributes:
        code: of `Op`, and arguments.
        bounds: that `RANGE` refers to.
        numbers: that `DISTANCE`, `BOX` and `BOOST` refer to.
        sets: of leaves, each of them necessary; None: nothing can match.
        positive: the leaves that are marks of a match, but for those of phrases.
    """

    code: list[int] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    sets: list[list[int]] | None = field(default_factory=list)
    positive: list[int] = field(default_factory=list)

    def referring(self, bounds: int, numbers: int) -> list[int]:
        """The code, with references that count from so many bounds and numbers before."""
        if not self.bounds and not self.numbers:
            return self.code
        code = list(self.code)
        at = 0
        while at < len(code):
            op = code[at]
            if op == Op.PHRASE:
                at += 4 + 2 * code[at + 1]
                continue
            if op == Op.RANGE:
                code[at + 2] += bounds
            elif op in (Op.DISTANCE, Op.BOX):
                code[at + 2] += numbers
            elif op == Op.BOOST:
                code[at + 1] += numbers
            at += SIZES[Op(op)]
        return code


class _Gone(Enum):
    """A part that says nothing: all its words are stop words. It is left out, as in Lucene."""

    GONE = 0


_GONE: Final = _Gone.GONE
_Sets: TypeAlias = list[list[int]] | Literal[_Gone.GONE] | None
"""Of a part: sets of leaves; None: nothing matches it."""


class Compiler:
    """Makes programs.

    Args:
        fields: of the documents.
        vocabulary: of a field's analyzer.
        leaf: gives a leaf's number.
        column: gives the number of a field whose values are compared.
    """

    def __init__(
        self,
        fields: Fields,
        vocabulary: Callable[[Field], Vocabulary],
        leaf: Callable[[Leaf], int],
        column: Callable[[Field], int],
    ) -> None:
        self._fields = fields
        self._vocabulary = vocabulary
        self._leaf = leaf
        self._column = column
        self._shares: list[float] = []

    def program(self, query: tree.Query) -> Program:
        """A query's program.

        Raises:
            SearchError: it names what the fields don't have.
        """
        made = Program()
        sets = self._compile(query, made, is_positive=True)
        if sets is _GONE:
            made.code.append(Op.NONE)
            sets = None
        if sets is not None:
            sets = sorted(sets, key=self._share)[:SETS_MAX]
        made.sets = sets
        made.positive = sorted(set(made.positive))
        return made

    def _number(self, leaf: Leaf) -> int:
        number = self._leaf(leaf)
        if number >= len(self._shares):
            self._shares += [1.0] * (number + 1 - len(self._shares))
        self._shares[number] = share(leaf)
        return number

    def _share(self, leaves: list[int]) -> float:
        return sum(self._shares[one] for one in leaves)

    def _compile(self, query: tree.Query, made: Program, *, is_positive: bool) -> _Sets:
        match query:
            case tree.All():
                made.code.append(Op.ALL)
                return []
            case tree.Boolean():
                return self._boolean(query, made, is_positive=is_positive)
            case tree.Boost(inner, factor):
                sets = self._compile(inner, made, is_positive=is_positive)
                if sets is _GONE:
                    return sets
                made.code += [Op.BOOST, len(made.numbers)]
                made.numbers.append(factor)
                return sets
            case _:
                return self._over_fields(query, made, is_positive=is_positive)

    def _over_fields(self, query: tree.Query, made: Program, *, is_positive: bool) -> _Sets:
        """A part that has no parts, in its field or in each default one."""
        assert not isinstance(query, tree.All | tree.Boolean | tree.Boost)
        fields = [self._field(query.name, query.at)] if query.name else self._defaults(query.at)
        found = [self._leaves(query, one, made, is_positive=is_positive) for one in fields]
        return self._one_of(found, made)

    def _defaults(self, at: int) -> list[Field]:
        found = self._fields.default_fields()
        if not found:
            names = ", ".join(self._fields.names())
            raise SearchError(f"expected a field, such as field:word, one of {names}", at)
        return found

    def _field(self, name: str, at: int) -> Field:
        found = self._fields.find(name)
        if found is None:
            names = self._fields.names()
            raise SearchError(
                f"expected one of the fields {', '.join(names)}; found {name!r}"
                f" at character {at + 1}{hint(name, names)}",
                at,
            )
        return found

    def _boolean(self, query: tree.Boolean, made: Program, *, is_positive: bool) -> _Sets:
        must, should, not_ = (
            self._parts(query.must, made, is_positive=is_positive),
            self._parts(query.should, made, is_positive=is_positive),
            self._parts(query.must_not, made, is_positive=False),
        )
        if not must and not should and not not_:
            return _GONE
        needed = query.needed
        if len(should) < len(query.should):
            needed = min(needed, len(should))
        if not must and should:
            needed = max(needed, 1)
        made.code += [Op.BOOLEAN, len(must), len(should), len(not_), needed]
        if needed > len(should):
            return None
        if needed == len(should):
            must += should
        elif needed:
            must.append(self._any_of(should, needed))
        return self._every_of(must)

    def _parts(
        self, parts: tuple[tree.Query, ...], made: Program, *, is_positive: bool
    ) -> list[_Sets]:
        """Parts that say something, compiled."""
        found = [self._compile(one, made, is_positive=is_positive) for one in parts]
        return [one for one in found if one is not _GONE]

    def _one_of(self, parts: list[_Sets], made: Program) -> _Sets:
        """Parts that are compiled, of which one must match."""
        found = [one for one in parts if one is not _GONE]
        if not found:
            return _GONE
        if len(found) == 1:
            return found[0]
        made.code += [Op.BOOLEAN, 0, len(found), 0, 1]
        return self._any_of(found, 1)

    def _every_of(self, parts: list[_Sets]) -> _Sets:
        """Parts that must all match."""
        sets: list[list[int]] = []
        for found in parts:
            assert found is not _GONE
            if found is None:
                return None
            sets += found
        return sets

    def _any_of(self, parts: Sequence[_Sets], needed: int) -> _Sets:
        """Of parts of which so many must match: any `n - needed + 1` of them have one that does."""
        possible = [one for one in parts if one is not None and one is not _GONE]
        if needed > len(possible):
            return None
        best = [min(one, key=self._share) if one else None for one in possible]
        found = [one for one in best if one is not None]
        count = len(possible) - needed + 1
        if len(found) < count:
            return []
        found.sort(key=self._share)
        return [
            sorted({leaf for one in found[first : first + count] for leaf in one})
            for first in range(min(len(found) - count + 1, CHOICES_MAX))
        ]

    def _leaves(
        self, query: tree.Query, field: Field, made: Program, *, is_positive: bool
    ) -> _Sets:
        """A part that has no parts, in one field."""
        match query:
            case tree.Exists():
                return self._present(AnyValue(field.name), made, is_positive=False)
            case tree.Distance() | tree.Box():
                return self._geo(query, field, made)
            case tree.Nested(_, inner, at):
                if field.kind is not Kind.NESTED:
                    raise _wrong(field, "a list of structs", at)
                return self._present(Inner(field.name, inner), made, is_positive=False)
        if field.kind is Kind.ORDERED:
            return self._ordered(query, field, made)
        at = getattr(query, "at", tree.SAID_NOWHERE)
        if field.kind is not Kind.TEXT:
            expected = {
                Kind.POINT: f"{field.name}:distance(…) or {field.name}:box(…)",
                Kind.NESTED: f"{field.name}:nested(…), or one of its fields",
            }.get(field.kind, "a field of texts, numbers, times or points")
            raise SearchError(
                f"expected {expected}; {field.name!r} is of {field.type}, at character {at + 1}", at
            )
        return self._text(query, field, made, is_positive=is_positive)

    def _present(self, leaf: Leaf, made: Program, *, is_positive: bool) -> _Sets:
        number = self._number(leaf)
        made.code += [Op.TERM if isinstance(leaf, TermLeaf) else Op.LEAF, number]
        if is_positive:
            made.positive.append(number)
        return [[number]]

    def _text(self, query: tree.Query, field: Field, made: Program, *, is_positive: bool) -> _Sets:
        normalized = field.analyzer.normalized
        match query:
            case tree.Term(_, text, _, at):
                sets = self._words(query, field, made, is_positive=is_positive)
                phrase = tree.Phrase(None, text, at=at)
                return self._or_synonyms(sets, phrase, field, made, is_positive=is_positive)
            case tree.Phrase():
                sets = self._phrase(query, field, made, is_positive=is_positive)
                return self._or_synonyms(sets, query, field, made, is_positive=is_positive)
            case tree.Prefix(_, text):
                pattern = of_prefix(normalized(text))
            case tree.Wildcard(_, text):
                pattern = of_wildcard(text, normalized)
            case tree.Fuzzy(_, text, edits):
                if not edits:
                    return self._present(
                        TermLeaf(field.name, normalized(text)), made, is_positive=is_positive
                    )
                if len(text) > TEXT_CHARS_MAX:
                    raise SearchError(
                        f"expected at most {TEXT_CHARS_MAX} characters before '~'; found {text!r}"
                        f" at character {query.at + 1}",
                        query.at,
                    )
                pattern = of_fuzzy(normalized(text)[:TEXT_CHARS_MAX], edits)
            case tree.Regex(_, text, at):
                try:
                    pattern = of_regex(text, normalized)
                except ValueError as error:
                    raise SearchError(
                        f"expected a regular expression; found {text!r} at character {at + 1}: {error}",
                        at,
                    ) from None
            case tree.Range(_, low, high, includes_low, includes_high):
                bounds = [None if one is None else normalized(one) for one in (low, high)]
                if bounds == [None, None]:
                    return self._present(AnyValue(field.name), made, is_positive=False)
                pattern = of_range(*bounds, includes=(includes_low, includes_high))
            case _:
                raise AssertionError(query)
        return self._present(PatternLeaf(field.name, pattern), made, is_positive=is_positive)

    def _words(self, query: tree.Term, field: Field, made: Program, *, is_positive: bool) -> _Sets:
        """A word: one term, or several of which one or every must be there."""
        terms = dict.fromkeys(term for term, _ in self._vocabulary(field).analyzed(query.text))
        found = [
            self._present(TermLeaf(field.name, one), made, is_positive=is_positive) for one in terms
        ]
        if query.every and len(found) > 1:
            made.code += [Op.BOOLEAN, len(found), 0, 0, 0]
            return self._every_of(found)
        return self._one_of(found, made)

    def _or_synonyms(
        self, sets: _Sets, query: tree.Phrase, field: Field, made: Program, *, is_positive: bool
    ) -> _Sets:
        """A text that is compiled, or a synonym of it."""
        if not field.analyzer.synonyms:
            return sets
        for text in self._vocabulary(field).others(query.text):
            other = replace(query, text=text)
            found = self._phrase(other, field, made, is_positive=is_positive)
            sets = self._one_of([sets, found], made)
        return sets

    def _phrase(
        self, query: tree.Phrase, field: Field, made: Program, *, is_positive: bool
    ) -> _Sets:
        terms = self._vocabulary(field).analyzed(query.text)
        if len(terms) > PHRASE_TERMS_MAX:
            raise SearchError(
                f"expected a phrase of at most {PHRASE_TERMS_MAX} words; found {len(terms)}"
                f" at character {query.at + 1}",
                query.at,
            )
        if len(terms) < 2:
            for term, _ in terms:
                return self._present(TermLeaf(field.name, term), made, is_positive=is_positive)
            return _GONE
        leaves = [self._number(TermLeaf(field.name, term)) for term, _ in terms]
        first = terms[0][1]
        repeats = len(set(leaves)) < len(leaves)
        made.code += [
            Op.PHRASE,
            len(leaves),
            query.slop,
            REPEATS * repeats | POSITIVE * is_positive,
        ]
        for leaf, (_, position) in zip(leaves, terms, strict=True):
            made.code += [leaf, position - first]
        return [[one] for one in dict.fromkeys(leaves)]

    def _ordered(self, query: tree.Query, field: Field, made: Program) -> _Sets:
        """A range of numbers or times; a term is the range of its equals."""
        if isinstance(query, tree.Term | tree.Phrase):
            query = tree.Range(query.name, query.text, query.text, at=query.at)
        if not isinstance(query, tree.Range):
            at = getattr(query, "at", tree.SAID_NOWHERE)
            raise _wrong(field, "a number, a time or a range", at)
        low, high = LOWEST, HIGHEST
        try:
            if query.low is not None:
                first, last = span(query.low, field.type)
                low = first if query.includes_low else last + 1
                if not query.includes_low and first > last:
                    low = first
            if query.high is not None:
                first, last = span(query.high, field.type)
                high = last if query.includes_high else first - 1
                if not query.includes_high and first > last:
                    high = last
        except ValueError as error:
            raise _wrong(field, str(error), query.at) from None
        low, high = max(low, LOWEST), min(high, HIGHEST)
        if low > high:
            made.code.append(Op.NONE)
            return None
        made.code += [Op.RANGE, self._column(field), len(made.bounds)]
        made.bounds += [low, high]
        return [[self._number(one) for one in cells_between(field.name, low, high)]]

    def _geo(self, query: tree.Distance | tree.Box, field: Field, made: Program) -> _Sets:
        if field.kind is not Kind.POINT:
            raise _wrong(field, "a struct of lat and lon, or latitude and longitude,", query.at)
        place = len(made.numbers)
        if isinstance(query, tree.Box):
            box = query
            made.code += [Op.BOX, self._column(field), place]
            made.numbers += [query.top, query.left, query.bottom, query.right]
        else:
            box = _around(query)
            made.code += [Op.DISTANCE, self._column(field), place]
            made.numbers += [query.latitude, query.longitude, query.metres]
        tiles = tiles_around(
            field.name, top=box.top, left=box.left, bottom=box.bottom, right=box.right
        )
        return [[self._number(one) for one in tiles]]


def _wrong(field: Field, expected: str, at: int) -> SearchError:
    return SearchError(
        f"expected {expected} for the field {field.name!r} of {field.type}, at character {at + 1}",
        at,
    )


def _around(query: tree.Distance) -> tree.Box:
    """A box around a circle, a little larger."""
    angle = query.metres / EARTH_RADIUS_METRES * (1 + 1e-9) + 1e-9
    latitude = radians(query.latitude)
    top, bottom = degrees(latitude + angle), degrees(latitude - angle)
    if top >= 90 or bottom <= -90 or sin(angle) >= cos(latitude):
        left, right = -180.0, 180.0
    else:
        width = degrees(asin(sin(angle) / cos(latitude)))
        left, right = query.longitude - width, query.longitude + width
        left += 360 if left < -180 else 0
        right -= 360 if right > 180 else 0
    return tree.Box(query.name, min(top, 90.0), left, max(bottom, -90.0), right)
