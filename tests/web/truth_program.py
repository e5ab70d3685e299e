"""The pipeline whose page `test_truth` doubts. Arguments: directory, log address, the page's port."""

import sys

import penstock as ps


def pipeline(directory: str, address: str) -> ps.App:
    """Clicks per user and minute."""
    app = ps.App("shop", directory=directory, log=f"kafka://{address}")
    clicks = app.stream(
        "clicks",
        "user STRING NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="10 seconds", idle="1 hour"),
        partitions=2,
    )
    per_user = clicks.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())
    app.view("per_user", per_user)
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:3]).main(["--port", sys.argv[3]])
