"""Views of one version agree with each other and with the rows read so far: no money is made or lost.

The views are those of Scattered Thoughts' "Internal consistency in streaming systems" (2021): transfers are
summed up as credits and debits, these are joined as balances, and the balances' total is 0 at every version.
"""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from tests.effort import rounds

import penstock as ps
from penstock.serve.views import Snapshot
from penstock.sql import SqlFlow

VIEWS = {
    "n": "SELECT count(*) AS n FROM transfers",
    "credits": "SELECT receiver AS account, sum(amount) AS amount FROM transfers GROUP BY receiver",
    "debits": "SELECT sender AS account, sum(amount) AS amount FROM transfers GROUP BY sender",
    "balance": """
        SELECT coalesce(c.account, d.account) AS account,
            coalesce(c.amount, 0) - coalesce(d.amount, 0) AS amount
        FROM credits AS c FULL JOIN debits AS d ON c.account = d.account
    """,
    "total": "SELECT sum(amount) AS amount FROM balance",
    "joined": """
        SELECT c.account, c.amount - d.amount AS amount
        FROM credits AS c JOIN debits AS d ON c.account = d.account
    """,
    "unmatched": """
        SELECT a.id, b.id AS other
        FROM transfers AS a LEFT JOIN (SELECT id, made FROM transfers) AS b ON a.id = b.id AND a.made = b.made
    """,
    "richest": "SELECT account, amount FROM balance WHERE amount = (SELECT max(amount) FROM balance)",
}
"""Each over the streams and views before it."""

SEEDS = rounds("PENSTOCK_SQL_SEEDS", quick=1, full=2)
TRANSFERS = 32


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_version_is_one_state_of_the_transfers(seed: int) -> None:
    chance = random.Random(seed)
    app = SqlFlow("bank")
    app.stream(
        "transfers", "id BIGINT, sender BIGINT, receiver BIGINT, amount BIGINT, made TIMESTAMP"
    )
    for name, query in VIEWS.items():
        app.view(name, sql=query)
    run = ps.testing.run(app)
    with duckdb.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE sent(id BIGINT, sender BIGINT, receiver BIGINT, amount BIGINT, made TIMESTAMPTZ); "
            "CREATE MACRO first(n) AS TABLE FROM sent WHERE id < n"
        )
        for id_ in range(TRANSFERS):
            sender, receiver = chance.sample(range(6), 2)
            amount, at = chance.randint(1, 9), f"2026-01-01T00:{chance.randint(0, 59):02}:00Z"
            run.send("transfers", id=id_, sender=sender, receiver=receiver, amount=amount, made=at)
            database.execute(
                "INSERT INTO sent VALUES (?, ?, ?, ?, ?)", [id_, sender, receiver, amount, at]
            )
        versions = 0
        while run.step(rows=chance.randint(1, 8)) is not None:
            versions += 1
            check(run, database)
            if versions == 3:
                run.restart()
        assert versions >= TRANSFERS // 8
        assert contents(run)["n"] == [(TRANSFERS,)]


def check(run: Any, database: duckdb.DuckDBPyConnection) -> None:
    """Compares the newest version's views with DuckDB's over as many transfers as `n` says."""
    found = contents(run)
    [(n,)] = found["n"]
    assert found["total"] == [(0,)]
    assert all(id_ == other for id_, other in found["unmatched"])
    database.execute(f"CREATE OR REPLACE VIEW transfers AS FROM first({n})")
    for name, query in VIEWS.items():
        database.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")
        assert found[name] == sorted(database.execute(f"FROM {name}").fetchall()), (name, n)


def contents(run: Any) -> dict[str, list[Any]]:
    """The rows of each view, of one version."""
    snapshot = Snapshot(run.store, run.store.version(run.store.newest_version()))
    return {
        name: sorted(tuple(row.values()) for row in snapshot.table(name).to_pylist())
        for name in VIEWS
    }
