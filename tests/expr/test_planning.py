"""What planning asks DuckDB for, without rows."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from penstock.core.schema import Field, Schema
from penstock.errors import SchemaError
from penstock.expr import compile_expression, expression
from penstock.expr.duck import connection, known, types_of
from penstock.expr.query import fixed_query
from penstock.expr.typed import with_json
from penstock.expr.walks import find_all, nodes_of

SCHEMA = Schema.parse(
    'k BIGINT, n INT, x STRING, p DECIMAL(9, 2), u UUID, i INTERVAL, b BINARY, t TIME, "at" TIMESTAMP, '
    'd DATE, l ARRAY<BIGINT>, st STRUCT<"a b" BIGINT, c STRING>, m MAP<STRING, DOUBLE>'
)
SELECTED = (
    "*", "k + 1.5", "NULL", "[]", "[n]", "m['a']", "st", "st.c", "p * p", "sum(k)", "histogram(x)", "u",
    "CAST(x AS ENUM('a', 'b'))", "CAST(x AS JSON)", "[{'j': to_json(x)}]", "k, k", "i",
    "list_transform(l, lambda y: y + 1)",
    "{'a b': l, 'c': {'d': p}}", "CAST(k AS UHUGEINT)", 'CAST("at" AS TIMESTAMP_NS)', "[[m]]", "'1'::BIT",
)  # fmt: skip


@pytest.mark.parametrize("selected", SELECTED)
def test_types_are_those_of_an_answer(selected: str) -> None:
    """Names and types of columns that are told without running a query are those of its answer."""
    con, query = connection(), f"SELECT {selected} FROM given"
    con.register("given", known(SCHEMA.arrow.empty_table()))
    answer = con.sql(query)
    rows: pa.Table = answer.to_arrow_table()
    expected = [
        (name, with_json(type_, text), str(text))
        for name, type_, text in zip(answer.columns, rows.schema.types, answer.types, strict=True)
    ]
    con.unregister("given")
    assert types_of({"given": SCHEMA.arrow}, query) == expected
    with_others = f"WITH others AS (SELECT 1) {query}"
    assert types_of({"given": SCHEMA.arrow}, with_others) == expected


def test_a_text_has_the_type_of_its_columns() -> None:
    """The same text is another expression where its columns have other types."""
    for type_, expected in (("BIGINT", pa.int64()), ("DOUBLE", pa.float64()), ("INT", pa.int32())):
        found = compile_expression("a + a", Schema.parse(f"a {type_}, other STRING"))
        assert found.type == expected
        assert found.columns == {"a"}


def test_a_constant_needs_no_column() -> None:
    """Constants are the same over any columns."""
    one = compile_expression("1 + 1", Schema.parse("a BIGINT"))
    assert one == compile_expression("1 + 1", Schema.parse("b STRING"))
    assert one.type == pa.int32()


NAMED = Schema.parse(
    'k BIGINT, "a.b" STRING, "q""x" DOUBLE, "column 1" BIGINT, "column 0" STRING, l ARRAY<BIGINT>, '
    's STRUCT<k BIGINT, "a.b" STRING>, ts TIMESTAMP, "end" INT, "Up" BIGINT, up BIGINT'
)
ALIKE = (
    '"k" + 1', '"column 1" = "k" AND "column 0" <> \'"k"\'', '"q""x" * 2', '"s"."k" + "k"', '"s" . "a.b"',
    """CASE WHEN "a.b" IS NULL THEN 'n' ELSE 'v' || CAST("a.b" AS VARCHAR) END""", "CAST(NULL AS BIGINT)",
    'list_sum(list_transform("l", lambda e: e * "k"))', 'list_sum(list_transform("l", lambda "k": "k" + 1))',
    'CASE WHEN "k" > 0 THEN "end" END', "date_trunc('day', \"ts\")", '["k"]', "{'k': \"k\"}", 'k + "k"',
    "1", '"K"',
    "json_object('a', \"k\")->>'$.a'", '"k" IN (1, 2, NULL)', '"k" - -"column 1"', '"k" /* "a.b" */ + 1',
    '"a.b" || $$"k"$$', '"a.b" || E\'\\\'"k"\'',
)  # fmt: skip


@pytest.mark.parametrize("text", ALIKE)
def test_an_expression_is_the_same_as_if_it_were_compiled_by_itself(text: str) -> None:
    """What is known of one that differs in its columns' names says nothing wrong of this one."""
    alone = expression._compiled.__wrapped__(text, NAMED)
    for _ in range(2):
        found = compile_expression(text, NAMED)
        assert (found, found.tree, found.columns) == (alone, alone.tree, alone.columns)


