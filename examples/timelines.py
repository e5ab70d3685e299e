"""The social network's timelines: what the people that one follows have posted, newest first.

    penstock run examples/timelines.py
    echo '{"id":1,"sender":"bob","text":"hi","posted":"2026-11-21T09:00:00Z"}' | penstock produce posts
    echo '{"id":7,"follower":"ann","followee":"bob"}' | penstock produce follows
    penstock query timelines "SELECT follower, text FROM timelines ORDER BY posted DESC"

Kept up to date change by change, as in *Designing Data-Intensive Applications*, chapter "Stream Processing":
a post appears in the timeline of each of its sender's followers, and disappears when it is deleted. A new
follower sees the older posts at once. A user who unfollows sees none.
"""

from __future__ import annotations

import penstock as ps

SHOWN = 50
"""Posts of a timeline."""


def pipeline(directory: str = "timelines.penstock", log: str | None = None) -> ps.App:
    """Timelines from the tables of posts and of who follows whom."""
    app = ps.App("timelines", directory=directory, log=log)
    posts = app.table(
        "posts", "id BIGINT NOT NULL, sender STRING, text STRING, posted TIMESTAMP", key="id"
    )
    follows = app.table(
        "follows", "id BIGINT NOT NULL, follower STRING, followee STRING", key="id"
    ).select("follower", "followee", follow="id")
    delivered = posts.join(follows, on={"sender": "followee"})
    timelines = delivered.top(SHOWN, by=("posted DESC", "id DESC"), per="follower")
    app.view("timelines", timelines.select("follower", "sender", "id", "text", "posted"))
    app.view("followers", follows.group_by("followee").agg(followers=ps.count()))
    delivered.select("follower", "follow", "id", "sender", "text", "posted").to("deliveries")
    return app


if __name__ == "__main__":
    pipeline().main()
