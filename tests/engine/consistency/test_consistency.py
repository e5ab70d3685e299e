"""Internal consistency: money that moves between accounts is never made or lost, at any version."""

from __future__ import annotations

import random

import orjson
from tests.effort import rounds

import penstock as ps
from penstock.serve.views import Snapshot

TRANSFERS = rounds("PENSTOCK_TRANSFERS", quick=1_500, full=50_000)
ACCOUNTS = 50


def test_the_total_is_zero_at_every_version() -> None:
    """Debits and credits by account, exchanged, added up again; a join that compares both ways of adding."""
    app = ps.App("bank")
    transfers = app.stream(
        "transfers", "source BIGINT, target BIGINT, amount BIGINT NOT NULL", partitions=3
    )
    debits = transfers.select(account="source", moved="-amount")
    credits_ = transfers.select(account="target", moved="amount")
    balances = debits.union(credits_).group_by("account").agg(balance=ps.sum("moved"))
    app.view("balances", balances)
    app.view("total", balances.group_by().agg(total=ps.sum("balance")))
    out = transfers.group_by("source").agg(out=ps.sum("amount"))
    in_ = transfers.group_by("target").agg(in_=ps.sum("amount"))
    both = out.join(in_, on={"source": "target"}, how="full")
    net = both.select(account="source", net="coalesce(in_, 0) - coalesce(out, 0)")
    app.view("wrong", net.join(balances, on="account", how="full").where("net <> balance"))
    run = ps.testing.run(app, cores=3)
    chance, sent = random.Random(5), 0
    while sent < TRANSFERS:
        batch = chance.choice([1, 2, 10, TRANSFERS // 10])
        for _ in range(batch):
            row = {
                "source": chance.randrange(ACCOUNTS),
                "target": chance.randrange(ACCOUNTS),
                "amount": chance.randrange(1, 10_000),
            }
            run.send_raw("transfers", orjson.dumps(row), partition=chance.randrange(3))
        sent += batch
        assert run.step() is not None
        snapshot = Snapshot(run.store, run.store.version(run.store.newest_version()))
        assert snapshot.table("total").to_pylist() == [{"total": 0}]
        assert sum(snapshot.table("balances")["balance"].to_pylist()) == 0
        assert snapshot.table("wrong").num_rows == 0
        if chance.random() < 0.02:
            run.restart()
