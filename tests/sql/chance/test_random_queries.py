"""Random queries as views, over random changes, equal to DuckDB after every batch.

PENSTOCK_SQL_QUERIES, _TYPED, _WINDOWS, _PROGRAMS and _HOSTILE say how many,
PENSTOCK_SQL_FIRST where to begin. Queries are views of one program, `TOGETHER` at a time: most of what one
costs alone is the program. `run.py` runs as many as there is time for.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.effort import rounds
from tests.sql.beside_duckdb import Difference, compare, compare_all, failing
from tests.sql.chance.hostile import failures
from tests.sql.chance.queries import random_program
from tests.sql.chance.run import TOGETHER, parts_of, query_of, smaller, tried
from tests.sql.chance.windows import random_windows

PARTS = 4
QUERIES = rounds("PENSTOCK_SQL_QUERIES", quick=40, full=800)
TYPED = rounds("PENSTOCK_SQL_TYPED", quick=10, full=200)
WINDOWS = rounds("PENSTOCK_SQL_WINDOWS", quick=20, full=240)
TYPED_TOGETHER = 25  # over one schema
PROGRAMS = rounds("PENSTOCK_SQL_PROGRAMS", quick=2, full=16)
HOSTILE = rounds("PENSTOCK_SQL_HOSTILE", quick=2, full=12)
FIRST = int(os.environ.get("PENSTOCK_SQL_FIRST", "0"))


def run(first: int, last: int, make: Callable[[int], str] = query_of) -> None:
    """Runs the queries of some seeds; those that fail are told one by one."""
    for seed in range(first, last, TOGETHER):
        _, failures = tried(seed, min(TOGETHER, last - seed), make)
        assert not failures, "\n".join(failures)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_views_equal_duckdb(part: int) -> None:
    of_part = QUERIES // PARTS
    run(FIRST + part * of_part, FIRST + (part + 1) * of_part)


def test_random_queries_over_random_schemas_equal_duckdb() -> None:
    """Of all types, under names that SQL has to quote."""
    for seed in range(FIRST, FIRST + TYPED, TYPED_TOGETHER):
        count = min(TYPED_TOGETHER, FIRST + TYPED - seed)
        _, failures = tried(seed, count, own_schema=True)
        assert not failures, "\n".join(failures)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + HOSTILE))
def test_expressions_that_fail_stop_nothing(seed: int) -> None:
    """Rows for which they fail are left out or NULL, as each row alone says; the others are as ever."""
    assert failures(seed) == []


def test_random_window_functions_equal_duckdb() -> None:
    """Of every frame, with ties and NULLs, over tables whose rows change, come and go."""
    run(FIRST, FIRST + WINDOWS, random_windows)


def test_random_programs_equal_duckdb() -> None:
    """Views over views, with temporal filters, interval joins, window functions and constants."""
    for seed in range(FIRST, FIRST + PROGRAMS):
        views, query = random_program(seed)
        try:
            compare(query, seed=seed, views=views)
        except Exception as error:
            error.add_note(f"program {seed}: {views} {query}")
            raise


@pytest.mark.slow
def test_the_query_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among those that run in one program with it."""
    from penstock.sql.relation import Relation

    monkeypatch.setattr(Relation, "distinct", lambda relation: relation.kept())
    wrong = "SELECT DISTINCT k FROM t"
    queries = ["SELECT k FROM t", "SELECT v FROM t", wrong, "SELECT w FROM u"]
    with pytest.raises(Difference, match="DISTINCT"):
        compare_all(queries, seed=0, batches=10)
    [(query, error)] = failing(queries, seed=0, batches=10)
    assert query == wrong
    assert isinstance(error, Difference)


@pytest.mark.slow
def test_a_query_that_fails_becomes_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doesn't matter for a difference is left out, as long as there is one."""
    from penstock.sql.relation import Relation

    monkeypatch.setattr(Relation, "distinct", lambda relation: relation.kept())
    wrong = (
        "SELECT a.k FROM (SELECT DISTINCT k, x FROM t WHERE id > 0) AS a LEFT JOIN u ON u.id = a.k"
    )
    how = {"seed": 0, "batches": 10, "shaken": False}
    found = smaller(wrong, Difference, how)
    assert found in ("SELECT DISTINCT k FROM t", "SELECT DISTINCT x FROM t")
    assert all(len(one) < len(wrong) for one in parts_of(wrong))
