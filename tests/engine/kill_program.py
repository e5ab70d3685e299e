"""The pipeline that `test_kills` kills. Arguments: name, directory, log address."""

import sys

import penstock as ps


def pipeline(name: str, directory: str, address: str) -> ps.App:
    """Fused and exchanged aggregates, windows of windows, and two output topics."""
    app = ps.App(name, directory=directory, log=f"kafka://{address}")
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
    events.where("v % 10 = 0").select("user", "v", "at").to(f"{name}-tens", partitions=2)
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:4]).main(["--no-ui"])
