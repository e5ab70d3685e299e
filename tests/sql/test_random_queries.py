"""Random queries as views, over random changes, equal to DuckDB after every batch.

PENSTOCK_SQL_QUERIES and PENSTOCK_SQL_PROGRAMS say how many, PENSTOCK_SQL_FIRST where to begin.
"""

from __future__ import annotations

import os

import pytest
from tests.effort import rounds
from tests.sql.beside_duckdb import compare
from tests.sql.random_queries import random_program, random_query

PARTS = 4
QUERIES = rounds("PENSTOCK_SQL_QUERIES", quick=40, full=160)
PROGRAMS = rounds("PENSTOCK_SQL_PROGRAMS", quick=4, full=16)
FIRST = int(os.environ.get("PENSTOCK_SQL_FIRST", "0"))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_views_equal_duckdb(part: int) -> None:
    for seed in range(FIRST + part, FIRST + QUERIES, PARTS):
        query = random_query(seed)
        try:
            compare(query, seed=seed, batches=3)
        except Exception as error:
            error.add_note(f"query {seed}: {query}")
            raise


def test_random_programs_equal_duckdb() -> None:
    """Views over views, with temporal filters, interval joins, window functions and constants."""
    for seed in range(FIRST, FIRST + PROGRAMS):
        views, query = random_program(seed)
        try:
            compare(query, seed=seed, views=views)
        except Exception as error:
            error.add_note(f"program {seed}: {views} {query}")
            raise
