"""A pipeline for `compose.yaml`: its log is in the environment, and embedded where it isn't.

podman compose -f examples/deploy/compose.yaml up
echo '{"user":"ann","at":"2026-01-05T12:00:01Z"}' | penstock produce clicks --broker 127.0.0.1:9092
"""

import os

import penstock as ps

app = ps.App("shop", log=os.environ.get("SHOP_LOG"))
clicks = app.stream(
    "clicks", "user STRING, at TIMESTAMP", time=ps.event_time("at", lateness="30 seconds")
)
per_minute = clicks.window(ps.tumbling("1 minute")).group_by("user").agg(clicks=ps.count())
app.view("per_minute", per_minute)

if __name__ == "__main__":
    app.main()
