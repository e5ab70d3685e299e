"""Who scans a web server: ten missing pages of one address within a minute, and then one that is there.

    zcat access.log.gz | penstock demo weblog -      # or any other feed of the topic "requests"
    penstock run examples/scans.py
    penstock consume scans
    penstock query scans "SELECT ip, misses FROM probes ORDER BY misses DESC LIMIT 5"

A scanner asks for what isn't there until it finds something. Other requests may lie between: `other`, which
has no condition, is any row, and `*?` takes as few of them as possible. Attempts that found nothing within
the minute are `probes`.
"""

from __future__ import annotations

import penstock as ps


def pipeline(
    directory: str = "scans.penstock",
    log: str | None = None,
    lateness: str = "60 seconds",
    misses: int = 10,
) -> ps.App:
    """The scans in a topic of requests, as `examples/weblog.py` has it.

    Args:
        directory: where the log and the state live.
        log: another log than the embedded one, `kafka://host:port`.
        lateness: how far a request may lie behind the newest before it.
        misses: pages that aren't there, before one that is.
    """
    app = ps.App("scans", directory=directory, log=log)
    requests = app.stream(
        "requests",
        "ip STRING, at TIMESTAMP NOT NULL, method STRING, path STRING, "
        "status INT NOT NULL, bytes BIGINT NOT NULL",
        time=ps.event_time("at", lateness=lateness),
    )
    found = requests.match(
        f"(miss other*?){{{misses}}} hit",
        by="ip",
        within="1 minute",
        order="path",
        miss="status = 404",
        hit="status BETWEEN 200 AND 299",
        measures={
            "since": "FIRST(miss.at)",
            "until": "hit.at",
            "misses": "count(miss.*)",
            "hit": "hit.path",
        },
    )
    found.to("scans")
    app.view("scanners", found.group_by("ip").agg(scans=ps.count(), hit=ps.last("hit")))
    probes = found.timed_out.where(f"misses >= {misses // 2}")
    app.view("probes", probes.group_by("ip").agg(misses=ps.max("misses")))
    return app


if __name__ == "__main__":
    pipeline().main()
