"""Queries in SQL, pipelines in one transaction a batch, and programs that change. Frozen as `windows`."""

from __future__ import annotations

from typing import Final

from tests.compat.programs.feeds import EVENTS, ORDERS_TABLE, USERS_TABLE
from tests.compat.programs.tables import tables
from tests.compat.programs.windows import source

import penstock as ps

QUERIES: Final = {
    "listed": "SELECT user, string_agg(kind, ',' ORDER BY at) AS kinds FROM events GROUP BY user",
    "lagged": """SELECT user, at, v, lag(v) OVER (PARTITION BY user ORDER BY at) AS before,
                 sum(v) OVER (PARTITION BY user ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s
                 FROM events""",
    "ranked": """SELECT id, rank() OVER (PARTITION BY "user" ORDER BY total) AS nth,
                 sum(total) OVER (PARTITION BY "user" ORDER BY id) AS so_far FROM orders""",
    "recent": "SELECT kind, count(*) AS n FROM events WHERE at > now() - INTERVAL 1 MINUTE GROUP BY kind",
    "newest": "SELECT * FROM events QUALIFY row_number() OVER (PARTITION BY kind ORDER BY at DESC) <= 2",
    "cubed": "SELECT user, kind, count(*) AS n, sum(price) AS paid FROM events GROUP BY CUBE (user, kind)",
    "richer": """SELECT id, total FROM orders AS o
                 WHERE total > (SELECT avg(total) FROM orders AS i WHERE i."user" = o."user")""",
    "absent": "SELECT * FROM users WHERE NOT EXISTS (SELECT 1 FROM orders WHERE orders.user = users.user)",
    "joined": """SELECT users.shop, count(*) AS n, max(total) AS most FROM orders
                 LEFT JOIN users ON users.user = orders.user GROUP BY users.shop""",
    "theta": """SELECT a.id, b.id AS other FROM orders AS a
                JOIN orders AS b ON a."user" = b."user" AND a.total < b.total""",
    "asof": """SELECT o.id, e.v FROM orders AS o
               ASOF LEFT JOIN (SELECT user, v, hash(v) % 100 AS t FROM events WHERE v IS NOT NULL) AS e
               ON o."user" = e.user AND o.total >= e.t""",
    "both": "SELECT user FROM users INTERSECT SELECT user FROM orders",
    "either": "SELECT user, 1 AS n FROM users UNION ALL SELECT user, total FROM orders WHERE total > 50",
    "rest": "SELECT user FROM orders EXCEPT SELECT user FROM users",
    "tagged": "SELECT t.tag, count(*) AS n FROM events, UNNEST(events.tags) AS t(tag) GROUP BY t.tag",
    "pivoted": """FROM (PIVOT events ON kind IN ('click', 'buy')
                  USING count(*) AS n, max(v) AS v GROUP BY user)""",
    "chained": """WITH RECURSIVE chain AS (
                      SELECT id, id AS root, 1 AS step FROM orders WHERE id < 3
                      UNION SELECT o.id, chain.root, step + 1 FROM chain
                      JOIN orders AS o ON o.id = chain.id + 3 WHERE step < 8)
                  SELECT root, count(*) AS n, max(id) AS last FROM chain GROUP BY root""",
    "all": "SELECT count(*) AS n, sum(v) AS v FROM events",
    "minutes": """SELECT window_start, user, count(*) AS n, median(v) AS v
                  FROM TUMBLE(events, at, INTERVAL 1 MINUTE) GROUP BY window_start, user""",
    "slid": """SELECT window_end, kind, count(*) AS n FROM SLIDE(events, at, INTERVAL 30 SECONDS)
               GROUP BY window_end, kind""",
    "answered": """SELECT a.user, b.v FROM events AS a LEFT JOIN events AS b
                   ON b.user = a.user AND b.at > a.at AND b.at <= a.at + INTERVAL 10 SECONDS""",
}
FIRST: Final = (
    "listed",
    "lagged",
    "ranked",
    "recent",
    "newest",
    "cubed",
    "richer",
    "absent",
    "joined",
)


