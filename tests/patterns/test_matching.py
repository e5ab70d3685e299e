"""Matches of patterns over rows: what each part of a pattern means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.patterns import Matcher, Matches, RowPattern, parse_pattern
from penstock.patterns.tree import names_of

SCHEMA = pa.schema([("x", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
LETTERS = {one: f"x = '{one}'" for one in "abcdef"}


def found(
    pattern: str,
    letters: str,
    *,
    values: Any = None,
    times: Any = None,
    complete: bool = True,
    frontier: int | None = None,
    defines: dict[str, str] | None = None,
    measures: tuple[str, ...] = ("count(*)",),
    **options: Any,
) -> Matches:
    """The matches in rows of one letter each; a variable is the rows of its letter."""
    known = LETTERS | (defines or {})
    names = names_of(parse_pattern(pattern))
    used = tuple((name, text) for name, text in known.items() if name in names)
    named = tuple((f"m{i}", one, "running") for i, one in enumerate(measures))
    spec = RowPattern(pattern, used, measures=named, **options)
    count = len(letters)
    columns = [list(letters), values or list(range(count)), times or list(range(count))]
    arrays = [pa.array(one, f.type) for one, f in zip(columns, SCHEMA, strict=True)]
    table = pa.table(arrays, schema=SCHEMA)
    return Matcher(spec, SCHEMA, "at").match(
        table, np.array([0, count]), complete=complete, frontier_us=frontier
    )


def spans(matches: Matches) -> list[tuple[int, int]]:
    """The first and the last row of each match."""
    return list(zip(matches.first.tolist(), matches.last.tolist(), strict=True))


@pytest.mark.parametrize(
    ("pattern", "rows", "expected"),
    [
        ("a b c", "abxabc", [(3, 5)]),
        ("a+", "aabaaa", [(0, 1), (3, 5)]),
        ("a+?", "aa", [(0, 0), (1, 1)]),
        ("a{2,3}", "aaaaa", [(0, 2), (3, 4)]),
        ("a{2,3}?", "aaaaa", [(0, 1), (2, 3)]),
        ("a (b | b c) d", "abcd", [(0, 3)]),
        ("(a | a b) c?", "ab", [(0, 0)]),
        ("permute(a, b, c)", "bcacab", [(0, 2), (3, 5)]),
        ("^ a b", "abab", [(0, 1)]),
        ("a b $", "abab", [(2, 3)]),
        ("a {- b -} c", "abc", [(0, 2)]),
        ("a*", "aab", [(0, 1), (2, 1)]),
        ("a -> b", "axxbaxb", [(0, 3), (4, 6)]),
        ("a -> b{2}", "axbbb", [(0, 3)]),
        ("a -> b -> c", "abcaxbxc", [(0, 2), (3, 7)]),
        ("a ->> b c", "abxbc", [(0, 4)]),
        ("a -> b c", "abxbc", []),
        ("a -> !b -> c", "axcabc", [(0, 2)]),
        ("a !b", "axab", [(0, 0)]),
        ("a+ until f -> b", "aafab", [(0, 4)]),
        ("a -> b?", "axba", [(0, 2), (3, 3)]),
    ],
)
def test_parts_of_a_pattern(pattern: str, rows: str, expected: list[tuple[int, int]]) -> None:
    """Each part of a pattern takes the rows that it says, the preferred ones first."""
    assert spans(found(pattern, rows)) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("past last row", [(0, 3), (4, 5)]),
        ("next row", [(0, 3), (1, 3), (2, 3), (4, 5)]),
        ("first b", [(0, 3), (4, 5)]),
        ("last a", [(0, 3), (2, 3), (4, 5)]),
        ("a", [(0, 3), (2, 3), (4, 5)]),
    ],
)
def test_where_the_next_match_is_looked_for(after: str, expected: list[tuple[int, int]]) -> None:
    """The next match is looked for behind the last one, or within it, as AFTER MATCH SKIP says."""
    assert spans(found("a+ b", "aaabab", after=after)) == expected


def test_a_skip_to_the_first_row_goes_on() -> None:
    """A skip to the match's own first row, or to a variable without rows, continues with the next row."""
    matches = found("a b?", "aab", after="first a")
    assert spans(matches) == [(0, 0), (1, 2)]
    assert matches.skipped_wrongly.tolist() == [True, True]
    assert found("a b?", "aab", after="last b").skipped_wrongly.tolist() == [True, False]


