"""Queries of every kind that is supported, each one view, each equal to DuckDB's answer after every batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.effort import rounds
from tests.sql.beside_duckdb import Difference, compare, failing

QUERIES = (Path(__file__).parent / "queries.sql").read_text().partition("\n")[2]
EACH = [one.strip() for one in QUERIES.split(";") if one.strip()]
TOGETHER = 15  # views of one program: most of what one costs alone is the program
SEEDS = rounds("PENSTOCK_SQL_SEEDS", quick=1, full=3)


@pytest.mark.parametrize("first", range(0, len(EACH), TOGETHER))
def test_views_equal_duckdb(first: int) -> None:
    for seed in range(SEEDS):
        for query, error in failing(EACH[first : first + TOGETHER], seed=seed):
            error.add_note(f"compare({query!r}, seed={seed}) repeats it")
            raise error


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sql.relation import Relation

    monkeypatch.setattr(Relation, "distinct", lambda relation: relation.kept())
    with pytest.raises(Difference):
        compare("SELECT DISTINCT k FROM t", seed=0, batches=10)
