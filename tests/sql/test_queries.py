"""Queries of every kind that is supported, each one view, each equal to DuckDB's answer after every batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.effort import rounds
from tests.sql.beside_duckdb import Difference, compare

QUERIES = (Path(__file__).parent / "queries.sql").read_text().partition("\n")[2]
SEEDS = rounds("PENSTOCK_SQL_SEEDS", quick=1, full=2)
BATCHES = rounds("PENSTOCK_SQL_BATCHES", quick=2, full=4)


@pytest.mark.parametrize("query", [one.strip() for one in QUERIES.split(";") if one.strip()])
def test_a_view_equals_duckdb(query: str) -> None:
    for seed in range(SEEDS):
        compare(query, seed=seed, batches=BATCHES)


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sql.relation import Relation

    monkeypatch.setattr(Relation, "distinct", lambda relation: relation.kept())
    with pytest.raises(Difference):
        compare("SELECT DISTINCT k FROM t", seed=0, batches=10)