def test_all_ways_are_matches() -> None:
    """With `no skip`, each way to match from each row is a match, once no other can come from that row."""
    assert spans(found("a ->> b", "abab", after="no skip")) == [(0, 1), (0, 3), (2, 3)]
    many = found("a+", "a" * 100, after="no skip")
    assert len(many.first) == 5_050
    assert many.rows.column(0).to_pylist()[:3] == [100, 99, 98]
    waits = found("a ->> b", "ab", after="no skip", within_us=5, complete=False, frontier=5)
    assert (spans(waits), waits.next_from.numbers.tolist()) == ([], [0])
    over = found("a ->> b", "ab", after="no skip", within_us=5, complete=False, frontier=6)
    assert spans(over) == [(0, 1)]


def test_all_rows_of_matches() -> None:
    """Each row is put out with what is known up to it; excluded ones aren't, and others are if asked for."""
    matches = found(
        "a {- b -} c", "xabcx", rows="all", unmatched=True,
        measures=("classifier()", "count(*)", "FINAL count(*)", "last(b.v)", "match_number()"),
    )  # fmt: skip
    columns = matches.rows.select(["x", "m0", "m1", "m2", "m3", "m4"]).to_pydict()
    assert columns == {
        "x": ["x", "a", "c", "x"],
        "m0": [None, "a", "c", None],
        "m1": [None, 1, 3, None],
        "m2": [None, 3, 3, None],
        "m3": [None, None, 2, None],
        "m4": [None, 1, 1, None],
    }
    assert matches.match.tolist() == [-1, 0, 0, -1]
    assert matches.source.tolist() == [0, 1, 3, 4]


def test_matches_without_rows() -> None:
    """A match without rows is put out with NULL, unless it is left out; its number counts in either case."""
    measures = ("match_number()", "v", "count(*)")
    shown = found("a*", "xa", measures=measures, rows="all").rows
    assert shown.column("m0").to_pylist() == [1, 2]
    assert shown.column("m1").to_pylist() == [None, 1]
    assert shown.column("m2").to_pylist() == [0, 1]
    omitted = found("a*", "xa", measures=measures, rows="all", empty="omit").rows
    assert omitted.column("m0").to_pylist() == [2]


def test_navigation() -> None:
    """FIRST and LAST count rows of a variable, PREV and NEXT rows of the partition, from there."""
    measures = (
        "FIRST(a.v)", "FIRST(a.v, 1)", "LAST(a.v, 1)", "PREV(FIRST(a.v), 1)", "NEXT(LAST(a.v))",
        "PREV(b.v, 2) + 1", "LAST(a.v, 5)", "s.v", "FIRST(v)", "LAST(CLASSIFIER(s), 1)",
    )  # fmt: skip
    matches = found(
        "a+ b c",
        "xaabcx",
        measures=measures,
        subsets=(("s", ("a", "b")),),
        values=[9, 8, 7, 6, 5, 4],
    )
    assert list(matches.rows.to_pylist()[0].values()) == [8, 7, 8, 9, 6, 9, None, 6, 8, "a"]


