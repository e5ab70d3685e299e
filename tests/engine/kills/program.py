"""The pipeline that the tests of kills kill.

Arguments: name, directory, address; `whole` or `before`, with `,transactions` or without; options of
`penstock run`. On a cluster, the environment has SPARK_MASTER and STATE.
"""

import os
import sys

import pyarrow as pa

import penstock as ps


def pipeline(name: str, directory: str, address: str, which: str = "whole") -> ps.App:
    """Aggregates, sessions, corrections, deduplication, joins of all kinds; output topics of all kinds.

    `before` is a program of which the whole one is an upgrade.
    """
    which, _, how = which.partition(",")
    app = ps.App(
        name,
        directory=directory,
        log=f"kafka://{address}",
        transactions=how == "transactions",
        spark=os.environ.get("SPARK_MASTER"),
        state=os.environ.get("STATE"),
    )
    events = app.stream(
        "events",
        "user STRING NOT NULL, page STRING, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        # Idleness goes by the wall clock, which no two runs share.
        time=ps.event_time("at", lateness="2 seconds", idle="1 hour"),
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
    tens.to(f"{name}-again", partitions=3)
    if which == "before":
        app.view("gone", events.group_by("page").agg(n=ps.count()))
    else:
        add_pairs(app, events, name)
        add_visits(app, events, name)
        add_hostile(app, events, name)
        add_found(app, events)
        add_patterns(app, events, name)
    add_prices(app, events, name)
    totals = events.group_by("user").agg(total=ps.sum("v"))
    kinds = events.deduplicate("user", "page", within="5 seconds").group_by("user")
    joined = totals.join(kinds.agg(pages=ps.count()), on="user", how="full")
    app.view("joined", joined)
    if which != "before":
        app.view("leaders", joined.top(5, by=("pages DESC", "user")))
    joined.to(f"{name}-joined", emit="changes")
    return app


def add_pairs(app: ps.App, events: ps.Stream, name: str) -> None:
    """Pairs of rows, and windows that late rows correct, with a view of their corrections."""
    low = events.where("v < 100").select("user", "at", small="v")
    high = events.where("v >= 900").select("user", large="v")
    pairs = low.join(high, on="user", within="1 second", how="full")
    counts = {"n": ps.count(), "low": ps.count("small"), "high": ps.count("large")}
    app.view("pairs", pairs.group_by("user").agg(**counts))
    pairs.select("user", "small", "large", "at").to(f"{name}-pairs")
    corrected = (
        events.window(ps.tumbling("10 seconds"), late="correct", keep="1 minute")
        .group_by("page")
        .agg(n=ps.count(), total=ps.sum("v"))
    )
    corrected.to(f"{name}-corrected", partitions=2)
    per_minute = corrected.closed().window(ps.tumbling("1 minute")).group_by("page")
    app.view("minutes", per_minute.agg(n=ps.sum("n"), total=ps.sum("total")))


def add_visits(app: ps.App, events: ps.Stream, name: str) -> None:
    """Sessions, and an aggregate of an aggregate under another key."""
    few = events.where("v < 20")
    visits = few.window(ps.session("3 seconds")).group_by("user")
    visits = visits.agg(n=ps.count(), total=ps.sum("v"))
    app.view("visits", visits)
    visits.to(f"{name}-visits")
    both = events.group_by("page", "user").agg(n=ps.count())
    app.view("spread", both.group_by("page").agg(users=ps.count(), most=ps.max("n")))


def add_patterns(app: ps.App, events: ps.Stream, name: str) -> None:
    """Row patterns: what happens, what doesn't within a time, and what ran out of it."""
    order = ("v", "page")
    low, high = "v < 30", "v >= 950"
    answered = events.match(
        "low -> high",
        by="user",
        within="3 seconds",
        order=order,
        low=low,
        high=high,
        measures={"small": "low.v", "large": "high.v", "at": "high.at"},
    )
    answered.to(f"{name}-answered")
    answered.timed_out.select("user", "small").to(f"{name}-timed-out")
    silent = events.match(
        "low -> !high",
        by="user",
        within="1 second",
        order=order,
        low=low,
        high=high,
        measures={"small": "low.v"},
    )
    app.view("silent", silent.group_by("user").agg(n=ps.count(), total=ps.sum("small")))


def add_hostile(app: ps.App, events: ps.Stream, name: str) -> None:
    """An expression that fails for some rows, twice in a step, and a function that raises for a few."""
    parts = events.select("user", "at", part="1000 // (v % 400)", more="1000 // (v % 400) + 1")
    parts.to(f"{name}-parts", partitions=2)
    columns = "user STRING, page STRING, v BIGINT, at TIMESTAMP"
    picked = events.where("v % 250 = 7").map_batches(picky, columns)
    picked.to(f"{name}-picked", partitions=2)


def add_found(app: ps.App, events: ps.Stream) -> None:
    """Stored searches over documents, both of which change."""
    asked = events.where("v BETWEEN 0 AND 39").group_by("page", "v").agg(times=ps.count())
    searches = asked.select(
        "times", topic="page", least="v", search="'+page:\"' || page || '\" +n:>=' || v"
    )
    documents = events.group_by("page").agg(n=ps.count())
    found = documents.percolate(searches, query="search", text="page")
    app.view("found", found.group_by("least").agg(documents=ps.count(), times=ps.sum("times")))


def picky(rows: pa.Table) -> pa.Table:
    """Raises for a value that comes once in a while."""
    if 507 in rows.column("v").to_pylist():
        raise LookupError("507")
    return rows


def add_prices(app: ps.App, events: ps.Stream, name: str) -> None:
    """Rows beside a table's version of their own time."""
    prices = app.table(
        "prices",
        "page STRING, price BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        key="page",
        time=ps.event_time("at", idle="1 hour"),
    )
    some = events.where("v % 4 = 0").enrich(
        prices.select("page", "price"), on="page", as_of="event time"
    )
    app.view("charged", some.group_by("page").agg(n=ps.count(), paid=ps.sum("price * v")))
    some.where("v = 8").select("page", "price", "at").to(f"{name}-charged")


if __name__ == "__main__":
    pipeline(*sys.argv[1:5]).main(["--no-ui", *sys.argv[5:]])
