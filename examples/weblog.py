"""What a web server did, from its access log: requests, bytes and errors per minute and per path.

    penstock demo weblog access.log.gz
    penstock demo weblog --follow /var/log/nginx/access.log

The events come from a feeder (`penstock.demo`), one JSON object for each line, in the order of the
file. A line that isn't in the log's format is sent as it is: it doesn't fit the schema below, so it
goes to the dead-letter topic with its reason, and the rest continues.
"""

from __future__ import annotations

import penstock as ps


def pipeline(
    directory: str = "weblog.penstock",
    log: str | None = None,
    lateness: str = "60 seconds",
    window: str = "1 minute",
) -> ps.App:
    """The views over the topic of requests.

    Args:
        directory: where the log and the state live.
        log: another log than the embedded one, `kafka://host:port`.
        lateness: how far a line may lie behind the newest before it. Servers write a line when a
            request ends but date it by its begin, so lines are out of order. A line is late when
            all of its window lies that far behind.
        window: the size of the windows.
    """
    app = ps.App("weblog", directory=directory, log=log)
    requests = app.stream(
        "requests",
        "ip STRING, at TIMESTAMP NOT NULL, method STRING, path STRING, "
        "status INT NOT NULL, bytes BIGINT NOT NULL",
        time=ps.event_time("at", lateness=lateness),
    )

    totals = {
        "requests": ps.count(),
        "bytes": ps.sum("bytes"),
        "errors": ps.count(where="status >= 400"),
    }
    windows = requests.window(ps.tumbling(window))
    app.view("per_minute" if window == "1 minute" else "per_window", windows.agg(**totals))
    app.view("per_path", windows.group_by("path").agg(**totals))
    return app


if __name__ == "__main__":
    pipeline().main()
