"""The pipeline that `test_kills` kills. Arguments: name, directory, address; `transactions`, or nothing."""

import sys

import penstock as ps


def pipeline(name: str, directory: str, address: str, output: str = "") -> ps.App:
    """Aggregates, joins of streams and of tables, corrections, deduplication; output topics of each kind."""
    app = ps.App(name, directory=directory, log=f"kafka://{address}", transactions=bool(output))
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
    if output:
        tens.to(f"{name}-again", partitions=3)
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
    totals = events.group_by("user").agg(total=ps.sum("v"))
    kinds = events.deduplicate("user", "page", within="5 seconds").group_by("user")
    joined = totals.join(kinds.agg(pages=ps.count()), on="user", how="full")
    app.view("joined", joined)
    app.view("leaders", joined.top(5, by=("pages DESC", "user")))
    joined.to(f"{name}-joined", emit="changes")
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:5]).main(["--no-ui"])
