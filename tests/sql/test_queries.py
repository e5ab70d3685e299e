"""Queries of every kind that is supported, each one view, each equal to DuckDB's answer after every batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.effort import rounds
from tests.sql.beside_duckdb import Difference, compare, failing, flow

from penstock.errors import SchemaError

QUERIES = (Path(__file__).parent / "queries.sql").read_text().partition("\n")[2]
EACH = [one.strip() for one in QUERIES.split(";") if one.strip()]
TOGETHER = 15  # views of one program: most of what one costs alone is the program
SEEDS = rounds("PENSTOCK_SQL_SEEDS", quick=1, full=3)


@pytest.mark.quick_cases(5)
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


@pytest.mark.parametrize("side", ["LEFT", "RIGHT", "FULL", "SEMI", "ANTI"])
def test_a_subquery_about_both_sides_of_an_outer_join_is_refused(side: str) -> None:
    """The message says which, and what to write instead; the LATERAL that it proposes equals DuckDB's."""
    inner = "(SELECT max(w) FROM u AS i WHERE i.k = t.k AND i.w > u.w)"
    with pytest.raises(SchemaError, match="depends on both") as refused:
        flow().view("v", sql=f"SELECT t.id FROM t {side} JOIN u ON t.k = u.k AND {inner} > 1")
    assert "LEFT JOIN LATERAL" in str(refused.value)
    lateral = (
        "SELECT t.id, r.id AS other FROM t LEFT JOIN LATERAL "
        f"(SELECT id FROM u WHERE t.k = u.k AND {inner} > 1) AS r ON TRUE"
    )
    exists = f"SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE t.k = u.k AND {inner} > 1)"
    for query in (lateral, exists) if side == "LEFT" else ():
        compare(query, seed=0)
