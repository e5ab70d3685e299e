"""Who visited a web server, for how long: sessions of its access log.

    penstock run examples/visits.py
    echo '{"ip":"10.0.0.1","at":"2026-11-21T09:00:00Z","status":200,"bytes":512}' | penstock produce requests
    penstock query visits "SELECT ip, requests, seconds FROM visits ORDER BY seconds DESC LIMIT 5"

A visit is the requests of one address up to a pause of half an hour. It is in the view from its first request
on; when the pause has passed, it is final, and counts in the hour in which it ended.
"""

from __future__ import annotations

import penstock as ps


def pipeline(
    directory: str = "visits.penstock", log: str | None = None, pause_s: int = 1_800
) -> ps.App:
    """The visits, and how many there are and how long, per hour.

    Args:
        directory: where the log and the state live.
        log: another log than the embedded one, `kafka://host:port`.
        pause_s: seconds without a request that end a visit.
    """
    app = ps.App("visits", directory=directory, log=log)
    requests = app.stream(
        "requests",
        "ip STRING, at TIMESTAMP NOT NULL, path STRING, status INT NOT NULL, bytes BIGINT NOT NULL",
        time=ps.event_time("at", lateness="60 seconds"),
    )
    visits = (
        requests.window(ps.session(f"{pause_s} seconds"), keep="30 days")
        .group_by("ip")
        .agg(requests=ps.count(), errors=ps.count(where="status >= 400"), bytes=ps.sum("bytes"))
        .select(
            *("window_start", "window_end", "ip", "requests", "errors", "bytes"),
            seconds=f"epoch(window_end) - epoch(window_start) - {pause_s}",
        )
    )
    app.view("visits", visits)
    lengths = {"visits": ps.count(), "mean_s": ps.avg("seconds"), "longest_s": ps.max("seconds")}
    app.view("lengths", visits.closed().window(ps.tumbling("1 hour")).agg(**lengths))
    visits.to("visits")
    return app


if __name__ == "__main__":
    pipeline().main()
