"""Lucene's query syntax."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from penstock.errors import SearchError
from penstock.searches.syntax import CHARS_MAX, CLAUSES_MAX, DEPTH_MAX, parse
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

A, B, C = (Term(None, one) for one in "abc")
READ = {
    "a": A,
    "a b": Boolean(should=(A, B)),
    "a AND b OR c": Boolean(must=(A, B), should=(C,)),
    "a OR b AND c": Boolean(must=(B, C), should=(A,)),
    "+a -b !c": Boolean(must=(A,), must_not=(B, C)),
    "a && NOT b || c": Boolean(must=(A,), should=(C,), must_not=(B,)),
    "NOT a": Boolean(must_not=(A,)),
    "((a))": A,
    "(a b c)@2": Boolean(should=(A, B, C), minimum=2),
    "title:(a AND b)": Boolean(must=(Term("title", "a"), Term("title", "b"))),
    "(a b)^2.5": Boost(Boolean(should=(A, B)), 2.5),
    '"a b"~3^2': Boost(Phrase(None, "a b", 3), 2.0),
    r'"say \"a\""': Phrase(None, 'say "a"'),
    "a~ b~1": Boolean(should=(Fuzzy(None, "a", 2), Fuzzy(None, "b", 1))),
    "storm~0.6": Fuzzy(None, "storm", 1),  # as Lucene rounds: of 0.4 * 5
    "ab* a?b* *b": Boolean(
        should=(Prefix(None, "ab"), Wildcard(None, "a?b*"), Wildcard(None, "*b"))
    ),
    r"a\*b\:c": Term(None, "a*b:c"),
    r"\u0041NDROID ANDROID": Boolean(should=(Term(None, "ANDROID"), Term(None, "ANDROID"))),
    "wi-fi AT&T a+b": Boolean(should=tuple(Term(None, one) for one in ("wi-fi", "AT&T", "a+b"))),
    r"/a\/b+/": Regex(None, r"a\/b+"),
    "[a TO b] {1 TO 2} p:[* TO 3}": Boolean(
        should=(
            Range(None, "a", "b"),
            Range(None, "1", "2", includes_low=False, includes_high=False),
            Range("p", None, "3", includes_high=False),
        )
    ),
    '["a b" TO "*"]': Range(None, "a b", "*"),
    "p:>5 AND p:<=2024-03-01T10:00:00Z": Boolean(
        must=(
            Range("p", "5", None, includes_low=False),
            Range("p", None, "2024-03-01T10:00:00Z"),
        )
    ),
    "p:-5^2": Boost(Term("p", "-5"), 2.0),
    "*:* a:* *": Boolean(should=(All(), Exists("a"), Exists(None))),
    "p:distance(52.5, 13.4, 1.5km)": Distance("p", 52.5, 13.4, 1500.0),
    "p:box(2, -1, -2, 1)": Box("p", 2.0, -1.0, -2.0, 1.0),
    "c:nested(author:a AND stars:[4 TO *])": Nested(
        "c", Boolean(must=(Term("author", "a"), Range("stars", "4", None)))
    ),
}


@pytest.mark.parametrize("text", READ)
def test_queries_are_read_as_by_lucene(text: str) -> None:
    """Conjunctions, modifiers, escapes and suffixes are what Lucene's parser takes them for."""
    assert parse(text) == READ[text]


def test_words_can_all_be_necessary() -> None:
    """With AND as the operator, only OR makes words optional."""
    every = [Term(None, one, every=True) for one in "abc"]
    assert parse("a b", operator="AND") == Boolean(must=(every[0], every[1]))
    assert parse("a b OR c", operator="AND") == Boolean(
        must=(every[0],), should=(every[1], every[2])
    )


MISTAKES = {
    "": 0,
    "a AND": 5,
    "AND a": 0,
    "(a b": 4,
    "a)": 1,
    '"a b': 0,
    "x /ab": 2,
    "a OR [1 TO": 5,
    "[1 2]": 0,
    "a~3": 1,
    "a~1.5": 1,
    "a*~1": 2,
    "a^": 1,
    "(a b)@x": 5,
    "f:": 2,
    "p:-x": 2,
    "+-a": 1,
    "a NOT": 5,
    "p:distance(1, 2)": 11,
    "p:distance(100, 2, 3km)": 11,
    "p:distance(1, 2, 3 parsecs)": 11,
    "p:box(1, 2, 3, 4)": 6,
    "p:nested(a": 10,
    "a\\": 1,
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_have_their_place(text: str) -> None:
    """An error says what was expected, what was found, and at which character."""
    with pytest.raises(SearchError, match=r"expected .*; found .*at character \d+") as caught:
        parse(text)
    assert caught.value.at == MISTAKES[text]
    assert f"at character {caught.value.at + 1}" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["(" * (DEPTH_MAX + 2) + "a", "a " * (CLAUSES_MAX + 1), "a" * (CHARS_MAX + 1)]
)
def test_queries_have_limits(text: str) -> None:
    """Depth, parts and characters of a query are limited."""
    with pytest.raises(SearchError, match="expected"):
        parse(text)


def test_any_text_is_read_or_refused() -> None:
    """Whatever people write, there is a tree or an error with a place."""
    random = Random(5)
    places: list[int] = []
    for _ in range(3000):
        text = "".join(random.choice('ab :"()[]{}+-!&|^~*?/\\@<>,1.T O\n') for _ in range(12))
        try:
            found: Query | None = parse(text)
        except SearchError as error:
            found = None
            places.append(error.at)
        assert found is None or parse(text) == found
    assert places
    assert all(0 <= one <= 12 for one in places)


def test_an_error_keeps_its_place_between_processes() -> None:
    """What a worker raises is what its caller gets."""
    found = pickle.loads(pickle.dumps(SearchError("expected a word", 7)))
    assert (str(found), found.at) == ("expected a word", 7)