def test_conditions_on_matched_rows() -> None:
    """A definition may compare a row with those before it in the match, one by one or together."""
    values = [5, 6, 4, 7, 20, 3]
    defines = {
        "a": "true",
        "b": "v > LAST(a.v) AND (COUNT(b.*) = 1 OR v > LAST(b.v, 1))",
        "c": "v >= sum(v) - v OR v < min(a.v)",
    }
    matches = found(
        "a b+ c", "......", defines=defines, values=values, measures=("sum(b.v)", "c.v")
    )
    assert spans(matches) == [(0, 2), (3, 5)]
    assert matches.rows.to_pylist() == [{"m0": 6, "m1": 4}, {"m0": 20, "m1": 3}]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("at - a.at < INTERVAL '3 seconds'", False),
        ("at - a.at <= INTERVAL 4 MICROSECONDS", True),
        ("v / first(a.v) = 2.5", True),
        ("v * 1.5 > a.v * 3", True),
        ("v // a.v = 2 AND v % a.v = 1", True),
        ("x <> a.x AND x > a.x", True),
        ("x IN (a.x, 'b')", True),
        ("v BETWEEN a.v + 3 AND a.v + 4", True),
        ("CASE WHEN a.v > v THEN a.x ELSE x END = 'b'", True),
        ("COALESCE(c.v, a.v, 7) = 2 AND c.v IS NULL", True),
        ("abs(a.v - v) = 3", True),
        ("a.v IS DISTINCT FROM v", True),
        ("NOT (c.v = v) IS NULL", False),
        ("avg(v) = 3.5 AND max(x) = 'b'", True),
        ("a.v::DOUBLE + 0.5 < v", True),
        ("lower(x) = concat(first(x), '') OR length(a.x) + v = 6", True),
    ],
)
def test_expressions_over_several_rows(condition: str, expected: bool) -> None:
    """What a definition may compute of several rows of a match is computed as DuckDB would."""
    times = [0, 4] if "MICRO" in condition else [0, 4_000_000]
    defines = {"b": condition, "c": "x = 'c'"}
    matches = found("a c? b", "ab", defines=defines, values=[2, 5], times=times)
    assert spans(matches) == ([(0, 1)] if expected else [])


def test_time() -> None:
    """A match has its bound of time from its first row, a step from the row before it."""
    times = [0, 5, 8, 20]
    assert spans(found("a -> b", "axxb", times=times, within_us=20)) == [(0, 3)]
    assert spans(found("a -> b", "axxb", times=times, within_us=19)) == []
    step = "a -> c -> b within 12 microseconds"
    assert spans(found(step, "axcb", times=times)) == [(0, 3)]
    assert spans(found(step.replace("12", "11"), "axcb", times=times)) == []


def test_what_may_still_change_waits() -> None:
    """A match isn't given while rows may come that change it; then it is known how far it is."""
    matches = found("a+ b?", "xaa", complete=False)
    assert spans(matches) == []
    assert matches.next_from.at.tolist() == [1]
    partial = matches.partial
    assert (partial.first.tolist(), partial.count.tolist(), partial.variable) == ([1], [2], ("a",))
    assert partial.rows.to_pylist() == [{"m0": 2}]
    assert spans(found("a+? b?? c?", "xaac", complete=False)) == [(1, 1), (2, 3)]


def test_an_absence_is_decided_by_time() -> None:
    """What doesn't come within its time is a match as soon as no row can come in that time any more."""
    waits = found("a -> !b", "ax", within_us=5, complete=False, frontier=5)
    assert spans(waits) == []
    over = found("a -> !b", "ax", within_us=5, complete=False, frontier=6)
    assert spans(over) == [(0, 0)]
    assert over.decided.tolist() == [5]
    assert spans(found("a -> !b", "axb", within_us=5, complete=False, frontier=99)) == []
    own = found("a -> c -> !b within 3 microseconds", "axcx", complete=False, frontier=6)
    assert (spans(own), own.decided.tolist()) == ([(0, 2)], [5])


def test_matches_that_run_out_of_time() -> None:
    """A match that began, and whose next row didn't come in time, is known with what it had."""
    matches = found("a -> b -> c", "abx", within_us=5, complete=False, frontier=6)
    late = matches.timed_out
    assert (late.first.tolist(), late.last.tolist(), late.variable) == ([0], [1], ("b",))
    assert late.rows.to_pylist() == [{"m0": 2}]
    assert matches.next_from.at.tolist() == [3]
    assert found("a b", "axx", within_us=5).timed_out.variable == ()


