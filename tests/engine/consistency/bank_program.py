"""The bank that `test_bank` reads while money moves. Arguments: directory, log, options of `penstock run`."""

import sys

import penstock as ps


def bank(directory: str | None = None, address: str | None = None) -> ps.App:
    """Transfers, which are changed and withdrawn, to balances in two ways, and their total."""
    log = None if address is None else f"kafka://{address}"
    app = ps.App("bank", directory=directory, log=log)
    transfers = app.table(
        "transfers",
        "id BIGINT, source BIGINT NOT NULL, target BIGINT NOT NULL, amount BIGINT NOT NULL",
        key="id",
        partitions=3,
    )
    out = transfers.group_by("source").agg(out=ps.sum("amount"))
    in_ = transfers.group_by("target").agg(in_=ps.sum("amount"))
    both = out.join(in_, on={"source": "target"}, how="full")
    balances = both.select(account="source", balance="coalesce(in_, 0) - coalesce(out, 0)")
    app.view("balances", balances)
    app.view("total", balances.group_by().agg(total=ps.sum("balance"), accounts=ps.count()))
    moved = transfers.group_by().agg(transfers=ps.count(), moved=ps.sum("amount"))
    app.view("moved", moved)
    return app


if __name__ == "__main__":
    bank(*sys.argv[1:3]).main(sys.argv[3:])
