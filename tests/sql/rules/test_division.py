"""Division as a dialect has it."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import SchemaError


def answer(query: str, dialect: str) -> list[tuple[object, ...]]:
    """The rows of a view over two rows, as tuples."""
    app = ps.App("division")
    app.stream("t", "x INT, y BIGINT, d DOUBLE")
    app.view("v", sql=query, dialect=dialect)
    run = ps.testing.run(app, shaken=False)
    for x in (3, -3):
        run.send("t", x=x, y=2, d=4.0)
    return [tuple(row.values()) for row in run.view("v").rows()]


def test_integers_are_divided_as_integers_where_the_dialect_does() -> None:
    """Without the fraction, as in PostgreSQL; other numbers have theirs."""
    query = "SELECT x / 2 AS a, (x + 1) / y / 2 AS b, d / 8 AS c, x / 2.0 AS e FROM t"
    assert answer(query, "postgres") == [(-1, 0, 0.5, -1.5), (1, 1, 0.5, 1.5)]
    query = "SELECT sum(x + 1) / count(*) AS a, max(x) / 2 AS b FROM t HAVING max(x) / 2 = 1"
    assert answer(query, "postgres") == [(1, 1)]
    query = "SELECT x / 2 AS h, count(*) AS n FROM t GROUP BY x / 2"
    assert answer(query, "postgres") == [(-1, 1), (1, 1)]
    assert answer("SELECT x / 2 AS a FROM t", "duckdb") == [(-1.5,), (1.5,)]


def test_a_division_of_unknown_types_is_refused() -> None:
    """Which of both it is can't be known then; a cast says it."""
    query = "SELECT list_sum([x]) / 2 AS a FROM t"
    with pytest.raises(SchemaError, match="expected a division of known types"):
        answer(query, "postgres")
    cast = "SELECT CAST(list_sum([x]) AS BIGINT) / 2 AS a FROM t"
    assert answer(cast, "postgres") == [(-1,), (1,)]
