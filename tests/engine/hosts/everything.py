"""A program with every kind of operator, and what is sent to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps

__all__ = ["OUTPUTS", "everything", "waves"]

START_US = 1_767_225_600_000_000  # 2026-01-01
OUTPUTS = (
    "copies", "closed", "corrected", "paced", "joined", "pairs", "charged", "now", "before",
    "counted", "seen", "falls", "left", "searched",
)  # fmt: skip


def doubled(rows: pa.Table) -> pa.Table:
    """A function of the user's."""
    return rows.set_column(rows.column_names.index("v"), "v", pc.multiply(rows["v"], 2))


def running(rows: pa.Table, state: pa.Table, until: Any) -> tuple[pa.Table, pa.Table]:
    """How many rows each user has had."""
    counts = {row["user"]: row["n"] for row in state.to_pylist()}
    out = []
    for row in rows.to_pylist():
        counts[row["user"]] = counts.get(row["user"], 0) + 1
        out.append({"user": row["user"], "at": row["at"], "n": counts[row["user"]]})
    columns = pa.schema(
        [("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())]
    )
    kept = pa.table({"user": list(counts), "n": pa.array(counts.values(), pa.int64())})
    return pa.Table.from_pylist(out, columns), kept


def everything(name: str = "p", *, transactions: bool = False, **where: Any) -> ps.App:
    """The program."""
    app = ps.App(name, transactions=transactions, **where)
    events = app.stream(
        "events",
        "user STRING NOT NULL, page STRING, v BIGINT, x DOUBLE, tags ARRAY<STRING>, at TIMESTAMP",
        time=ps.event_time("at", lateness="5 seconds"),
        key="user",
        partitions=3,
    )
    orders = app.stream(
        "orders",
        "user STRING, amount BIGINT, ordered TIMESTAMP",
        time=ps.event_time("ordered", lateness="10 seconds"),
        partitions=2,
    )
    users = app.table("users", "id STRING, level BIGINT", key="id", partitions=2)
    _aggregates(app, events)
    _joins(app, events, orders, users)
    _streams(app, events)
    _standing(app, events, orders, users)
    return app


def _aggregates(app: ps.App, events: ps.Stream) -> None:
    minutes = (
        events.window(ps.tumbling("1 minute"))
        .group_by("user")
        .agg(n=ps.count(), total=ps.sum("v"), most=ps.max("x"), mean=ps.avg("x"))
    )
    app.view("minutes", minutes)
    minutes.to("closed", partitions=2)
    hops = (
        events.window(ps.hopping("1 minute", every="20 seconds"), keep="10 minutes")
        .group_by("page")
        .agg(n=ps.count(), users=ps.count_distinct("user"))
    )
    app.view("hops", hops)
    app.view("busiest", hops.group_by().agg(most=ps.max("n"), all=ps.sum("users")))
    corrected = (
        events.window(ps.tumbling("30 seconds"), late="correct", keep="2 minutes")
        .group_by("page")
        .agg(n=ps.count(), often=ps.frequent("x", limit=2))
    )
    corrected.to("corrected", partitions=2)
    app.view("sessions", events.window(ps.session("15 seconds")).group_by("user").agg(n=ps.count()))
    revised = events.window(ps.session("15 seconds"), late="correct", keep="5 minutes")
    app.view("revised", revised.group_by("page").agg(n=ps.count(), x=ps.quantile("x", 0.5)))
    minutes.to("paced", emit="upserts", every="1 minute", partitions=2)


def _joins(app: ps.App, events: ps.Stream, orders: ps.Stream, users: ps.Table) -> None:
    totals = events.group_by("user").agg(total=ps.sum("v"))
    ordered = orders.group_by("user").agg(ordered=ps.sum("amount"), first=ps.min("amount"))
    joined = totals.join(ordered, on="user", how="full")
    app.view("joined", joined)
    joined.to("joined", emit="changes", partitions=2)
    app.view("leaders", joined.top(3, by=("total DESC", "user")))
    pairs = events.select("user", "v", "at").join(
        orders, on="user", within=("0 seconds", "20 seconds"), how="left"
    )
    pairs.to("pairs", partitions=2)
    orders.enrich(users, on={"user": "id"}, how="left").to("now")
    orders.enrich(users, on={"user": "id"}, how="left", as_of="event time").to("charged")
    app.view("levels", users.group_by("level").agg(n=ps.count()))
    over = "OVER (PARTITION BY level ORDER BY id)"
    place = f"row_number() {over} AS place, ntile(2) {over} AS half"
    recent = "SELECT user, v FROM events WHERE at > now() - INTERVAL 30 SECONDS"
    app.view("recent", sql=recent, tables={"events": events})
    app.view("ranked", sql=f"SELECT id, level, {place} FROM users", tables={"users": users})


def _streams(app: ps.App, events: ps.Stream) -> None:
    both = events.where("v >= 0").union(events.where("x > 0.5")).map_batches(doubled, _COLUMNS)
    both.deduplicate("page", "v", within="10 seconds").to("copies", partitions=3)
    tags = events.unnest("tags", name="tag").group_by("tag").agg(n=ps.count())
    app.view("tags", tags.where("n > 1"))
    events.window(ps.sliding("10 seconds")).group_by("page").agg(n=ps.count()).to("before")
    events.window(ps.count_window(5, every=2)).group_by("page").agg(t=ps.sum("v")).to("counted")
    columns = "user STRING, at TIMESTAMP, n BIGINT"
    events.process(running, per="user", schema=columns, time="at", state="n BIGINT").to("seen")
    # A step that may fail, over rows of a view.
    app.view(
        "pages", tags.select("n", page="CAST(tag AS BIGINT)").group_by("page").agg(n=ps.count())
    )


def _standing(app: ps.App, events: ps.Stream, orders: ps.Stream, users: ps.Table) -> None:
    """Patterns and searches, which wait for rows."""
    seen: dict[str, Any] = {
        "by": "user", "within": "30 seconds", "a": "v > 3", "b": "v <= FIRST(a.v)",
        "measures": {"n": "count(*)", "v": "LAST(b.v)"},
    }  # fmt: skip
    falls = events.match("a b+", **seen)
    falls.to("falls", partitions=2)
    waiting = events.match(
        "a -> !b -> c", by="user", within="30 seconds", a="v > 3", b="v < 0", c="v = 9"
    )
    waiting.timed_out.to("left", partitions=2)
    long = events.match("a -> c", by="user", within="3 minutes", a="v > 3", c="v = 9")
    app.view("open", long.partial)
    corrected = events.match("a b+", **seen, correct="1 minute")
    app.view("falls", corrected.group_by("user").agg(n=ps.count()))
    ranks = users.match("low any*", order="id", low="level < 2", measures={"n": "count(*)"})
    app.view("ranks", ranks)
    searches = users.select("id", query="CAST(id AS STRING) || ' OR level:' || level")
    named = orders.select(who="user", level="amount % 5", ordered="ordered")
    named.percolate(searches, query="query", text="who").to("searched", partitions=2)


_COLUMNS = "user STRING NOT NULL, page STRING, v BIGINT, x DOUBLE, tags ARRAY<STRING>, at TIMESTAMP"

Sent = tuple[str, int, bytes | None, bytes | None, int]
"""Topic, partition, key, value, timestamp in ms."""


def waves(seed: int, count: int, rows: int) -> Iterator[list[Sent]]:
    """What is sent before each batch: disorder, late rows, updates, deletions, and what doesn't fit."""
    chance = random.Random(seed)
    for wave in range(count):
        sent: list[Sent] = []
        for _ in range(rows):
            now_us = START_US + wave * 40_000_000 + chance.randrange(40_000_000)
            at_us = now_us - chance.choice([0, 0, 0, 4_000_000, 20_000_000, 90_000_000])
            user = chance.choice("abcdefg")
            kind = chance.random()
            if kind < 0.6:
                event = {
                    "user": user, "page": chance.choice(["/a", "/b", None]), "at": at_us // 1_000,
                    "v": chance.choice([None, "?", *range(-3, 9)]), "x": chance.random(),
                    "tags": chance.sample(["1", "2", "three"], chance.randrange(3)),
                }  # fmt: skip
                sent.append(("events", ord(user) % 3, user.encode(), orjson.dumps(event), now_us))
            elif kind < 0.85:
                order = {"user": user, "amount": chance.randrange(100), "ordered": at_us // 1_000}
                sent.append(("orders", chance.randrange(2), None, orjson.dumps(order), now_us))
            else:
                row = {"id": user, "level": chance.randrange(4)}
                value = None if chance.random() < 0.2 else orjson.dumps(row)
                sent.append(("users", ord(user) % 2, user.encode(), value, now_us))
        yield [(t, p, k, v, us // 1_000) for t, p, k, v, us in sent]
