"""How well searches are answered: what is clicked on and how soon, and what nobody clicks on.

    penstock run examples/searches.py
    echo '{"search":1,"query":"shoes","at":"2026-11-21T09:00:00Z"}' | penstock produce searches
    echo '{"search":1,"url":"/boots","clicked":"2026-11-21T09:00:07Z"}' | penstock produce clicks
    penstock query searches "SELECT query, clicks, seconds FROM per_query"

A click belongs to the search that it names, if it comes within ten minutes. A search without a click is
reported when the clicks' watermark has passed these ten minutes. Later clicks don't count.
"""

from __future__ import annotations

import penstock as ps

WITHIN = ("0 seconds", "10 minutes")
"""A click comes after its search, and at most so long after it."""


def pipeline(
    directory: str = "searches.penstock", log: str | None = None, lateness: str = "30 seconds"
) -> ps.App:
    """What became of searches, hour by hour and query by query; and those that nothing became of."""
    app = ps.App("searches", directory=directory, log=log)
    searches = app.stream(
        "searches",
        "search BIGINT NOT NULL, query STRING NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness=lateness),
    )
    clicks = app.stream(
        "clicks",
        "search BIGINT NOT NULL, url STRING NOT NULL, clicked TIMESTAMP NOT NULL",
        time=ps.event_time("clicked", lateness=lateness),
    )
    outcomes = searches.join(clicks, on="search", within=WITHIN, how="left")
    app.view(
        "per_query",
        outcomes.select("query", "url", seconds="epoch(clicked) - epoch(at)")
        .window(ps.tumbling("1 hour"))
        .group_by("query")
        .agg(
            clicks=ps.count("url"),
            unanswered=ps.count(where="url IS NULL"),
            seconds=ps.avg("seconds"),
        ),
    )
    searches.join(clicks, on="search", within=WITHIN, how="anti").to("unanswered")
    return app


if __name__ == "__main__":
    pipeline().main()
