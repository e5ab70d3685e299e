"""Aggregates, joins, and operators with keys. Frozen as `windows`."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.compat.programs.feeds import EVENTS, ORDERS_TABLE, USERS_TABLE
from tests.compat.programs.windows import source

import penstock as ps


def tables(app: ps.App) -> tuple[ps.Table, ps.Table]:
    """Users and orders."""
    users = app.table("users", USERS_TABLE, key="user", time=ps.event_time(lateness="20 seconds"))
    orders = app.table("orders", ORDERS_TABLE, key="id", partitions=2)
    return users, orders


def aggregates() -> ps.App:
    """Every aggregate function, of streams and, where it can be, of tables; in windows and without."""
    app = ps.App("aggregates")
    events = source(app)
    _, orders = tables(app)
    both: dict[str, Any] = {
        "n": ps.count(),
        "some": ps.count("v", where="v > 10"),
        "total": ps.sum("total"),
        "mean": ps.avg("total"),
        "spread": ps.variance("total"),
        "deviation": ps.stddev("total"),
        "low": ps.min("total"),
        "high": ps.max("total"),
        "of_low": ps.arg_min("name", by="total"),
        "of_high": ps.arg_max("name", by="total"),
        "distinct": ps.count_distinct("name"),
        "median": ps.quantile("total", 0.5),
        "all": ps.collect("total", limit=5),
        "newest": ps.collect("total", limit=3, by="v DESC"),
        "often": ps.frequent("name", limit=2),
        "how_often": ps.frequencies("name", limit=2),
    }
    sketches: dict[str, Any] = {
        "about": ps.approx_count_distinct("v"),
        "about_median": ps.approx_quantile("total", 0.5),
        "theta": ps.theta_sketch_agg("v"),
        "bloom": ps.bloom_filter_agg("v", capacity=100),
    }
    rows = events.select("user", "v", "x", "price", "at", name="kind", total="v * 2")
    app.view("of_stream", rows.group_by("user").agg(**both, **sketches))
    app.view("of_numbers", rows.group_by().agg(x=ps.sum("x"), p=ps.sum("price"), m=ps.avg("price")))
    windowed = rows.window(ps.tumbling("1 minute"), keep="10 minutes").group_by("user")
    in_windows = windowed.agg(**both, **sketches)
    app.view("in_windows", in_windows)
    unions = in_windows.closed().group_by("user")
    app.view("unions", unions.agg(theta=ps.theta_union_agg("theta")))
    of_table = orders.select("id", "user", "total", name="user || '-' || (id % 3)", v="id")
    app.view("of_table", of_table.group_by("user").agg(**both))
    app.view(
        "of_doubles", of_table.select(x="total / 3").group_by().agg(x=ps.sum("x"), a=ps.avg("x"))
    )
    followed = of_table.group_by("user").agg(
        n=ps.count(), often=ps.frequent("name", limit=2), low=ps.min("v")
    )
    followed.to("followed")
    return app


HOWS = ("inner", "left", "right", "full", "semi", "anti")


def joins() -> ps.App:
    """Joins of streams, of tables, and of both, of all kinds."""
    app = ps.App("joins")
    events = source(app)
    users, orders = tables(app)
    views = events.where("kind = 'view'").select("user", "at", seen="v")
    buys = events.where("kind = 'buy'").select("user", "at", bought="v", paid="price")
    of_buys = buys.select("user", "bought", "paid")
    spent = orders.group_by("user").agg(orders=ps.count(), spent=ps.sum("total"))
    for how in HOWS:
        views.join(of_buys, on="user", within=("5 seconds", "20 seconds"), how=how).to(
            f"near-{how}"
        )
        app.view(f"joined_{how}", spent.join(users, on="user", how=how))
    app.view("by_order", orders.join(users, on="user", how="left"))
    for how in ("inner", "left"):
        events.select("user", "v", "at").enrich(users, on="user", how=how).to(f"current-{how}")
        events.select("user", "v", "at").enrich(users, on="user", how=how, as_of="event time").to(
            f"then-{how}"
        )
    later = views.enrich(spent, on="user", how="left")
    app.view("later", later.group_by("user").agg(n=ps.count(), most=ps.max("spent")))
    return app


def keyed() -> ps.App:
    """Distinct rows, first rows, duplicates, paced topics, rows of arrays, functions of batches."""
    app = ps.App("keyed")
    events = source(app)
    _, orders = tables(app)
    app.view("kinds", events.select("user", "kind").distinct())
    app.view("totals", orders.select("user", half="total // 20").distinct())
    top = events.select("user", "kind", "v", "at").top(2, by=("v DESC", "at"), per="user")
    app.view("top", top)
    app.view("top_orders", orders.top(3, by="total DESC"))
    app.view("top_of_users", orders.top(2, by=("total", "id"), per="user"))
    once = events.select("user", "v", "at").deduplicate("user", "v")
    once.to("once")
    events.select("user", "kind", "at").deduplicate("user", "kind", within="1 minute").to(
        "once-a-minute"
    )
    spent = orders.group_by("user").agg(orders=ps.count(), spent=ps.sum("total"))
    spent.to("paced", every="1 minute")
    spent.to("paced-changes", every="30 seconds", emit="changes")
    spent.to("upserts", partitions=2)
    tags = events.select("user", "tags", "at").unnest("tags", name="tag")
    app.view("tags", tags.group_by("tag").agg(n=ps.count()))
    doubled = events.select("user", "v").map_batches(double, "user STRING, v BIGINT")
    app.view(
        "doubled", doubled.union(events.select("user", "v")).group_by("user").agg(v=ps.sum("v"))
    )
    return app


def double(rows: pa.Table) -> pa.Table:
    """Twice the value."""
    return rows.set_column(rows.schema.get_field_index("v"), "v", pc.multiply(rows["v"], 2))


def processes() -> ps.App:
    """Functions with state and timers, and with a table that changes."""
    app = ps.App("processes")
    events = app.stream(
        "events", EVENTS, time=ps.event_time("at", lateness="30 seconds"), partitions=2
    )
    users, orders = tables(app)
    how: dict[str, Any] = {
        "per": "user",
        "schema": "user STRING, what STRING, n BIGINT, at TIMESTAMP",
        "time": "at",
        "state": "n BIGINT, wake TIMESTAMP",
    }
    quiet = events.process(silences, wake="wake", **how)
    quiet.to("silences")
    app.view("quiet", quiet.window(ps.tumbling("2 minutes")).group_by("what").agg(n=ps.count()))
    events.process(judged, broadcast=users, **how).to("judged")
    spent = orders.group_by("user").agg(score=ps.sum("total"))
    events.process(judged, broadcast=spent, as_of=None, name="judged now", **how).to("judged-now")
    return app


OUT = pa.schema(
    [
        ("user", pa.string()),
        ("what", pa.string()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def silences(rows: pa.Table, state: pa.Table, until: dt.datetime) -> tuple[pa.Table, pa.Table]:
    """Counts the rows of a key, and says so when none has come for half a minute."""
    known = {one["user"]: one for one in state.to_pylist()}
    out = []
    for one in rows.to_pylist():
        before = known.get(one["user"]) or {"n": 0}
        wake = one["at"] + dt.timedelta(seconds=30)
        known[one["user"]] = {"user": one["user"], "n": before["n"] + 1, "wake": wake}
    for one in known.values():
        if one["wake"] is not None and one["wake"] <= until:
            out.append({"user": one["user"], "what": "silent", "n": one["n"], "at": one["wake"]})
            one["wake"] = None
    return pa.Table.from_pylist(out, OUT), pa.Table.from_pylist(list(known.values()), state.schema)


def judged(
    rows: pa.Table, state: pa.Table, until: dt.datetime, rules: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """The rows whose value is above the score of their user."""
    scores = {one["user"]: one["score"] for one in rules.to_pylist()}
    out = [
        {"user": one["user"], "what": one["kind"], "n": one["v"], "at": one["at"]}
        for one in rows.to_pylist()
        if (one["v"] or 0) > (scores.get(one["user"]) or 0)
    ]
    return pa.Table.from_pylist(out, OUT), state
