"""The pipeline that the tests of kills kill.

Arguments: name, directory, address; `whole`, `transactions`, or `before`; options of `penstock run`.
"""

import sys

import penstock as ps


def pipeline(name: str, directory: str, address: str, which: str = "whole") -> ps.App:
    """Aggregates, joins of streams and of tables, corrections, deduplication; output topics of each kind.

    `before` is a program of which the whole one is an upgrade.
    """
    transactions = which == "transactions"
    app = ps.App(name, directory=directory, log=f"kafka://{address}", transactions=transactions)
    events = app.stream(
        "events",
        "user STRING NOT NULL, page STRING, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="2 seconds"),
        key="user",
        partitions=2,
    )
    per_user = (
        events.window(ps.tumbling("10 seconds"))
        .group_by("user")
        .agg(n=ps.count(), total=ps.sum("v"), low=ps.min("v"), high=ps.max("v"))
    )
    app.view("per_user", per_user)
    per_page = (
        events.window(ps.hopping("20 seconds", every="5 seconds"))
        .group_by("page")
        .agg(n=ps.count(), total=ps.sum("v"))
    )
    app.view("per_page", per_page)
    app.view("top", per_page.window(ps.tumbling("1 minute")).group_by().agg(most=ps.max("n")))
    per_user.to(f"{name}-closed", partitions=2)
    tens = events.where("v % 10 = 0").select("user", "v", "at")
    tens.to(f"{name}-tens", partitions=2)
    if transactions:
        tens.to(f"{name}-again", partitions=3)
    if which == "before":
        app.view("gone", events.group_by("page").agg(n=ps.count()))
    else:
        add_pairs(app, events, name)
    totals = events.group_by("user").agg(total=ps.sum("v"))
    kinds = events.deduplicate("user", "page", within="5 seconds").group_by("user")
    joined = totals.join(kinds.agg(pages=ps.count()), on="user", how="full")
    app.view("joined", joined)
    if which != "before":
        app.view("leaders", joined.top(5, by=("pages DESC", "user")))
    joined.to(f"{name}-joined", emit="changes")
    return app


def add_pairs(app: ps.App, events: ps.Stream, name: str) -> None:
    """Pairs of rows, and windows that late rows correct."""
    low = events.where("v < 100").select("user", "at", small="v")
    high = events.where("v >= 900").select("user", "at", large="v").select("user", "large")
    pairs = low.join(high, on="user", within="1 second", how="left")
    app.view("pairs", pairs.group_by("user").agg(n=ps.count(), matched=ps.count("large")))
    pairs.select("user", "small", "large", "at").to(f"{name}-pairs")
    corrected = (
        events.window(ps.tumbling("10 seconds"), late="correct", keep="1 minute")
        .group_by("page")
        .agg(n=ps.count(), total=ps.sum("v"))
    )
    corrected.to(f"{name}-corrected", partitions=2)


if __name__ == "__main__":
    pipeline(*sys.argv[1:5]).main(["--no-ui", *sys.argv[5:]])