def queries(*names: str) -> ps.App:
    """Views that are queries."""
    app = ps.App("queries")
    source(app)
    tables(app)
    for name in names:
        app.view(name, sql=QUERIES[name])
    return app


def first_queries() -> ps.App:
    """Some of the queries."""
    return queries(*FIRST)


def other_queries() -> ps.App:
    """The others."""
    return queries(*(name for name in QUERIES if name not in FIRST))


PROGRAM: Final = f"""
CREATE STREAM events ({EVENTS}, WATERMARK FOR at AS at - INTERVAL 30 SECONDS) WITH (partitions = 2);
CREATE TABLE users ({USERS_TABLE}, PRIMARY KEY (user));
CREATE TABLE orders ({ORDERS_TABLE}, PRIMARY KEY (id)) WITH (partitions = 2);
CREATE VIEW bought AS SELECT user, at, v FROM events WHERE kind = 'buy';
CREATE MATERIALIZED VIEW per_minute AS
  SELECT window_start, user, count(*) AS n, sum(v) AS v
  FROM TUMBLE(bought, at, INTERVAL 1 MINUTE, keep => INTERVAL 10 MINUTES) GROUP BY window_start, user;
CREATE MATERIALIZED VIEW spent AS SELECT "user", sum(total) AS total FROM orders GROUP BY "user";
CREATE MATERIALIZED VIEW shops AS
  SELECT users.user, shop, total FROM users LEFT JOIN spent ON spent.user = users.user;
CREATE SINK spent_out INTO 'spent' AS SELECT * FROM spent;
CREATE SINK minutes_out INTO 'minutes' AS
  SELECT window_start, kind, count(*) AS n FROM TUMBLE(events, at, INTERVAL 1 MINUTE)
  GROUP BY window_start, kind EMIT ON CLOSE;
"""


def program() -> ps.App:
    """A program of statements."""
    app = ps.App("program")
    app.sql(PROGRAM)
    return app


def transactions() -> ps.App:
    """A batch is one transaction."""
    app = ps.App("transactions", transactions=True)
    events = source(app)
    _, orders = tables(app)
    minutes = (
        events.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count(), v=ps.sum("v"))
    )
    app.view("minutes", minutes)
    minutes.to("minutes", partitions=2)
    orders.group_by("user").agg(n=ps.count(), total=ps.sum("total")).to("spent")
    events.where("v > 20").select("user", "v", "at").to("large")
    return app


def shop(*parts: str) -> ps.App:
    """A program that grows; its operators share traces."""
    app = ps.App("shop")
    events = source(app)
    users, orders = tables(app)
    spent = orders.group_by("user").agg(n=ps.count(), total=ps.sum("total"))
    app.view("spent", spent)
    minutes = events.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())
    app.view("minutes", minutes)
    minutes.to("minutes", partitions=2)
    app.view(
        "named",
        sql="SELECT users.shop, orders.total FROM orders JOIN users ON users.user = orders.user",
    )
    if "more" in parts:
        app.view(
            "again",
            sql="""SELECT shop, max(total) AS most FROM users
            LEFT JOIN orders ON orders.user = users.user GROUP BY shop""",
        )
        app.view(
            "sessions", events.window(ps.session("20 seconds")).group_by("user").agg(n=ps.count())
        )
        app.view("joined", spent.join(users, on="user", how="left"))
        spent.to("spent")
        events.deduplicate("user", "kind", within="1 minute").group_by("kind").agg(n=ps.count()).to(
            "kinds"
        )
    return app


def small_shop() -> ps.App:
    """The program before."""
    return shop()


def large_shop() -> ps.App:
    """The program that it becomes."""
    return shop("more")


def directory(folder: str) -> ps.App:
    """A program that runs on Spark with its own log."""
    app = ps.App("directory", directory=folder, cores=2)
    at = ps.event_time("at", lateness="30 seconds")
    events = app.stream("events", EVENTS, time=at)
    app.table("orders", ORDERS_TABLE, key="id")
    app.view("minutes", events.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count()))
    app.view("spent", sql='SELECT "user", sum(total) AS total FROM orders GROUP BY "user"')
    app.view("lagged", sql=QUERIES["lagged"])
    return app
