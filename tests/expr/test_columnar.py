"""What is computed on Arrow columns equals DuckDB's answer, value by value and type by type."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import Schema, type_text
from penstock.expr import EvaluationError, compile_expression
from penstock.expr.columnar import UnfitError, compute
from penstock.expr.duck import evaluate

SCHEMA = Schema.parse(
    "i INT, j INT, v BIGINT, w BIGINT, f DOUBLE, g DOUBLE, s STRING, t STRING, ok BOOLEAN, "
    "at TIMESTAMP, until TIMESTAMP, day DATE, p DECIMAL(15, 2), q DECIMAL(6, 3), z DECIMAL(38, 4)"
)
INT = st.one_of(st.integers(-3, 3), st.sampled_from([2**31 - 1, -(2**31)]))
BIGINT = st.one_of(st.integers(-3, 3), st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1]))
DOUBLE = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, 0.1, 1e308, -1e308, float("inf"), float("nan")]), st.floats()
)
TEXT = st.one_of(st.sampled_from(["", "a", "ab", "ä", "A%", "x_y", "a\\"]), st.text(max_size=4))
INSTANT = st.datetimes(
    dt.datetime(1, 1, 2),  # noqa: DTZ001 - the zone is drawn beside it
    dt.datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.just(dt.UTC),
)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    whole = st.one_of(st.integers(-300, 300), st.sampled_from([10**digits - 1, 1 - 10**digits]))
    return whole.map(lambda value: Decimal(value).scaleb(-scale, Context(prec=38)))


VALUES = {
    "INT": INT, "BIGINT": BIGINT, "DOUBLE": DOUBLE, "STRING": TEXT, "BOOLEAN": st.booleans(),
    "TIMESTAMP": INSTANT, "DATE": st.dates(),
    "DECIMAL(15, 2)": decimals(15, 2), "DECIMAL(6, 3)": decimals(6, 3), "DECIMAL(38, 4)": decimals(38, 4),
}  # fmt: skip


def rows_of(values: dict[str, list[Any]]) -> pa.Table:
    return pa.table({f.name: pa.array(values[f.name], f.type) for f in SCHEMA.arrow})


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 6))
    columns = {}
    for name in SCHEMA.names:
        value = st.one_of(st.none(), VALUES[type_text(SCHEMA[name].type)])
        columns[name] = draw(st.lists(value, min_size=count, max_size=count))
    return rows_of(columns)


numbers = st.sampled_from(["i", "j", "v", "w", "f", "g", "1", "2.5", "-3", "0", "4294967296"])
texts = st.sampled_from(["s", "t", "'a'", "''", "'ä'"])
arithmetic = st.recursive(
    numbers,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner)
        | st.builds("({} % {})".format, inner, st.sampled_from(["2", "3", "1000000007"]))
    ),
    max_leaves=4,
)
exact = st.recursive(
    st.sampled_from(["p", "q", "z", "i", "v", "1", "2.50", "-0.05", "(0.06 - 0.01)", "0"]),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
    max_leaves=4,
)
comparison = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
predicates = st.one_of(
    st.builds("{} {} {}".format, arithmetic, comparison, arithmetic),
    st.builds("{} {} {}".format, texts, comparison, texts),
    st.builds("{} || {} {} {}".format, texts, texts, comparison, texts),
    st.builds("{} {} {}".format, exact, comparison, exact),
    st.builds("CAST(({} {} {}) AS BOOLEAN)".format, exact, comparison, exact),
    st.builds(
        "day {} CAST('{}' AS DATE) {} INTERVAL {} {}".format,
        comparison,
        st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
        st.sampled_from("+-"),
        st.integers(0, 40),
        st.sampled_from(["DAY", "MONTH", "YEAR", "HOUR"]),
    ),
    st.builds("EXTRACT(YEAR FROM day) {} {}".format, comparison, numbers),
    st.builds("at {} until".format, comparison),
    st.builds("{} IS NULL".format, st.sampled_from(SCHEMA.names)),
    st.builds("{} IS NOT NULL".format, st.sampled_from(SCHEMA.names)),
    st.builds(
        "{} {} {} AND {}".format,
        numbers,
        st.sampled_from(["BETWEEN", "NOT BETWEEN"]),
        numbers,
        numbers,
    ),
    st.builds("{} IN ({}, {})".format, st.sampled_from(["i", "v"]), st.just("1"), st.just("-2")),
    st.builds("s {} ('a', 'b')".format, st.sampled_from(["IN", "NOT IN"])),
    st.builds(
        "s {} {}".format,
        st.sampled_from(["LIKE", "NOT LIKE"]),
        st.sampled_from(["'a%'", "'%b'", "'%'", "''", "'%a%'", "'A%'"]),
    ),
    st.sampled_from(["ok", "NOT ok", "TRUE", "ok = TRUE"]),
)
conditions = st.recursive(
    predicates,
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=4,
)


def check(text: str, rows: pa.Table) -> bool:
    """Compares both evaluators; whether Arrow took the expression on."""
    expression = compile_expression(text, SCHEMA)
    if expression.tree is None:
        return False
    try:
        found = compute(expression.tree, rows)
    except UnfitError:
        return False
    try:
        expected = evaluate(rows, f"SELECT {expression.sql} AS x FROM rows").column(0)
    except EvaluationError as error:
        raise AssertionError(f"{text}: DuckDB refuses ({error}), Arrow gave {found}") from None
    assert found.type == expression.type
    assert repr(found.to_pylist()) == repr(expected.to_pylist()), text
    return True


@given(text=conditions, rows=tables())
def test_conditions_equal_duckdb(text: str, rows: pa.Table) -> None:
    """Three-valued logic, NaN, overflow, mixed widths, any text."""
    check(text, rows)


@given(text=arithmetic, rows=tables())
def test_arithmetic_equals_duckdb(text: str, rows: pa.Table) -> None:
    """The same width, the same overflow, the same doubles."""
    check(text, rows)


@given(text=exact, rows=tables())
def test_exact_numbers_equal_duckdb(text: str, rows: pa.Table) -> None:
    """DECIMALs have DuckDB's digits, and overflow where its do."""
    check(text, rows)