def test_an_expression_of_other_columns_isnt_compiled_again() -> None:
    """Plans of queries compute the same of many columns."""
    schema = Schema.parse('"a b" BIGINT, "c d" BIGINT, "e f" DOUBLE')
    compile_expression('"a b" % 11 = 5', schema)
    before = expression._compiled.cache_info().misses
    assert compile_expression('"c d" % 11 = 5', schema).columns == {"c d"}
    assert expression._compiled.cache_info().misses == before
    compile_expression('"e f" % 11 = 5', schema)
    assert expression._compiled.cache_info().misses == before + 1


def test_what_nests_too_deeply_is_refused() -> None:
    """Beyond Python's limit of nested calls, an expression is an error that says so."""
    levels = sys.getrecursionlimit()
    with pytest.raises(SchemaError, match="expected an expression that nests less deeply"):
        compile_expression("(" * levels + "k" + " + 1)" * levels, SCHEMA)


HANDED_ON = (
    "SELECT x FROM rows0 EXCEPT SELECT x FROM rows0",
    "SELECT x FROM rows0 UNION ALL SELECT NULL WHERE NOT EXISTS (SELECT 1 FROM rows0)",
    "SELECT CASE WHEN count(*) = 1 THEN any_value(x) END AS x FROM rows0",
    "SELECT list(DISTINCT x) AS x FROM rows0",
)


@pytest.mark.parametrize("query", HANDED_ON)
def test_what_a_query_hands_on_is_known(query: str) -> None:
    """Columns that a query hands on have the types that DuckDB would have said."""
    for field in SCHEMA:
        tables = {"rows0": Schema((Field("x", field.type),))}
        of: pa.DataType = pa.list_(field.type) if "list(" in query else field.type
        like = Schema((Field("x", of),))
        assert told(query, tables, like) == told(query, tables, None), field


def told(query: str, tables: dict[str, Schema], like: Schema | None) -> object:
    """What becomes of a query: its text and columns, or why it is refused."""
    try:
        return fixed_query(query, tables, like)
    except SchemaError as error:
        return str(error)


def test_a_tree_is_walked_as_by_sqlglot() -> None:
    """Our walk has the same nodes in the same order."""
    text = "WITH a AS (SELECT k FROM t WHERE v > 1) SELECT sum(v) OVER (ORDER BY k) FROM a JOIN u ON TRUE"
    tree = sqlglot.parse_one(text, dialect="duckdb")
    assert all(one is two for one, two in zip(tree.walk(), nodes_of(tree), strict=True))
    assert find_all(tree, exp.Column, exp.CTE) == list(tree.find_all(exp.Column, exp.CTE))


def test_a_condition_is_cast_as_any_value() -> None:
    """That most casts of conditions need no look hides none that never works."""
    assert compile_expression("CAST(k > 1 AS BOOLEAN)", SCHEMA).type == pa.bool_()
    with pytest.raises(SchemaError, match="expected a cast that some value survives"):
        compile_expression("CAST(k > 1 AS DATE)", SCHEMA)


def test_a_column_may_have_a_functions_name() -> None:
    """A name is a function's only where it is called; what isn't of the row alone is refused all the same."""
    schema = Schema.parse('random BIGINT, "sum" BIGINT, k BIGINT')
    assert compile_expression('"random" + "sum"', schema).columns == {"random", "sum"}
    for text in ("random()", "k + RANDOM()", '"sum"(k)', "current_date", "unnest([k])"):
        with pytest.raises(SchemaError):
            compile_expression(text, schema)
