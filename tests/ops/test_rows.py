"""Steps on rows: what fails is found in one pass, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema import Schema
from penstock.expr import compile_expression, duck, failing
from penstock.expr import values as columnar
from penstock.expr.columnar import UnfitError
from penstock.ops import rows as ops_rows
from penstock.ops.rows import Explanations, Select, Where

SCHEMA = Schema.parse("s STRING, v BIGINT")


def table(values: list[str | None]) -> pa.Table:
    numbers = range(len(values))
    return pa.table({"s": values, "v": numbers, "$offset": numbers})


def test_rows_that_fail_cost_no_query_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them among others: all found, told, and counted out, in a handful of queries."""
    queries: list[str] = []
    query_tables = duck.query_tables

    def counted(
        tables: Mapping[str, pa.Table], query: str, *, as_written: bool = False
    ) -> pa.Table:
        queries.append(query)
        return query_tables(tables, query, as_written=as_written)

    for module in (duck, failing):
        monkeypatch.setattr(module, "query_tables", counted)
    bad = {i for i in range(5_000) if i % 3 == 0}
    rows = table(["x" if i in bad else None if i % 5 == 0 else str(i) for i in range(5_000)])
    step = Select((("n", compile_expression("CAST(s AS BIGINT)", SCHEMA)),))
    out, [refused] = step.apply(rows, Explanations())
    assert set(refused.rows.column("$offset").to_pylist()) == bad
    kept = [i for i in range(5_000) if i not in bad]
    assert out.column("$offset").to_pylist() == kept
    assert out.column("n").to_pylist() == [None if i % 5 == 0 else i for i in kept]
    reasons = refused.reason.to_pylist()
    assert all(reason.startswith("CAST(s AS BIGINT): ") for reason in reasons)
    assert "Could not convert string 'x'" in reasons[0]
    assert len(queries) < 2 * ops_rows.REASONS_MAX


def test_reasons_do_not_depend_on_chunks() -> None:
    """A batch that is run again reads the same rows in other chunks, and must write the same letters."""
    rows = table([f"no {i}" for i in range(60)])
    step = Select((("n", compile_expression("CAST(s AS BIGINT)", SCHEMA)),))

    def reasons(ends: list[int]) -> list[str]:
        explanations = Explanations()
        found = []
        for start, end in zip([0, *ends], [*ends, 60], strict=True):
            _, refused = step.apply(rows.slice(start, end - start), explanations)
            found += [text for one in refused for text in one.reason.to_pylist()]
        return found

    whole = reasons([])
    assert reasons([7]) == reasons([20, 21, 50]) == whole
    assert ["Conversion Error" in reason for reason in whole] == [i < 16 for i in range(60)]


@pytest.mark.parametrize("text", ["v % 2 = 0", "CAST(s AS BIGINT) % 2 = 0"])
def test_both_evaluators_keep_the_same_rows(text: str) -> None:
    """True rows stay; false ones and NULLs go; Penstock's own columns ride along."""
    rows = table([str(i) for i in range(7)])
    out, refused = Where(compile_expression(text, SCHEMA)).apply(rows, Explanations())
    assert out.to_pylist() == rows.take(pa.array([0, 2, 4, 6])).to_pylist()
    assert not refused


def test_a_step_without_duckdb_gives_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, names and types."""
    expressions = tuple(
        (name, compile_expression(text, SCHEMA))
        for name, text in (("twice", "v * 2"), ("s", "s"), ("big", "v > 3"))
    )
    rows = table([str(i) for i in range(7)])
    fast, _ = Select(expressions).apply(rows, Explanations())

    def unfit(*_: Any) -> None:
        raise UnfitError

    monkeypatch.setattr(columnar, "compute", unfit)
    slow, _ = Select(expressions).apply(rows, Explanations())
    assert fast.schema == slow.schema
    assert fast.to_pylist() == slow.to_pylist()


def test_expressions_are_computed_of_different_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of what differs in the columns that it names, NULL too; beside those that Arrow computes."""
    seen: list[int] = []
    evaluate = columnar.evaluate

    def counted(rows: pa.Table, query: str) -> pa.Table:
        seen.append(len(rows))
        return evaluate(rows, query)

    monkeypatch.setattr(columnar, "evaluate", counted)
    rows = table([None if i % 7 == 0 else f"s{i % 7}" for i in range(9_000)])
    rows = rows.append_column("k", pa.array([i % 10 for i in range(9_000)]))
    schema = Schema.parse("s STRING, v BIGINT, k BIGINT")
    texts = ["upper(s)", "s || printf('%d', k)", "v + 1", "coalesce(s, 'none')", "v / 2"]
    step = Select(tuple((f"c{i}", compile_expression(t, schema)) for i, t in enumerate(texts)))
    found, refused = step.apply(rows, Explanations())
    assert not refused
    assert sorted(seen) == [7, 70, 9_000]
    query = ", ".join(f"{text} AS c{i}" for i, text in enumerate(texts))
    expected = evaluate(rows, f'SELECT {query}, "$offset" FROM rows')
    assert found.to_pylist() == expected.to_pylist()
    kept, _ = Where(compile_expression("upper(s) = 'S3'", schema)).apply(rows, Explanations())
    assert kept.column("v").to_pylist() == list(range(3, 9_000, 7))
    assert seen[-1] == 7


def test_zeros_that_differ_in_sign_are_different_rows() -> None:
    """Doubles are taken as they are."""
    rows = pa.table({"f": [0.0, -0.0] * 3_000})
    step = Select((("t", compile_expression("CAST(f AS STRING)", Schema.parse("f DOUBLE"))),))
    assert step.apply(rows, Explanations())[0].column("t").to_pylist() == ["0.0", "-0.0"] * 3_000