@given(condition=conditions, text=exact, other=exact, rows=tables())
def test_choices_equal_duckdb(condition: str, text: str, other: str, rows: pa.Table) -> None:
    """A condition that is false or NULL takes what ELSE says."""
    check(f"CASE WHEN {condition} THEN {text} ELSE {other} END", rows)


@given(condition=conditions, text=arithmetic, rows=tables())
def test_conditional_values_equal_duckdb(condition: str, text: str, rows: pa.Table) -> None:
    """What a condition that is false or NULL leaves out is NULL."""
    check(f"CASE WHEN {condition} THEN {text} END", rows)


@pytest.mark.parametrize("choice", ["0.1", "0.1 ELSE 0.2", "0.1 ELSE 0", "0.1 ELSE (0.1 + 0.1)"])
@pytest.mark.parametrize("text", ["{} * i = 0.3", "{} * i = f", "{} - 0.1 = 0", "{} * f = 0.3"])
def test_chosen_fractions_are_exact(choice: str, text: str) -> None:
    """0.1 * 3 is 0.3, as of DECIMALs; computed in doubles it isn't. Beside a DOUBLE, it is one."""
    row: dict[str, list[Any]] = {name: [None] for name in SCHEMA.names}
    rows = rows_of(row | {"i": [3], "f": [0.3], "ok": [True]})
    check(text.format(f"CASE WHEN ok THEN {choice} END"), rows)
    assert check("CASE WHEN ok THEN 0.1 ELSE f END * i = f", rows)


@given(
    text=st.builds(
        "{} * {}".format, st.sampled_from("ijv"), st.sampled_from(["0.908", "1.1", ".5"])
    ),
    rows=tables(),
    more=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
)
def test_integers_times_fractions_equal_duckdb(text: str, rows: pa.Table, more: list[int]) -> None:
    """They are decimal fractions, however large."""
    check(text, rows)
    column: list[Any] = [number // 908 for number in more]
    check(
        f"{text[4:]} * v",
        rows_of({name: [None] * len(more) for name in SCHEMA.names} | {"v": column}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "v % 10 = 0", "s <> '/health'", "i + 1", "f * 2.5", "ok AND v > 3", "s LIKE 'a%'", "v",
        "s NOT LIKE 'a%'",
        "s IS NOT NULL", "i IN (1, 2)", "NOT ok", "f >= 0.5", "v BETWEEN 1 AND 5", "at < until",
        "CASE WHEN v > 3 THEN 1 END", "CASE WHEN s = 'a' THEN f END", "0.908 * v", "i * 2.50",
    ],
)  # fmt: skip
def test_what_programs_often_say_needs_no_duckdb(text: str) -> None:
    """A test that compares nothing would pass as well: these are computed by Arrow."""
    row: dict[str, list[Any]] = {name: [None] for name in SCHEMA.names}
    plain = {"i": [7], "v": [20], "f": [1.25], "s": ["abc"], "ok": [True]}
    assert check(text, rows_of(row | plain))


@pytest.mark.parametrize(
    "text",
    ["upper(s)", "v / 2", "i * 2.5 + 1", "s LIKE 'a_'", "at > '2026-01-01'", "v % 0", "f % 2"],
)
def test_what_might_differ_is_left_to_duckdb(text: str) -> None:
    """Text functions, divisions, decimals, casts."""
    assert compile_expression(text, SCHEMA).tree is None


@pytest.mark.parametrize(
    "text",
    [
        "day < CAST('infinity' AS DATE)", "day < DATE '9999-12-31' + INTERVAL 1 DAY",
        "day > DATE '0044-03-15 (BC)'", "CAST('{}' AS JSON) = s",
        "s = CAST('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11' AS UUID)", "z > CAST(1 AS HUGEINT)",
        "1 BETWEEN CAST(1 AS DECIMAL(38, 0)) AND p", "i IN (0.00001, z)",
        "CASE WHEN ok THEN z ELSE CAST('1234567890123456789012345678.9012345' AS DECIMAL(38, 7)) END > 1",
    ],
)  # fmt: skip
def test_what_python_or_arrow_has_otherwise_is_left_to_duckdb(text: str) -> None:
    """Dates without a name in Python, types that Arrow has as text or DECIMAL, and DECIMALs too wide."""
    assert compile_expression(text, SCHEMA).tree is None


@pytest.mark.parametrize(
    "text",
    [f"i IN ({', '.join(map(str, range(600)))})", " AND ".join(f"i <> {n}" for n in range(200))],
)
def test_long_expressions_are_left_to_duckdb(text: str) -> None:
    """Python ends a recursion that is too deep, as it computes a tree or sends it to a lane."""
    expression = compile_expression(text, SCHEMA)
    assert expression.tree is None
    assert pickle.loads(pickle.dumps(expression)) == expression


def test_overflow_and_nan_are_duckdbs_to_judge() -> None:
    """They are no reason to refuse a row, nor to give another answer."""
    row: dict[str, list[Any]] = {name: [None] for name in SCHEMA.names}
    rows = rows_of(row | {"v": [2**63 - 1], "f": [float("nan")]})
    for text in ("v + 1", "f > 1", "f = f"):
        tree = compile_expression(text, SCHEMA).tree
        assert tree is not None
        with pytest.raises(UnfitError):
            compute(tree, rows)
