"""A program of views only, whose batches wait for their plans alone. Arguments: name, directory, address."""

import sys

import penstock as ps


def pipeline(name: str, directory: str, address: str) -> ps.App:
    """Windows, sessions, aggregates that un-aggregate, and a join with a table."""
    app = ps.App(name, directory=directory, log=f"kafka://{address}")
    events = app.stream(
        "events",
        "user STRING NOT NULL, page STRING, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        # Idleness goes by the wall clock, which no two runs share.
        time=ps.event_time("at", lateness="2 seconds", idle="1 hour"),
        key="user",
        partitions=2,
    )
    prices = app.table(
        "prices",
        "page STRING, price BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        key="page",
        time=ps.event_time("at", idle="1 hour"),
    )
    per_user = events.window(ps.tumbling("10 seconds")).group_by("user")
    app.view("per_user", per_user.agg(n=ps.count(), total=ps.sum("v"), low=ps.min("v")))
    per_page = events.window(ps.hopping("20 seconds", every="5 seconds")).group_by("page")
    app.view("per_page", per_page.agg(n=ps.count(), users=ps.count_distinct("user")))
    visits = events.where("v < 20").window(ps.session("3 seconds")).group_by("user")
    app.view("visits", visits.agg(n=ps.count(), total=ps.sum("v")))
    totals = events.group_by("page").agg(n=ps.count(), total=ps.sum("v"))
    app.view("priced", totals.join(prices.select("page", "price"), on="page", how="left"))
    app.view("leaders", events.group_by("user").agg(n=ps.count()).top(5, by=("n DESC", "user")))
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:4]).main(["--no-ui", *sys.argv[4:]])
