"""Expressions that fail for some rows: which rows, whatever comes with them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.schema import Schema
from penstock.expr import EvaluationError, compile_expression, failing
from penstock.expr.duck import query_tables
from penstock.expr.values import tried

SCHEMA = Schema.parse("s STRING, n BIGINT, d DOUBLE, l ARRAY<BIGINT>")
TEXTS = ["5", "abc", "7", None, "", "2020-01-01", "{", "99999999999", "UTC", "(", "0"]
ROWS = pa.table(
    {
        "s": TEXTS,
        "n": [0, 1, 2, -1, 2**63 - 1, None, 3, -(2**63), 5, 6, 7],
        "d": [0.0, 1.5, float("nan"), float("inf"), -1.0, None, 1e308, -0.0, 2.0, 3.0, 4.0],
        "l": [[], [1], None, [1, 2], [], [3], [], [4], [5, 6], [7], [2**63 - 1, 1]],
    },
    SCHEMA.arrow,
)
EXPRESSIONS = [
    "s::INT",
    "s::INT + s::INT",
    "CASE WHEN s::INT > 5 THEN s::INT ELSE 0 END",
    "s::INT BETWEEN 1 AND 10",
    "s IN (1, 2)",
    "s::INT IN (5, 7)",
    "list_contains([5, 7], s::INT)",
    "nullif(s::INT, 0)",
    "10 // n + 10 // n",
    "n * 4611686018427387904",
    "list_reduce(l, lambda a, b: a + b)",
    "list_transform([s], lambda x: x::INT)[1]",
    "TIMESTAMPTZ '2020-01-01' AT TIME ZONE s",
    "CASE WHEN s = 'abc' THEN error('no ' || s) ELSE s END",
    "assert_true(n > 0)",
    "s::DATE",
    "year(s::DATE) + month(s::DATE)",
    "json_extract(s, '$.a')",
    "regexp_matches(s, s)",
    "sqrt(d) + ln(n)",
    "(d * 1e10)::BIGINT",
    "chr(n::INT)",
    "'a'::INT",
    "coalesce(s::INT, 1)",
    "s::DECIMAL(4, 2)",
]


def alone(sql: str, row: pa.Table) -> tuple[object, bool]:
    """The reference: the expression's value of one row, and whether it fails."""
    try:
        found = query_tables({"rows": row}, f"SELECT {sql} AS x FROM rows")
    except EvaluationError:
        return None, True
    return found.column(0)[0].as_py(), False


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_row_fails_where_it_fails_alone(text: str) -> None:
    """The rows for which an expression fails are those for which it fails by itself."""
    expression = compile_expression(text, SCHEMA)
    expected = [alone(expression.sql, ROWS.slice(i, 1)) for i in range(len(ROWS))]
    for rows, at in ((ROWS, 0), (ROWS.slice(3, 5), 3), (ROWS.slice(0, 0), 0)):
        [found] = tried([expression], rows)
        failed = [False] * len(rows) if found.failed is None else found.failed.tolist()
        here = expected[at : at + len(rows)]
        assert failed == [one for _, one in here]
        assert list(map(repr, found.column.to_pylist())) == [repr(value) for value, _ in here]


def test_most_expressions_here_fail_for_some_rows() -> None:
    """The comparison above compares something."""
    found = tried([compile_expression(text, SCHEMA) for text in EXPRESSIONS], ROWS)
    assert sum(one.failed is not None for one in found) >= len(EXPRESSIONS) - 2


def test_rows_are_many_and_their_values_few() -> None:
    """An input that comes many times is computed once, and fails everywhere."""
    rows = pa.concat_tables([ROWS] * 1_000)
    expression = compile_expression("s::INT IN (5, 7)", SCHEMA)
    [found], [once] = tried([expression], rows), tried([expression], ROWS)
    assert found.failed is not None
    assert once.failed is not None
    assert found.failed.tolist() == 1_000 * once.failed.tolist()
    assert found.column.to_pylist() == 1_000 * once.column.to_pylist()


def test_an_expression_that_try_cannot_hold_is_halved() -> None:
    """What fails for all rows has a type, too."""
    values, failed = failing.guarded("error(coalesce(s, 'none'))::BIGINT", ROWS)
    assert failed.all()
    assert values.type == pa.int64()
    assert values.null_count == len(values) == len(ROWS)
