"""The text of patterns: what is read, what it is written as, and what is said of mistakes."""

from __future__ import annotations

import random

import pytest
from tests.patterns.chance import a_spec

from penstock.errors import SchemaError
from penstock.patterns import parse_pattern, pattern_text
from penstock.patterns.tree import Absent, Bounded, Name, Repeat, Then, first_names, mapped_names


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("A(B|C)*?D", "A (B | C)*? D"),
        ("a{3} b{2,} c{,4} d{1,2}?", "a{3} b{2,} c{0,4} d{1,2}?"),
        ("{- a+ -} b -- a comment", "{- a+ -} b"),
        ("PERMUTE(a, b c, d?)", "PERMUTE(a, b c, d?)"),
        ("^ a () $", "^ a () $"),
        ("a->b->>c", "a -> b ->> c"),
        ("a -> not b -> c", "a -> !b -> c"),
        ("a -> b within 90 seconds", "a -> b WITHIN 1 minute 30 seconds"),
        ("a+ until stop b", "a+ UNTIL stop b"),
        ('"in a word" Within', None),
        ('a "in a word" "within"', 'a "in a word" "within"'),
        ("Fail fail", "Fail Fail"),
    ],
)
def test_patterns_have_one_text(text: str, canonical: str | None) -> None:
    """A pattern is written in one way, whatever way it was written in."""
    if canonical is None:
        with pytest.raises(SchemaError):
            parse_pattern(text)
        return
    assert pattern_text(parse_pattern(text)) == canonical


def test_the_canonical_text_is_the_same_pattern() -> None:
    """The text that a pattern is written as is read as the same pattern."""
    rng = random.Random(1)
    for _ in range(200):
        node = parse_pattern(a_spec(rng).pattern)
        assert parse_pattern(pattern_text(node)) == node


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("", "a variable or a group", "the end"),
        ("a |", "a variable or a group", "the end"),
        ("(a b", "')'", "the end"),
        ("a)", "the end", "')'"),
        ("a{2", "a number, ',' or '}'", "the end"),
        ("a{3,1}", "the lower number first", "'3'"),
        ("a{0}", "a number above 0", "'0'"),
        ("a{99999}", "a number of at most 10,000", "'99999'"),
        ("a ; b", "a variable, a group or a quantifier", "';'"),
        ("a+ until", "the name of a variable", "the end"),
        ("a within 5", "a unit of time", "the end"),
        ("a within soon", "a duration", "'soon'"),
        ("!a -> b", "a step before what must be absent", "'!'"),
        ("^+ a", "no quantifier behind an anchor", "'+'"),
        ("permute(a, b, c, d, e, f, g)", "at most 6 parts of PERMUTE", "'('"),
        ("(" * 100, "at most 64 groups", "'('"),
    ],
)
def test_mistakes_are_shown(text: str, expected: str, found: str) -> None:
    """What can't be read is refused with what was expected, what was found, and where."""
    with pytest.raises(SchemaError) as error:
        parse_pattern(text)
    said = str(error.value)
    assert expected in said
    assert f"found {found}" in said
    assert "^" in said.splitlines()[-1]


def test_names_of_a_pattern() -> None:
    """Variables that rows may be are distinguished from those that they must not be."""
    node = parse_pattern("a? (b | c) -> !d -> e until f")
    assert mapped_names(node) == ("a", "b", "c", "e")
    assert first_names(node) == ("a", "b", "c")
    assert parse_pattern("a -> !b within 5 minutes") == Then(
        (Name("a"), Bounded(Absent("b"), 300_000_000)), ("relaxed",)
    )
    assert parse_pattern("a{,2}?") == Repeat(Name("a"), 0, 2, greedy=False)