def test_a_condition_that_fails_is_counted() -> None:
    """Where a part of a definition can't be computed it is NULL, and counted."""
    matches = found("a b", "abab", defines={"b": "CAST(x || v AS INTEGER) > 0"})
    assert (spans(matches), matches.failed) == ([], 4)
    measures = ("list(CAST(x AS INTEGER))", "sum(CAST(x || v AS INTEGER))", "count(*)")
    listed = found("a b", "ab", measures=measures)
    assert listed.rows.to_pylist() == [{"m0": [None, None], "m1": None, "m2": 2}]
    sums = found("a+ b", "aab", values=[2**62, 2**62, 1], defines={"b": "x = 'b' AND sum(a.v) > 0"})
    assert spans(sums) == [(1, 2)]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (RowPattern("a", (("b", "true"),)), "expected definitions of a; found one of 'b'"),
        (RowPattern("a", (("a", "y = 1"),)), "expected one of the columns"),
        (RowPattern("a", (("a", "v"),)), "expected a condition in the definition of a; found 'v'"),
        (RowPattern("a", (("a", "v >"),)), "expected a SQL expression"),
        (RowPattern("a b", (("b", "sin(a.v + v) > 0"),)), "arithmetic, AND, OR, NOT"),
        (RowPattern("a b", (("b", "x || a.x = 'ab'"),)), "where an expression reads several rows"),
        (RowPattern("a b", (("b", "v > median(a.v)"),)), "one of count, sum, avg, min and max"),
        (RowPattern("a b", (("b", "v > FINAL last(a.v)"),)), "no FINAL in a definition"),
        (RowPattern("a", measures=(("m", "FIRST(a.v + b.v)", "final"),)), "one of the columns"),
        (
            RowPattern("a b", measures=(("m", "FIRST(a.v + b.v)", "final"),)),
            "columns of one variable",
        ),
        (RowPattern("a", measures=(("m", "FIRST(PREV(v))", "final"),)), "PREV and NEXT outside"),
        (RowPattern("a", measures=(("m", "FIRST(v, -1)", "final"),)), "a whole number"),
        (RowPattern("a", measures=(("m", "sum(PREV(v))", "final"),)), "no navigation within"),
        (RowPattern("a", measures=(("m", "random()", "final"),)), "the same whenever"),
        (
            RowPattern("a", measures=(("x", "a.v", "final"),), rows="all"),
            "other names than the columns",
        ),
        (RowPattern("a", after="first z"), "where x is a variable; found 'first z'"),
        (RowPattern("a", subsets=(("s", ("z",)),)), "expected subsets of a; found 'z'"),
        (RowPattern("a -> !b", (("b", "true"),)), "Bound the match with within="),
        (RowPattern("a -> !b -> c"), "expected a definition of b"),
        (RowPattern("((a{100}){100}){100}"), "at most 20,000 steps"),
        (RowPattern("a", unmatched=True), "expected all rows of a match"),
    ],
)
def test_mistakes_are_named(spec: RowPattern, said: str) -> None:
    """A pattern that can't be compiled is refused with the part that is to blame."""
    with pytest.raises(SchemaError) as error:
        Matcher(spec, SCHEMA, "at")
    assert said in str(error.value)


def test_rows_without_time_have_no_bounds() -> None:
    """A bound of time is refused where rows have no time."""
    with pytest.raises(SchemaError, match="expected rows with event time"):
        Matcher(RowPattern("a", within_us=1), SCHEMA, None)


@pytest.mark.parametrize(
    "pattern", ["(a* b*)* c", "(a*? b*?)*? c", "(a | b | a b | b a)* c", "((a?)* b?)* c"]
)
def test_adversarial_patterns_take_steps_in_proportion_to_rows(pattern: str) -> None:
    """Patterns that backtracking alone takes exponential time for are searched at once."""
    assert spans(found(pattern, "ab" * 1_500)) == []
    assert spans(found(pattern, "ab" * 1_500 + "c")) == [(0, 3_000)]


def test_a_search_with_too_many_ways_is_given_up() -> None:
    """Where a definition makes each way another state, the search ends, and says for which rows."""
    values = [2**i for i in range(40)]
    defines = {"a": "true", "b": "true", "c": "sum(a.v) = -1"}
    matches = found("(a | b)* c", "." * 40, values=values, defines=defines)
    assert spans(matches) == []
    given_up = matches.abandoned
    assert (given_up.first.tolist(), given_up.last.tolist()) == ([0], [39])
